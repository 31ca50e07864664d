"""What is in the files of udpd, read by nothing of udpd: the numbers that `udpd bench send` put into the datagrams, from
files of lines and from captures. docs of both: crates/udpd/commands/bench/payload.rs and crates/udpd/format/lines.rs.
"""

import re
import struct

MAGIC = b"\xb5\x01"
# IPv4 and UDP.
HEADERS_BYTES = 28
ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}


def unescaped(match):
    what = match.group(1)
    return bytes([int(what[1:], 16)]) if what[:1] == b"x" else NAMED[what]


def number(payload):
    """Flow and sequence of a payload."""
    if payload[:2] != MAGIC:
        raise ValueError("not a datagram of the bench: %r" % payload[:32])
    both = int.from_bytes(payload[8:16], "little")
    return both >> 48, both & ((1 << 48) - 1)


def of_lines(data):
    """The numbers in a file of lines, and whether it ends within a line, as a kill may leave it."""
    *lines, rest = data.split(b"\n")
    if not rest:
        return [number(ESCAPE.sub(unescaped, line)) for line in lines], False
    return [number(ESCAPE.sub(unescaped, line)) for line in lines], True


def of_pcapng(data):
    """The same of a capture: every block is whole but perhaps the last."""
    numbers, at = [], 0
    while at < len(data):
        if len(data) - at < 12:
            return numbers, True
        kind, length = struct.unpack_from("<II", data, at)
        if length < 12 or length % 4:
            raise ValueError("a block of %d bytes at %d" % (length, at))
        if at + length > len(data):
            return numbers, True
        if struct.unpack_from("<I", data, at + length - 4)[0] != length:
            raise ValueError("the block at %d does not end as it begins" % at)
        if kind == 6:
            captured = struct.unpack_from("<I", data, at + 20)[0]
            packet = data[at + 28: at + 28 + captured]
            numbers.append(number(packet[HEADERS_BYTES:]))
        at += length
    return numbers, False
