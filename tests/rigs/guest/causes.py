"""Losses that only a card or a setting of the whole machine can make, provoked in a guest: `udpd explain` has to name
the right cause first, and what it prints, applied as it stands, has to take the loss away.

Each is certain by what is set, and by nothing else: a queue of one packet, a table of twenty entries. The machine's
speed decides nothing; whatever takes its time is awaited.
"""
import json
import shlex
import socket
import subprocess
import time

import machine
from lib.check import Failed, check, until
from lib.findings import cure, first, nothing
from lib.net import UDP_SEGMENT

LISTENER = 5140
# Another program, which asks for no receive buffer, and reads what one sender sends.
FOREIGN = 5150
DAEMON = "-c /tmp/udpd.toml"
CONFIGURATION = """
[daemon]
control_socket = "/run/control.sock"
metrics_address = ""
[[listener]]
name = "in"
address = "0.0.0.0:5140"
lanes = 1
receive_buffer = "8MiB"
sinks = ["nothing"]
[sink.nothing]
type = "null"
[steer]
interfaces = ["port0"]
rx_queues = 2
"""


class Scene:
    """One case on a stage. What it changes for itself is taken back when it ends, however it ends."""

    def __init__(self, stage):
        self.stage, self.guest, self.undo = stage, stage.guest, []

    def take_back(self):
        """Runs the scripts of `undo`, the last one first: those that failed, which later cases would suffer from."""
        said = [(script, self.guest.run(script)) for script in reversed(self.undo)]
        self.undo.clear()
        return [f"{script} ended with {it.code}: {it.text}" for script, it in said if it.code != 0]

    def run(self, script):
        """Must succeed."""
        said = self.guest.run(script)
        check(said.code == 0, f"{script} ended with {said.code}: {said.text}")
        return said.text

    def set(self, **settings):
        """Settings of the kernel, by their names with __ for a dot, for this case."""
        for name, value in settings.items():
            name = name.replace("__", ".")
            before = " ".join(self.run(f"sysctl -n {name}").split())
            self.undo.append(f"sysctl -w {name}='{before}'")
            self.run(f"sysctl -w {name}='{value}'")

    def daemon(self):
        """One that has room for whatever is sent here, on both cards; it stays for other cases."""
        if self.guest.run("kill -0 $(cat /tmp/pid)").code != 0:
            self.guest.write("/tmp/udpd.toml", CONFIGURATION)
            check(self.stage.start(), lambda: "the daemon does not start: " + self.run("cat /tmp/log"))

    def foreign(self):
        """Starts a reader that asks for no receive buffer, anew."""
        self.guest.run("kill -9 $(cat /tmp/foreign) 2>/dev/null")
        self.run(f"nc.traditional -n -l -u -p {FOREIGN} >/dev/null 2>&1 & echo $! >/tmp/foreign")
        self.await_("grep -q ':%04X ' /proc/net/udp" % FOREIGN)

    def await_(self, condition, seconds=60):
        check(self.guest.wait(condition, seconds) is not None, f"not within {seconds} s: {condition}")

    def explain(self, provoke, arguments=DAEMON, seconds=4):
        """What explain says of what happens meanwhile, which it has to be there for from beginning to end."""
        for _ in range(3):
            self.run(f"udpd explain --json --seconds {seconds} {arguments} >/tmp/said 2>/tmp/why &"
                     " echo $! >/tmp/explains")
            # The first reading is taken before the tracepoints are opened.
            self.await_("ls -l /proc/$(cat /tmp/explains)/fd | grep -q perf_event")
            try:
                provoke()
            except Failed:
                # Or it would write into what the next one says.
                self.guest.run("kill -9 $(cat /tmp/explains)")
                raise
            saw_all = self.guest.run("kill -0 $(cat /tmp/explains)").code == 0
            self.await_("! kill -0 $(cat /tmp/explains)", seconds + 60)
            if saw_all:
                return json.loads(self.run("cat /tmp/said"))
            seconds *= 3
        raise Failed("what was to be explained took longer than it was watched: " + self.run("cat /tmp/said /tmp/why"))

    def apply(self, cure):
        """Sets a sysctl, or runs a command, exactly as printed."""
        if cure["kind"] == "sysctl":
            self.run("sysctl -w " + shlex.quote(f"{cure['name']}={cure['value']}"))
        else:
            self.run(cure["command"])


def without(said, case):
    """It has cost nothing before, so it has to be gone."""
    nothing(said)
    check(all(finding["case"] != case for finding in said["findings"]),
          lambda: f"the cure does not help: {json.dumps(said, indent=1)}")


def burst(port, datagrams, times=1, to=LISTENER, size=60):
    """So many datagrams at once, from one sender, which lie in the tap before the guest can take the first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((f"10.9.{port}.1", machine.FIRST_PORT))
        sender.connect((f"10.9.{port}.2", to))
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
        for _ in range(times):
            sender.send(b"x" * (size * datagrams))


def long(port, datagrams, to=LISTENER):
    """Datagrams of 60,000 bytes, in fragments."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(datagrams):
            sender.sendto(b"x" * 60_000, (f"10.9.{port}.2", to))


def delivered(scene):
    """What came to UDP of the guest, whatever became of it: UDP itself counts what was read as well."""
    names, values = (line.split()[1:] for line in scene.run("grep ^Ip: /proc/net/snmp").splitlines())
    return int(dict(zip(names, values))["InDelivers"])


def all_come(scene, send, datagrams):
    """Sends, and waits until all of it has come to UDP."""
    before = delivered(scene)
    send()
    until(lambda: f"{delivered(scene) - before} of {datagrams} datagrams came",
          lambda: delivered(scene) - before >= datagrams)


def while_stopped(scene, pid_file, send, datagrams):
    """Sends while a process is stopped, which the guest itself ends when all has come, so that it does not last; and
    after half a minute in any case."""
    count = "set -- $(sed -n 's/^Ip: [0-9]/&/p' /proc/net/snmp); now=${10}"
    clock = "read -r up rest </proc/uptime; up=${up%.*}"
    scene.run("rm -f /tmp/is_stopped /tmp/missing")
    scene.run(f"(kill -STOP $(cat {pid_file}); {count}; all=$((now + {datagrams})); {clock}; end=$((up + 30));"
              f" >/tmp/is_stopped; until [ $now -ge $all ] || [ $up -ge $end ]; do {count}; {clock}; done;"
              f" echo $((all - now)) >/tmp/missing; kill -CONT $(cat {pid_file})) >/dev/null 2>&1 &")
    scene.await_("[ -e /tmp/is_stopped ]")
    send()
    scene.await_(f"[ -s /tmp/missing ] && ! grep -q '^State:.*T' /proc/$(cat {pid_file})/status")
    missing = int(scene.run("cat /tmp/missing"))
    check(missing <= 0, f"{missing} of {datagrams} datagrams did not come")


def backlog_too_short(scene):
    """RPS hands on to a core whose queue has room for two packets."""
    scene.stage.uneven()
    hand_on = "for queue in /sys/class/net/port0/queues/rx-*/rps_cpus; do echo %d >$queue; done"
    scene.undo.append(hand_on % 0)
    scene.run(hand_on % 1)
    scene.daemon()
    scene.set(net__core__netdev_max_backlog=1)
    send = lambda: burst(0, 60, 3)
    found = first(scene.explain(send), "backlog_too_short", 20)
    scene.apply(cure(found, "sysctl", "netdev_max_backlog"))
    nothing(scene.explain(lambda: all_come(scene, send, 180)))


def load_conntrack(scene):
    """Has all connections tracked from now on."""
    scene.run("insmod /modules/crc32c_generic.ko; insmod /modules/libcrc32c.ko; insmod /modules/nf_defrag_ipv4.ko;"
              " insmod /modules/nf_defrag_ipv6.ko; insmod /modules/nf_conntrack.ko enable_hooks=1 hashsize=16384")


def conntrack_full(scene):
    """A table of 20 entries, and 40 senders."""
    load_conntrack(scene)
    scene.undo.append("rmmod nf_conntrack")
    scene.daemon()
    scene.set(net__netfilter__nf_conntrack_max=20)
    send = lambda: machine.send(0, 40, 160, 1000)
    found = first(scene.explain(send), "conntrack_full", 20)
    scene.apply(cure(found, "sysctl", "nf_conntrack_max"))
    nothing(scene.explain(lambda: all_come(scene, send, 160)))


def udp_mem_reached(scene):
    """All sockets together may have 200 pages, and the one that is held up for a moment has room for more."""
    scene.daemon()
    scene.run("ethtool -G port1 rx 4096")
    scene.set(net__ipv4__udp_mem="200 200 200")

    def load():
        """Each of four cores takes up to 256 pages before it asks, and may have given back as many: these are more."""
        scene.run("kill -STOP $(cat /tmp/pid)")
        try:
            for _ in range(5):
                all_come(scene, lambda: long(1, 20), 20)
        finally:
            scene.run("kill -CONT $(cat /tmp/pid)")

    found = first(scene.explain(load), "udp_mem_reached", 5)
    scene.apply(cure(found, "sysctl", "udp_mem"))
    nothing(scene.explain(load))


def default_buffer_too_small(scene):
    """A program that asks for no buffer gets the default one, which holds a few datagrams."""
    scene.set(net__core__rmem_default=4608)
    scene.foreign()
    send = lambda: while_stopped(scene, "/tmp/foreign", lambda: burst(0, 50, to=FOREIGN), 50)
    found = first(scene.explain(send, f"--port {FOREIGN}"), "buffer_too_small", 20)
    scene.apply(cure(found, "sysctl", "rmem_default"))
    # As is printed: "then restart nc".
    scene.foreign()
    nothing(scene.explain(send, f"--port {FOREIGN}"))


def ring_too_small(scene):
    """A ring of 32 buffers, and hundreds of datagrams at once."""
    scene.run("ethtool -G port1 rx 32")
    scene.daemon()
    send = lambda: burst(1, 60, 8)
    found = first(scene.explain(send, f"{DAEMON} --interface port1"), "ring_too_small", 20)
    scene.apply(cure(found, "command", "ethtool -G port1 rx"))
    nothing(scene.explain(lambda: all_come(scene, send, 480), f"{DAEMON} --interface port1"))


def interrupts_on_one_core(scene):
    """All of four queues on the last core. What that costs a virtio card cannot be seen here, so it is a risk."""
    scene.daemon()
    scene.stage.uneven()
    # An interrupt moves when it fires.
    all_come(scene, lambda: machine.send(0, 64, 128, 1000), 128)
    found = first(scene.explain(lambda: None, "--interface port0", 1), "interrupts_on_one_core", 0)
    scene.apply(cure(found, "command", "udpd steer apply port0"))
    all_come(scene, lambda: machine.send(0, 64, 128, 1000), 128)
    without(scene.explain(lambda: None, "--interface port0", 1), found["case"])


def hashed_by_addresses_only(scene):
    """A sender's flows all go to one queue, and with the printed hash to several; a risk as well."""
    def busiest():
        """What the busiest queue got of 64 flows with two datagrams each."""
        shown = "ethtool -S port0 | sed -n 's/^ *rx_queue_[0-9]_packets: //p'"
        before = map(int, scene.run(shown).split())
        all_come(scene, lambda: machine.send(0, 64, 128, 1000), 128)
        return max(now - then for now, then in zip(map(int, scene.run(shown).split()), before))

    scene.daemon()
    # Its driver does not tell the card of a hash alone, but of one with a table.
    scene.run("udpd steer apply port0 && ethtool -N port0 rx-flow-hash udp4 sd && ethtool -X port0 equal 4")
    check(busiest() >= 128, "the card hashes more than addresses")
    found = first(scene.explain(lambda: None, "--interface port0", 1), "hashed_by_addresses_only", 0)
    scene.apply(cure(found, "command", "ethtool -N port0 rx-flow-hash udp4"))
    without(scene.explain(lambda: None, "--interface port0", 1), found["case"])
    check(busiest() < 128, "the card still sends all flows to one queue")


def drifted_from_plan(scene):
    """An interrupt moves away from the plan of a file, which has fewer queues than the plan without it."""
    scene.daemon()
    scene.undo.append("udpd steer restore")
    scene.run("udpd steer apply " + DAEMON)
    number = scene.stage.interrupts().of_queue(0, scene.stage.devices[0], 0)
    scene.run(f"echo 3 >/proc/irq/{number}/smp_affinity_list")
    found = first(scene.explain(lambda: None, DAEMON + " --interface port0", 1), "drifted_from_plan", 0)
    scene.apply(cure(found, "command", "udpd steer apply"))
    without(scene.explain(lambda: None, DAEMON + " --interface port0", 1), found["case"])
    scene.run("udpd steer status " + DAEMON)


# Which every run takes, and which the long form alone.
CASES = [ring_too_small, backlog_too_short, conntrack_full, udp_mem_reached]
OTHERS = [default_buffer_too_small, interrupts_on_one_core, hashed_by_addresses_only, drifted_from_plan]


def introduce(scene):
    """What waits for the guest's address may be dropped, so it is made known."""
    for port in range(len(scene.guest.machine.cards)):
        subprocess.run(["ip", "neighbour", "replace", f"10.9.{port}.2", "lladdr", f"52:54:00:00:00:0{port}",
                        "dev", f"tap{port}", "nud", "permanent"], check=True)


def causes(stage, whole):
    """Each in turn."""
    scene = Scene(stage)
    scene.run("mount -t tracefs tracefs /sys/kernel/tracing")
    introduce(scene)
    for case in CASES + (OTHERS if whole else []):
        began = time.monotonic()
        try:
            case(scene)
            wrong = []
        except Failed as why:
            wrong = str(why)
        finally:
            left = scene.take_back()
        stage.report.check(f"{case.__name__}: the cause is told first, and its cure takes the loss away", wrong)
        stage.report.check(f"{case.__name__}: what it changed is as before", left)
        stage.report.fact(f"seconds for {case.__name__}", round(time.monotonic() - began, 1))
