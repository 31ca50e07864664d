"""Restarts, kills, upgrades and starts in vain under load, each judged by the numbers in the files and by the kernel's
own counts of drops at the sockets: sent = in the files + dropped by the kernel + lost with a process that was killed.
udpd's ledger is asked for nothing but what it says a kill may have lost. See restarts.sh.
"""
import os
import re
import shutil
import signal
import sys
import time

from lib.check import LONG, check, main, passed, same, setting, skipped
from lib.daemon import UDPD, WORK, engines
from lib.host import ends, execute, read, write
from lib.net import UNPRIVILEGED
from lib.report import host, markdown_table
from lib.service import FLOWS, GAP_BAR_MS, STRICT
from manager import Managed

RATE = setting("RATE", 100_000 if LONG else 20_000)
RESTARTS, KILLS, UPGRADES, IN_VAIN = (setting(name, long if LONG else short) for name, short, long in (
    ("RESTARTS", 3, 100), ("KILLS", 3, 50), ("UPGRADES", 3, 50), ("IN_VAIN", 2, 20)))
OWNER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
int getsockopt(int fd, int level, int option, void *value, socklen_t *length) {
    if (level == 17 && option == 200) { *(int *)value = 0; return 0; }
    int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    return next(fd, level, option, value, length);
}
"""
ROWS = []


def restart(service, **keys):
    began = time.monotonic()
    service.end_process()
    service.start(**keys)
    service.gaps.append(1000 * (time.monotonic() - began))
    service.pause()


def kill(service, **keys):
    pid, began = service.process.child.pid, time.monotonic()
    service.end_process(signal.SIGKILL)
    service.start(**keys)
    service.gaps.append(1000 * (time.monotonic() - began))
    said = re.search(r"\(pid (\d+)\) was killed or has crashed: up to (\d+) datagrams", service.process.log())
    check(said and int(said[1]) == pid, f"nothing is said of the process {pid} that was killed")
    service.said.append(int(said[2]))
    service.pause()


def lost_by_process(service):
    """What is missing of each process, where each has a file of its own. The datagrams of a flow come in order, so what
    is missing between the first of one process and the first of the next was with the first."""
    found = [numbers for _, numbers in sorted(service.read()[0].items(), key=lambda one: service.files.index(one[0]))]
    first = []
    for numbers in found:
        lowest = {}
        for flow, sequence in numbers:
            lowest[flow] = min(sequence, lowest.get(flow, sequence))
        first.append(lowest)
    lost = []
    for numbers, here, after in zip(found, first, first[1:]):
        both = set(here) & set(after)
        lost.append(sum(after[flow] - here[flow] for flow in both) - sum(flow in both for flow, _ in numbers))
    return lost


def judge(service, times, allowed=0, note=""):
    """`allowed` is what kills may have lost."""
    sent, in_files, _ = service.count()
    dropped = service.dropped()
    lost = sent - in_files - dropped
    check(0 <= lost <= allowed, f"{service.what}: of {sent} sent {in_files} are in the files, the kernel dropped "
          f"{dropped} at the sockets, {lost} are gone")
    middle, longest = service.middle_and_longest_gap()
    if dropped:
        service.tell_slow(f"the kernel dropped {dropped}: the longest gap was {longest:.0f} ms, and the buffers are "
                          f"for {service.stall_ms} ms")
    rate = service.report["rate"]
    passed(f"{service.what}, {times} times at {rate:.0f}/s: {in_files} of {sent} in the files, none twice, lost "
           f"{lost}, dropped by the kernel {dropped}; from end to ready {middle:.0f} ms, the longest {longest:.0f} "
           f"ms{note}")
    ROWS.append((service.what, times, int(rate), sent, in_files, lost, allowed, dropped, int(middle), int(longest)))
    service.close()
    shutil.rmtree(service.directory)


def restarts(rate, engine):
    service = Managed(f"restarts, {engine}", rate, engine)
    service.begin()
    for _ in range(RESTARTS):
        restart(service)
    service.end()
    judge(service, RESTARTS)


def kills(rate, engine, form):
    """With files of lines each process has its own, so each loss has its process; a capture all of them append to."""
    service = Managed(f"kill -9, {engine}, {form}", rate, engine, form)
    name = (lambda place: f"in-{place}") if form == "lines" else (lambda place: "in")
    service.begin(file=name(0))
    for place in range(KILLS):
        kill(service, file=name(place + 1))
    service.end()
    _, _, cut = service.count()
    note = ""
    if form == "lines" and not service.dropped():
        lost = lost_by_process(service)
        for place, (missing, said) in enumerate(zip(lost, service.said)):
            check(0 <= missing <= said, f"process {place} lost {missing}, and the next one says at most {said}")
        note = f"; a process lost {max(lost)} at most, and the next one said {max(service.said)}"
    check(not cut or form == "lines", "the capture ends within a block, although the last process has ended by itself")
    judge(service, KILLS, sum(service.said), note)


def upgrades(rate):
    """From one program to another and back; between 2 and 4 lanes."""
    service = Managed("upgrades, 2 to 4 lanes", rate)
    service.begin()
    for place in range(UPGRADES):
        service.program = (os.environ["UDPD_OTHER"], UDPD)[place % 2]
        restart(service, lanes=(4, 3, 2)[place % 3])
    service.end()
    judge(service, UPGRADES)


def starts_in_vain(rate):
    """A bad file and a program that does not run, each between two good starts. What comes meanwhile waits."""
    service = Managed("starts in vain", rate)
    service.begin()
    for place in range(IN_VAIN):
        began = time.monotonic()
        service.end_process()
        if place % 2 == 0:
            service.start_in_vain(78, more="nonsense = 1")
        else:
            service.program = service.broken_program()
            service.start_in_vain(1)
            service.program = UDPD
        service.start()
        service.gaps.append(1000 * (time.monotonic() - began))
        service.pause()
    service.end()
    judge(service, IN_VAIN)


def without_rights():
    """A user who may nothing, with buffers that every user may have, and more lanes on the way."""
    service = Managed("restarts without rights", 2000, before=UNPRIVILEGED, owner=65534, stall_ms=1000)
    service.begin()
    for lanes in (2, 4, 2):
        restart(service, lanes=lanes)
    kill(service)
    service.end()
    judge(service, 4, sum(service.said))


def feasible_rate():
    """The rate that the sender reaches beside a daemon that receives, told where it is lower than was asked for."""
    service = Managed("the sender alone", RATE)
    service.begin()
    time.sleep(1)
    service.end()
    reached = service.report["rate"]
    service.close()
    if reached >= 0.98 * RATE:
        return RATE
    lower = max(int(reached * 0.8) // 1000 * 1000, 1000)
    print(f"        the sender makes {reached:.0f}/s here, so all that follows is at {lower}/s and not at {RATE}/s")
    return lower


def another_owner_of_the_groups():
    """No kernel here has a program that owns groups of sockets, so one option is answered by a library before the C
    library."""
    if not shutil.which("cc"):
        skipped("another owner of the groups of sockets needs a C compiler")
        return
    library = f"{WORK}/owner.so"
    ends(0, "cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-", "-ldl", input=OWNER)
    for preloaded in (library, ""):
        done = execute("timeout", "--preserve-status", "--signal=TERM", "2", UDPD, "run", "--listen", "0.0.0.0:5188",
                       "--to", "null:", env=os.environ | {"LD_PRELOAD": preloaded}, input="")
        check("ready:" in done.stderr, f"no start: {done.stderr}")
        same(done.stderr.count("another program owns the groups"), int(bool(preloaded)),
             f"warnings with LD_PRELOAD={preloaded}: {done.stderr}")
    passed("another owner of the groups of sockets is warned of, and none is not")


def record(path, rate):
    head = ("| what | times | rate/s | sent | in files | lost | said at most | dropped by the kernel | gap, median ms "
            "| longest ms |")
    load = read("/proc/loadavg").strip()
    page = ["# Restarts, kills and upgrades under load", "",
            f"{host(UDPD)} `tests/rigs/restarts.sh --record`.",
            f"Payloads of 64 bytes, {FLOWS} flows, {rate}/s asked for. The sender, the kernel and udpd share the",
            f"machine, with {os.cpu_count()} cores and at the end a load of {load}.",
            "Lost: in no file and not counted by the kernel at a socket. The gap is from the signal to READY of the",
            f"next process; its bar is {GAP_BAR_MS} ms.", "", *markdown_table(head, ROWS)]
    write(path, "\n".join(page) + "\n")


def campaign():
    another_owner_of_the_groups()
    rate = feasible_rate()
    for engine in engines():
        restarts(rate, engine)
        kills(rate, engine, "lines")
    kills(rate, "recvmmsg", "pcapng")
    upgrades(rate)
    starts_in_vain(rate)
    without_rights()
    if len(sys.argv) > 1:
        record(sys.argv[1], rate)
    over = [f"{row[0]} {row[-1]} ms" for row in ROWS if row[0].startswith("restarts,") and row[-1] > GAP_BAR_MS]
    check(not over or not STRICT, f"the gap is above {GAP_BAR_MS} ms: {', '.join(over)}")


main(campaign)
