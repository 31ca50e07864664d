"""The files for Kubernetes against its schemas and against `udpd check`; see fleet_kubernetes.sh."""
import json

import kubernetes_validate
import yaml

from lib.check import Failed, check, check_the_judge, main, passed
from lib.daemon import WORK, check_configuration
from lib.host import read

FOLDER = "config/fleet/kubernetes"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def documents(name):
    return [document for document in yaml.safe_load_all(read(f"{FOLDER}/{name}")) if document]


def judge(document):
    """Unknown fields are wrong as well: the server of a cluster would drop them."""
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Failed(f"{document['kind']}: {error}") from error


def of_kind(found, kind):
    return next(document for document in found if document["kind"] == kind)


def planned(text):
    """All memory that `udpd check` names, with the kernel's receive buffers, which count as the pod's."""
    told = check_configuration(text.replace("/var/lib/udpd", WORK), "--json")
    check(told.returncode == 0, lambda: f"udpd check: {told.stdout}{told.stderr}")
    plan = json.loads(told.stdout)
    parts = ["pool_bytes", "policy_bytes", "list_bytes", "upstream_bytes", "sink_bytes", "compression_bytes",
             "receive_buffer_bytes"]
    return sum(plan[part] for part in parts)


def each_file_is_valid_and_large_enough():
    for name, kind in (("daemonset.yaml", "DaemonSet"), ("deployment.yaml", "Deployment")):
        found = documents(name)
        for document in found:
            judge(document)
        pods = of_kind(found, kind)["spec"]["template"]["spec"]
        container = pods["containers"][0]
        check_the_judge(judge, {"a field that there is not": [
            {**of_kind(found, "ConfigMap"), "dota": {}}]})
        text = of_kind(found, "ConfigMap")["data"]["udpd.toml"]
        limit = container["resources"]["limits"]["memory"]
        bytes_planned, bytes_allowed = planned(text), int(limit[:-2]) * UNITS[limit[-2:]]
        check(bytes_planned < bytes_allowed, f"{name}: {bytes_planned} bytes are planned, {limit} allowed")
        drain = next(line for line in text.splitlines() if line.startswith("drain = "))
        seconds = int(drain.split('"')[1].removesuffix("s"))
        check(seconds < pods["terminationGracePeriodSeconds"], f"{name}: {drain} is longer than the time to end")
        passed(f"{name}: {len(found)} documents are valid; {bytes_planned >> 20} MiB planned of {limit}")


main(each_file_is_valid_and_large_enough)
