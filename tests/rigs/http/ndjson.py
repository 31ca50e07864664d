"""A server that takes one JSON object a line."""
from front import Answer, Store, check_token, lines_of, needs, run
from lib.records import json_payload


def application(folder):
    store = Store(f"{folder}/records")

    def take(request):
        check_token(request.headers, "Bearer", folder)
        records = lines_of(request.body)
        needs(all(isinstance(record, dict) for record in records), 400, "a line is no object")
        needs(records, 400, "no records")
        # There is no way to name the line: it is all or nothing.
        refused = [record for record in records if request.refuses(json_payload(record))]
        needs(not refused, 400, f"{len(refused)} records are refused")
        store.append(records)
        return Answer(200, b"{}")

    return take


if __name__ == "__main__":
    run(application)
