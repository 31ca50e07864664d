"""The daemon with a spill: what it says of it, before a kill and at its end."""
import re

from lib.check import check, same
from lib.daemon import WORK, Daemon, listening

PORT = 5197
OUT = f"{WORK}/out"
# What a daemon says of repeats when it begins.
TWICE = re.compile(r"at most (\d+) of them were sent before")


class Spilling(Daemon):
    """One sink, a stream to OUT unless its keys say otherwise."""

    def __init__(self, spill, keys="", size="64MiB", sink="", **more):
        sink = sink or f'type = "unix"\nsocket = "stream"\nframing = "length"\npath = "{OUT}"'
        super().__init__(listening(
            f'address = "127.0.0.1:{PORT}"\nlanes = 1\nreceive_buffer = "16MiB"',
            out=f'{sink}\nspill = {{ path = "{spill}", bytes = "{size}" }}\n{keys}'), **more)

    def listener(self):
        listener = super().listener()
        same(listener["residual"], 0, lambda: f"residual of {listener}")
        return listener

    def await_sink(self, what, condition, seconds=60):
        return self.await_listener(what, lambda listener: condition(listener["sinks"][0]), seconds)["sinks"][0]

    def await_sent(self, seconds=60):
        """Waits for the end of the spill."""
        return self.await_sink("the end of the spill", lambda sink: sink["spilled"] + sink["in_flight"] == 0, seconds)

    def twice(self):
        """How much may come twice, by the log."""
        check("panicked" not in self.log(), "a panic")
        return sum(map(int, TWICE.findall(self.log())))

    def kill_while_spilling(self):
        """What it had accepted when the ledger was read last, and how much it said may come twice, which the ledger has
        to say as the log does."""
        sink = self.sink()
        self.kill()
        same(sink["spill_repeats_at_most"], self.twice(), f"what may come twice: {sink}")
        return accepted(sink), self.twice()

    def finish(self):
        """The listener in its last ledger."""
        listener = self.end()
        self.twice()
        return listener


def accepted(sink):
    """How much of what the process received itself is in its spill or delivered."""
    return sink["spilled"] + sink["delivered"] - sink["spilled_before"]
