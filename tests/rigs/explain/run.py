"""Runs the cases one by one, says of each how long it took, and ends with 1 when one failed.

A hypervisor that takes the cores away provokes losses of its own, which explain then tells, and rightly. So a case that
fails while it does is tried again, and is skipped when it never leaves the machine alone.
"""
import os
import time
import traceback

import cases_of_programs
import cases_of_the_host
import cases_of_udpd
import situations
import situations_of_readers
import situations_of_the_way
import situations_of_udpd
from lib import net
from lib.check import LONG, RIG, Failed, Skipped, check, main
from lib.host import read
from lib.net import OTHER, ip
from scene import Scene

TRIES = 4
# One of each kind: the way, a reader, a buffer, a sink, udpd itself, two causes at once, and no loss. They take 35 s.
SHORT = (
    "no_listener", "bad_checksums", "firewall", "reader_stopped", "container_throttled", "queue_too_short",
    "buffer_clamped", "sink_blocks", "listener_dropped", "filter_and_pauses", "group_that_no_program_joined",
    "nothing_is_lost",
)
# Beyond this part of all time that was wanted.
STOLEN_MAX = 0.03


def times():
    """What all cores have spent working, and what the hypervisor took of it meanwhile."""
    user, nice, system, _, _, interrupt, softirq, steal = map(int, read("/proc/stat").split()[1:9])
    return user + nice + system + interrupt + softirq + steal, steal


def attempt(case):
    """Whether it went as it should, what is to be said, and which part of its time was stolen."""
    before = times()
    try:
        with Scene() as scene:
            case(scene)
        said, is_right = "passed", True
    except Skipped as why:
        said, is_right = f"SKIPPED {RIG}: {case.__name__} needs {why}", True
    except Failed as why:
        said, is_right = f"FAILED: {why}", False
    except Exception:  # pylint: disable=broad-except
        said, is_right = f"FAILED: {traceback.format_exc()}", False
    wanted, stolen = (now - then for now, then in zip(times(), before))
    return is_right, said, stolen / max(wanted, 1)


def all_cases():
    net.lay(["10.9.0.1/24"], ["10.9.0.2/24"])
    ip("link set lo up", OTHER)
    ip("route add default via 10.9.0.1", OTHER)
    wanted = os.environ.get("CASES", "").split()
    modules = (cases_of_the_host, cases_of_programs, cases_of_udpd)
    every = [case for module in modules for case in module.CASES]
    for module in (situations_of_readers, situations_of_the_way, situations_of_udpd):
        every += module.SITUATIONS
    every += situations_of_the_way.BY_CHANCE
    wanted = wanted or ([case.__name__ for case in every] if LONG else SHORT)
    unknown = set(wanted) - {case.__name__ for case in every}
    check(not unknown, f"no case has the name {' '.join(sorted(unknown))}")
    situations.prepare()
    cases = [case for case in every if case.__name__ in wanted]
    failed = []
    for case in cases:
        began = time.monotonic()
        for _ in range(TRIES):
            is_right, said, stolen = attempt(case)
            if is_right or stolen < STOLEN_MAX:
                break
            print(f"{case.__name__}: again, because the hypervisor took {stolen:.0%} of the time", flush=True)
        else:
            said = f"SKIPPED {RIG}: {case.__name__} needs cores that the hypervisor leaves alone; {said}"
            is_right = True
        failed += [] if is_right else [case.__name__]
        took = time.monotonic() - began
        print(said if said.startswith("SKIPPED") else f"{case.__name__}: {said} ({took:.1f} s)", flush=True)
    print(f"{len(cases) - len(failed)} of {len(cases)} cases")
    check(not failed, f"cases: {' '.join(failed)}")


main(all_cases)
