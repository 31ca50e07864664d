"""Kills of a daemon under a load that its receive buffers do not hold, each followed by a start with another `gro`,
engine, number of lanes or address. What was sent has to be in the files, in the ledgers of those that came after,
or within what the next process says that the dead one may have lost.

Neither is believed: the files are read by their numbers, and what the ledgers say of the kernel's drops has to be what
the kernel itself counted at all the sockets, which the manager keeps and asks.
"""
import json
import os
import random
import signal
import time

from lib.check import LONG, check, main, passed, setting
from lib.daemon import engines
from lib.service import Terms
from manager import Managed

RATE, CHANGES = setting("RATE", 60_000 if LONG else 20_000), setting("CHANGES", 50 if LONG else 5)
SEED = setting("SEED", random.randrange(1 << 32))
PORT = 5188


def keys_of(choice, number):
    return {"lanes": choice["lanes"], "file": f"in-{number}", "engine": choice["engine"],
            "address": f"{choice['address']}:{PORT}", "more": f'gro = "{choice["gro"]}"'}


def disturb(process, chance):
    """While it is stopped its buffers overflow, and how much that was it has not looked at when it is killed."""
    if chance.random() < 0.5:
        os.kill(process, signal.SIGSTOP)
        time.sleep(chance.uniform(0.01, 0.1))
        if chance.random() < 0.5:
            os.kill(process, signal.SIGCONT)
            time.sleep(chance.uniform(0, 1.2))


def changes():
    chance, terms = random.Random(SEED), Terms()
    service = Managed("kill -9 and another gro, engine, lanes or address", RATE, buffer="256KiB")
    choice = {"lanes": 2, "gro": "off", "engine": "recvmmsg", "address": "127.0.0.1"}
    others = {"lanes": [1, 2, 3, 4], "gro": ["on", "off"], "engine": engines(), "address": ["127.0.0.1", "0.0.0.0"]}
    changed = dict.fromkeys(others, 0)
    service.begin(**keys_of(choice, 0))
    for number in range(1, CHANGES + 1):
        pid = service.process.child.pid
        disturb(pid, chance)
        service.end_process(signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.15))
        for key in chance.sample(sorted(others), chance.choice([1, 1, 2, 3])):
            if left := [one for one in others[key] if one != choice[key]]:
                choice[key] = chance.choice(left)
                changed[key] += 1
        service.start(**keys_of(choice, number))
        ledger = service.process.ledger()
        before = ledger["before"]
        check(before and before["pid"] == pid and not before["ended"], f"before is {before}, and {pid} was killed")
        terms.take_before(ledger)
        check(any(one["kernel_dropped_between"] is not None for one in ledger["listeners"]), lambda: "what the kernel "
              f"dropped between two processes is not known: {json.dumps(ledger['listeners'], indent=1)}")
        time.sleep(chance.uniform(0, 0.4))
    service.end()
    terms.take_last(service.process.last())
    sent, in_files, _ = service.count()
    counted, lost = service.dropped(), sent - in_files - terms.by_kernel - terms.own
    what = (f"{sent} sent = {in_files} in the files + {terms.by_kernel} dropped by the kernel + {terms.own} by udpd + "
            f"{lost} lost, of {terms.at_most} at most")
    check(terms.by_kernel == counted and 0 <= lost <= terms.at_most,
          f"SEED={SEED}: {what}; the kernel counted {counted} at the sockets")
    check(terms.by_kernel, f"no buffer has overflowed: {what}")
    times = ", ".join(f"{key} {count}" for key, count in sorted(changed.items()))
    passed(f"{service.what}, {CHANGES} times ({times}) at {service.report['rate']:.0f}/s, SEED={SEED}: {what}; at its "
           "sockets the kernel counted the same")


main(changes)
