"""Packets and frames, built field by field."""
import ipaddress
import struct


def checksum(data):
    """The sum of IP, UDP and ICMP."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp(source, destination, port, payload, sum_of_it=None, source_port=4444):
    """A datagram with its header, whose checksum is right unless another is given; 0 is none."""
    length = 8 + len(payload)
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    head = struct.pack("!HHHH", source_port, port, length, 0)
    right = checksum(addresses + struct.pack("!HH", 17, length) + head + payload) or 0xFFFF
    return head[:6] + struct.pack("!H", right if sum_of_it is None else sum_of_it) + payload


def ip(source, destination, body, fragment=0, options=b"", number=0):
    """A packet of the addresses' family."""
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    if ":" in source:
        return struct.pack("!IHBB", 6 << 28, len(body), 17, 64) + addresses + body
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, 4 * words + len(body), number, fragment, 64, 17, 0)
    head += addresses + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def frame(to, packet, source=b"\x02\0\0\0\0\x02", tag=None):
    """A frame for an Ethernet address, with a VLAN tag where one is given."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return to + source + (b"" if tag is None else struct.pack("!HH", 0x8100, tag)) + kind + packet
