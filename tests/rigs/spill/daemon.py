"""The daemon with a spill: what is asked of it, what it says, and how it ends. Its ledger is read here, and held
against what came by whoever reads it."""

import json
import os
import re
import signal
import subprocess
import time

PATIENCE_S = 60
# What a daemon says of repeats when it begins.
TWICE = re.compile(r"at most (\d+) of them were sent before")


class Failed(Exception):
    pass


class Daemon:
    def __init__(self, work, spill, lines="", size="64MiB", before=(), wait=True):
        self.work, self.address, self.number = work, ("127.0.0.1", 5197), 0
        text = self.text(spill, size, lines)
        with open(f"{work}/udpd.toml", "w", encoding="ascii") as file:
            file.write(text)
        if os.path.exists(f"{work}/ledger"):
            os.unlink(f"{work}/ledger")
        with open(f"{work}/log", "w", encoding="utf-8") as log:
            command = [*before, f"{work}/udpd", "run", "-c", f"{work}/udpd.toml"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        if wait:
            self.when(lambda: "ready:" in self.said(), "it is ready")

    def text(self, spill, size, lines):
        """Its configuration."""
        work = self.work
        return (
            f'[daemon]\ncontrol_socket = "{work}/control"\nmetrics_address = ""\nstats_on_exit = "{work}/ledger"\n'
            f'[[listener]]\nname = "in"\naddress = "{self.address[0]}:{self.address[1]}"\nlanes = 1\nsinks = ["out"]\n'
            f'receive_buffer = "16MiB"\n'
            f'[sink.out]\ntype = "unix"\nsocket = "stream"\nframing = "length"\npath = "{work}/out"\n'
            f'spill = {{ path = "{spill}", bytes = "{size}" }}\n{lines}\n'
        )

    def said(self):
        with open(f"{self.work}/log", encoding="utf-8") as log:
            return log.read()

    def when(self, is_so, what, patience=PATIENCE_S):
        begun = time.monotonic()
        while not is_so():
            if self.process.poll() is not None:
                raise Failed(f"udpd has ended, and {what} was waited for")
            if time.monotonic() - begun > patience:
                raise Failed(f"{patience} s have passed, and {what} was waited for: {self.sink()}")
            time.sleep(0.005)

    def listener(self):
        command = [f"{self.work}/udpd", "stats", "--json", "--socket", f"{self.work}/control"]
        listener = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["listeners"][0]
        if listener["residual"] != 0:
            raise Failed(f"a residual: {listener}")
        return listener

    def sink(self):
        return self.listener()["sinks"][0]

    def accepted(self):
        """How much of what it received itself is in its spill or delivered."""
        sink = self.sink()
        return sink["spilled"] + sink["delivered"] - sink["spilled_before"]

    def twice(self):
        """How much may come twice, which the ledger has to say as the log does."""
        said = sum(map(int, TWICE.findall(self.said())))
        if "panicked" in self.said():
            raise Failed("a panic")
        return said

    def kill(self):
        """What it had accepted when the ledger was read last, and how much it said may come twice."""
        sink = self.sink()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if sink["spill_repeats_at_most"] != self.twice():
            raise Failed(f"{self.twice()} in the log, {sink}")
        return sink["spilled"] + sink["delivered"] - sink["spilled_before"], self.twice()

    def end(self, code=0):
        """The listener in its last ledger."""
        self.process.terminate()
        if self.process.wait(PATIENCE_S) != code:
            raise Failed(f"it ended with {self.process.returncode}")
        self.twice()
        with open(f"{self.work}/ledger", encoding="utf-8") as ledger:
            listener = json.load(ledger)["listeners"][0]
        sink = listener["sinks"][0]
        parts = sink["delivered"] + sum(sink["dropped"].values()) + sink["in_flight"] + sink["spilled"]
        if listener["residual"] != 0 or sink["offered"] + sink["spilled_before"] != parts:
            raise Failed(f"the ledger does not close: {listener}")
        return listener

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
