"""The calls that a spill makes of its disk, made to fail: once, and from some moment on for good.

The daemon fills its spill, the peer comes, the spill is sent, all under tests/rigs/faults/fail_nth.c. Then a daemon to
which nothing happens sends what the first one has left. Every datagram came, once unless a daemon said that it may come
twice, or is counted as lost with a line in the log; and a disk that fails is named once and not for every write.
"""

import errno
import os
import signal
import subprocess
import time

from daemon import Daemon, Failed
from peer import Peer, Senders, Taken

HERE = os.path.dirname(os.path.abspath(__file__))
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


def compile_it(work):
    """Whether calls can be made to fail here; says so where not."""
    skipped = "SKIPPED spill.sh, failing calls: needs"
    program = f"{work}/fail_nth"
    if os.uname().machine != "x86_64":
        print(f"{skipped} x86-64")
        return False
    try:
        subprocess.run(["cc", "-O2", "-o", program, f"{HERE}/../faults/fail_nth.c"], check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"{skipped} cc")
        return False
    command = [program, "--survey", "--report", f"{work}/report", "--", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        print(f"{skipped} a kernel that lets a program answer another's system calls")
        return False
    return True


def report(work):
    with open(f"{work}/report", encoding="utf-8") as file:
        return dict(line.split(" ", 1) for line in file.read().splitlines() if " " in line)


def run(work, call, error, nth, lasts):
    """The daemon with a disk that fails; returns what its ledger says, its log, and what may have come twice."""
    spill = f"{work}/spill-of-faults"
    subprocess.run(["rm", "-rf", spill], check=True)
    taken = Taken()
    peer = Peer(f"{work}/out", LENGTH, taken)
    fail = [f"{work}/fail_nth", "--report", f"{work}/report", "--arm-by-signal", "--call", str(NUMBERS[call]),
            "--nth", str(nth), "--errno", str(getattr(errno, error)), "--kind", "file", *(("--from",) if lasts else ())]
    if call in ("unlink", "fsync"):
        # A path has no descriptor, and a directory is no file.
        fail = [word for word in fail if word not in ("--kind", "file")]
    daemon = Daemon(work, spill, size="8MiB", before=[*fail, "--"])
    daemon.process.send_signal(signal.SIGUSR1)
    daemon.when(lambda: "armed" in report(work), "fail_nth")
    senders = Senders(daemon.address, FLOWS, LENGTH, 20_000)
    daemon.when(lambda: daemon.listener()["received"] > DATAGRAMS, "enough has come")
    sent = senders.end()
    daemon.when(lambda: daemon.listener()["received"] == sent and daemon.sink()["in_flight"] == 0, "all is decided")
    peer.come()
    begun = time.monotonic()
    # What cannot be read is looked at a few times; what cannot be marked waits for as long as that lasts.
    daemon.when(lambda: daemon.sink()["spilled"] == 0 or time.monotonic() - begun > 2, "the end of the spill")
    first, said = daemon.end(), daemon.said()
    failed = int(report(work)["failed"])
    daemon = Daemon(work, spill, size="8MiB")
    daemon.when(lambda: daemon.sink()["spilled"] == 0, "the end of what was left")
    twice = daemon.twice()
    second = daemon.end()
    peer.go()
    return sent, taken, first["sinks"][0], second["sinks"][0], said, twice, failed


def judge(work, call, error, nth, lasts, costs):
    what = f"{call} = {error}, {'from' if lasts else 'only'} number {nth}"
    sent, taken, first, second, said, twice, failed = run(work, call, error, nth, lasts)
    lost = {name: count for sink in (first, second) for name, count in sink["dropped"].items() if count}
    counted = sum(sum(sink["dropped"].values()) for sink in (first, second))
    if taken.wrong or taken.repeats > twice or taken.count + counted != sent:
        raise Failed(f"{what}: {sent} sent, {taken.count} came, {taken.repeats} twice ({twice} said), {counted} "
                     f"counted as lost, {taken.wrong}\n{said}")
    if first["delivered"] + second["delivered"] != taken.count + taken.repeats:
        raise Failed(f"{what}: {first['delivered']} and {second['delivered']} delivered, {taken.count} came\n{said}")
    if set(lost) - set(costs):
        raise Failed(f"{what}: cost {lost}\n{said}")
    lines = [line for line in said.splitlines() if line.startswith(("warn", "error"))]
    named = [line for line in lines if "spill-of-faults" in line and "os error" in line]
    if failed and (not named or len(named) > (SEGMENTS if call == "unlink" else LINES_MAX)):
        raise Failed(f"{what}: {len(named)} lines about it\n{said}")
    return failed, lost, second["spilled_before"], taken.repeats


def campaign(work, is_long):
    if not compile_it(work):
        return
    runs, failures = 0, 0
    for call, error, costs in CALLS:
        for lasts in (False, True):
            for nth in ((1, 2, 3, 5, 8, 13) if is_long else (2,)):
                if lasts and nth > 5:
                    continue
                failed, lost, left, repeats = judge(work, call, error, nth, lasts, costs)
                runs, failures = runs + 1, failures + (failed > 0)
                if is_long:
                    print(f"{call} = {error}, {'from' if lasts else 'only'} {nth}: failed {failed} times, lost {lost}, "
                          f"{left} left for the next daemon, {repeats} twice", flush=True)
    if failures < runs // 2:
        raise Failed(f"only {failures} of {runs} runs have seen a failure")
    print(f"{runs} runs with a disk that fails, {failures} of them hit: each datagram came or is counted as lost",
          flush=True)
