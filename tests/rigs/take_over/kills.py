"""Take-overs under a load that the receive buffers do not hold, where the old process is killed at a random moment
from the first question of the new one on. What was sent has to be in the files, in the ledgers, or within what the
new process says that the dead one may have lost.

Neither is believed: the files are read by their numbers, and what the ledgers say of the kernel's drops has to be what
the kernel counted in this namespace. Where the old process dies before it has passed its sockets, what was in them is
gone, and the new one has to say so: null in its ledger, and a line in its log. Such a row is told apart.
"""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time

from campaign import ADDRESS, PATIENCE, Campaign, Failed, Process, datagrams, setting

RATE, KILLS, SEED = setting("RATE", 20000), setting("KILLS", 6), setting("SEED", random.randrange(1 << 32))
# So many on one sender, so that one that cannot be known leaves the others exact.
IN_A_ROW = 5
UNKNOWN = "has ended before it had passed its sockets"


def kernel_counts():
    """What the kernel dropped at all sockets of this namespace, and what found no socket."""
    with open("/proc/net/snmp") as file:
        lines = [line.split() for line in file if line.startswith("Udp:")]
    table = dict(zip(lines[0][1:], map(int, lines[1][1:])))
    return table["InErrors"], table["NoPorts"]


class Killing(Campaign):
    def config(self, ledger, lanes, extra, path):
        text = super().config(ledger, lanes, extra, path or ledger + ".lines")
        lines = ['receive_buffer = "256KiB"' if line.startswith("absorb =") else line for line in text.splitlines()]
        return "\n".join(lines)

    def end_in_peace(self, is_known):
        """A sender is refused when the sockets are gone with their process."""
        try:
            self.end()
        except Failed:
            if is_known or self.running.child.poll() is not None:
                raise
            self.running.child.send_signal(signal.SIGTERM)
            self.running.wait(0)

    def stats(self, new):
        socket = os.path.join(self.directory, "control.sock")
        run = subprocess.run([self.binary, "stats", "--json", "--socket", socket], capture_output=True, text=True,
                             timeout=PATIENCE)
        if run.returncode:
            raise Failed("udpd stats: %s\n%s" % (run.stderr, new.log()))
        return json.loads(run.stdout)


def dropped_in(ledger):
    by_kernel = own = 0
    for one in ledger["listeners"]:
        if one["kernel_dropped"] is None:
            raise Failed("kernel_dropped is not known: %s" % json.dumps(one, indent=1))
        by_kernel += one["kernel_dropped"] + (one["kernel_dropped_between"] or 0)
        own += sum(one["dropped"].values()) + sum(sum(sink["dropped"].values()) for sink in one["sinks"])
    return by_kernel, own


def stage(new):
    """How far the two were when the old one died, by the log of the new one."""
    log = new.log()
    for words, name in ((UNKNOWN, "before its sockets were passed"),
                        ("has died before it could be taken over from", "while it received on or stopped"),
                        ("has died before it had written its last ledger", "while it ended"),
                        ("was killed after it had handed over", "before its last ledger"),
                        ("nothing to take over", "before it was asked")):
        if words in log:
            return name
    return "after all"


def row(binary, times, chance, stages, longest):
    """One sender; returns whether all is known."""
    campaign = Killing("kills, row %d" % sum(stages.values()), binary)
    begun, no_port = kernel_counts()
    by_kernel = own = at_most = 0
    is_known = True
    try:
        campaign.begin()
        for _ in range(times):
            old, new = campaign.running, Process(campaign, binary, chance.choice([1, 2, 2, 3]))
            campaign.all.append(new)
            new.await_word("asking process")
            asked = time.monotonic()
            time.sleep(chance.uniform(0, longest[0]))
            old.child.send_signal(signal.SIGKILL)
            code = old.child.wait(PATIENCE)
            new.await_word("ready: ")
            # A little more than it takes, so that some die after all.
            if code == 0:
                longest[0] = min(longest[0], 1.2 * (time.monotonic() - asked))
            stages[stage(new)] += 1
            ledger = campaign.stats(new)
            before = ledger["before"]
            if stage(new) == "before its sockets were passed":
                is_known = False
                if before["kernel_dropped"] is not None or before["lost_datagrams_at_most"] is not None:
                    raise Failed("nobody knows that: %s\n%s" % (before, new.log()))
            elif not before or before["pid"] != old.child.pid:
                raise Failed("before is %s, and %d was killed:\n%s" % (before, old.child.pid, new.log()))
            elif before["ended"]:
                with open(old.base + ".json") as file:
                    last = dropped_in(json.load(file))
                by_kernel, own = by_kernel + last[0], own + last[1]
            elif None in (before["kernel_dropped"], before["dropped"], before["lost_datagrams_at_most"]) or any(
                    one["kernel_dropped_between"] is None for one in ledger["listeners"]):
                raise Failed("a term is not known: %s\n%s" % (json.dumps(ledger, indent=1), new.log()))
            else:
                by_kernel += before["kernel_dropped"]
                own += before["dropped"]
                at_most += before["lost_datagrams_at_most"]
            campaign.running = new
            campaign.pause()
        campaign.end_in_peace(is_known)
        with open(campaign.running.base + ".json") as file:
            last = dropped_in(json.load(file))
        by_kernel, own = by_kernel + last[0], own + last[1]
        found = collections.Counter()
        for process in campaign.all:
            with open(process.base + ".json.lines", "rb") as file:
                found.update(datagrams.of_lines(file.read())[0])
        sent = {(one["flow"], number) for one in campaign.report["flows"] for number in range(one["sequences"])}
        twice = sum(found.values()) - len(found)
        lost = len(sent) - len(found) - by_kernel - own
        ended, no_port_now = kernel_counts()
        what = ("%d sent = %d in the files + %d dropped by the kernel + %d by udpd + %d lost, of %d at most; the "
                "kernel counted %d, and %d without a socket" % (
                    len(sent), len(found), by_kernel, own, lost, at_most, ended - begun, no_port_now - no_port))
        if twice or set(found) - sent or lost < 0 or is_known and (
                lost > at_most or by_kernel != ended - begun or no_port_now != no_port):
            raise Failed("%d twice; %s\n%s" % (twice, what, "\n".join(process.log() for process in campaign.all)))
        return is_known, len(sent), len(found), by_kernel, own, lost, at_most
    finally:
        campaign.close()


def main():
    binary, chance = sys.argv[2], random.Random(SEED)
    stages, longest, rows = collections.Counter(), [0.4], []
    while sum(stages.values()) < KILLS:
        rows.append(row(binary, min(IN_A_ROW, KILLS - sum(stages.values())), chance, stages, longest))
    sums = [sum(one[place] for one in rows if one[0]) for place in range(1, 7)]
    told = ", ".join("%d %s" % (count, name) for name, count in sorted(stages.items()))
    print("passed: the old process of a take-over killed at %d random moments (%s) at %d/s, seed %d; %d of %d senders "
          "with all terms known: %d sent = %d in the files + %d dropped by the kernel, which counted the same, + %d by "
          "udpd + %d lost, of %d at most; of the others it is said what is not known" % (
              KILLS, told, RATE, SEED, sum(one[0] for one in rows), len(rows), *sums))


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        print("FAILED: %s (SEED=%d)" % (failure, SEED))
        sys.exit(1)
