"""A double of Splunk's HTTP Event Collector, written from its public documentation: no Splunk is to be had here.

The protocol is that of /services/collector/event: JSON objects one behind the other, with or without white space, each
with `event`. `invalid-event-number` says where it has stopped: events before that are indexed, those behind it are not
(so a maintainer of Splunk in open-telemetry/opentelemetry-collector-contrib#36113).
"""
import json

from front import Refused, Store, json_answer, run, settings
from stored import text_payload

FIELDS = {"time", "host", "source", "sourcetype", "index", "event", "fields"}


def told(status, code, text, **more):
    return json_answer(status, {"text": text, "code": code} | more)


def events_of(text):
    """Objects of a body up to one that cannot be read, and whether all could."""
    reader, place, found = json.JSONDecoder(), 0, []
    while True:
        while text[place:place + 1].isspace():
            place += 1
        if place == len(text):
            return found, True
        try:
            event, place = reader.raw_decode(text, place)
        except ValueError:
            return found, False
        found.append(event)


def complaint(event, index):
    """What is wrong with an event, or None."""
    if not isinstance(event, dict) or set(event) - FIELDS:
        return 6, "Invalid data format"
    if "event" not in event:
        return 12, "Event field is required"
    if event["event"] in ("", None):
        return 13, "Event field cannot be blank"
    fields = event.get("fields", {})
    if not isinstance(fields, dict) or any(isinstance(value, dict) for value in fields.values()):
        return 15, "Error in handling indexed fields"
    try:
        float(event.get("time", 0))
    except (TypeError, ValueError):
        return 6, "Invalid data format"
    return (7, "Incorrect index") if event.get("index", index) != index else None


def application(folder):
    store, own = Store(f"{folder}/records"), settings(folder)
    index = own.get("index", "main")

    def check_token(headers):
        given = headers.get("Authorization")
        if given is None:
            raise Refused(told(401, 2, "Token is required"))
        if not given.startswith("Splunk "):
            raise Refused(told(401, 3, "Invalid authorization"))
        if given != f"Splunk {own.get('token', '')}":
            raise Refused(told(403, 4, "Invalid token"))

    def take(request):
        if request.path == "/services/collector/health":
            return told(200, 17, "HEC is healthy")
        check_token(request.headers)
        if request.path not in ("/services/collector", "/services/collector/event", "/services/collector/event/1.0"):
            return told(404, 404, "The requested URL was not found on this server.")
        try:
            events, is_whole = events_of(request.body.decode())
        except UnicodeDecodeError:
            return told(400, 6, "Invalid data format", **{"invalid-event-number": 0})
        if not events and is_whole:
            return told(400, 5, "No data")
        wrong = None if is_whole else (6, "Invalid data format")
        for place, event in enumerate(events):
            found = complaint(event, index)
            if found is None and request.refuses(text_payload(event["event"], event.get("fields", {}))[0]):
                found = 6, "Invalid data format"
            if found:
                events, wrong = events[:place], found
                break
        store.append(events)
        if wrong:
            return told(400, *wrong, **{"invalid-event-number": len(events)})
        return told(200, 0, "Success")

    return take


if __name__ == "__main__":
    run(application)
