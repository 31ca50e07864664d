"""Senders: `udpd bench send`, which numbers its datagrams, and plain sockets."""
import json
import signal
import socket
import subprocess
import threading
import time

from lib.check import check
from lib.daemon import PATIENCE, UDPD, start
from lib.host import execute
from lib.net import at, udp_socket


def free_port(kind=socket.SOCK_DGRAM):
    """A port of loopback that was free a moment ago."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bench_command(to, *arguments, program=(UDPD,), place=None):
    return at(place, *program, "bench", "send", "--json", "--to", to, *arguments)


def bench(to, *arguments, **where):
    """Sends until it is done; the report."""
    done = execute(*bench_command(to, *arguments, **where))
    check(done.returncode == 0, lambda: f"bench send: {done.stderr}")
    return json.loads(done.stdout)["report"]


class Bench:
    """`udpd bench send` beside the rig, until it is told to end."""

    def __init__(self, to, rate, *arguments, seconds=3600, size=64, **where):
        command = bench_command(to, "--rate", rate, "--seconds", seconds, "--size", size, *arguments, **where)
        self.child = start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def end(self, is_told=True, may_be_refused=False):
        """The report; what the kernel refused to send is a failure unless it may be."""
        if is_told:
            self.child.send_signal(signal.SIGINT)
        text, _ = self.child.communicate(timeout=PATIENCE if is_told else None)
        report = json.loads(text)["report"]
        refused = report["refused"]
        check(may_be_refused or not sum(refused.values()), f"the kernel refused the sender: {refused}")
        return report


def numbers_sent(report):
    """All that a sender sent, as pairs of flow and number."""
    return {(flow["flow"], number) for flow in report["flows"] for number in range(flow["sequences"])}


def send(port, payloads, address="127.0.0.1", pause=0.001, at_once=50, sender=None):
    """Sends payloads, with a pause after so many, for a receiver that gets its core now and then; how many it sent."""
    own = sender or udp_socket()
    count = 0
    for count, payload in enumerate(payloads, 1):
        own.sendto(payload, (address, port))
        if count % at_once == 0:
            time.sleep(pause)
    if own is not sender:
        own.close()
    return count


class Paced(threading.Thread):
    """Sends the payload of each number, so many a second and from so many sockets by turns, until it is told to end or
    has sent `count` of them. `sent` is how many it has sent."""

    def __init__(self, port, rate, payload, sockets=1, count=None):
        # A rig that fails does not wait for it.
        super().__init__(daemon=True)
        self.port, self.rate, self.payload, self.count = port, rate, payload, count
        self.sockets, self.sent, self.goes_on = [udp_socket() for _ in range(sockets)], 0, True
        self.start()

    def run(self):
        begun = time.monotonic()
        while self.goes_on and self.sent != self.count:
            # At most a thousand at once, for a sender that was held up.
            due = min(int((time.monotonic() - begun) * self.rate), self.sent + 1000, self.count or 1 << 62)
            while self.sent < due:
                own = self.sockets[self.sent % len(self.sockets)]
                own.sendto(self.payload(self.sent), ("127.0.0.1", self.port))
                self.sent += 1
            time.sleep(0.001)

    def end(self):
        """How many it has sent in all."""
        self.goes_on = False
        self.join()
        return self.sent
