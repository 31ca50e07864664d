"""What a server has, as the judge reads it: for each record the payload, whether it was there as text, when it came in
nanoseconds, and who sent it. Each function is a generator over everything that is in a server.
"""
import base64
import calendar
import collections
import json
import re

from lib.records import json_payload

Stored = collections.namedtuple("Stored", "payload is_text time source")
TIME = re.compile(r"(\d+)-(\d+)-(\d+)[T ](\d+):(\d+):(\d+)(?:\.(\d+))?Z?$")


def nanoseconds(text):
    """Of a time in UTC, as all servers write it."""
    *parts, fraction = TIME.match(text).groups()
    return calendar.timegm(tuple(map(int, parts)) + (0, 0, 0)) * 10**9 + int((fraction or "").ljust(9, "0")[:9])


def lines(folder):
    """The records of a server that is written here, a record at a time. What is behind the last whole line was never
    answered."""
    with open(f"{folder}/records", encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def text_payload(text, fields):
    """Of a server that has text only, and in a field how that is to be read: Splunk and Loki."""
    is_text = fields.get("encoding") != "base64"
    return text.encode() if is_text else base64.b64decode(text, validate=True), is_text


def document_payload(document):
    """Of a document of Elasticsearch."""
    if "message" in document:
        return document["message"].encode(), True
    return base64.b64decode(document["udpd"]["payload_base64"], validate=True), False


def log_payload(record):
    """Of a record of OTLP."""
    body = record["body"]
    if "stringValue" in body:
        return body["stringValue"].encode(), True
    return base64.b64decode(body["bytesValue"], validate=True), False


def ndjson(folder):
    for record in lines(folder):
        yield Stored(json_payload(record), "payload" in record, nanoseconds(record["time"]),
                     record["source"].rpartition(":")[0])


def elasticsearch(documents):
    for document in documents:
        yield Stored(*document_payload(document), nanoseconds(document["@timestamp"]), document["source"]["ip"])


def splunk(folder):
    for event in lines(folder):
        seconds, _, fraction = str(event["time"]).partition(".")
        time = int(seconds) * 10**9 + int(fraction.ljust(9, "0"))
        yield Stored(*text_payload(event["event"], event["fields"]), time, event["host"])


def loki(folder):
    for _, time, line, metadata in lines(folder):
        yield Stored(*text_payload(line, metadata), time, metadata["source"])


def otlp(folder):
    for record in lines(folder):
        attributes = {one["key"]: one["value"].get("stringValue") for one in record["attributes"]}
        yield Stored(*log_payload(record), int(record["timeUnixNano"]), attributes["source.address"])
