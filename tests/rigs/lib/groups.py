"""Control groups of a rig's own, of either version."""
import contextlib
import os
import re

from lib.check import Skipped
from lib.host import read, write


def mounted(kind, controller=""):
    """Where control groups of a kind are mounted, or None."""
    for line in read("/proc/self/mountinfo").splitlines():
        place, _, rest = line.partition(" - ")
        if re.match(rf"{kind} .*\b{controller}", rest):
            return place.split()[4]
    return None


def own(number):
    """The group of this process in a hierarchy: `0:` or `[0-9]+:memory`."""
    found = re.search(rf"^{number}:(.*)$", read("/proc/self/cgroup"), re.M)
    return found and found[1]


def memory_place():
    """The folder of a group with so much memory, and the file of its limit. A group needs the controller from its
    parent."""
    name, unified = f"udpd-rig-{os.getpid()}", mounted("cgroup2")
    if unified:
        parent = os.path.dirname(unified + own("0:"))
        with contextlib.suppress(OSError):
            if "memory" in read(f"{parent}/cgroup.subtree_control").split():
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
        write(f"{group}/{limit}", str(limit_bytes))
    except OSError as why:
        with contextlib.suppress(OSError):
            os.rmdir(group)
        raise Skipped(f"needs a control group for memory: {why}") from why
    try:
        yield group, limit
    finally:
        os.rmdir(group)
