"""A spill on disks that are full at sizes taken by chance, from nothing to the bytes allowed: each `when_full`, each
sink that needs no broker. The destination is away, all of the load comes, the destination comes back or the daemon ends
without it; then another daemon, on the same disk, sends what is left. Nothing hangs, each datagram came once and in its
order or is counted as dropped, and the second daemon begins with what the first one's ledger said.
"""
import os
import random
import socket
import struct
import threading
import time

from daemon import ADDRESS, Spilling
from lib.check import LONG, check, passed, same
from lib.daemon import WORK
from lib.net import SO_RCVBUFFORCE, run, udp_socket

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
    """What the sink sends to: notes each number as it comes."""

    def __init__(self, kind, path):
        self.kind, self.path, self.numbers = kind, path, []
        self.sockets, self.threads = [], []

    def lines(self):
        where = f'path = "{self.path}"\n' if self.kind != "udp" else f'destinations = ["127.0.0.1:{UDP_PORT}"]\n'
        kind = {"stream": 'type = "unix"\nsocket = "stream"\nframing = "length"\n', "udp": 'type = "udp"\n',
                "datagram": 'type = "unix"\nsocket = "datagram"\n'}[self.kind]
        return kind + where

    def come(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        family = socket.AF_INET if self.kind == "udp" else socket.AF_UNIX
        own = socket.socket(family, socket.SOCK_STREAM if self.kind == "stream" else socket.SOCK_DGRAM)
        if self.kind == "udp":
            own.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
            own.bind(("127.0.0.1", UDP_PORT))
        else:
            own.bind(self.path)
        self.sockets.append(own)
        self.start(self.accept if self.kind == "stream" else self.receive, own)

    def start(self, run, own):
        thread = threading.Thread(target=run, args=(own,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self, listener):
        listener.listen()
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.start(self.read, connection)

    def read(self, connection):
        rest, size = b"", LENGTH + 4
        while data := connection.recv(1 << 18):
            rest += data
            whole = len(rest) - len(rest) % size
            self.numbers += [struct.unpack_from("<Q", rest, at + 4)[0] for at in range(0, whole, size)]
            rest = rest[whole:]

    def receive(self, own):
        while True:
            data = own.recv(1 << 16)
            if len(data) < LENGTH:
                return
            self.numbers.append(struct.unpack_from("<Q", data)[0])

    def go(self):
        """Nothing comes any more; reads what has come to its end."""
        own = self.sockets.pop()
        if self.kind == "stream":
            own.shutdown(socket.SHUT_RDWR)
        elif self.kind == "udp":
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"end", ("127.0.0.1", UDP_PORT))
        else:
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"end", self.path)
        for thread in self.threads:
            thread.join()
        own.close()


def send():
    sender, begun = udp_socket(), time.monotonic()
    for number in range(DATAGRAMS):
        sender.sendto(struct.pack("<Q", number).ljust(LENGTH, b"."), ADDRESS)
        if number % 50 == 0:
            time.sleep(max(0, begun + number / 30_000 - time.monotonic()))


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
        send()
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
        same(target.numbers, sorted(set(target.numbers)), f"{what}: once and in order")
        is_allowed = not any(last["dropped"].values()) and not set(lost) - ALLOWED[policy]
        check(len(target.numbers) == delivered and is_allowed,
              f"{what}: {len(target.numbers)} came, {said}, {last}")
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
