"""Control groups of a rig's own, of either version."""
import contextlib
import os
import re

from lib.check import Skipped


def mounted(kind, controller=""):
    """Where control groups of a kind are mounted, or None."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            place, _, rest = line.partition(" - ")
            if re.match(rf"{kind} .*\b{controller}", rest):
                return place.split()[4]
    return None


def own(number):
    """The group of this process in a hierarchy: `0:` or `[0-9]+:memory`."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        found = re.search(rf"^{number}:(.*)$", file.read(), re.M)
    return found and found[1]


def memory_place():
    """The folder of a group with so much memory, and the file of its limit. A group needs the controller from its
    parent."""
    name, unified = f"udpd-rig-{os.getpid()}", mounted("cgroup2")
    if unified:
        parent = os.path.dirname(unified + own("0:"))
        with contextlib.suppress(OSError), open(f"{parent}/cgroup.subtree_control", encoding="ascii") as file:
            if "memory" in file.read().split():
                return f"{parent}/{name}", "memory.max"
    if (beside := own("[0-9]+:memory")) and (place := mounted("cgroup", "memory")):
        return f"{place}{beside}/{name}", "memory.limit_in_bytes"
    raise Skipped("needs a control group for memory")


@contextlib.contextmanager
def memory_group(limit_bytes):
    """A group with so much memory, as its folder and the name of its limit."""
    group, limit = memory_place()
    try:
        os.mkdir(group)
        with open(f"{group}/{limit}", "w", encoding="ascii") as file:
            file.write(str(limit_bytes))
    except OSError as why:
        with contextlib.suppress(OSError):
            os.rmdir(group)
        raise Skipped(f"needs a control group for memory: {why}") from why
    try:
        yield group, limit
    finally:
        os.rmdir(group)
