"""What `udpd explain --json` found: the finding that has to come first, its cure, and nothing lost once the cure is
applied. The rigs in namespaces and in guests share it."""
import json

from lib.check import check


def first(said, case, at_least=1):
    """The finding that is told first, which must be this one."""
    findings = said["findings"]
    check(findings and findings[0]["case"] == case and findings[0]["lost"] >= at_least,
          lambda: f"{case} is not told first: {json.dumps(said, indent=1)}")
    return findings[0]


def cure(finding, kind, containing=""):
    """The first cure of a kind."""
    found = [one for one in finding["cures"] if one["kind"] == kind and containing in json.dumps(one)]
    check(found, lambda: f"no {kind} cures it: {json.dumps(finding, indent=1)}")
    return found[0]


def nothing(said):
    check(not said["lost"], lambda: f"the cure does not help: {json.dumps(said, indent=1)}")
