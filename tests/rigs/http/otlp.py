"""A server that takes logs by OTLP as JSON. It stands behind a real Collector, and alone it answers what a Collector
does not say on demand: that it has taken a part.
"""
import json

from front import Store, check_token, json_answer, needs, run
from stored import log_payload


def application(folder):
    store = Store(f"{folder}/records")

    def take(request):
        check_token(request.headers, "Bearer", folder)
        needs(request.path == "/v1/logs", 404, "no such path")
        kind = request.headers.get("Content-Type", "").split(";")[0]
        needs(kind == "application/json", 415, f"unsupported Content-Type {kind}")
        try:
            whole = json.loads(request.body)
        except ValueError as error:
            return json_answer(400, {"code": 3, "message": str(error)})
        taken, refused = [], 0
        for resource in whole["resourceLogs"]:
            attributes = resource.get("resource", {}).get("attributes", [])
            for scope in resource["scopeLogs"]:
                for record in scope["logRecords"]:
                    if request.refuses(log_payload(record)[0]):
                        refused += 1
                    else:
                        taken.append(record | {"resource": attributes})
        store.append(taken)
        partial = {"rejectedLogRecords": str(refused), "errorMessage": "every tenth is refused"} if refused else {}
        return json_answer(200, {"partialSuccess": partial} if refused else {})

    return take


if __name__ == "__main__":
    run(application)
