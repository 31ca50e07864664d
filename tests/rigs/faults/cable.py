"""A virtual cable for one trial of the engine past the kernel's stack: the daemon's end is here, the sender's in the network
namespace of the process that FAULTS_OTHER names."""
import ctypes
import json
import os
import socket
import subprocess
import threading

CLONE_NEWNET = 0x40000000


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Cable:
    def __init__(self, number):
        self.other = os.environ["FAULTS_OTHER"]
        self.card, self.far = f"c{number:x}", f"d{number:x}"
        network, ends = f"10.66.{number >> 8}.{number & 0xFC}", []
        self.address = network.rpartition(".")[0] + f".{(number & 0xFC) + 1}"
        peer = network.rpartition(".")[0] + f".{(number & 0xFC) + 2}"
        here, there = (f"02:00:00:{end:02x}:{number >> 8:02x}:{number & 0xFF:02x}" for end in (1, 2))
        run("ip", "link", "add", self.card, "address", here, "type", "veth", "peer", "name", self.far, "address", there,
            "netns", self.other)
        for prefix, card, address, neighbour, link in (((), self.card, self.address, peer, there),
                                                       (self.inside(), self.far, peer, self.address, here)):
            # Nobody asks for anything over this cable: what it carries and drops is what the trial sends.
            run(*prefix, "sh", "-c", f"echo 1 >/proc/sys/net/ipv6/conf/{card}/disable_ipv6")
            run(*prefix, "ip", "address", "add", f"{address}/30", "dev", card)
            run(*prefix, "ip", "link", "set", card, "up")
            run(*prefix, "ip", "neigh", "replace", neighbour, "lladdr", link, "dev", card, "nud", "permanent")

    def inside(self):
        return "nsenter", "--target", self.other, "--net"

    def sockets(self, count):
        """Senders at the far end: a socket stays where it was made."""
        made = []

        def make():
            with open(f"/proc/{self.other}/ns/net") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.extend(socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made

    def dropped(self):
        far = json.loads(run(*self.inside(), "ip", "-s", "-j", "link", "show", self.far))
        return far[0]["stats64"]["tx"]["dropped"]

    def has_program(self):
        return "xdp" in json.loads(run("ip", "-j", "link", "show", self.card))[0]

    def remove(self):
        run("ip", "link", "del", self.card)
