"""Kills, an outage and a full disk under a sink with a spill.

Senders number their datagrams. The peer of the sink, a stream, writes down what it gets. Before each kill the ledger
is read: what it calls spilled and delivered, less what the process found, is what that process has accepted so far, and
all of that has to come. Repeats are counted and held against what the daemons said; the first of each number has to
come in the order of its sender. Without a kill nothing comes twice, and what was sent has come, but for what the kernel
says that it dropped at the socket.
"""

import glob
import os
import random
import time

import disks
import faults
from daemon import OUT, PORT, Spilling, accepted
from lib.check import LONG, check, check_the_judge, main, passed, setting
from lib.daemon import WORK
from lib.load import Bench
from lib.net import dropped_at_port
from peer import Peer, Taken, senders

KILLS = 50 if LONG else 3
OUTAGE_S, RATE = (60, 50_000) if LONG else (3, 10_000)
LENGTH, FLOWS = 200, 4
SEED = setting("SEED", time.time_ns() % 1_000_000)


def judge(taken, had, twice):
    """What came, against what was accepted and what may be there twice."""
    check(not taken.wrong, taken.wrong)
    check(taken.count >= had, f"{taken.count} came of {had} that were accepted")
    check(taken.repeats <= twice, f"{taken.repeats} came twice, and {twice} were said to")


def judge_numbers(*numbers):
    taken = Taken()
    for number in numbers:
        taken.take(0, number)
    judge(taken, 3, 0)


def wrong_numbers():
    check_the_judge(judge_numbers, {"a gap": (0, 2), "a repeat": (0, 1, 1, 2), "an order": (0, 2, 1)})


def kills():
    """Kills in the middle of spilling, then as many in the middle of sending what has been spilled."""
    chance, taken, spill = random.Random(SEED), Taken(), f"{WORK}/spill"
    # Slow enough that what has gathered is not sent at once, and faster than the senders.
    peer = Peer(OUT, LENGTH, taken, bytes_per_second=4_000_000)
    daemon = Spilling(spill)
    load = senders(PORT, FLOWS, LENGTH, 8_000)
    had = twice = in_the_middle = 0
    for number in range(2 * KILLS):
        enough = chance.randrange(100, 3_000)
        if number < KILLS:
            daemon.await_sink("enough in the spill", lambda sink: accepted(sink) > enough)
        else:
            daemon.await_sink("enough in the spill", lambda sink: sink["spilled"] > 3_000 + enough)
            peer.come()
            daemon.await_sink("enough is sent", lambda sink: sink["delivered"] > enough)
        more, said = daemon.kill_while_spilling()
        if number >= KILLS:
            peer.go()
        had, twice = had + more, twice + said
        daemon = Spilling(spill)
        in_the_middle += number >= KILLS and daemon.sink()["spilled_before"] > 0
    sent = load.end()
    peer.come()
    daemon.await_sent()
    twice += daemon.twice()
    sink = daemon.finish()["sinks"][0]
    had += sink["delivered"] - sink["spilled_before"]
    peer.go()
    judge(taken, had, twice)
    check(in_the_middle >= KILLS // 2, f"only {in_the_middle} of {KILLS} kills were in the middle of sending")
    passed(f"{KILLS} kills while it spilled and {KILLS} while it sent, {in_the_middle} of them before the end: "
           f"{sent} sent, {had} accepted, {taken.count} came, {taken.repeats} twice ({twice} said)")


def outage():
    """A peer that is away for a while, and back while there is as much load as before."""
    taken, length, spill = Taken(), 100, f"{WORK}/spill-of-outage"
    peer = Peer(OUT, length, taken).come()
    daemon = Spilling(spill, size="2GiB")
    sender = Bench(f"127.0.0.1:{PORT}", RATE, "--flows", FLOWS, size=length,
                   seconds=OUTAGE_S + 2 * max(1, OUTAGE_S // 10))
    daemon.await_sink("it delivers", lambda sink: sink["delivered"] > RATE // 2)
    peer.go()
    begun = time.monotonic()
    daemon.until("the end of the outage", lambda: time.monotonic() - begun > OUTAGE_S, OUTAGE_S + 60)
    spilled = daemon.sink()["spilled"]
    bytes_on_disk = sum(os.path.getsize(path) for path in glob.glob(f"{spill}/0/*"))
    came_before = taken.count
    peer.come()
    begun = time.monotonic()
    sent = sender.end(is_told=False)["sent"]
    daemon.await_sent(300)
    took_s, dropped = time.monotonic() - begun, dropped_at_port(PORT)
    rest = glob.glob(f"{spill}/0/*.spill")
    listener = daemon.finish()
    peer.go()
    judge(taken, sent - dropped, 0)
    check(taken.count == sent - dropped and listener["kernel_dropped"] == dropped and not rest,
          f"{sent} sent, {dropped} dropped by the kernel, {taken.count} came, left: {rest}; {listener}")
    check(spilled >= OUTAGE_S * RATE * 0.9 - dropped, f"only {spilled} were in the spill")
    passed(f"{OUTAGE_S} s without the peer at {RATE}/s: {sent} sent, {dropped} dropped by the kernel, {came_before} "
           f"came before, {spilled} waited in {bytes_on_disk} bytes, {taken.count} came in order and once, the last of "
           f"them {took_s:.1f} s after the peer was back")


def full_disk(policy):
    taken, length = Taken(), 1_000
    peer = Peer(OUT, length, taken)
    daemon = Spilling(f"{WORK}/disk/spill", f'when_full = "{policy}"')
    load = senders(PORT, FLOWS, length, 8_000)
    if policy == "block":
        daemon.await_sink("a sink that waits", lambda sink: sink["in_flight"] > 3_000)
        sent = load.end()
    else:
        daemon.await_sink("a full disk", lambda sink: sink["dropped"]["spill_full"] > 5_000)
        sent = load.end()
        daemon.await_sink("everything decided", lambda sink: sink["in_flight"] == 0)
    waits = daemon.sink()
    peer.come()
    daemon.await_sent()
    dropped = dropped_at_port(PORT)
    sink = daemon.finish()["sinks"][0]
    peer.go()
    lost = sink["dropped"]["spill_full"]
    judge(taken, sent - dropped - lost, 0)
    check(taken.count == sent - dropped - lost and sum(sink["dropped"].values()) == lost and
          not (policy == "block" and lost),
          f"{policy}: {sent} sent, {dropped} dropped by the kernel, {taken.count} came: {sink}")
    lines = sum("cannot write to its spill" in line for line in daemon.log().splitlines())
    check(lines == 1, f"{policy}: {lines} lines about the disk")
    passed(f"a full disk, {policy}: {taken.count} of {sent} came, {lost} found no room, {waits['spilled']} waited "
           f"there and {waits['in_flight']} in memory")


def full_disks():
    for policy in disks.POLICIES:
        full_disk(policy)
    disks.campaign(SEED)


print(f"SEED={SEED}")
main(wrong_numbers, kills, outage, full_disks, faults.campaign)
