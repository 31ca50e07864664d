"""Kills of a daemon under a load that its receive buffers do not hold, each followed by a start with another `gro`,
engine, number of lanes or address. What was sent has to be in the files, in the ledgers of those that came after,
or within what the next process says that the dead one may have lost.

Neither is believed: the files are read by their numbers, and what the ledgers say of the kernel's drops has to be what
the kernel itself counted at all the sockets, which the manager keeps and asks.
"""

import json
import os
import random
import subprocess
import sys
import time

from campaign import Campaign, has_io_uring, setting
from manager import Failed

RATE, CHANGES, SEED = setting("RATE", 20000), setting("CHANGES", 5), setting("SEED", random.randrange(1 << 32))
BUFFER = "256KiB"
PORT = 5188


class Changing(Campaign):
    def config(self, choice, number):
        extra = 'stats_on_exit = "%s"' % self.ledger(number)
        text = super().config(lanes=choice["lanes"], file="in-%d" % number, extra=extra)
        lines = text.splitlines()
        for place, line in enumerate(lines):
            if line.startswith("absorb ="):
                lines[place] = 'receive_buffer = "%s"\ngro = "%s"' % (BUFFER, choice["gro"])
            elif line.startswith("address ="):
                lines[place] = 'address = "%s:%d"' % (choice["address"], PORT)
            elif line.startswith("engine ="):
                lines[place] = 'engine = "%s"' % choice["engine"]
        return "\n".join(lines)

    def ledger(self, number):
        return os.path.join(self.directory, "ledger-%d.json" % number)

    def stats(self):
        socket = os.path.join(self.directory, "control.sock")
        run = subprocess.run([self.binary, "stats", "--json", "--socket", socket], capture_output=True, text=True,
                             timeout=60)
        if run.returncode:
            raise Failed("udpd stats: %s" % run.stderr)
        return json.loads(run.stdout)


def known(value, what, ledger):
    if value is None:
        raise Failed("%s is not known: %s" % (what, json.dumps(ledger, indent=1)))
    return value


def dropped_between(ledger):
    """What the kernel dropped between two processes: all sockets were there before, or none of the listener was."""
    return sum(one["kernel_dropped_between"] or 0 for one in ledger["listeners"])


def dropped_in(ledger):
    """By the kernel, and by udpd itself."""
    by_kernel = sum(known(one["kernel_dropped"], "kernel_dropped", ledger) for one in ledger["listeners"])
    own = sum(sum(one["dropped"].values()) + sum(sum(sink["dropped"].values()) for sink in one["sinks"])
              for one in ledger["listeners"])
    return by_kernel + dropped_between(ledger), own


def changes(binary, rate):
    chance = random.Random(SEED)
    campaign = Changing("kill -9 and another gro, engine, lanes or address", binary, rate)
    engines = ["recvmmsg"] + (["io_uring"] if has_io_uring(binary) else [])
    choice = {"lanes": 2, "gro": "off", "engine": "recvmmsg", "address": "127.0.0.1"}
    others = {"lanes": [1, 2, 3, 4], "gro": ["on", "off"], "engine": engines, "address": ["127.0.0.1", "0.0.0.0"]}
    by_kernel = own = at_most = 0
    changed = dict.fromkeys(others, 0)
    try:
        campaign.begin(choice=choice, number=0)
        for number in range(1, CHANGES + 1):
            # While it is stopped its buffers overflow, and how much that was it has not looked at when it is killed.
            pid = campaign.manager.child.pid
            if chance.random() < 0.5:
                os.kill(pid, 19)
                time.sleep(chance.uniform(0.01, 0.1))
                if chance.random() < 0.5:
                    os.kill(pid, 18)
                    time.sleep(chance.uniform(0, 1.2))
            campaign.manager.end(9)
            time.sleep(chance.uniform(0, 0.15))
            keys = chance.sample(sorted(others), chance.choice([1, 1, 2, 3]))
            for key in keys:
                before, choice[key] = choice[key], chance.choice([one for one in others[key] if one != choice[key]]
                                                                 or [choice[key]])
                changed[key] += before != choice[key]
            campaign.manager.start(campaign.config(choice=choice, number=number))
            ledger = campaign.stats()
            before = ledger["before"]
            if not before or before["pid"] != pid or before["ended"]:
                raise Failed("before is %s, and %d was killed" % (before, pid))
            by_kernel += known(before["kernel_dropped"], "before.kernel_dropped", ledger)
            own += known(before["dropped"], "before.dropped", ledger)
            at_most += known(before["lost_datagrams_at_most"], "before.lost_datagrams_at_most", ledger)
            if all(one["kernel_dropped_between"] is None for one in ledger["listeners"]):
                raise Failed("what the kernel dropped between two processes is not known: %s\n%s" % (
                    json.dumps(ledger["listeners"], indent=1), campaign.manager.log()))
            time.sleep(chance.uniform(0, 0.4))
        campaign.end()
        with open(campaign.ledger(CHANGES)) as file:
            last = dropped_in(json.load(file))
        by_kernel, own = by_kernel + last[0], own + last[1]
        sent, in_files, counted = campaign.count()
        lost = sent - in_files - by_kernel - own
        what = "%d sent = %d in the files + %d dropped by the kernel + %d by udpd + %d lost, of %d at most" % (
            sent, in_files, by_kernel, own, lost, at_most)
        if by_kernel != counted or not 0 <= lost <= at_most:
            raise Failed("%s, seed %d: %s; the kernel counted %d at the sockets\n%s" % (
                campaign.what, SEED, what, counted, campaign.manager.log()))
        if by_kernel == 0:
            raise Failed("no buffer has overflowed: %s" % what)
        times = ", ".join("%s %d" % one for one in sorted(changed.items()))
        print("passed: %s, %d times (%s) at %d/s, seed %d: %s; at its sockets the kernel counted the same" % (
            campaign.what, CHANGES, times, campaign.report["rate"], SEED, what))
    finally:
        campaign.close()


if __name__ == "__main__":
    try:
        changes(sys.argv[2], RATE)
    except Failed as failure:
        print("FAILED: %s (SEED=%d)" % (failure, SEED))
        sys.exit(1)
