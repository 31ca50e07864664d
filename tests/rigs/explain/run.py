"""Runs the cases one by one, says of each how long it took, and ends with 1 when one failed.

A hypervisor that takes the cores away provokes losses of its own, which explain then tells, and rightly. So a case that
fails while it does is tried again, and is skipped when it never leaves the machine alone.
"""
import os
import sys
import time
import traceback

import cases_of_programs
import cases_of_the_host
import cases_of_udpd
from lib.check import Failed
from scene import Scene, Skipped


TRIES = 4
# Beyond this part of all time that was wanted.
STOLEN_MAX = 0.03


def times():
    """What all cores have spent working, and what the hypervisor took of it meanwhile."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupt, softirq, steal = map(int, file.readline().split()[1:9])
    return user + nice + system + interrupt + softirq + steal, steal


def attempt(case, work, other):
    """Whether it went as it should, what is to be said, and which part of its time was stolen."""
    before = times()
    try:
        with Scene(work, other) as scene:
            case(scene)
        said, is_right = "passed", True
    except Skipped as why:
        said, is_right = f"SKIPPED explain.sh: {case.__name__} needs {why}", True
    except Failed as why:
        said, is_right = f"FAILED: {why}", False
    except Exception:  # pylint: disable=broad-except
        said, is_right = f"FAILED: {traceback.format_exc()}", False
    wanted, stolen = (now - then for now, then in zip(times(), before))
    return is_right, said, stolen / max(wanted, 1)


def main():
    work, other = sys.argv[1], int(sys.argv[2])
    wanted = os.environ.get("CASES", "").split()
    modules = (cases_of_the_host, cases_of_programs, cases_of_udpd)
    cases = [case for module in modules for case in module.CASES if not wanted or case.__name__ in wanted]
    failed = []
    for case in cases:
        began = time.monotonic()
        for _ in range(TRIES):
            is_right, said, stolen = attempt(case, work, other)
            if is_right or stolen < STOLEN_MAX:
                break
            print(f"{case.__name__}: again, because the hypervisor took {stolen:.0%} of the time", flush=True)
        else:
            said = f"SKIPPED explain.sh: {case.__name__} needs cores that the hypervisor leaves alone; {said}"
            is_right = True
        if not is_right:
            failed.append(case.__name__)
        took = time.monotonic() - began
        print(said if said.startswith("SKIPPED") else f"{case.__name__}: {said} ({took:.1f} s)")
    print(f"{len(cases) - len(failed)} of {len(cases)} cases")
    sys.exit(1 if failed else 0)


main()
