"""What is in the files of udpd, read by nothing of udpd: payloads byte for byte, and the numbers that `udpd bench send`
put into them. docs/lines.md and docs/jsonl.md have the formats, payload.rs of the bench has the numbers.
"""
import base64
import json
import re
import struct

from lib.host import read_bytes

MAGIC = b"\xb5\x01"
NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}
# A byte in hexadecimal, the length of a payload that was cut, or a character with a name.
ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|~(\d+)$|(.))", re.DOTALL)
# IPv4 and UDP.
HEADERS_BYTES = 28
SECTION, PACKET = 0x0A0D0D0A, 6


class Unreadable(Exception):
    """A file is not as the documentation has it."""


def unescaped(line):
    """The payload in a line, and how long it was before it was cut, or None."""
    lengths = []

    def replace(match):
        if match[2]:
            lengths.append(int(match[2]))
            return b""
        return bytes([int(match[1], 16)]) if match[1] else NAMED[match[3]]

    return ESCAPE.sub(replace, line), lengths[0] if lengths else None


def lines(data):
    """The whole lines of a file, and whether it ends within one."""
    *whole, rest = data.split(b"\n")
    return whole, bool(rest)


def json_payload(record):
    if "payload_base64" in record:
        return base64.b64decode(record["payload_base64"], validate=True)
    return record["payload"].encode()


def json_records(data):
    """The records of a file of JSON, each a whole line."""
    whole, is_cut = lines(data)
    if is_cut:
        raise Unreadable(f"ends within a line: {data[-80:]}")
    return [json.loads(line) for line in whole]


def packets(data):
    """The packets of a capture, and whether it ends within a block, as a kill may leave it."""
    found, place = [], 0
    while place < len(data):
        if len(data) - place < 12:
            return found, True
        kind, length = struct.unpack_from("<II", data, place)
        if length < 12 or length % 4 or (place == 0 and kind != SECTION):
            raise Unreadable(f"a block of kind {kind:x} and {length} bytes at {place}")
        if place + length > len(data):
            return found, True
        if struct.unpack_from("<I", data, place + length - 4)[0] != length:
            raise Unreadable(f"the block at {place} does not end as it begins")
        if kind == PACKET:
            captured = struct.unpack_from("<I", data, place + 20)[0]
            found.append(data[place + 28:place + 28 + captured])
        place += length
    return found, False


def bench_number(payload):
    """Flow and number of a datagram of the bench."""
    if payload[:2] != MAGIC:
        raise Unreadable(f"not a datagram of the bench: {payload[:32]!r}")
    both = int.from_bytes(payload[8:16], "little")
    return both >> 48, both & ((1 << 48) - 1)


def bench_numbers(path, form="lines"):
    """The numbers in a file of lines or a capture, and whether it ends within a record."""
    data = read_bytes(path)
    if form == "lines":
        whole, is_cut = lines(data)
        return [bench_number(unescaped(line)[0]) for line in whole], is_cut
    found, is_cut = packets(data)
    return [bench_number(packet[HEADERS_BYTES:]) for packet in found], is_cut
