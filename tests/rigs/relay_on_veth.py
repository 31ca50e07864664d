"""A relay between two cables; see relay_on_veth.sh."""
import json
import os
import socket
import threading
import time

from lib import net
from lib.check import check, main, passed, same, skipped, until
from lib.daemon import Daemon, dropped_at, listening
from lib.host import execute
from lib.net import UNPRIVILEGED, ip

RECEIVER, SENDER = os.environ["RECEIVER"], net.OTHER
PORT, RELAYED = 5140, 6000
TO4, TO6 = "10.8.1.2", "2001:db8:1::2"
FROM4, FROM6 = "10.8.2.2", "2001:db8:2::2"
AT4, AT6 = "10.8.2.1", "2001:db8:2::1"
PATTERN = bytes(range(251)) * 280


def lay():
    """Where each host is, is known: a cable that is a moment old answers late, and the kernel keeps few packets for a
    host that does not answer."""
    net.lay(["10.8.1.1/24", "2001:db8:1::1/64"], [f"{TO4}/24", f"{TO6}/64"], "out0", "out1", RECEIVER)
    net.lay([f"{AT4}/24", f"{AT6}/64"], [f"{FROM4}/24", f"{FROM6}/64"], "in0", "in1", SENDER)
    # The receiver reaches the sender the way its packets come, as strict reverse-path filtering wants it.
    ip("route add 10.8.2.0/24 via 10.8.1.1", RECEIVER)
    ip("route add 2001:db8:2::/64 via 2001:db8:1::1", RECEIVER)
    ip("link set lo up", RECEIVER)
    relayed = ["10.8.1.1", "2001:db8:1::1", "10.8.1.7"]
    for here, there, place, far, near in (("out0", "out1", RECEIVER, [TO4, TO6], relayed),
                                          ("in0", "in1", SENDER, [FROM4, FROM6], [AT4, AT6])):
        for address in far:
            net.introduce(address, here, None, there, place)
        for address in near:
            net.introduce(address, there, place, here, None)
    for number in range(3, 12):
        ip(f"address add 10.8.2.{number}/24 dev in1", SENDER)


def send(lengths, to=AT4, source=None):
    """Sends parts of the pattern and returns the port that they came from."""
    with net.udp_socket(source or (FROM6 if ":" in to else FROM4), place=SENDER) as sender:
        sender.setsockopt(socket.SOL_SOCKET, net.SO_SNDBUFFORCE, 1 << 24)
        for number, length in enumerate(lengths):
            sender.sendto(PATTERN[number % 251:][:length], (to, PORT))
        return sender.getsockname()[1]


class Receiver:
    """Receives so many datagrams behind the other cable, on a thread of its own."""

    def __init__(self, address, count, seconds=20, is_proxied=False):
        self.socket = net.udp_socket(address, RELAYED, RECEIVER, 1 << 26)
        self.socket.settimeout(seconds)
        self.count, self.is_proxied, self.records, self.wrong = count, is_proxied, [], None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while len(self.records) < self.count:
                payload, source = self.socket.recvfrom(65600)
                if self.is_proxied:
                    payload, source = self.without_header(payload)
                if not any(payload == PATTERN[shift:][:len(payload)] for shift in range(251)):
                    self.wrong = f"a payload was changed: {payload[:40]!r}"
                self.records.append((len(payload), source[0], source[1]))
        except TimeoutError:
            pass

    def without_header(self, payload):
        if payload[:13] != b"\r\n\r\n\0\r\nQUIT\n!" or payload[13] not in (0x12, 0x22):
            self.wrong = f"no header: {payload[:16]!r}"
        length, size = int.from_bytes(payload[14:16], "big"), 4 if payload[13] == 0x12 else 16
        ports = payload[16 + 2 * size:]
        source = socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, payload[16:16 + size])
        return payload[16 + length:], (source, int.from_bytes(ports[:2], "big"))

    def got(self):
        """Length, address and port of each; their bytes are as they were sent."""
        self.thread.join()
        self.socket.close()
        check(not self.wrong, self.wrong)
        return self.records


class Relay(Daemon):
    """The queue holds all that is sent here, so that it does not matter how fast this machine is."""

    def __init__(self, to, keys="", **more):
        destinations = json.dumps([f"{f'[{one}]' if ':' in one else one}:{RELAYED}" for one in to])
        super().__init__(listening(
            f'address = "[::]:{PORT}"\nmax_length = 65535\nbatch_size = 64\nreceive_buffer = "64MiB"',
            relay=f'type = "udp"\nqueue_bytes = "64MiB"\ndestinations = {destinations}\n{keys}'), **more)

    def decided(self, count):
        """Waits until so many have been sent or have failed at every sink."""
        return self.await_listener(f"{count} are decided", lambda listener: all(
            sink["delivered"] + dropped_at(sink) == count and sink["in_flight"] == 0
            for sink in listener["sinks"]))["sinks"]

    def finish(self, arrived):
        listener = self.end()
        same((listener["arrived"], listener["kernel_dropped"]), (arrived, 0), lambda: json.dumps(listener))
        return listener["sinks"]

    def warnings(self, words):
        return [line for line in self.log().splitlines() if line.startswith("warn") and words in line]


def sums(sink):
    return [(one["sent"], one["failed"], one["too_long"]) for one in sink["destinations"]]


def plain(to):
    """Trains, single ones and fragments."""
    daemon = Relay([to])
    lengths = [*range(0, 1600), *[512] * 500, *[1452] * 100, 700, *[1472] * 20, *range(1600, 65507, 997), 65507]
    there = Receiver(to, len(lengths))
    send(lengths)
    got = there.got()
    check([one[0] for one in got] == lengths, f"{len(got)} of {len(lengths)}, or in another order")
    ports = {(one[1], one[2]) for one in got}
    check(len(ports) == 1 and ports.pop()[0] in ("10.8.1.1", "2001:db8:1::1"), "not all from one port of the relay")
    [sink] = daemon.finish(len(lengths))
    same(sums(sink), [(len(lengths), 0, 0)], "the ledger")
    passed(f"{len(lengths)} datagrams of all lengths to {to}, equal and in order")


def proxied(to, at_relay, source, longest):
    """The same with headers, which make trains longer than the way takes, and some datagrams too long for UDP."""
    daemon = Relay([to], 'keep_source = "proxy"')
    lengths = [*range(0, 1600), *[512] * 500, *[1400] * 100, 700, *[1472] * 200, *range(1600, 65400, 997), longest]
    there = Receiver(to, len(lengths), is_proxied=True)
    port = send([*lengths[:-1], longest + 1, longest], at_relay)
    got = there.got()
    check(got == [(length, source, port) for length in lengths], f"{len(got)} of {len(lengths)}: {got[-3:]}")
    [sink] = daemon.finish(len(lengths) + 1)
    same(sums(sink), [(len(lengths), 1, 1)], "the ledger")
    passed(f"{len(lengths)} datagrams of all lengths to {to} behind headers that name {source}")


def set_mtu(mtu):
    ip(f"link set out0 mtu {mtu}")
    ip(f"link set out1 mtu {mtu}", RECEIVER)


def keeping(to, at_relay, source, headers):
    daemon = Relay([to], "keep_source = true")
    fits = 1500 - headers
    lengths = list(range(0, fits + 1))
    there = Receiver(to, len(lengths))
    port = send(lengths, at_relay)
    got = there.got()
    check(got == [(length, source, port) for length in lengths], f"{got[:3]} ... {len(got)} of {len(lengths)}")
    there = Receiver(to, 1)
    send([fits + 1, 9000 - headers, fits], at_relay)
    same([one[0] for one in there.got()], [fits], "only what fits arrives")
    [sink] = daemon.decided(len(lengths) + 3)
    same(sums(sink), [(len(lengths) + 1, 2, 2)], "the ledger")
    # Raised all the way, the longer ones pass: the way is looked at once a second.
    set_mtu(9000)
    time.sleep(1.1)
    send([1], at_relay)
    daemon.decided(len(lengths) + 4)
    there = Receiver(to, 1)
    send([9000 - headers, 9001 - headers], at_relay)
    same([one[0] for one in there.got()], [9000 - headers], "the longer one arrives")
    total = len(lengths) + 6
    [sink] = daemon.decided(total)
    same(sums(sink), [(total - 3, 3, 3)], "the ledger")
    daemon.finish(total)
    lines = daemon.warnings("MTU")
    check(len(lines) == 1 and all(word in lines[0] for word in ("1501", "1500", "keep_source = false")),
          f"not one warning with its numbers: {lines}")
    check("rp_filter" in daemon.log(), "reverse-path filtering is not spoken of")
    set_mtu(1500)
    passed(f"the source is kept to {to}, and what exceeds the MTU is counted")


def no_host(distribute):
    """No host has the first address, so the kernel takes its packets, throws them away and says so seconds later."""
    absent = "10.8.1.99"
    daemon = Relay([absent, TO4], f'distribute = "{distribute}"')
    sources = [f"10.8.2.{number}" for number in range(2, 12)]
    count = total = 2000 * len(sources)
    there = Receiver(TO4, count, 4)
    for source in sources:
        send([1400] * 2000, source=source)
    sinks = daemon.decided(count)
    got = len(there.got())
    if distribute == "all":
        [dead, living] = sinks
        check(sums(living) == [(count, 0, 0)] and got == count, f"{got} of {count}: {json.dumps(sinks)}")
        [(sent, failed, _)] = sums(dead)
    else:
        [(sent, failed, _), living] = sums(sinks[0])
        check(living == (got, 0, 0) and got % 2000 == 0 and 0 < got < count, f"{got}: {json.dumps(sinks)}")
        count -= got
    same(sent + failed, count, lambda: json.dumps(sinks))

    def is_counted():
        nonlocal total
        if any(one["icmp_errors"] for sink in daemon.listener()["sinks"] for one in sink["destinations"]
               if absent in one["address"]):
            return True
        for source in sources:
            send([1400], source=source)
        total += len(sources)
        daemon.decided(total)
        return False

    # The kernel asks three times, a second apart, before it says that no host has the address.
    until("an answer is counted", is_counted, 20, 0.2)
    daemon.finish(total)
    lines = daemon.warnings(absent)
    check(1 <= len(lines) <= 3, f"not said once: {lines}")
    passed(f"an address that no host has, distribute = {distribute}: {sent} taken, {failed} failed there, none "
           "elsewhere")


def slow_device(rate):
    """A device with a short queue throws away what comes too fast, and the relay sends it again. It waits for as long
    as the device takes something: the slower one needs far longer for one queue of the relay than a dead one is
    given."""
    if execute(*f"tc qdisc add dev out0 root tbf rate {rate} burst 10k limit 30k".split()).returncode != 0:
        skipped("a device with a short queue needs tc with tbf")
        return
    daemon = Relay([TO4])
    # Each is longer than the one before, so that none travels with another.
    lengths = list(range(200, 1400))
    there = Receiver(TO4, len(lengths))
    send(lengths)
    got = [one[0] for one in there.got()]
    thrown = int(net.run("tc", "-s", "qdisc", "show", "dev", "out0").split("dropped ")[1].split(",")[0])
    net.run("tc", "qdisc", "del", "dev", "out0", "root")
    check(thrown > 0, "the device has kept up")
    check(got == lengths, f"{len(got)} of {len(lengths)} arrive in order")
    [sink] = daemon.finish(len(lengths))
    same(sums(sink), [(len(lengths), 0, 0)], "the ledger")
    passed(f"a device of {rate} threw away {thrown} packets, and all {len(lengths)} arrived")


def over_within_two_seconds(daemon, to, total):
    """Sends until something arrives there; returns how many have been sent in all."""
    there = Receiver(to, 1, 3)
    begun = time.monotonic()
    while there.thread.is_alive() and time.monotonic() - begun < 2:
        send([20])
        total += 1
        daemon.decided(total)
        time.sleep(0.05)
    same(len(there.got()), 1, "what arrives within two seconds")
    return total


def no_way_yet():
    daemon = Relay(["10.9.9.9"]).await_log("10.9.9.9:6000: there is no route yet")
    send([10] * 10)
    [sink] = daemon.decided(10)
    same(sums(sink), [(0, 10, 0)], "the ledger")
    ip("address add 10.9.9.9/32 dev out1", RECEIVER)
    ip(f"route add 10.9.9.9/32 via {TO4}")
    daemon.finish(over_within_two_seconds(daemon, "10.9.9.9", 10))
    ip("route del 10.9.9.9/32")
    ip("address del 10.9.9.9/32 dev out1", RECEIVER)
    passed("no way at the start, and then there is one")


def another_address():
    daemon = Relay([TO4])

    def sources(count):
        there = Receiver(TO4, count)
        send([10] * count)
        return {one[1] for one in there.got()}

    same(sources(10), {"10.8.1.1"}, "from the first address")
    ip("address del 10.8.1.1/24 dev out0")
    ip("address add 10.8.1.7/24 dev out0")
    total = over_within_two_seconds(daemon, TO4, 10)
    same(sources(5), {"10.8.1.7"}, "from the new address")
    daemon.finish(total + 5)
    ip("address del 10.8.1.7/24 dev out0")
    ip("address add 10.8.1.1/24 dev out0")
    passed("the relay's own address has changed")


def unprivileged():
    Relay([TO4], "keep_source = true", before=UNPRIVILEGED, owner=65534, wait=False).wait(
        77, "AmbientCapabilities=CAP_NET_RAW")
    passed("without the right to keep sources it does not start")


def all_cases():
    lay()
    plain(TO4)
    plain(TO6)
    proxied(TO4, AT4, FROM4, 65507 - 28)
    proxied(TO4, AT6, FROM6, 65507 - 52)
    proxied(TO6, AT6, FROM6, 65527 - 52)
    keeping(TO4, AT4, FROM4, 28)
    keeping(TO6, AT6, FROM6, 48)
    for rate in ("80mbit", "8mbit"):
        slow_device(rate)
    for distribute in ("all", "by_source"):
        no_host(distribute)
    no_way_yet()
    another_address()
    unprivileged()


main(all_cases)
