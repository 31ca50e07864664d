"""Runs the cases one by one, says of each how long it took, and ends with 1 when one failed."""
import os
import sys
import time
import traceback

import cases_of_programs
import cases_of_the_host
import cases_of_udpd
from scene import Failed, Scene, Skipped


def main():
    work, other = sys.argv[1], int(sys.argv[2])
    wanted = os.environ.get("CASES", "").split()
    modules = (cases_of_the_host, cases_of_programs, cases_of_udpd)
    cases = [case for module in modules for case in module.CASES if not wanted or case.__name__ in wanted]
    failed = []
    for case in cases:
        began = time.monotonic()
        try:
            with Scene(work, other) as scene:
                case(scene)
            said = "passed"
        except Skipped as why:
            said = f"SKIPPED explain.sh: {case.__name__} needs {why}"
        except Failed as why:
            said = f"FAILED: {why}"
            failed.append(case.__name__)
        except Exception:  # pylint: disable=broad-except
            said = f"FAILED: {traceback.format_exc()}"
            failed.append(case.__name__)
        took = time.monotonic() - began
        print(said if said.startswith("SKIPPED") else f"{case.__name__}: {said} ({took:.1f} s)")
    print(f"{len(cases) - len(failed)} of {len(cases)} cases")
    sys.exit(1 if failed else 0)


main()
