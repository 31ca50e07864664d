"""Kills and a full disk under a sink with a spill.

Senders number their datagrams. The peer of the sink, a stream of lines, writes down what it gets. Before each kill the
ledger is read: what it calls spilled and delivered, less what the process found, is what that process has accepted so
far, and all of that has to come. Repeats are counted and held against what the daemons said; the first of each number
has to come in the order of its sender.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

WORK = sys.argv[1]
UDPD = f"{WORK}/udpd"
ADDRESS = ("127.0.0.1", 5197)
KILLS = 50 if os.environ.get("LONG") else 6
SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
FLOWS = 4


def fail(what):
    print(f"FAILED (SEED={SEED}): {what}")
    subprocess.run(["tail", "-n", "40", f"{WORK}/log"], check=False)
    os._exit(1)


class Senders:
    """Sends until it is told to stop; `sent` is by flow."""

    def __init__(self, length, per_second):
        self.sent, self.length, self.per_second, self.goes_on = [0] * FLOWS, length, per_second, True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
        begun, count = time.monotonic(), 0
        while self.goes_on:
            for flow, sender in enumerate(sockets):
                payload = b"%02d %010d " % (flow, self.sent[flow])
                sender.sendto(payload.ljust(self.length, b"x"), ADDRESS)
                self.sent[flow] += 1
            count += FLOWS
            time.sleep(max(0, begun + count / self.per_second - time.monotonic()))

    def end(self):
        self.goes_on = False
        self.thread.join()


class Peer:
    """Takes every connection; the last line of one that was cut off is none."""

    def __init__(self, path):
        self.taken, self.path = [], path
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            connection, _ = listener.accept()
            rest = b""
            while True:
                data = connection.recv(1 << 18)
                *lines, rest = (rest + data).split(b"\n")
                self.taken += [(int(line[:2]), int(line[3:13])) for line in lines]
                if not data:
                    break


class Daemon:
    def __init__(self, spill, lines):
        text = (
            f'[daemon]\ncontrol_socket = "{WORK}/control"\nmetrics_address = ""\nstats_on_exit = "{WORK}/ledger"\n'
            f'[[listener]]\nname = "in"\naddress = "{ADDRESS[0]}:{ADDRESS[1]}"\nlanes = 1\nsinks = ["out"]\n'
            f'[sink.out]\ntype = "unix"\nsocket = "stream"\npath = "{WORK}/out"\n'
            f'spill = {{ path = "{spill}", bytes = "64MiB" }}\n{lines}\n'
        )
        with open(f"{WORK}/udpd.toml", "w", encoding="ascii") as file:
            file.write(text)
        self.log = open(f"{WORK}/log", "w+", encoding="utf-8")
        self.process = subprocess.Popen([UDPD, "run", "-c", f"{WORK}/udpd.toml"], stderr=self.log)
        self.when(lambda: "ready:" in self.said(), "it is ready")

    def said(self):
        with open(f"{WORK}/log", encoding="utf-8") as log:
            return log.read()

    def when(self, is_so, what):
        begun = time.monotonic()
        while not is_so():
            if self.process.poll() is not None:
                fail(f"udpd has ended, and {what} was waited for")
            if time.monotonic() - begun > 60:
                fail(f"a minute has passed, and {what} was waited for")
            time.sleep(0.005)

    def sink(self):
        command = [UDPD, "stats", "--json", "--socket", f"{WORK}/control"]
        ledger = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        sink = ledger["listeners"][0]["sinks"][0]
        if ledger["listeners"][0]["residual"] != 0:
            fail(f"a residual: {ledger['listeners'][0]}")
        return sink

    def kill(self):
        """What it had accepted when the ledger was read last, and how much it said may come twice."""
        sink = self.sink()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        twice = re.findall(r"at most (\d+) of them were sent before", self.said())
        if "panicked" in self.said():
            fail("a panic")
        return sink["spilled"] + sink["delivered"] - sink["spilled_before"], sum(map(int, twice))

    def end(self):
        said = lambda: sum(map(int, re.findall(r"at most (\d+) of them were sent before", self.said())))
        self.process.terminate()
        if self.process.wait() != 0:
            fail("it did not end well")
        with open(f"{WORK}/ledger", encoding="utf-8") as ledger:
            listener = json.load(ledger)["listeners"][0]
        sink = listener["sinks"][0]
        parts = sink["delivered"] + sum(sink["dropped"].values()) + sink["in_flight"] + sink["spilled"]
        if listener["residual"] != 0 or sink["offered"] + sink["spilled_before"] != parts:
            fail(f"the ledger does not close: {listener}")
        return sink, said()


def check(taken, had, twice):
    """What came, against what was accepted and what may be there twice."""
    seen, last = set(), [-1] * FLOWS
    for flow, number in taken:
        if (flow, number) in seen:
            continue
        seen.add((flow, number))
        if number < last[flow]:
            fail(f"flow {flow}: {number} came after {last[flow]}")
        last[flow] = number
    repeats = len(taken) - len(seen)
    if len(seen) < had:
        fail(f"{len(seen)} came of {had} that were accepted")
    if repeats > twice:
        fail(f"{repeats} came twice, and {twice} were said to")
    return len(seen), repeats


def kills():
    chance = random.Random(SEED)
    senders, had, twice, peer = Senders(200, 8_000), 0, 0, None
    spill = f"{WORK}/spill"
    daemon = Daemon(spill, "")
    for number in range(KILLS):
        if number == KILLS // 2:
            peer = Peer(f"{WORK}/out")
        is_sending = peer is not None
        enough = chance.randrange(100, 3_000)
        daemon.when(lambda: daemon.sink()["delivered" if is_sending else "spilled"] > enough, "enough to kill it")
        accepted, said = daemon.kill()
        had, twice = had + accepted, twice + said
        daemon = Daemon(spill, "")
    senders.end()
    daemon.when(lambda: daemon.sink()["spilled"] + daemon.sink()["in_flight"] == 0, "the end of the spill")
    sink, said = daemon.end()
    had, twice = had + sink["delivered"] - sink["spilled_before"], twice + said
    time.sleep(0.2)
    came, repeats = check(peer.taken, had, twice)
    print(f"{KILLS} kills, {sum(senders.sent)} sent: {had} accepted, {came} came, {repeats} twice ({twice} said)")


def full_disk():
    if os.path.exists(f"{WORK}/out"):
        os.unlink(f"{WORK}/out")
    for policy in ("drop_newest", "drop_oldest"):
        daemon = Daemon(f"{WORK}/disk/spill", f'when_full = "{policy}"')
        senders = Senders(1_000, 8_000)
        daemon.when(lambda: daemon.sink()["dropped"]["spill_full"] > 5_000, "a full disk")
        senders.end()
        daemon.when(lambda: daemon.sink()["in_flight"] == 0, "everything decided")
        waits = daemon.sink()
        peer = Peer(f"{WORK}/out")
        daemon.when(lambda: daemon.sink()["spilled"] == 0, "the end of the spill")
        sink, _ = daemon.end()
        if sink["delivered"] + sink["dropped"]["spill_full"] != sink["offered"]:
            fail(f"{policy}: {sink}")
        time.sleep(0.2)
        came, _ = check(peer.taken, sink["delivered"], 0)
        os.unlink(f"{WORK}/out")
        lost = sink["dropped"]["spill_full"]
        print(f"a full disk, {policy}: {came} came, {lost} found no room, {waits['spilled']} waited")


kills()
full_disk()
print("spill.sh: all is well")
os._exit(0)
