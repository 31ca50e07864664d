"""Frames that are unusual or damaged at random: the same ones on every run."""
import random
import struct

from lib import packets

PAIRS = [("10.8.0.2", "10.8.0.1"), ("fd00::2", "fd00::1")]


def right(card, noise, port):
    """A datagram of any length, nothing about it wrong."""
    source, destination = noise.choice(PAIRS)
    payload = noise.randbytes(noise.choice([0, 1, 18, 64, noise.randrange(1400)]))
    body = packets.udp(source, destination, port, payload)
    return packets.frame(card, packets.ip(source, destination, body, number=noise.randrange(65536)))


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
            body = packets.udp(source, destination, port, noise.randbytes(30))
            body = body[:4] + struct.pack("!H", noise.randrange(60)) + body[6:]
            body = body[:6] + noise.choice([b"\0\0", body[6:8]]) + body[8:]
            one = packets.frame(card, packets.ip(source, destination, body, number=noise.randrange(65536)))
        elif kind == 7:
            source, destination = PAIRS[0]
            options = noise.choice([b"\x01\x01\x01\x00", b"\x94\x04\0\0", b"\x07\x07\x04\0\0\0\0\0"])
            body = packets.udp(source, destination, port, b"with options")
            one = packets.frame(card, packets.ip(source, destination, body, options=options))
        elif kind == 8:
            source, destination = PAIRS[0]
            body = packets.udp(source, destination, port, noise.randbytes(64))
            number = len(frames) + seed
            one = packets.frame(card, packets.ip(source, destination, body[:40], 0x2000, number=number % 65536))
            frames.append(bytes(one))
            one = packets.frame(card, packets.ip(source, destination, body[40:], 5, number=number % 65536))
        elif noise.randrange(2):
            source, destination = noise.choice(PAIRS)
            checksum = noise.choice([0, noise.randrange(65536)])
            body = packets.udp(source, destination, port, b"sums", checksum)
            one = packets.frame(card, packets.ip(source, destination, body))
        frames.append(bytes(one))
    return frames[:count]
