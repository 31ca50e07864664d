"""A double of Loki's push interface, written from its public documentation: Loki itself does not come with this rig.

/loki/api/v1/push takes JSON with streams of labels and values; a time is nanoseconds in a string; structured metadata
is an object of strings. Lines that are refused, such as those that are too old, leave the others of the request stored;
the answer is 400 and says how many were ignored.
"""
import re

from front import Answer, Refused, Store, check_token, lines_of, needs, run, settings
from stored import text_payload

# As Loki words it.
REFUSED = ("entry with timestamp 2026-11-28 00:00:00 +0000 UTC ignored, reason: 'entry too far behind, entry timestamp "
           "is: 2026-11-28T00:00:00Z, oldest acceptable timestamp is: 2026-11-28T01:00:00Z',\nuser 'rig', "
           "total ignored: {} out of {} for stream: {{job=\"udpd\"}}")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*$")


def are_strings(pairs):
    return isinstance(pairs, dict) and all(isinstance(value, str) for value in pairs.values())


def entries(body):
    """Labels, time, line and metadata of each entry."""
    needs(isinstance(body, dict) and isinstance(body.get("streams"), list), 400, "no streams")
    for stream in body["streams"]:
        labels = stream.get("stream")
        needs(are_strings(labels) and labels, 400, "error at least one label pair is required per stream")
        needs(all(LABEL.match(name) for name in labels), 400, "error parsing labels: a name is none")
        for value in stream["values"]:
            needs(isinstance(value, list) and len(value) in (2, 3), 400, "a value is [time, line, metadata]")
            time, line, metadata = [*value, {}][:3]
            needs(isinstance(time, str) and time.isdigit(), 400, "Value looks like Number, want string of nanoseconds")
            needs(isinstance(line, str), 400, "a line is a string")
            needs(are_strings(metadata), 400, "structured metadata are strings")
            yield labels, int(time), line, metadata


def application(folder):
    store = Store(f"{folder}/records")
    tenant = settings(folder).get("tenant")

    def take(request):
        if request.path == "/ready":
            return Answer(200, b"ready\n")
        check_token(request.headers, "Bearer", folder)
        needs(request.path == "/loki/api/v1/push", 404, "404 page not found")
        needs(tenant is None or request.headers.get("X-Scope-OrgID") == tenant, 401, "no org id")
        needs(request.headers.get("Content-Type", "").split(";")[0] == "application/json", 400, "unknown content type")
        bodies = lines_of(request.body.replace(b"\n", b" "))
        needs(len(bodies) == 1, 400, "no JSON")
        taken, refused = [], 0
        for labels, time, line, metadata in entries(bodies[0]):
            if request.refuses(text_payload(line, metadata)[0]):
                refused += 1
            else:
                taken.append([labels, time, line, metadata])
        store.append(taken)
        if refused:
            all_of_them = refused + len(taken)
            raise Refused(Answer(400, REFUSED.format(refused, all_of_them).encode()))
        return Answer(204)

    return take


if __name__ == "__main__":
    run(application)
