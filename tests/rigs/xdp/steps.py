"""A sender that does from a seed what hides from a frame what it is: trains (UDP_SEGMENT), VLAN tags beside the frame
and within it, changes of the MTU and of the receiver's settings between them, and datagrams longer than that."""
import platform
import random
import shutil
import socket
import time

import hostile
from cable import PORT, push
from lib import net, packets
from lib.net import OTHER, UDP_SEGMENT, ip, run

# An older kernel lets no cable with a program be wider than a page.
IS_WIDE = tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2]) >= (6, 6)
MTUS = [1500, 1500, 1700, 2000, 3400, 9000 if IS_WIDE else 3400]
SETTINGS = ["rx-udp-gro-forwarding on", "rx-gro-list on", "off"]


def is_fragment(frame):
    """One alone would wait for others, and might get them of a datagram that the kernel has cut, whose number is
    random."""
    return frame[12:14] == b"\x08\x00" and any(frame[20:22]) or frame[20:21] == b"\x2c"


class Sender:
    """Datagrams to both addresses behind card1. `what` is a list of: trains, tags, mtu, merge."""

    def __init__(self, seed, card, what):
        self.noise, self.card, self.what = random.Random(seed), card, what
        self.mtu, self.sent, self.trains, self.tagged, self.calls = 1500, 0, 0, 0, 0
        with net.inside(OTHER):
            self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.raw.bind(("card1", 0))
        self.sockets = {}

    def socket(self, address, segment, mark):
        key = (address, segment, mark)
        if key not in self.sockets:
            out = self.sockets[key] = net.udp_socket("::" if ":" in address else "0.0.0.0", place=OTHER)
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

    def send(self, call):
        push(call)
        self.calls += 1
        # The cable holds 256 frames that are not taken yet.
        if self.calls % 8 == 0:
            time.sleep(0.001)

    def by_socket(self, payload, segment=0, mark=0):
        """A tagged one goes the way of the others, to an address that the receiver has: a VLAN can name it as well."""
        address = hostile.PAIRS[self.noise.randrange(2)][1]
        if segment and 48 + segment > self.mtu:
            segment = self.mtu - 48
        if not segment and "tags" in self.what and mark:
            payload = payload[: self.mtu - 48]
        self.send(lambda: self.socket(address, segment, mark).sendto(payload, (address, PORT)))
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
            source, destination = noise.choice(hostile.PAIRS)
            body = packets.udp(source, destination, PORT, noise.randbytes(noise.randrange(1300)))
            frame = packets.frame(self.card, packets.ip(source, destination, body), tag=noise.choice([0, 1, 42]))
            self.send(lambda: self.raw.send(frame))
            self.sent += 1
        elif kind < 78:
            self.by_socket(noise.randbytes(noise.choice([self.mtu - 27, noise.randrange(1473, 20000)])))
        elif kind < 96:
            frame = hostile.right(self.card, noise, PORT)
            if noise.randrange(3) == 0:
                [broken] = hostile.hostile(self.card, 1, PORT, noise.randrange(1 << 30))
                frame = frame if is_fragment(broken) else broken
            self.send(lambda: self.raw.send(frame))
            self.sent += 1
        elif kind < 98 and "mtu" in self.what:
            self.change_mtu(noise.choice(MTUS))
        elif kind < 99 and "merge" in self.what:
            merge(noise.choice(SETTINGS))

    def change_mtu(self, mtu):
        """The wider end first: a frame must fit into the end that takes it."""
        ends = [("card0", None), ("card1", OTHER)]
        for card, place in ends if mtu > self.mtu else reversed(ends):
            ip(f"link set {card} mtu {mtu}", place)
        self.mtu = mtu
        # What the kernel has learnt of the way is of the width before.
        for out in self.sockets.values():
            out.close()
        self.sockets.clear()

    def steps(self, count):
        """So many datagrams; how many were sent, how many trains, and how many with a tag."""
        while self.sent < count:
            self.step()
        self.change_mtu(1500)
        merge("off")
        self.raw.close()
        return self.sent, self.trains, self.tagged


def merge(setting):
    """What the receiving end joins."""
    if shutil.which("ethtool"):
        run("ethtool", "-K", "card0", "rx-udp-gro-forwarding", "off", "rx-gro-list", "off")
        if setting != "off":
            run("ethtool", "-K", "card0", "gro", "on", *setting.split())
