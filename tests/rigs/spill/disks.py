"""A spill on disks that are full at sizes taken by chance, from nothing to the bytes allowed: each `when_full`, each
sink that needs no broker. The destination is away, all of the load comes, the destination comes back or the daemon ends
without it; then another daemon, on the same disk, sends what is left. Nothing hangs, each datagram came once and in its
order or is counted as dropped, and the second daemon begins with what the first one's ledger said.
"""
import os
import random
import socket
import threading

from daemon import PORT, Spilling
from lib.check import LONG, check, passed, same
from lib.daemon import WORK
from lib.net import run, udp_socket
from peer import Peer, Taken, number_of, senders

MIB = 1 << 20
BYTES_MAX = 4 * MIB
LENGTH, DATAGRAMS = 1_000, 6_000
POLICIES = ("drop_newest", "drop_oldest", "block")
SINKS = ("stream", "datagram", "udp")
UDP_PORT = 5198
# A receive buffer that takes all of them.
BUFFER_BYTES = 64 * MIB
ALLOWED = {"drop_newest": {"spill_full"}, "drop_oldest": {"spill_full"}, "block": {"sink_error"}}


class Target:
    """What the sink sends to, of any kind: `taken` has what came."""

    def __init__(self, kind, path):
        self.kind, self.path, self.taken = kind, path, Taken()
        self.stream = Peer(path, LENGTH, self.taken)

    def lines(self):
        where = f'path = "{self.path}"\n' if self.kind != "udp" else f'destinations = ["127.0.0.1:{UDP_PORT}"]\n'
        kind = {"stream": 'type = "unix"\nsocket = "stream"\nframing = "length"\n', "udp": 'type = "udp"\n',
                "datagram": 'type = "unix"\nsocket = "datagram"\n'}[self.kind]
        return kind + where

    def come(self):
        if self.kind == "stream":
            self.stream.come()
            return
        if os.path.exists(self.path):
            os.unlink(self.path)
        if self.kind == "udp":
            self.own = udp_socket("127.0.0.1", UDP_PORT, buffer=BUFFER_BYTES)
        else:
            self.own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.own.bind(self.path)
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def receive(self):
        while len(data := self.own.recv(1 << 16)) == LENGTH:
            self.taken.take(0, number_of(data))

    def go(self):
        """Nothing comes any more; reads what has come to its end."""
        if self.kind == "stream":
            self.stream.go()
            return
        with socket.socket(self.own.family, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", self.own.getsockname())
        self.thread.join()
        self.own.close()


def dropped_by_kernel(listener):
    return listener["kernel_dropped"] or 0


def fill(number, size, policy, kind, comes_back):
    """A disk of this size; whether something was lost."""
    what = f"{size} bytes, {policy}, {kind}, {'back' if comes_back else 'away'}"
    disk, spill = f"{WORK}/small", f"{WORK}/small/spill"
    os.makedirs(disk, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={max(size, 4096)}", "tmpfs", disk)
    try:
        # A directory takes nothing of a tmpfs but for its inode; `size=0` would mean half of the memory.
        target = Target(kind, f"{WORK}/small-{number}")

        def small():
            return Spilling(spill, f'when_full = "{policy}"\nqueue_bytes = "32MiB"', f"{BYTES_MAX // MIB}MiB",
                            target.lines())

        daemon = small()
        senders(PORT, 1, LENGTH, 30_000, DATAGRAMS).join()
        daemon.await_listener(what, lambda now: now["received"] + dropped_by_kernel(now) == DATAGRAMS)
        if comes_back:
            target.come()
            daemon.await_sent()
        first = daemon.finish()
        said = first["sinks"][0]
        daemon = small()
        before = daemon.sink()
        check(before["spilled_before"] == said["spilled"] and before["spill_repeats_at_most"] <= (kind == "udp"),
              f"{what}: {said} and then {before}")
        if not comes_back:
            target.come()
        daemon.await_sink(f"the rest of {what}", lambda sink: sink["spilled"] == 0)
        last = daemon.finish()["sinks"][0]
        target.go()
        lost = {reason: count for reason, count in said["dropped"].items() if count}
        delivered = said["delivered"] + last["delivered"]
        same((target.taken.wrong, target.taken.repeats), (None, 0), f"{what}: once and in order")
        is_allowed = not any(last["dropped"].values()) and not set(lost) - ALLOWED[policy]
        check(target.taken.count == delivered and is_allowed, f"{what}: {target.taken.count} came, {said}, {last}")
        same(delivered + sum(lost.values()) + dropped_by_kernel(first), DATAGRAMS, f"{what}: lost {lost}, {first}")
        check(policy != "block" or not comes_back or not lost, f"{what}: lost {lost}")
        return sum(lost.values()) > 0
    finally:
        run("umount", disk)


def campaign(seed):
    chance, runs, lossy = random.Random(seed), 0, 0
    for policy in POLICIES:
        for kind in SINKS:
            for _ in range(200 if LONG else 1):
                size = chance.randrange(BYTES_MAX + 1)
                # Without a peer a sink that blocks is waited for until it is given up.
                comes_back = chance.random() < 0.8 or policy == "block" and not LONG
                lossy += fill(runs, size, policy, kind, comes_back)
                runs += 1
    passed(f"{runs} disks that are full at sizes by chance: 0 hangs, {lossy} with a loss that is counted")
