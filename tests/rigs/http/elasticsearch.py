"""A double of the bulk interface of Elasticsearch and OpenSearch, for what a real one does not do on demand: items that
are refused for good, and items that are to come again. A document is created under its id once, as there. Answers are
always as short as `filter_path` makes them.
"""
import threading
import uuid

from front import Store, check_token, json_answer, lines_of, needs, run
from stored import document_payload, lines

ERRORS = {
    400: {"type": "mapper_parsing_exception", "reason": "failed to parse field [message] of type [long]"},
    409: {"type": "version_conflict_engine_exception", "reason": "document already exists"},
    429: {"type": "es_rejected_execution_exception", "reason": "rejected execution of coordinating operation"},
}


def application(folder):
    store, refused_once = Store(f"{folder}/records"), set()
    lock = threading.Lock()
    names = {(record["_index"], record["_id"]) for record in lines(folder)}

    def refusal(request, document):
        """Of those that it refuses, every other one is refused for good, and the rest is to come again once."""
        number = document_payload(document)[0][:9]
        if not request.refuses(number) or number in refused_once:
            return None
        if int(number) % 20:
            return 400
        refused_once.add(number)
        return 429

    def create(request, both):
        items, taken = [], []
        for action, document in zip(both[::2], both[1::2]):
            (name, where), = action.items()
            needs(name in ("create", "index"), 400, f"Malformed action/metadata line, found [{name}]")
            index = where.get("_index") or request.path.strip("/").split("/")[0]
            own = index, where.get("_id") or uuid.uuid4().hex
            status = 409 if name == "create" and own in names else refusal(request, document)
            if not status:
                names.add(own)
                taken.append(document | {"_index": index, "_id": own[1]})
            items.append({name: {"status": status, "error": ERRORS[status]} if status else {"status": 201}})
        store.append(taken)
        return json_answer(200, {"errors": len(taken) < len(items), "items": items})

    def take(request):
        check_token(request.headers, "ApiKey", folder)
        if request.path == "/":
            return json_answer(200, {"version": {"number": "8.0.0"}, "tagline": "a double of the rigs of udpd"})
        needs(request.path.endswith("/_bulk"), 405, "no such path")
        kind = request.headers.get("Content-Type", "").split(";")[0]
        needs(kind in ("application/x-ndjson", "application/json"), 406, f"Content-Type [{kind}] is not supported")
        needs(request.body.endswith(b"\n"), 400, "The bulk request must be terminated by a newline [\\n]")
        both = lines_of(request.body)
        needs(both and len(both) % 2 == 0, 400, "an action without a document")
        with lock:
            return create(request, both)

    return take


if __name__ == "__main__":
    run(application)
