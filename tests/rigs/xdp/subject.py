"""The daemon on the cable and its account: what was sent is written, dropped by the ledger, dropped by the cable, or
came when no socket was there. Each datagram has a number, and none is written twice."""
import signal
import threading

from lib import net
from lib.check import check, passed, same
from lib.daemon import Daemon, closed, dropped_at, listening
from lib.host import whole_lines

import cable

# Engines that are made again have their memory counted as locked, and this host may have a limit.
SMALL = 'batch_size = 32\nabsorb = { rate = 50000, stall = "20ms", size = 64 }'
TINY = 'batch_size = 16\nabsorb = { rate = 20000, stall = "10ms", size = 64 }'
BOTH = 'address = ["0.0.0.0:5140", "[fd00::1]:5140"]'


class Receiving(Daemon):
    """By AF_XDP on card0, into a sink of a kind."""

    def __init__(self, listener="", sink="", kind="file", engine="af_xdp", **more):
        self.kind = kind
        path = 'path = "DIR/out"' if kind == "file" else ""
        keys = f'{"" if "address" in listener else BOTH}\ninterface = "card0"\nengine = "{engine}"\n{listener}'
        self.text = listening(keys, out=f'type = "{kind}"\n{path}\n{sink}')
        self.cable, self.unheard = cable.dropped(), unheard()
        super().__init__(self.text, **more)
        self.out = f"{self.directory}/out"

    def change(self, old, new, code=0):
        """A reload with other keys; what it said."""
        self.text = self.text.replace(old, new)
        return self.reload(self.text, code)

    def past_the_stack(self):
        return past_the_stack(self.listener())

    def lost_by_cable(self):
        return cable.dropped() - self.cable

    def await_received(self, count):
        """Waits until so many are received, or thrown away by the cable."""
        self.await_listener(f"{count} are received", lambda now: now["received"] + self.lost_by_cable() >= count)

    def await_past_the_stack(self, more_than):
        self.await_listener("more come past the stack", lambda listener: past_the_stack(listener) > more_than)

    def read_late(self):
        """Ends it, and only then reads what it writes to its stdout."""
        out = []
        reader = threading.Thread(target=lambda: out.append(self.child.stdout.read()))
        reader.start()
        self.end()
        reader.join()
        return out[0]

    def finish(self):
        """Ends it; itself, for the account."""
        self.end()
        return self

    def final(self):
        return closed(self.last())

    def refused_by_sockets(self):
        """What the sockets refused by the ledger. They refuse until they are closed, which is after the last look."""
        return sum(lane["kernel_dropped"] for lane in self.final()["lanes"] if lane["engine"] == "recvmmsg")


def unheard():
    """What came to the port when no socket was there, and what sockets refused."""
    counts = net.udp_counters()
    return sum(counts[family + name] for family in ("Udp:", "Udp6") for name in ("NoPorts", "InErrors"))


def past_the_stack(ledger):
    return sum(lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp")


def by_queue(ledger):
    return {lane["queue"]: lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp"}


def numbers(path, size):
    """The datagrams in a file, each a number that comes once."""
    lines = whole_lines(path)
    wrong = [line[:80] for line in lines if len(line) != size]
    check(not wrong, f"not {size} bytes: {wrong[:3]}")
    seen = {int(line[:10]) for line in lines}
    same(len(seen), len(lines), "datagrams, none of them twice")
    return seen


def drops(ledger):
    return ledger["kernel_dropped"] + dropped_at(ledger) + sum(dropped_at(sink) for sink in ledger["sinks"])


def closes(case, daemons, sent, size, path=None, nowhere=0):
    """The account of all processes that had the port one after the other; their last ledgers."""
    written = numbers(path or daemons[0].out, size)
    check(not written or max(written) < sent, f"{case}: a number was never sent")
    ledgers = [daemon.final() for daemon in daemons]
    same(sum(ledger["sinks"][0]["delivered"] for ledger in ledgers), len(written), f"{case}: delivered, and written")
    lost, by_cable = sum(map(drops, ledgers)), daemons[0].lost_by_cable()
    told = f"{len(written)} written + {lost} dropped + {by_cable} by the cable + {nowhere} without a socket"
    same(len(written) + lost + by_cable + nowhere, sent, f"{case}: {told}")
    passed(f"{case}: sent {sent} = {told}")
    return ledgers


def kill(daemon):
    daemon.child.send_signal(signal.SIGKILL)
    daemon.child.wait()
    cable.await_no_program()
