"""Random overloads of a whole machine: losses in several layers at once, with those that only a machine of its own can
have: a full ring, a core's backlog, a full table of connections, the memory of all sockets, beside full receive
buffers, policies and a sink that is too slow.

Every datagram has a number. What is in the files of the sinks has come; the rest is missing, and the ledger of udpd
has to have it, to the datagram: for each sink, what this host lost, what the lanes dropped and what the sink dropped.
The queue of the tap before a virtio card is a layer that no guest can see. What is lost there is counted out here, and
the ledger must say that it does not know it.
"""
import json
import os
import random
import socket
import subprocess
import time

import causes
from causes import Scene
from lib import packets
from lib.check import Failed, check
from lib.net import UDP_SEGMENT

SINKS = ["kept", "slow"]
NARROW, WIDE, LIMITED, CLOSED = 5140, 5141, 5142, 5999
# port0 is a vmxnet3 card with a ring of 32 buffers, which counts what it has no room for; port1 a virtio card.
RING, VIRTIO = 0, 1
DENIED = "10.9.1.9"
UNSEEN = ["what the hypervisor dropped because the receive ring of port1 was full"]
LISTENERS = (
    ("narrow", NARROW, f'receive_buffer = "32KiB"\ndeny = ["{DENIED}/32"]'),
    ("wide", WIDE, 'receive_buffer = "8MiB"'),
    ("limited", LIMITED, 'receive_buffer = "8MiB"\nrate_limit = { per_source = 20, burst = 20 }'),
)
CONFIGURATION = """
[daemon]
control_socket = "/run/control.sock"
metrics_address = ""
pool_bytes = "64MiB"
""" + "".join(f"""[[listener]]
name = "{name}"
address = "0.0.0.0:{port}"
lanes = 1
gro = "off"
sinks = ["kept", "slow"]
{keys}
""" for name, port, keys in LISTENERS) + """[sink.kept]
type = "file"
path = "/tmp/out/kept"
rotate = { bytes = 0, every = "0s" }
queue_bytes = "32MiB"
[sink.slow]
type = "stdout"
queue_bytes = "64KiB"
"""
# What makes a kernel lose something, for the time of an overload.
LIMITS = {
    "backlog": ("net.core.netdev_max_backlog", "1"),
    "connections": ("net.netfilter.nf_conntrack_max", "20"),
    "memory": ("net.ipv4.udp_mem", "200 200 200"),
}
# The layers in which a run of 20 has to lose something, or it has shown nothing of them.
LAYERS = ["nic.rx_missed_errors port0", "nic.rx_dropped port1", "conntrack.drop host", "udp.in_errors ipv4",
          "udp.no_ports ipv4", "denied", "rate_limited", "queue_full", "udp.mem_errors", "udp.in_csum_errors",
          "not known: tap1"]


class Sender:
    """Sends numbered datagrams, and knows how many."""

    def __init__(self):
        self.sent = 0

    def number(self, size):
        self.sent += 1
        return b"%012d" % self.sent + b"x" * (size - 12)

    def plain(self, card, count, to, size=60, source=None, flows=1):
        """One by one, in so many flows."""
        for flow in range(flows):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((source or f"10.9.{card}.1", 0))
                for _ in range(flow, count, flows):
                    sender.sendto(self.number(size), (f"10.9.{card}.2", to))

    def burst(self, card, count, to, size=60):
        """At once, as far as that goes, so that they lie in the tap before the guest can take the first."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((f"10.9.{card}.1", 0))
            sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
            for begin in range(0, count, 60):
                train = b"".join(self.number(size) for _ in range(min(60, count - begin)))
                sender.sendto(train, (f"10.9.{card}.2", to))

    def damaged(self, count):
        """With a checksum that is wrong."""
        source, to = f"10.9.{VIRTIO}.1", f"10.9.{VIRTIO}.2"
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as sender:
            for _ in range(count):
                sender.sendto(packets.udp(source, to, WIDE, self.number(12), 0x1234), (to, 0))


class Mix:
    """A guest with a daemon that is overloaded."""

    def __init__(self, stage):
        self.stage, self.guest, self.scene = stage, stage.guest, Scene(stage)
        self.sender, self.random = Sender(), random.Random()
        self.come = {sink: set() for sink in SINKS}
        self.tap_dropped_before = 0
        # Of the overload that runs: what it sent, and what was lost before.
        self.loads, self.terms_before = [], {}

    def prepare(self):
        """Nothing but the datagrams of the rig may be on the cards, or it would be lost in their stead."""
        run = self.scene.run
        run("for conf in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$conf; done")
        causes.introduce(self.scene)
        for card in (RING, VIRTIO):
            subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.tap{card}.disable_ipv6=1"], check=True)
            shown = json.loads(subprocess.check_output(["ip", "-j", "link", "show", f"tap{card}"]))
            run(f"arp -i port{card} -s 10.9.{card}.1 {shown[0]['address']}")
        subprocess.run(["ip", "address", "add", f"{DENIED}/24", "dev", f"tap{VIRTIO}"], check=True)
        causes.load_conntrack(self.scene)
        run(f"ethtool -G port{RING} rx 32")
        run(f"for queue in /sys/class/net/port{VIRTIO}/queues/rx-*/rps_cpus; do echo 1 >$queue; done")
        self.guest.wait("! grep -q 0 /sys/class/net/port*/carrier", 20)
        self.guest.write("/tmp/udpd.toml", CONFIGURATION)
        run("mkdir -p /tmp/out; mkfifo /tmp/pipe; (exec cat /tmp/pipe >>/tmp/out/slow) & echo $! >/tmp/reader")
        run("udpd run -c /tmp/udpd.toml >/tmp/pipe 2>/tmp/log & echo $! >/tmp/pid")
        self.scene.await_("grep -q ready: /tmp/log || ! kill -0 $(cat /tmp/pid)")
        check(self.guest.run("grep -q ready: /tmp/log").code == 0,
              lambda: "the daemon does not start: " + run("cat /tmp/log"))
        self.tap_dropped_before = self.tap_dropped()

    @staticmethod
    def tap_dropped():
        """What the queues before the cards had no room for, which is before the guest."""
        shown = [json.loads(subprocess.check_output(["ip", "-j", "-s", "link", "show", f"tap{card}"]))
                 for card in (RING, VIRTIO)]
        return sum(link[0]["stats64"]["tx"]["dropped"] for link in shown)

    def overload(self):
        """Some limits, and many datagrams of every kind in any order; what was done, in words."""
        dice, send = self.random, self.sender
        limits = {name for name in LIMITS if dice.random() < 0.5}
        if limits >= {"backlog", "memory"}:
            # Memory is filled by long datagrams, and of those a backlog would lose fragments, which are packets.
            limits.remove(dice.choice(["backlog", "memory"]))
        # Memory is full where no process reads.
        wanted = {"pid"} if "memory" in limits else set()
        stopped = [name for name in ("pid", "reader") if dice.random() < 0.5 or name in wanted]
        is_before = "backlog" not in limits and dice.random() < 0.3
        few = lambda most: dice.choice([0, 1, dice.randint(2, most)])
        loads = [
            ("burst on the ring", lambda: send.burst(RING, few(400), NARROW)),
            ("burst", lambda: send.burst(VIRTIO, few(300), NARROW, dice.choice([60, 500, 1000]))),
            ("40 flows", lambda: send.plain(VIRTIO, few(160), WIDE, flows=40)),
            ("one by one", lambda: send.plain(VIRTIO, few(300), WIDE, size=1000)),
            ("denied", lambda: send.plain(VIRTIO, few(60), NARROW, source=DENIED)),
            ("limited", lambda: send.plain(RING, few(100), LIMITED)),
            ("to a closed port", lambda: send.plain(VIRTIO, few(50), CLOSED)),
            ("damaged", lambda: send.damaged(few(50))),
        ]
        if "memory" in limits:
            # Each core takes up to 256 pages before it asks whether there is room.
            loads += [("long", lambda: send.plain(VIRTIO, 20, WIDE, size=60_000))] * 5
        dice.shuffle(loads)
        self.loads, self.terms_before = [], self.told()[1]
        for name in limits:
            self.scene.set(**{LIMITS[name][0].replace(".", "__"): LIMITS[name][1]})
        for name in stopped:
            self.scene.run(f"kill -STOP $(cat /tmp/{name})")
        try:
            for name, load in loads:
                begin = send.sent
                load()
                self.loads.append((name, range(begin + 1, send.sent + 1)))
                if "memory" in limits:
                    # Or the long ones would not find their place in the card's ring.
                    self.is_quiet()
            if is_before:
                self.before_the_card()
            self.is_quiet()
        finally:
            for name in reversed(stopped):
                self.scene.run(f"kill -CONT $(cat /tmp/{name})")
            wrong = self.scene.take_back()
        check(not wrong, "\n".join(wrong))
        return f"{', '.join(sorted(limits)) or 'no limit'}; stopped: {', '.join(stopped) or 'nothing'}"

    def before_the_card(self):
        """More than the queue before the virtio card holds."""
        # What lies in it while it is made short is lost, and no counter has it.
        self.is_quiet()
        subprocess.run(["ip", "link", "set", f"tap{VIRTIO}", "txqueuelen", "8"], check=True)
        try:
            self.sender.burst(VIRTIO, 120, WIDE)
            self.is_quiet()
        finally:
            subprocess.run(["ip", "link", "set", f"tap{VIRTIO}", "txqueuelen", "16384"], check=True)

    def is_quiet(self):
        """Waits until the cards and IP of the guest count nothing more."""
        count = "cat /proc/net/dev /proc/net/softnet_stat; grep ^Ip: /proc/net/snmp"
        before = None
        while (now := self.scene.run(f"{count}; usleep 500000")) != before:
            before = now

    def collect(self):
        """Takes the numbers out of the files of the sinks."""
        for sink in SINKS:
            shown = self.scene.run(f"cut -c1-12 /tmp/out/{sink}")
            come = [int(number) for number in shown.split()]
            found = self.come[sink] | set(come)
            is_sent = found <= set(range(1, self.sender.sent + 1))
            check(len(found) == len(self.come[sink]) + len(come) and is_sent,
                  f"in the file of {sink} a number stands twice, or was never sent")
            yield sink, found

    def told(self):
        """What the ledger says is lost, by sink, and its terms."""
        ledger = self.stage.ledger()
        check(ledger is not None, lambda: "the daemon does not answer: " + self.guest.run("cat /tmp/log").text)
        host, listeners = ledger["host"], ledger["listeners"]
        terms = {f"{loss['layer']}.{loss['counter']} {loss['place']}": loss["count"] for loss in host["lost"]["lost"]}
        for listener in listeners:
            for name, count in listener["dropped"].items():
                terms[name] = terms.get(name, 0) + count
        here = sum(terms.values())
        lost = {}
        for sink in SINKS:
            at_sink = [one["dropped"] for listener in listeners for one in listener["sinks"] if one["name"] == sink]
            lost[sink] = here + sum(sum(dropped.values()) for dropped in at_sink)
            for name, count in (pair for dropped in at_sink for pair in dropped.items()):
                terms[name] = terms.get(name, 0) + count
        # Parts of udp.in_errors.
        terms |= {f"udp.{name}": host["udp"][name] for name in ("mem_errors", "in_csum_errors", "rcvbuf_errors")}
        residuals = [listener["residual"] for listener in listeners]
        return lost, {term: count for term, count in terms.items() if count}, host["lost"]["unseen"], residuals

    def judge(self):
        """What is wrong once everything is at rest, which the ledger has a minute for: it asks the driver of the
        card every tenth second."""
        until = time.monotonic() + 60
        while True:
            lost, terms, unseen, residuals = self.told()
            come = dict(self.collect())
            before = self.tap_dropped() - self.tap_dropped_before
            missing = {sink: self.sender.sent - len(come[sink]) - before for sink in SINKS}
            if missing == lost or time.monotonic() > until:
                break
            time.sleep(1)
        terms |= {"not known: tap1": before} if before else {}
        wrong = []
        if missing == lost:
            # All is at rest, so the files can begin anew, or the long ones would fill the guest's memory.
            self.scene.run("".join(f": >/tmp/out/{sink}; " for sink in SINKS))
            self.come = come
        else:
            wrong = [f"missing {missing}, of which the ledger has {lost}: {terms}", *self.evidence(terms, come)]
        if [one["what"] for one in unseen] != UNSEEN:
            wrong.append(f"not known are {unseen}, and have to be {UNSEEN}")
        if any(residuals):
            wrong.append(f"the ledger does not close: {residuals}")
        return wrong, missing, terms

    def evidence(self, terms, come):
        """What the overload did, to find out why the numbers do not add up."""
        more = {term: count - self.terms_before.get(term, 0) for term, count in terms.items()}
        yield f"of this overload: {({term: count for term, count in more.items() if count})}"
        for name, numbers in self.loads:
            counts = {sink: len(come[sink].intersection(numbers)) for sink in SINKS}
            yield f"{name}: sent {len(numbers)}, of which came {counts}"
        yield from self.guest.run(
            "for card in port0 port1; do ethtool -S $card | grep -v ': 0$'; done; grep -E '^(Ip|Udp):' /proc/net/snmp;"
            " cd /proc/net; cat dev udp softnet_stat sockstat stat/nf_conntrack; ps | grep -E 'udpd|cat'; free;"
            " dmesg | tail -n 5"
        ).lines()
        for card in (RING, VIRTIO):
            yield subprocess.check_output(["ip", "-s", "link", "show", f"tap{card}"], text=True)


def mixes(stage, whole):
    """Each overload adds to what was lost before."""
    seed, rounds = int(os.environ.get("SEED", time.time_ns() % 1_000_000)), 20 if whole else 3
    stage.report.fact("SEED", seed)
    mix = Mix(stage)
    mix.random.seed(seed)
    terms = {}
    try:
        mix.prepare()
        for number in range(1, rounds + 1):
            done = mix.overload()
            wrong, missing, terms = mix.judge()
            sums = f"the sum of the layers is what is missing, {missing} of {mix.sender.sent}"
            if not stage.report.check(f"overload {number} ({done}): {sums}", wrong):
                return
    except Failed as why:
        stage.report.check("every overload comes to an end", str(why))
        return
    for term, count in sorted(terms.items()):
        stage.report.fact(f"lost, {term}", count)
    if whole:
        stage.report.check("each layer has lost something", [layer for layer in LAYERS if layer not in terms])
