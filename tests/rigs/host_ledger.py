"""Loses datagrams in every layer, and compares what udpd says with what is missing; see host_ledger.sh.

Each round sends a random number of each kind in random order. What was read by udpd and by the idle socket of this
process has arrived; the rest is missing, and the ledger of the host must have it: as a sum, and each kind in the layer
where it was lost.
"""
import contextlib
import os
import random
import signal
import socket
import struct
import time

from lib import net, packets
from lib.check import check, main, passed, same, setting
from lib.daemon import NULL, Daemon, listening
from lib.net import OTHER, ip, set_proc

ROUNDS = setting("ROUNDS", 6)
SEED = setting("SEED", time.time_ns() % 1_000_000)
HERE, THERE, ELSEWHERE = "10.8.0.1", "10.8.0.2", "10.8.0.77"
KINDS = ["udpd", "idle", "closed", "damaged", "spoofed", "astray", "torn", "long"]


def lay():
    """Nothing but the datagrams of the rig is on the cable: no IPv6, and no host asks for addresses. Packets longer
    than this end takes are dropped by the interface."""
    for place in (None, OTHER):
        for which in ("all", "default"):
            with contextlib.suppress(Exception):
                set_proc(f"ipv6/conf/{which}/disable_ipv6", 1, place)
    net.lay([f"{HERE}/24"], [f"{THERE}/24"])
    ip("link set card0 mtu 900")
    net.introduce(THERE, "card0", None, "card1", OTHER)
    for address in (HERE, ELSEWHERE):
        net.introduce(address, "card1", OTHER, "card0", None)
    for interface in ("all", "card0"):
        set_proc(f"ipv4/conf/{interface}/rp_filter", 1)
    # Fragments that miss the others wait for a second.
    set_proc("ipv4/ipfrag_time", 1)


class Sender:
    """The other end of the cable, which sends some that arrive, and some that each get lost in another layer."""

    def __init__(self):
        self.plain, self.number = net.udp_socket(place=OTHER), 0
        with net.inside(OTHER):
            self.whole = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
            self.made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    def send(self, counts):
        order = [kind for kind, count in counts.items() for _ in range(count)]
        random.shuffle(order)
        for kind in order:
            self.one(kind)

    def one(self, kind):
        self.number += 1
        port, length = {"udpd": (5140, 200), "idle": (5141, 200), "closed": (5999, 200), "long": (5140, 1200)}.get(
            kind, (0, 0))
        if port:
            self.plain.sendto(b"x" * length, (HERE, port))
        elif kind == "damaged":
            self.whole.sendto(packets.udp(THERE, HERE, 5140, b"text", 0x1234), (HERE, 0))
        else:
            source, to = ("192.0.2.9" if kind == "spoofed" else THERE), (ELSEWHERE if kind == "astray" else HERE)
            # The first part of a datagram says how long all of it is.
            body = struct.pack("!HHHH", 4000, 5140, 64 if kind == "torn" else 24, 0) + b"x" * 16
            packet = packets.ip(source, to, body, 0x2000 if kind == "torn" else 0, number=self.number & 0xFFFF)
            self.made.sendto(packet, (to, 0))


def read_all(idle):
    count = 0
    with contextlib.suppress(BlockingIOError):
        while idle.recv(2048):
            count += 1
    return count


def overloads():
    random.seed(SEED)
    lay()
    daemon = Daemon(listening('address = "0.0.0.0:5140"\nlanes = 1\ngro = "off"\nreceive_buffer = "16KiB"', out=NULL))
    idle = net.udp_socket()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    idle.setblocking(False)
    idle.bind((HERE, 5141))
    sender, sent, read_here = Sender(), dict.fromkeys(KINDS, 0), 0
    for number in range(1, ROUNDS + 1):
        overload = {kind: random.choice([0, 1, random.randint(2, 400)]) for kind in KINDS}
        stall = {"udpd": random.choice([0, random.randint(1, 500)]), "idle": random.randint(0, 50)}
        sender.send(overload)
        os.kill(daemon.child.pid, signal.SIGSTOP)
        sender.send(stall)
        os.kill(daemon.child.pid, signal.SIGCONT)
        for kind in KINDS:
            sent[kind] += overload[kind] + stall.get(kind, 0)
        # Fragments are given up after a second, and udpd looks once a second.
        deadline = time.monotonic() + 15
        while True:
            read_here += read_all(idle)
            told = daemon.ledger()
            host, received = told["host"], told["listeners"][0]["received"]
            missing = sum(sent.values()) - received - read_here
            if host["lost"]["total"] == missing or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        what = f"round {number}, SEED={SEED}, sent {sent}"
        found = {f"{loss['layer']}.{loss['counter']} {loss['place']}": loss["count"] for loss in host["lost"]["lost"]}
        expected = {
            "nic.rx_dropped card0": sent["long"],
            "ip.reverse_path_filter ipv4": sent["spoofed"],
            "ip.in_addr_errors ipv4": sent["astray"],
            "ip.reasm_fails ipv4": sent["torn"],
            "udp.no_ports ipv4": sent["closed"],
            "udp.in_errors ipv4": sent["udpd"] + sent["idle"] - received - read_here + sent["damaged"],
        }
        same(found, {term: count for term, count in expected.items() if count}, f"{what}: what is lost where")
        same((host["lost"]["total"], host["lost"]["unseen"]), (missing, []), f"{what}: missing, and not seen")
        same(host["udp"]["in_csum_errors"], sent["damaged"], f"{what}: bad checksums")
        check(all(one["own"] for one in host["sockets"]), f"{what}: {host['sockets']}")
    check(all(sent.values()) or ROUNDS < 20, f"not every kind was sent: {sent}, SEED={SEED}")
    passed(f"{ROUNDS} random overloads, {missing} of {sum(sent.values())} datagrams lost in {len(found)} places, the "
           "sum of the layers is what is missing")


main(overloads)
