"""What is in the files of udpd, read by nothing of udpd: payloads, byte for byte, and who a record says has sent them.

The formats are as docs/lines.md and docs/jsonl.md have them. A line may begin with a time and a source; every
payload of this rig begins with a mark, which ends that beginning.
"""

import base64
import gzip
import json
import re
import struct

MARK = re.compile(rb"S\d{8} ")
SOURCE = re.compile(rb"(127\.\d+\.\d+\.\d+):\d+ ")
NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}
ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|~(\d+)$|(.))", re.DOTALL)
RAW_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
# A packet in a capture begins with an IPv4 and a UDP header.
HEADERS_BYTES = 28


class Unreadable(Exception):
    """A file is not as the documentation has it."""


class Record:
    def __init__(self, payload, source=None, whole_bytes=None):
        self.payload, self.source = payload, source
        # The length of a payload that was cut, where the format says it.
        self.whole_bytes = whole_bytes


def content(path):
    with open(path, "rb") as file:
        data = file.read()
    # A file that somebody has moved has no ending any more.
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def of_lines(data):
    if not data.endswith(b"\n"):
        raise Unreadable(f"ends within a line: {data[-80:]}")
    for line in data[:-1].split(b"\n"):
        mark = MARK.search(line)
        if mark is None:
            raise Unreadable(f"a line that nobody sent: {line[:80]}")
        if RAW_CONTROL.search(line):
            raise Unreadable(f"a control character: {line[:80]}")
        source = SOURCE.search(line[: mark.start()])
        lengths = []

        def unescaped(match):
            if match[2]:
                lengths.append(int(match[2]))
                return b""
            return bytes([int(match[1], 16)]) if match[1] else NAMED[match[3]]

        payload = ESCAPE.sub(unescaped, line[mark.start() :])
        yield Record(payload, source and source[1].decode(), lengths[0] if lengths else None)


def of_jsonl(data):
    if not data.endswith(b"\n"):
        raise Unreadable(f"ends within a line: {data[-80:]}")
    for line in data[:-1].split(b"\n"):
        record = json.loads(line)
        if "payload_base64" in record:
            payload = base64.b64decode(record["payload_base64"], validate=True)
        else:
            payload = record["payload"].encode()
        yield Record(payload, record["source"].rsplit(":", 1)[0])


def of_pcapng(data):
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if length % 4 or at + length > len(data):
            raise Unreadable(f"a block of {length} bytes at {at} of {len(data)}")
        if struct.unpack_from("<I", data, at + length - 4)[0] != length:
            raise Unreadable(f"the block at {at} does not end as it begins")
        if kind == 6:
            captured = struct.unpack_from("<I", data, at + 20)[0]
            packet = data[at + 28 : at + 28 + captured]
            source = ".".join(str(byte) for byte in packet[12:16])
            yield Record(packet[HEADERS_BYTES:], source)
        at += length


READERS = {"lines": of_lines, "jsonl": of_jsonl, "pcapng": of_pcapng}
