"""What is in the files of this rig: payloads, and the sender that a record names. A line may begin with a time and a
source; every payload of this rig begins with a mark, which ends that beginning."""
import gzip
import re

from lib.host import read_bytes
from lib.records import HEADERS_BYTES, Unreadable, json_payload, json_records, lines, packets, unescaped

MARK = re.compile(rb"S\d{8} ")
SOURCE = re.compile(rb"(127\.\d+\.\d+\.\d+):\d+ ")
RAW_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class Record:
    def __init__(self, payload, source=None, whole_bytes=None):
        self.payload, self.source = payload, source
        # The length of a payload that was cut, where the format says it.
        self.whole_bytes = whole_bytes


def content(path):
    data = read_bytes(path)
    # A file that was moved away has no ending any more.
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def of_lines(data):
    whole, is_cut = lines(data)
    if is_cut:
        raise Unreadable(f"ends within a line: {data[-80:]}")
    for line in whole:
        mark = MARK.search(line)
        if mark is None or RAW_CONTROL.search(line):
            raise Unreadable(f"a line that was not sent, or a control character: {line[:80]}")
        source = SOURCE.search(line[: mark.start()])
        payload, whole_bytes = unescaped(line[mark.start():])
        yield Record(payload, source and source[1].decode(), whole_bytes)


def of_jsonl(data):
    for record in json_records(data):
        yield Record(json_payload(record), record["source"].rsplit(":", 1)[0])


def of_pcapng(data):
    found, is_cut = packets(data)
    if is_cut:
        raise Unreadable(f"ends within a block: {data[-80:]}")
    for packet in found:
        yield Record(packet[HEADERS_BYTES:], ".".join(str(byte) for byte in packet[12:16]))


READERS = {"lines": of_lines, "jsonl": of_jsonl, "pcapng": of_pcapng}
