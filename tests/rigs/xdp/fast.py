"""What happens to a daemon on AF_XDP while frames come from the generator, far faster than any socket sends them: it
is ended, it is killed, its interface goes down and up, and gets a queue more. The judge is the generator, which counts
what the driver took, and the kernel's counters of what came to no socket. XDP_RIG_RATE says how many frames a second
(50000, with LONG=1 500000). With LONG=1 it is also given all that the generator has, with a reader that begins late.
"""
import os
import random
import subprocess
import time

import cable
from cable import ADDRESSES, PORT
from lib import net
from lib.check import LONG, check, passed, same, setting
from lib.load import Bench
from lib.net import OTHER
from subject import TINY, Receiving, drops, kill, unheard

RATE = os.environ.get("XDP_RIG_RATE", "500000" if LONG else "50000")
ROUNDS = setting("XDP_RIG_ROUNDS", 20 if LONG else 1)
SECONDS = 2
# What the cable holds and was not taken yet is thrown away, uncounted, when an end goes down or its queues change.
ON_THE_CABLE = 256
KEYS = 'address = "10.8.0.1:5140"\nabsorb = { rate = 500000, stall = "20ms", size = 64 }'


class Generator(Bench):
    def __init__(self, rate=RATE, size=64, address="10.8.0.1"):
        to = f"[{address}]:{PORT}" if ":" in address else f"{address}:{PORT}"
        super().__init__(to, rate, "--engine", "xdp", "--interface", "card1", "--destination-mac",
                         net.link("card0")["address"], "--flows", 1000, seconds=SECONDS, size=size, place=OTHER)

    def await_received(self, daemon, more):
        daemon.await_past_the_stack(daemon.past_the_stack() + more - 1)
        # The moment is to be another one each time.
        time.sleep(random.uniform(0, 0.2))
        return self

    def sent(self):
        return self.end(is_told=False, may_be_refused=True)["sent"]


def account(case, daemon, sent, nowhere=0, on_the_cable=0):
    """sent = delivered + dropped + without a socket, and what was on the cable when it was cut."""
    ledger = daemon.final()
    delivered, lost = ledger["sinks"][0]["delivered"], drops(ledger)
    told = f"{delivered} delivered + {lost} dropped + {nowhere} without a socket"
    missing = sent - delivered - lost - nowhere
    check(0 <= missing <= on_the_cable, f"{case}: sent {sent}, {told}, {missing} missing")
    passed(f"{case} at {RATE}/s: sent {sent} = {told} + {missing} on the cable")


def under_way(keys=KEYS):
    """A daemon that gets frames."""
    daemon = Receiving(keys, kind="null")
    return daemon, Generator().await_received(daemon, 1000)


def is_ended():
    daemon, generator = under_way()
    daemon.end()
    check(not cable.has_program(), "the program of a process that has ended")
    sent = generator.sent()
    account("SIGTERM", daemon, sent, nowhere=unheard() - daemon.unheard - daemon.refused_by_sockets())


def is_killed():
    daemon, generator = under_way()
    kill(daemon)
    generator.sent()
    daemon = Receiving(KEYS, kind="null")
    sent = Generator().sent()
    account("after kill -9 no program is left, and the next process receives", daemon.finish(), sent)


def goes_down_and_up():
    daemon, generator = under_way()
    net.ip("link set card0 down")
    net.ip("link set card0 up")
    generator.await_received(daemon, 1000)
    sent = generator.sent()
    account("down and up", daemon.finish(), sent, on_the_cable=ON_THE_CABLE)


def gets_a_queue():
    cable.set_queues(1)
    # Both engines have their memory counted as locked for a moment, and this host may have a limit.
    daemon, generator = under_way(f'address = "10.8.0.1:5140"\n{TINY}')
    cable.set_queues(2)
    daemon.await_log("queues: 2")
    sent = generator.sent()
    account("a queue more", daemon.finish(), sent, on_the_cable=2 * ON_THE_CABLE)


def is_overloaded(policy, address, size):
    """All that the generator has, little room, and a reader that begins when it is over."""
    daemon = Receiving('absorb = { rate = 20000, stall = "10ms", size = 1400 }',
                       f'when_full = "{policy}"\nqueue_bytes = "256KiB"', "stdout", stdout=subprocess.PIPE)
    sent = Generator("max", size, address).sent()
    lines, ledger = daemon.read_late().count(b"\n"), daemon.final()
    delivered, lost = ledger["sinks"][0]["delivered"], drops(ledger)
    case = f"all that the generator has, {policy}, {size} bytes to {address}"
    same(lines, delivered, f"{case}: read, and delivered by the ledger")
    check(lost > 0, f"{case}: nothing was lost, so nothing was tested")
    same(sent, delivered + lost, f"{case}: sent, and {delivered} delivered + {lost} dropped")
    passed(f"{case}: sent {sent} = {delivered} delivered + {lost} dropped")


def lay(queues=1):
    cable.lay(queues)
    # While the cable has no carrier it cannot be asked who has the address.
    cable.know_address()
    # Without a program the end here takes frames only where it polls.
    net.gro("card0", True)


def overloads():
    lay()
    for _ in range(ROUNDS):
        for policy in ("drop_newest", "drop_oldest", "block"):
            for address in ADDRESSES:
                for size in (64, 1400):
                    is_overloaded(policy, address, size)
    cable.lay()


def all_events():
    for queues, events in ((1, (is_ended, is_killed, goes_down_and_up)), (2, (gets_a_queue,))):
        lay(queues)
        for event in events:
            for _ in range(ROUNDS):
                event()
    cable.lay()
