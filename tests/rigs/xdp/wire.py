"""Frames as they go over the cable, built field by field, and damaged at random: the same ones on every run."""
import ipaddress
import random
import struct

ME = b"\x02\x00\x00\x00\x00\x02"


def fold(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp(source, destination, port, payload, checksum=None):
    length = 8 + len(payload)
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    head = struct.pack("!HHHH", 4444, port, length, 0)
    right = fold(addresses + struct.pack("!HH", 17, length) + head + payload) or 0xFFFF
    return head[:6] + struct.pack("!H", right if checksum is None else checksum) + payload


def ip(source, destination, body, fragment=0, options=b"", number=0):
    if ":" in source:
        addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
        return struct.pack("!IHBB", 6 << 28, len(body), 17, 64) + addresses + body
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, 4 * words + len(body), number, fragment, 64, 17, 0)
    head += ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed + options
    return head[:10] + struct.pack("!H", fold(head)) + head[12:] + body


def frame(card, packet, tag=None):
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return card + ME + (b"" if tag is None else struct.pack("!HH", 0x8100, tag)) + kind + packet


PAIRS = [("10.8.0.2", "10.8.0.1"), ("fd00::2", "fd00::1")]


def right(card, noise, port):
    """A datagram of any length, nothing about it wrong."""
    source, destination = noise.choice(PAIRS)
    payload = noise.randbytes(noise.choice([0, 1, 18, 64, noise.randrange(1400)]))
    return frame(card, ip(source, destination, udp(source, destination, port, payload), number=noise.randrange(65536)))


def hostile(card, count, port, seed):
    """Datagrams of which most are unusual or damaged, in every place where that can be."""
    noise = random.Random(seed)
    frames = []
    while len(frames) < count:
        one = right(card, noise, port)
        kind = noise.randrange(10)
        if kind < 4:
            # A byte or three of the headers is something else.
            one = bytearray(one)
            for _ in range(noise.randrange(1, 4)):
                one[noise.randrange(min(len(one), 70))] = noise.randrange(256)
        elif kind == 4:
            one = one[: noise.randrange(14, len(one) + 1)]
        elif kind == 5:
            one = one + noise.randbytes(noise.randrange(1, 40))
        elif kind == 6:
            # The length of UDP or IP lies, and its checksum may be right all the same.
            source, destination = PAIRS[0]
            body = udp(source, destination, port, noise.randbytes(30))
            body = body[:4] + struct.pack("!H", noise.randrange(60)) + body[6:]
            body = body[:6] + noise.choice([b"\0\0", body[6:8]]) + body[8:]
            one = frame(card, ip(source, destination, body, number=noise.randrange(65536)))
        elif kind == 7:
            source, destination = PAIRS[0]
            options = noise.choice([b"\x01\x01\x01\x00", b"\x94\x04\0\0", b"\x07\x07\x04\0\0\0\0\0"])
            body = udp(source, destination, port, b"with options")
            one = frame(card, ip(source, destination, body, options=options))
        elif kind == 8:
            source, destination = PAIRS[0]
            body = udp(source, destination, port, noise.randbytes(64))
            number = len(frames) + seed
            one = frame(card, ip(source, destination, body[:40], 0x2000, number=number % 65536))
            frames.append(bytes(one))
            one = frame(card, ip(source, destination, body[40:], 5, number=number % 65536))
        elif noise.randrange(2):
            source, destination = noise.choice(PAIRS)
            checksum = noise.choice([0, noise.randrange(65536)])
            one = frame(card, ip(source, destination, udp(source, destination, port, b"sums", checksum)))
        frames.append(bytes(one))
    return frames[:count]
