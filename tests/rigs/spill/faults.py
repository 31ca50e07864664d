"""The calls that a spill makes of its disk, made to fail: once, and from some moment on for good.

The daemon fills its spill, the peer comes, the spill is sent, all under faults/fail_nth.c. Then a daemon to
which nothing happens sends what the first one has left. Every datagram came, once unless a daemon said that it may come
twice, or is counted as lost with a line in the log; and a disk that fails is named once and not for every write.
"""

import errno
import os
import shutil
import signal
import time

from daemon import OUT, PORT, Spilling
from lib.check import LONG, check, passed, skipped
from lib.daemon import WORK, dropped_at
from lib.host import ends, execute, read
from peer import Peer, Taken, senders

LENGTH, FLOWS, DATAGRAMS = 1_000, 4, 2_500
# Numbers as the kernel has them on x86-64; elsewhere this part is left out.
NUMBERS = {"pwrite64": 18, "pread64": 17, "fdatasync": 75, "fsync": 74, "ftruncate": 77, "unlink": 87}
# Which call fails how, and what that may cost.
CALLS = (
    ("pwrite64", "EIO", ("spill_full",)),
    ("pwrite64", "ENOSPC", ("spill_full",)),
    ("pread64", "EIO", ("spill_torn",)),
    ("fdatasync", "EIO", ()),
    ("fsync", "EIO", ()),
    ("unlink", "EIO", ()),
)
# Of a disk that fails, and nothing else.
LINES_MAX = 3
# Each segment that cannot be removed is named.
SEGMENTS = 20


REPORT, PROGRAM = f"{WORK}/report", f"{WORK}/fail_nth"


def is_possible():
    """Whether calls can be made to fail here; says so where not."""
    if os.uname().machine != "x86_64" or not shutil.which("cc"):
        skipped("failing calls need x86-64 and cc")
        return False
    ends(0, "cc", "-O2", "-o", PROGRAM, "tests/rigs/faults/fail_nth.c")
    if execute(PROGRAM, "--survey", "--report", REPORT, "--", "true").returncode != 0:
        skipped("failing calls need a kernel that lets a program answer another's system calls")
        return False
    return True


def report():
    return dict(line.split(" ", 1) for line in read(REPORT).splitlines() if " " in line)


def run(call, error, nth, lasts):
    """The daemon with a disk that fails; returns what its ledger says, its log, and what may have come twice."""
    spill = f"{WORK}/spill-of-faults"
    shutil.rmtree(spill, ignore_errors=True)
    taken = Taken()
    peer = Peer(OUT, LENGTH, taken)
    fail = [PROGRAM, "--report", REPORT, "--arm-by-signal", "--call", NUMBERS[call], "--nth", nth,
            "--errno", getattr(errno, error), *(("--from",) if lasts else ())]
    # A path has no descriptor, and a directory is no file.
    fail += [] if call in ("unlink", "fsync") else ["--kind", "file"]
    daemon = Spilling(spill, size="8MiB", before=[*fail, "--"])
    daemon.child.send_signal(signal.SIGUSR1)
    daemon.until("fail_nth is armed", lambda: "armed" in report())
    load = senders(PORT, FLOWS, LENGTH, 20_000)
    daemon.await_listener("enough has come", lambda listener: listener["received"] > DATAGRAMS)
    sent = load.end()
    daemon.await_listener("all is decided", lambda listener: listener["received"] == sent and
                          listener["sinks"][0]["in_flight"] == 0)
    peer.come()
    begun = time.monotonic()
    # What cannot be read is looked at a few times; what cannot be marked waits for as long as that lasts.
    daemon.await_sink("the end of the spill", lambda sink: sink["spilled"] == 0 or time.monotonic() - begun > 2)
    first, said = daemon.finish(), daemon.log()
    failed = int(report()["failed"])
    daemon = Spilling(spill, size="8MiB")
    daemon.await_sent()
    twice = daemon.twice()
    second = daemon.finish()
    peer.go()
    return sent, taken, first["sinks"][0], second["sinks"][0], said, twice, failed


def judge(call, error, nth, lasts, costs):
    what = f"{call} = {error}, {'from' if lasts else 'only'} number {nth}"
    sent, taken, first, second, said, twice, failed = run(call, error, nth, lasts)
    lost = {name: count for sink in (first, second) for name, count in sink["dropped"].items() if count}
    counted = dropped_at(first) + dropped_at(second)
    check(not taken.wrong and taken.repeats <= twice and taken.count + counted == sent,
          f"{what}: {sent} sent, {taken.count} came, {taken.repeats} twice ({twice} said), {counted} counted as lost, "
          f"{taken.wrong}\n{said}")
    check(first["delivered"] + second["delivered"] == taken.count + taken.repeats,
          f"{what}: {first['delivered']} and {second['delivered']} delivered, {taken.count} came\n{said}")
    check(not set(lost) - set(costs), f"{what}: cost {lost}\n{said}")
    lines = [line for line in said.splitlines() if line.startswith(("warn", "error"))]
    named = [line for line in lines if "spill-of-faults" in line and "os error" in line]
    check(not failed or 0 < len(named) <= (SEGMENTS if call == "unlink" else LINES_MAX),
          f"{what}: {len(named)} lines about it\n{said}")
    if LONG:
        print(f"{what}: failed {failed} times, lost {lost}, {second['spilled_before']} left for the next daemon, "
              f"{taken.repeats} twice", flush=True)
    return failed > 0


def campaign():
    if not is_possible():
        return
    runs = failures = 0
    for call, error, costs in CALLS:
        for lasts in (False, True):
            for nth in (1, 2, 3, 5, 8, 13) if LONG else (2,):
                if not lasts or nth <= 5:
                    runs, failures = runs + 1, failures + judge(call, error, nth, lasts, costs)
    check(failures >= runs // 2, f"only {failures} of {runs} runs have seen a failure")
    passed(f"{runs} runs with a disk that fails, {failures} of them hit: each datagram came or is counted as lost")
