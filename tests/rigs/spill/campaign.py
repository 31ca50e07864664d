"""Kills, an outage and a full disk under a sink with a spill.

Senders number their datagrams. The peer of the sink, a stream, writes down what it gets. Before each kill the ledger
is read: what it calls spilled and delivered, less what the process found, is what that process has accepted so far, and
all of that has to come. Repeats are counted and held against what the daemons said; the first of each number has to
come in the order of its sender. Without a kill nothing comes twice, and what was sent has come, but for what the kernel
says that it dropped at the socket.
"""

import glob
import json
import os
import random
import subprocess
import sys
import time

import disks
import faults
from daemon import Daemon, Failed
from peer import Peer, Senders, Taken

WORK = sys.argv[1]
LONG = bool(os.environ.get("LONG"))
KILLS = 50 if LONG else 3
OUTAGE_S, RATE = (60, 50_000) if LONG else (3, 10_000)
LENGTH, FLOWS = 200, 4
SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
OUT = f"{WORK}/out"


def check(taken, had, twice):
    """What came, against what was accepted and what may be there twice."""
    if taken.wrong:
        raise Failed(taken.wrong)
    if taken.count < had:
        raise Failed(f"{taken.count} came of {had} that were accepted")
    if taken.repeats > twice:
        raise Failed(f"{taken.repeats} came twice, and {twice} were said to")


def check_the_checker():
    """One that finds nothing wrong with these is none."""
    for what, numbers in (("a gap", [0, 2]), ("a repeat", [0, 1, 1, 2]), ("an order", [0, 2, 1])):
        taken = Taken()
        for number in numbers:
            taken.take(0, number)
        try:
            check(taken, 3, 0)
        except Failed:
            continue
        raise Failed(f"{what} is not found")


def is_over(daemon):
    sink = daemon.sink()
    return sink["spilled"] + sink["in_flight"] == 0


def kernel_dropped():
    """What the kernel says of the socket, not what the daemon says of it."""
    with open("/proc/net/udp", encoding="ascii") as sockets:
        rows = [row.split() for row in sockets if ":144D " in row]
    return sum(int(row[-1]) for row in rows if row[1].endswith(":144D"))


def kills():
    """Kills in the middle of spilling, then as many in the middle of sending what has been spilled."""
    chance, taken, spill = random.Random(SEED), Taken(), f"{WORK}/spill"
    # Slow enough that what has gathered is not sent at once, and faster than the senders.
    peer = Peer(OUT, LENGTH, taken, bytes_per_second=4_000_000)
    daemon = Daemon(WORK, spill)
    senders = Senders(daemon.address, FLOWS, LENGTH, 8_000)
    had = twice = in_the_middle = 0
    for number in range(2 * KILLS):
        enough = chance.randrange(100, 3_000)
        if number < KILLS:
            daemon.when(lambda: daemon.accepted() > enough, "enough in the spill")
        else:
            daemon.when(lambda: daemon.sink()["spilled"] > 3_000 + enough, "enough in the spill")
            peer.come()
            daemon.when(lambda: daemon.sink()["delivered"] > enough, "enough is sent")
        accepted, said = daemon.kill()
        if number >= KILLS:
            peer.go()
        had, twice = had + accepted, twice + said
        daemon = Daemon(WORK, spill)
        in_the_middle += number >= KILLS and daemon.sink()["spilled_before"] > 0
    sent = senders.end()
    peer.come()
    daemon.when(lambda: is_over(daemon), "the end of the spill")
    twice += daemon.twice()
    sink = daemon.end()["sinks"][0]
    had += sink["delivered"] - sink["spilled_before"]
    peer.go()
    check(taken, had, twice)
    if in_the_middle < KILLS // 2:
        raise Failed(f"only {in_the_middle} of {KILLS} kills were in the middle of sending")
    print(f"{KILLS} kills while it spilled and {KILLS} while it sent, {in_the_middle} of them before the end: "
          f"{sent} sent, {had} accepted, {taken.count} came, {taken.repeats} twice ({twice} said)", flush=True)


def outage():
    """A peer that is away for a while, and back while there is as much load as before."""
    taken, length = Taken(), 100
    peer = Peer(OUT, length, taken).come()
    daemon = Daemon(WORK, f"{WORK}/spill-of-outage", size="2GiB")
    seconds = OUTAGE_S + 2 * max(1, OUTAGE_S // 10)
    sender = subprocess.Popen(
        [f"{WORK}/udpd", "bench", "send", "--to", "%s:%d" % daemon.address, "--rate", str(RATE), "--flows", str(FLOWS),
         "--size", str(length), "--seconds", str(seconds), "--json"], stdout=subprocess.PIPE)
    daemon.when(lambda: daemon.sink()["delivered"] > RATE // 2, "it delivers")
    peer.go()
    begun = time.monotonic()
    daemon.when(lambda: time.monotonic() - begun > OUTAGE_S, "the end of the outage", OUTAGE_S + 60)
    spilled = daemon.sink()["spilled"]
    bytes_on_disk = sum(os.path.getsize(path) for path in glob.glob(f"{WORK}/spill-of-outage/0/*"))
    came_before = taken.count
    peer.come()
    begun = time.monotonic()
    report = json.loads(sender.communicate()[0])["report"]
    daemon.when(lambda: is_over(daemon), "the end of the spill", 300)
    took_s, dropped = time.monotonic() - begun, kernel_dropped()
    rest = glob.glob(f"{WORK}/spill-of-outage/0/*.spill")
    listener = daemon.end()
    peer.go()
    sent = report["sent"]
    check(taken, sent - dropped, 0)
    if taken.count != sent - dropped or listener["kernel_dropped"] != dropped or rest:
        raise Failed(f"{sent} sent, {dropped} dropped by the kernel, {taken.count} came, left: {rest}; {listener}")
    if spilled < OUTAGE_S * RATE * 0.9 - dropped:
        raise Failed(f"only {spilled} were in the spill")
    print(f"{OUTAGE_S} s without the peer at {RATE}/s: {sent} sent, {dropped} dropped by the kernel, {came_before} "
          f"came before, {spilled} waited in {bytes_on_disk} bytes, {taken.count} came in order and once, the last of "
          f"them {took_s:.1f} s after the peer was back", flush=True)


def full_disk():
    length = 1_000
    for policy in ("drop_newest", "drop_oldest", "block"):
        taken = Taken()
        peer = Peer(OUT, length, taken)
        daemon = Daemon(WORK, f"{WORK}/disk/spill", f'when_full = "{policy}"')
        senders = Senders(daemon.address, FLOWS, length, 8_000)
        if policy == "block":
            daemon.when(lambda: daemon.sink()["in_flight"] > 3_000, "a sink that waits")
            sent = senders.end()
        else:
            daemon.when(lambda: daemon.sink()["dropped"]["spill_full"] > 5_000, "a full disk")
            sent = senders.end()
            daemon.when(lambda: daemon.sink()["in_flight"] == 0, "everything decided")
        waits = daemon.sink()
        peer.come()
        daemon.when(lambda: is_over(daemon), "the end of the spill")
        dropped = kernel_dropped()
        sink = daemon.end()["sinks"][0]
        peer.go()
        lost = sink["dropped"]["spill_full"]
        check(taken, sent - dropped - lost, 0)
        if taken.count != sent - dropped - lost or sum(sink["dropped"].values()) != lost or policy == "block" and lost:
            raise Failed(f"{policy}: {sent} sent, {dropped} dropped by the kernel, {taken.count} came: {sink}")
        lines = sum("cannot write to its spill" in line for line in daemon.said().splitlines())
        if lines != 1:
            raise Failed(f"{policy}: {lines} lines about the disk")
        print(f"a full disk, {policy}: {taken.count} of {sent} came, {lost} found no room, {waits['spilled']} waited "
              f"there and {waits['in_flight']} in memory", flush=True)


try:
    check_the_checker()
    kills()
    outage()
    full_disk()
    disks.campaign(WORK, LONG, SEED)
    faults.campaign(WORK, LONG)
except Failed as failed:
    print(f"FAILED (SEED={SEED}): {failed}", flush=True)
    subprocess.run(["tail", "-n", "40", f"{WORK}/log"], check=False)
    os._exit(1)
print("spill.sh: all is well", flush=True)
os._exit(0)
