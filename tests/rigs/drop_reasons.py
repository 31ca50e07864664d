"""Provokes drops of known reasons and known counts while a process with CAP_PERFMON alone watches, and compares what it
says with what was sent; see drop_reasons.sh."""
import re
import socket
import subprocess
import time

from lib import net, packets
from lib.check import check, main, passed, same, skipped, until
from lib.daemon import WORK
from lib.host import execute, read
from lib.net import OTHER, dropped_at_port

HERE, THERE, PORT, CLOSED = "10.9.0.1", "10.9.0.2", 20514, 20515
RIGHT = "--inh-caps=-all,+perfmon --ambient-caps=-all,+perfmon --bounding-set=-all,+perfmon"
NO_RIGHT = "--inh-caps=-all --bounding-set=-all"


def command(caps):
    who = f"setpriv --reuid 65534 --regid 65534 --clear-groups {caps}"
    return f"{who} {WORK}/drops stdin {WORK}/udp_fail {WORK}/kfree_skb".split()


def counter(name):
    """`Udp:NoPorts` of /proc/net/snmp, or `TcpExt:IPReversePathFilter` of /proc/net/netstat."""
    if not name.startswith("TcpExt:"):
        return net.udp_counters()[name]
    names, values = (line.split() for line in read("/proc/net/netstat").splitlines() if line.startswith("TcpExt:"))
    return int(values[names.index(name.partition(":")[2])])


def await_counter(name, before, count):
    until(f"{count} more at {name}", lambda: counter(name) - before >= count, 20)
    settle()


class Overrun(Exception):
    """More was dropped on this machine than the rings hold, so some of it has no name."""


class Watch:
    """Watches while the block runs; afterwards `lines` has the counts by what they are of."""

    def __enter__(self):
        self.process = subprocess.Popen(
            command(RIGHT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        first = self.process.stdout.readline()
        check(first == "watching\n", lambda: first + self.process.stderr.read())
        return self

    def __exit__(self, kind, *_):
        text, errors = self.process.communicate()
        if kind is None:
            check(self.process.returncode == 0, errors)
            self.lines = {key: int(count) for key, count in re.findall(r"^([^:\n]+): (\d+)", text, re.M)}
            self.text = text
            if "not named: 0 reasons, 0 ports" not in text:
                raise Overrun(text)


def full_buffer():
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    receiver.bind(("127.0.0.1", PORT))
    receiver.setblocking(False)
    sender, before, received = net.udp_socket(), counter("Udp:RcvbufErrors"), 0
    with Watch() as watch:
        for _ in range(500):
            sender.sendto(b"x" * 100, ("127.0.0.1", PORT))

        def all_are_known():
            nonlocal received
            try:
                while receiver.recv(2000):
                    received += 1
            except BlockingIOError:
                return received + dropped_at_port(PORT) == 500

        until("all 500 are known", all_are_known, 20)
        settle()
    dropped = dropped_at_port(PORT)
    named = watch.lines[f"port {PORT} SOCKET_RCVBUFF"]
    same((named, counter("Udp:RcvbufErrors") - before), (dropped, dropped), watch.text)
    passed(f"{named} of {dropped} datagrams that a full buffer dropped are named, with their port")


def no_listener():
    sender, before = net.udp_socket(), counter("Udp:NoPorts")
    with Watch() as watch:
        for _ in range(30):
            sender.sendto(b"x", ("127.0.0.1", CLOSED))
        await_counter("Udp:NoPorts", before, 30)
    at_least(watch, "IPv4 NO_SOCKET", 30)


def bad_checksums():
    """Short ones are found when they arrive, long ones when a program reads them: those have no reason in older
    kernels."""
    receiver = net.udp_socket("127.0.0.1", PORT)
    receiver.setblocking(False)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    before = counter("Udp:InCsumErrors")
    with Watch() as watch:
        for length in [20] * 12 + [1000] * 5:
            raw.sendto(packets.udp("127.0.0.1", "127.0.0.1", PORT, b"y" * length, 0x1234), ("127.0.0.1", 0))
        await_counter("Udp:InCsumErrors", before, 12)
        try:
            check(not receiver.recv(2000), "a datagram with a bad checksum was received")
        except BlockingIOError:
            pass
        settle()
    same(counter("Udp:InCsumErrors") - before, 17, "bad checksums")
    at_least(watch, "IPv4 UDP_CSUM", 12)
    check(watch.lines["IPv4 UDP_CSUM"] + watch.lines["without a reason"] >= 17, watch.text)


def wrong_way_back():
    """A source address that this host would answer through another interface."""
    before = counter("TcpExt:IPReversePathFilter")
    with net.inside(OTHER):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    packet = packets.ip("192.0.2.7", HERE, packets.udp("192.0.2.7", HERE, PORT, b"x", 0))
    with Watch() as watch:
        for _ in range(25):
            raw.sendto(packet, (HERE, 0))
        await_counter("TcpExt:IPReversePathFilter", before, 25)
    at_least(watch, "IPv4 IP_RPFILTER", 25)


def frames_of_others():
    """What is no IP is neither named nor missed: the kernel keeps it to itself, or the watch would be overrun."""
    with net.inside(OTHER):
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        frames.bind(("there", 0))
    before = dropped_by_interface()
    with Watch() as watch:
        for _ in range(40):
            frames.send(b"\xff" * 6 + b"\x02" + b"\0" * 5 + b"\x88\xb5" + b"z" * 60)
        until("40 are dropped", lambda: dropped_by_interface() - before >= 40, 20)
        settle()
    check(not any(words.endswith("UNHANDLED_PROTO") for words in watch.lines), watch.text)
    passed("40 frames that are no IP are neither counted nor missed")


def without_the_right():
    refused = execute(*command(NO_RIGHT), stdin=subprocess.DEVNULL)
    if refused.returncode == 0 and int(read("/proc/sys/kernel/perf_event_paranoid")) < 0:
        skipped("this host lets every user watch (kernel.perf_event_paranoid = -1)")
        return
    check(refused.returncode != 0 and "AmbientCapabilities=CAP_PERFMON" in refused.stderr, str(refused))
    passed("without the right it is refused and the right is named")


def dropped_by_interface():
    return net.link("here")["stats64"]["rx"]["dropped"]


def settle():
    """The watch empties its rings fifty times a second, and once more when it ends; this is for what is on its way."""
    time.sleep(0.1)


def at_least(watch, what, count):
    """Others on this machine may drop for the same reason meanwhile: a watch sees every namespace."""
    # An example says of a shared reason that it is shared, behind the count.
    found = watch.lines.get(what, 0)
    check(found >= count, f"{what}: {found} instead of {count}\n{watch.text}")
    passed(f"{what}: {found} named, {count} provoked")


def in_quiet(case):
    """Others on this machine may overrun the rings. They do not do so every time."""
    for _ in range(5):
        try:
            return case()
        except Overrun as overrun:
            last = overrun
    raise last


def all_cases():
    net.lay([f"{HERE}/24"], [f"{THERE}/24"], "here", "there")
    net.set_proc("ipv4/conf/here/rp_filter", 1)
    for case in (full_buffer, no_listener, bad_checksums, wrong_way_back, frames_of_others, without_the_right):
        in_quiet(case)


main(all_cases)
