"""Sends datagrams of the kinds that stand in standard input, in their order: some that arrive, and some that each get
lost in another layer of the receiving host."""

import json
import socket
import struct
import sys

HERE, THERE, ELSEWHERE = "10.8.0.2", "10.8.0.1", "10.8.0.77"


def checksum(data):
    words = struct.unpack(f"!{len(data) // 2}H", data)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def packet(source, to, number, more_fragments):
    """A packet of IP with a datagram in it, or with the first part of one. Without a checksum of UDP, which may be."""
    payload = struct.pack("!HHHH", 4000, 5140, 64 if more_fragments else 24, 0) + b"x" * 16
    flags = 0x2000 if more_fragments else 0
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), number, flags, 64, 17, 0,
                       socket.inet_aton(source), socket.inet_aton(to))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
whole = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
damaged = struct.pack("!HHHH", 4000, 5140, 12, 0x1234) + b"text"
for number, kind in enumerate(json.load(sys.stdin), start=1):
    if kind == "udpd":
        plain.sendto(b"x" * 200, (THERE, 5140))
    elif kind == "idle":
        plain.sendto(b"x" * 200, (THERE, 5141))
    elif kind == "closed":
        plain.sendto(b"x" * 200, (THERE, 5999))
    elif kind == "long":
        plain.sendto(b"x" * 1200, (THERE, 5140))
    elif kind == "damaged":
        whole.sendto(damaged, (THERE, 0))
    elif kind == "spoofed":
        made.sendto(packet("192.0.2.9", THERE, number, False), (THERE, 0))
    elif kind == "astray":
        made.sendto(packet(HERE, ELSEWHERE, number, False), (ELSEWHERE, 0))
    elif kind == "torn":
        made.sendto(packet(HERE, THERE, number, True), (THERE, 0))
