"""What `udpd explain --json` found, and how the rigs read it: the finding that has to come first, its cure, and nothing
lost once the cure is applied. The rigs in namespaces and in guests share it."""
import json


class Failed(Exception):
    """What udpd said is not what happened."""


def first(said, case, at_least=1):
    """The finding that is told first, which must be this one."""
    findings = said["findings"]
    if not findings or findings[0]["case"] != case or findings[0]["lost"] < at_least:
        raise Failed(f"{case} is not told first: {json.dumps(said, indent=1)}")
    return findings[0]


def cure(finding, kind, containing=""):
    """The first cure of a kind."""
    for found in finding["cures"]:
        if found["kind"] == kind and containing in json.dumps(found):
            return found
    raise Failed(f"no {kind} cures it: {json.dumps(finding, indent=1)}")


def nothing(said):
    if said["lost"]:
        raise Failed(f"the cure does not help: {json.dumps(said, indent=1)}")
