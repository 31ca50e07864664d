"""One service under load while its processes come and go: what it was sent, by number, and what became of it. What was
sent is in the files, dropped by the kernel, dropped by udpd, or lost with a process that was killed.

A loss by a machine that is too slow is one that is counted: the socket was full, or the disk took too long. It is told
apart in every line, and fails a campaign only where the machine is said to be fast enough (STRICT=1, as with LONG=1).
"""
import collections
import json
import os
import random
import re
import time

from lib.check import LONG, check, setting
from lib.daemon import WORK, Daemon, dropped_at, listening
from lib.host import write
from lib.load import Bench, numbers_sent
from lib.records import bench_numbers

FLOWS = 16
STALL_MS, STRICT = setting("STALL_MS", 3000), setting("STRICT", int(LONG))
GAP_BAR_MS = 200


class Service:
    """The folder of all of its processes, their files and their sender."""

    def __init__(self, what, rate, engine="recvmmsg", form="lines", address="127.0.0.1:5188", stall_ms=STALL_MS,
                 buffer=None, owner=None):
        self.what, self.rate, self.engine, self.form, self.address = what, rate, engine, form, address
        self.stall_ms, self.owner = stall_ms, owner
        # How much a receive buffer holds: so many bytes, or what comes in a stall.
        self.room = f'receive_buffer = "{buffer}"' if buffer else \
            f'absorb = {{ rate = {rate}, stall = "{stall_ms}ms", size = 64 }}'
        self.directory = f"{WORK}/{re.sub(r'[^a-z0-9]+', '-', what)}"
        os.makedirs(self.directory)
        if owner is not None:
            os.chown(self.directory, owner, owner)
        self.files, self.processes, self.gaps = [], [], []
        self.sender = self.report = None

    def text(self, lanes=2, file="in", engine=None, address=None, more="", path=None):
        """A configuration that writes to this file; `path` is written to instead, and not looked for."""
        own = f"{self.directory}/{file}.{self.form}"
        if own not in self.files and not path:
            self.files.append(own)
        return listening(f'address = "{address or self.address}"\nlanes = {lanes}\nengine = "{engine or self.engine}"\n'
                         f"{self.room}\n{more}", archive=f'type = "file"\nformat = "{self.form}"\n'
                         f'path = "{path or own}"\nrotate = {{ bytes = 0, every = "0s" }}')

    def launch(self, text, **more):
        """The next process, which is not waited for."""
        place = f"{self.directory}/{len(self.processes) + 1}"
        more = {"owner": self.owner, "wait": False} | more
        self.processes.append(Daemon(text, directory=place, socket=f"{self.directory}/control.sock", **more))
        return self.processes[-1]

    def begin_sending(self):
        self.sender = Bench(self.address, self.rate, "--flows", FLOWS)
        self.pause()

    def pause(self):
        """Not always the same moment of the second."""
        time.sleep(random.uniform(0.1, 0.5))

    def end_sending(self):
        self.report = self.sender.end()

    def broken_program(self):
        """One that does not run."""
        path = f"{self.directory}/broken"
        write(path, "#!/bin/sh\nexit 1\n", 0o755)
        return path

    def read(self):
        """The numbers in each file, and the names of those that end within a record, as a kill may leave them."""
        found, cut = {}, []
        for path in filter(os.path.exists, self.files):
            found[path], is_cut = bench_numbers(path, self.form)
            cut += [path] * is_cut
        return found, cut

    def count(self):
        """How many were sent, and how many of them are in the files: none is there twice."""
        found, cut = self.read()
        times = collections.Counter(one for numbers in found.values() for one in numbers)
        twice, sent = times.total() - len(times), numbers_sent(self.report)
        foreign = set(times) - sent
        check(not twice and not foreign, f"{self.what}: {twice} are there twice, {len(foreign)} were never sent")
        return len(sent), len(times), cut

    def middle_and_longest_gap(self):
        gaps = sorted(self.gaps) or [0]
        return gaps[len(gaps) // 2], gaps[-1]

    def tell_slow(self, why):
        """Something was dropped and counted."""
        print(f"        a slow machine, and no loss of udpd: {why}")
        check(not STRICT, f"{self.what}: {why}")


class Terms:
    """What the ledgers of all processes say of what is not in the files."""

    def __init__(self):
        self.by_kernel = self.own = self.at_most = 0

    def take_last(self, ledger):
        """Of one that ended in good order."""
        for one in ledger["listeners"]:
            self.by_kernel += known(one["kernel_dropped"], one) + (one["kernel_dropped_between"] or 0)
            self.own += dropped_at(one) + sum(dropped_at(sink) for sink in one["sinks"])

    def take_before(self, ledger):
        """Of one that was killed, as the next one tells."""
        before = ledger["before"]
        self.by_kernel += known(before["kernel_dropped"], before)
        self.own += known(before["dropped"], before)
        self.at_most += known(before["lost_datagrams_at_most"], before)


def known(value, of):
    check(value is not None, lambda: f"a term is not known: {json.dumps(of, indent=1)}")
    return value
