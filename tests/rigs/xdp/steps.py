"""A sender that does from a seed what hides from a frame what it is: trains (UDP_SEGMENT), VLAN tags beside the
frame and within it, changes of the MTU and of the receiver's settings between them, and datagrams longer than that.

steps.py SEED COUNT CARD PORT WHAT   COUNT datagrams to 10.8.0.1 and fd00::1 behind card1, whose other end has the
                                     Ethernet address CARD. WHAT is a list of: trains, tags, mtu, merge. Prints
                                     `mtu N` or `merge SETTING` where the other end has to follow and reads a line
                                     before it goes on, and at last `sent DATAGRAMS TRAINS TAGGED`.
"""
import errno
import platform
import random
import socket
import struct
import subprocess
import sys
import time

import wire
from tags import tag_what_is_marked

UDP_SEGMENT = 103
# An older kernel lets no cable with a program be wider than a page.
IS_WIDE = tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2]) >= (6, 6)
MTUS = [1500, 1500, 1700, 2000, 3400, 9000 if IS_WIDE else 3400]
SETTINGS = ["rx-udp-gro-forwarding on", "rx-gro-list on", "off"]


def ask(line):
    print(line, flush=True)
    assert sys.stdin.readline(), "the other end has gone"


def is_fragment(frame):
    """One alone would wait for others, and might get them of a datagram that the kernel has cut: its number is random."""
    return frame[12:14] == b"\x08\x00" and any(frame[20:22]) or frame[20:21] == b"\x2c"


class Sender:
    def __init__(self, seed, card, port, what):
        self.noise, self.card, self.port, self.what = random.Random(seed), card, port, what
        self.mtu, self.sent, self.trains, self.tagged, self.calls = 1500, 0, 0, 0, 0
        self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.raw.bind(("card1", 0))
        self.sockets = {}

    def socket(self, address, segment, mark):
        key = (address, segment, mark)
        if key not in self.sockets:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            out = self.sockets[key] = socket.socket(family, socket.SOCK_DGRAM)
            if segment:
                out.setsockopt(socket.SOL_UDP, UDP_SEGMENT, segment)
            if mark:
                out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            # What would be cut on the way is cut here.
            option = (socket.IPPROTO_IPV6, 23) if ":" in address else (socket.IPPROTO_IP, 10)
            out.setsockopt(*option, 0)
            if len(self.sockets) > 200:
                self.sockets.pop(next(iter(self.sockets))).close()
        return self.sockets[key]

    def push(self, call):
        while True:
            try:
                call()
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                time.sleep(0.001)
        self.calls += 1
        # The cable holds 256 frames that are not taken yet.
        if self.calls % 8 == 0:
            time.sleep(0.001)

    def by_socket(self, payload, segment=0, mark=0):
        """A tagged one goes the way of the others, to an address that the receiver has: a VLAN can name it as well."""
        address = wire.PAIRS[self.noise.randrange(2)][1]
        if segment and 48 + segment > self.mtu:
            segment = self.mtu - 48
        if not segment and "tags" in self.what and mark:
            payload = payload[: self.mtu - 48]
        self.push(lambda: self.socket(address, segment, mark).sendto(payload, (address, self.port)))
        count = max(1, -(-len(payload) // segment)) if segment else 1
        self.sent += count
        self.trains += count > 1
        self.tagged += count if mark else 0

    def size(self):
        noise = self.noise
        return noise.choice([0, 1, 18, 64, 255, 256, 257, 1000, self.mtu - 28, self.mtu - 48, noise.randrange(1472)])

    def train(self, mark=0):
        noise = self.noise
        segment = noise.choice([1, 18, 100, 256, 1000, 1452, noise.randrange(1, 1452)])
        segment = min(segment, self.mtu - 48)
        count = noise.choice([1, 2, 5, 10, noise.randrange(1, 64)])
        last = noise.randrange(1, segment + 1)
        self.by_socket(noise.randbytes(min(segment * (count - 1) + last, 60000)), segment, mark)

    def step(self):
        noise, kind = self.noise, self.noise.randrange(100)
        if kind < 30:
            self.by_socket(noise.randbytes(self.size()))
        elif kind < 55 and "trains" in self.what:
            self.train()
        elif kind < 65 and "tags" in self.what:
            mark = 0x1000 | noise.choice([0, 1, 42, 4094])
            if noise.randrange(2) and "trains" in self.what:
                self.train(mark)
            else:
                self.by_socket(noise.randbytes(noise.randrange(1400)), mark=mark)
        elif kind < 70:
            source, destination = noise.choice(wire.PAIRS)
            body = wire.udp(source, destination, self.port, noise.randbytes(noise.randrange(1300)))
            frame = wire.frame(self.card, wire.ip(source, destination, body), tag=noise.choice([0, 1, 42]))
            self.push(lambda: self.raw.send(frame))
            self.sent += 1
        elif kind < 78:
            self.by_socket(noise.randbytes(noise.choice([self.mtu - 27, noise.randrange(1473, 20000)])))
        elif kind < 96:
            frame = wire.right(self.card, noise, self.port)
            if noise.randrange(3) == 0:
                [hostile] = wire.hostile(self.card, 1, self.port, noise.randrange(1 << 30))
                frame = frame if is_fragment(hostile) else hostile
            self.push(lambda: self.raw.send(frame))
            self.sent += 1
        elif kind < 98 and "mtu" in self.what:
            self.change_mtu(noise.choice(MTUS))
        elif kind < 99 and "merge" in self.what:
            ask(f"merge {noise.choice(SETTINGS)}")

    def change_mtu(self, mtu):
        """The wider end first: a frame must fit into the end that takes it."""
        if mtu > self.mtu:
            ask(f"mtu {mtu}")
        subprocess.run(["ip", "link", "set", "card1", "mtu", str(mtu)], check=True)
        if mtu < self.mtu:
            ask(f"mtu {mtu}")
        self.mtu = mtu
        # What the kernel has learnt of the way is of the width before.
        for out in self.sockets.values():
            out.close()
        self.sockets.clear()


seed, count, card, port, what = sys.argv[1:]
sender = Sender(int(seed), bytes.fromhex(card), int(port), what.split(","))
kept = tag_what_is_marked("card1") if "tags" in sender.what else None
while sender.sent < int(count):
    sender.step()
sender.change_mtu(1500)
ask("merge off")
print("sent", sender.sent, sender.trains, sender.tagged, flush=True)
