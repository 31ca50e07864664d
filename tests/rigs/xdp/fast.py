"""What happens to a daemon on AF_XDP while frames come from the generator, far faster than any socket sends them: it
is ended, it is killed, its interface goes down and up, and gets a queue more. The judge is the generator, which counts
what the driver took, and the kernel's counters of what came to nobody.

`rig` is daemon.py, which has the cable and the daemon. XDP_RIG_RATE says how many frames a second (50000, with LONG=1
500000). With LONG=1 it is also given all that the generator has, with a reader that begins late.
"""
import json
import os
import random
import signal
import subprocess
import threading
import time

RATE = os.environ.get("XDP_RIG_RATE", "500000" if os.environ.get("LONG") else "50000")
ROUNDS = int(os.environ.get("XDP_RIG_ROUNDS", "20" if os.environ.get("LONG") else "1"))
SECONDS = 2
# What the cable holds and nobody has taken yet is thrown away, uncounted, when an end goes down or its queues change.
ON_THE_CABLE = 256
KEYS = 'address = "10.8.0.1:5140"\nabsorb = { rate = 500000, stall = "20ms", size = 64 }'


class Generator:
    def __init__(self, rig, rate=RATE, size=64, address="10.8.0.1"):
        to = f"[{address}]:{rig.PORT}" if ":" in address else f"{address}:{rig.PORT}"
        mac = json.loads(rig.run("ip", "-j", "link", "show", "card0"))[0]["address"]
        command = ["nsenter", "--target", rig.OTHER, "--net", f"{rig.WORK}/udpd", "bench", "send", "--engine", "xdp"]
        command += ["--interface", "card1", "--to", to, "--destination-mac", mac, "--rate", rate, "--size", str(size)]
        command += ["--seconds", str(SECONDS), "--flows", "1000", "--json"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.rig = rig

    def await_received(self, daemon, more):
        first, end = self.rig.past_the_stack(daemon.stats()), time.monotonic() + self.rig.PATIENCE
        while self.rig.past_the_stack(daemon.stats()) < first + more:
            assert time.monotonic() < end, f"nothing comes: {daemon.stats()} {daemon.log()}"
        # The moment is to be another one each time.
        time.sleep(random.uniform(0, 0.2))
        return self

    def sent(self):
        out = self.child.communicate(timeout=self.rig.PATIENCE)[0]
        assert self.child.returncode == 0, f"the generator ended with {self.child.returncode}"
        return json.loads(out)["report"]["sent"]


def account(rig, case, daemon, sent, nobody=0, on_the_cable=0):
    """sent = delivered + dropped + to nobody, and what was on the cable when it was cut."""
    ledger = daemon.ledger()
    assert ledger["residual"] == 0, f"{case}: residual {ledger['residual']}: {daemon.log()}"
    delivered, lost = ledger["sinks"][0]["delivered"], rig.drops(ledger)
    told = f"{delivered} delivered + {lost} dropped + {nobody} to nobody"
    missing = sent - delivered - lost - nobody
    assert 0 <= missing <= on_the_cable, f"{case}: sent {sent}, {told}, {missing} missing: {daemon.log()}"
    print(f"passed: {case} at {RATE}/s: sent {sent} = {told} + {missing} on the cable")


def is_ended(rig):
    daemon = rig.Daemon(listener=KEYS, kind="null").ready()
    generator = Generator(rig).await_received(daemon, 1000)
    daemon.end()
    assert not rig.has_program(), "the program of a process that has ended"
    sent = generator.sent()
    refused = sum(lane["kernel_dropped"] for lane in daemon.ledger()["lanes"] if lane["engine"] == "recvmmsg")
    account(rig, "SIGTERM", daemon, sent, nobody=rig.nobody_listened() - daemon.nobody - refused)


def is_killed(rig):
    daemon = rig.Daemon(listener=KEYS, kind="null").ready()
    generator = Generator(rig).await_received(daemon, 1000)
    daemon.child.send_signal(signal.SIGKILL)
    daemon.child.wait(rig.PATIENCE)
    end = time.monotonic() + rig.PATIENCE
    while rig.has_program():
        assert time.monotonic() < end, "the program of a killed process is still there"
    generator.sent()
    daemon = rig.Daemon(listener=KEYS, kind="null").ready()
    sent = Generator(rig).sent()
    account(rig, "after kill -9 no program is left, and the next process receives", daemon.end(), sent)


def goes_down_and_up(rig):
    daemon = rig.Daemon(listener=KEYS, kind="null").ready()
    generator = Generator(rig).await_received(daemon, 1000)
    rig.run("ip", "link", "set", "card0", "down")
    rig.run("ip", "link", "set", "card0", "up")
    generator.await_received(daemon, 1000)
    sent = generator.sent()
    account(rig, "down and up", daemon.end(), sent, on_the_cable=ON_THE_CABLE)


def gets_a_queue(rig):
    rig.set_queues(1)
    # Both engines have their memory counted as locked for a moment, and this host may have a limit.
    daemon = rig.Daemon(listener=f'address = "10.8.0.1:5140"\n{rig.TINY}', kind="null").ready()
    generator = Generator(rig).await_received(daemon, 1000)
    rig.set_queues(2)
    daemon.await_word("queues: 2")
    sent = generator.sent()
    account(rig, "a queue more", daemon.end(), sent, on_the_cable=2 * ON_THE_CABLE)


def is_overloaded(rig, policy, address, size):
    """All that the generator has, little room, and a reader that begins when it is over."""
    keys = f'when_full = "{policy}"\nqueue_bytes = "256KiB"'
    absorb = 'absorb = { rate = 20000, stall = "10ms", size = 1400 }'
    daemon = rig.Daemon(listener=absorb, sink=keys, kind="stdout").ready()
    sent = Generator(rig, "max", size, address).sent()
    lines = []
    reader = threading.Thread(target=lambda: lines.append(daemon.child.stdout.read().count(b"\n")))
    reader.start()
    ledger = daemon.end().ledger()
    reader.join()
    delivered, lost = ledger["sinks"][0]["delivered"], rig.drops(ledger)
    case = f"all that the generator has, {policy}, {size} bytes to {address}"
    assert ledger["residual"] == 0, f"{case}: residual {ledger['residual']}: {daemon.log()}"
    assert lines == [delivered], f"{case}: {delivered} delivered by the ledger, {lines} are there"
    assert lost > 0, f"{case}: nothing was lost, so nothing was tested"
    assert sent == delivered + lost, f"{case}: sent {sent} = {delivered} + {lost} dropped: {daemon.log()}"
    print(f"passed: {case}: sent {sent} = {delivered} delivered + {lost} dropped")


def lay(rig, queues=1):
    rig.cable(queues=queues)
    card = json.loads(rig.run("ip", "-j", "link", "show", "card0"))[0]["address"]
    # While the cable has no carrier nobody can ask who has the address.
    rig.run("ip", "neigh", "replace", "10.8.0.1", "lladdr", card, "dev", "card1", "nud", "permanent", there=True)
    # Without a program the end here takes frames only where it polls.
    rig.run("python3", "-B", f"{rig.HERE}/send.py", "gro", "card0")


def overloads(rig):
    lay(rig)
    for _ in range(ROUNDS):
        for policy in ("drop_newest", "drop_oldest", "block"):
            for address in rig.ADDRESSES:
                for size in (64, 1400):
                    is_overloaded(rig, policy, address, size)
    rig.cable()


def all_events(rig):
    for queues, events in ((1, (is_ended, is_killed, goes_down_and_up)), (2, (gets_a_queue,))):
        lay(rig, queues)
        for event in events:
            for _ in range(ROUNDS):
                event(rig)
    rig.cable()
