"""Actions from a seed against one service, and a judge that reads what came out; see chaos.sh.

The service has a manager that keeps its sockets, as systemd does, so a restart loses nothing and the kernel's drops are
read from the sockets themselves. One stream of datagrams comes over loopback to three sinks: files that rotate, a
stream with a spill whose peer goes and comes, and a file on a small file system. Another one comes over a cable that is
cut, and only has to be heard again.

What is taken from ledgers are drops that udpd counts, and how much a killed process may have held at most.
"""
import collections
import contextlib
import glob
import os
import random
import signal
import sys
import time

sys.path += [f"{os.path.dirname(__file__)}/{folder}" for folder in ("restarts", "spill")]
# pylint: disable=wrong-import-position
from lib import net
from lib.check import LONG, Failed, check, main, passed, setting
from lib.daemon import UDPD, WORK, dropped_at
from lib.host import ends, execute, write
from lib.load import Bench
from lib.net import OTHER, ip
from lib.records import bench_numbers
from lib.report import host
from lib.service import known
from manager import Managed
from peer import Peer, Taken, senders

SECONDS = setting("SECONDS_OF_CHAOS", 3600 if LONG else 60)
SEED, RATE = setting("SEED", random.randrange(1 << 32)), setting("RATE", 2000)
# How often a kill is chosen, beside 35 for all others.
KILLS = setting("KILLS", 3)
PORT, CABLE_PORT, ADDRESS, LENGTH, FLOWS = 5188, 5190, "10.8.0.1", 100, 4
FULL, PEER, CLOCK = f"{WORK}/full", f"{WORK}/peer", f"{WORK}/clock"
# How long each answer may take; a machine that is shared stands still now and then.
STATS_S, RELOAD_S, START_S, END_S, HEARD_S = 15, 60, 60, 60, 30


class Come(Taken):
    """What the peer got, in any order: another number of lanes may break it."""

    def take(self, flow, number):
        self.last.clear()
        super().take(flow, number)


class Chaos(Managed):
    def __init__(self):
        fake = [] if not os.environ.get("FAKETIME") else [
            "env", f"LD_PRELOAD={os.environ['FAKETIME']}", f"FAKETIME_TIMESTAMP_FILE={CLOCK}", "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"]
        super().__init__("chaos", RATE, before=fake)
        self.set_clock("+0")
        self.chance, self.keys = random.Random(SEED), {"lanes": 2, "gro": "on", "sync": "1s", "more": False}
        self.come, self.times, self.slowest = Come(), collections.Counter(), collections.Counter()
        self.peer, self.is_peer_there = Peer(PEER, LENGTH, self.come), False
        self.own, self.own_before, self.at_most, self.twice, self.kills = collections.Counter(), 0, 0, 0, 0
        self.is_full, self.told = False, []
        self.pause_s, self.to, self.cpus, self.changed = 0, "", "0", None

    def text(self, **_):
        keys, own = self.keys, self.directory
        more = '[[listener]]\nname = "more"\naddress = "127.0.0.1:5192"\nsinks = ["nowhere"]\n' \
               '[sink.nowhere]\ntype = "null"\n' if keys["more"] else ""
        return f"""
[[listener]]
name = "in"
address = "127.0.0.1:{PORT}"
sinks = ["files", "relay", "full"]
lanes = {keys["lanes"]}
gro = "{keys["gro"]}"
receive_buffer = "8MiB"
[[listener]]
name = "cable"
address = "0.0.0.0:{CABLE_PORT}"
interface = "card0"
sinks = ["cable"]
lanes = 1
[sink.files]
type = "file"
path = "{own}/files/in.log"
rotate = {{ bytes = "1MiB", every = "10s" }}
sync = "{keys["sync"]}"
[sink.relay]
type = "unix"
socket = "stream"
framing = "length"
path = "{PEER}"
spill = {{ path = "{own}/spill", bytes = "256MiB" }}
[sink.full]
type = "file"
path = "{FULL}/in.log"
rotate = {{ bytes = 0, every = "0s" }}
[sink.cable]
type = "file"
path = "{own}/cable.log"
rotate = {{ bytes = 0, every = "0s" }}
{more}"""

    # What answers within a time.

    def within(self, what, seconds, action):
        begun = time.monotonic()
        result = action()
        took = time.monotonic() - begun
        self.slowest[what] = max(self.slowest[what], took)
        check(took <= seconds, f"{what} took {took:.1f} s, and {seconds} s are allowed")
        return result

    def hear_all(self):
        while self.hear(0.05, every=True):
            pass

    def begin_process(self, pid_before=None):
        self.within("a start", START_S, lambda: self.start())
        self.hear_all()
        ledger = self.stats()
        self.twice += sum(sink.get("spill_repeats_at_most", 0) for one in ledger["listeners"] for sink in one["sinks"])
        before = ledger.get("before")
        if pid_before and before:
            check(before["pid"] == pid_before, f"before is {before}, and {pid_before} was killed")
            self.own_before += known(before["dropped"], before)
            self.at_most += known(before["lost_datagrams_at_most"], before)

    def stats(self):
        return self.within("stats", STATS_S, self.process.ledger)

    def note_end(self):
        for one in self.process.last()["listeners"]:
            if one["name"] == "in":
                for sink in one["sinks"]:
                    self.own[sink["name"]] += dropped_at(sink) + dropped_at(one)

    # The actions. Each returns nothing and leaves a service that runs.

    def restart(self):
        self.within("an end", END_S, lambda: self.end_process())
        self.note_end()
        self.begin_process()

    def kill(self):
        pid = self.process.child.pid
        self.end_process(signal.SIGKILL)
        self.kills += 1
        time.sleep(self.pause_s)
        self.begin_process(pid)

    def reload(self):
        key, value = self.changed
        self.keys[key] = value
        if key == "gro":
            # What a socket has cannot be switched off; a restart binds another.
            self.restart()
            return
        self.process.configure(self.text())
        told = self.within("a reload", RELOAD_S, lambda: self.process.ask("reload"))
        check(told.returncode == 0, lambda: f"reload: {told.stdout}{told.stderr}")
        self.hear_all()

    def bad_reload(self):
        self.process.configure(self.text() + "this is = no toml\n")
        told = self.within("a reload", RELOAD_S, lambda: self.process.ask("reload"))
        check(told.returncode == 78, lambda: f"a bad reload: {told.returncode} {told.stdout}{told.stderr}")
        self.process.configure(self.text())

    def take_over(self):
        old = self.process
        environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"{self.directory}/notify.sock",
                       "FDSTORE": "60"}
        self.process = self.launch(self.text(), program=self.program, before=self.before, env=environment,
                                   run=("run", "--take-over"))
        self.within("a take-over", START_S, lambda: self.process.until("it is ready", lambda: self.hear(0.2)))
        self.within("the end of the old one", END_S, old.wait)
        self.hear_all()
        self.process, new = old, self.process
        self.note_end()
        self.process = new

    def fill(self):
        self.is_full = not self.is_full
        if self.is_full:
            # Up to the last byte, whatever is free.
            with contextlib.suppress(OSError), open(f"{FULL}/ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(1 << 16))
        else:
            os.unlink(f"{FULL}/ballast")

    def peer_changes(self):
        if self.is_peer_there:
            self.peer.go()
        else:
            self.peer.come()
        self.is_peer_there = not self.is_peer_there

    def set_clock(self, to):
        write(f"{CLOCK}.new", to + "\n")
        os.rename(f"{CLOCK}.new", CLOCK)

    def jump(self):
        self.set_clock(self.to)

    def cores(self):
        execute("taskset", "-apc", self.cpus, self.process.child.pid)

    def stop_a_while(self):
        os.kill(self.process.child.pid, signal.SIGSTOP)
        time.sleep(self.pause_s)
        os.kill(self.process.child.pid, signal.SIGCONT)

    def card(self):
        ip("link set card0 down")
        time.sleep(self.pause_s)
        ip("link set card0 up")
        self.cable_is_back()

    def addresses(self):
        ip(f"address del {ADDRESS}/24 dev card0")
        time.sleep(self.pause_s)
        ip(f"address add {ADDRESS}/24 dev card0")
        self.cable_is_back()

    def rename(self):
        ip("link set card0 down")
        ip("link set card0 name card9")
        ip("link set card9 up")
        time.sleep(self.pause_s)
        ip("link set card9 down")
        ip("link set card9 name card0")
        ip("link set card0 up")
        self.cable_is_back()

    def cable_is_back(self):
        net.introduce(ADDRESS, "card1", OTHER, "card0", None)

    def look_at_it(self):
        self.stats()

    def plan(self):
        """The next action and all that chance has to say of it: what happened before changes nothing here."""
        chance = self.chance
        actions = {"restart": 3, "kill": KILLS, "reload": 5, "bad_reload": 1, "take_over": 3, "fill": 3,
                   "peer_changes": 4, "jump": 3, "cores": 2, "stop_a_while": 1, "card": 1, "addresses": 1, "rename": 1,
                   "look_at_it": 2}
        name = chance.choices(list(actions), actions.values())[0]
        self.pause_s, self.to = chance.uniform(0, 0.5), chance.choice(["-1h", "+1h", "-30d", "+30d", "+0"])
        self.cpus = chance.choice(["0", f"0-{os.cpu_count() - 1}"])
        key = chance.choice(["lanes", "gro", "sync", "more"])
        self.changed = key, {"lanes": chance.randint(1, 4), "gro": chance.choice(["on", "off"]),
                             "sync": chance.choice(["1s", "3s", "rotate"]), "more": chance.random() < 0.5}[key]
        more = {"reload": self.changed, "jump": self.to, "cores": self.cpus}.get(name, "")
        return name, f"{name} {more}".strip(), chance.uniform(0, 1.5)

    def campaign(self):
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            name, told, pause_s = self.plan()
            self.told.append(told)
            print(f"{time.monotonic() - begun:7.1f} s  {len(self.told)}. {told}", flush=True)
            self.times[name] += 1
            getattr(self, name)()
            time.sleep(pause_s)


def numbers(paths):
    """The numbers in files, none of them twice; a kill may cut the last record of one."""
    found = set()
    for path in paths:
        own, _ = bench_numbers(path)
        check(len(set(own)) == len(own) and not found & set(own), f"{path}: some are there twice")
        found |= set(own)
    return found


def judge(chaos, sent, dropped):
    """Each sink of the stream over loopback."""
    everything = {(number % FLOWS, number // FLOWS) for number in range(sent)}
    peer = {(flow, number) for flow, seen in chaos.come.seen.items() for number, came in enumerate(seen) if came}
    of_sink = {"files": numbers(glob.glob(f"{chaos.directory}/files/*[!n]")), "relay": peer,
               "full": numbers([f"{FULL}/in.log"])}
    lines = []
    for name, has in of_sink.items():
        check(has <= everything, f"{name} has {len(has - everything)} that were never sent")
        missing, counted = sent - len(has), dropped + chaos.own[name]
        # The drops of those that were killed are known of all sinks together.
        most = counted + chaos.own_before + chaos.at_most
        # What a process dropped at a full disk between its last look and its kill is in no ledger: a second each.
        most += 2 * RATE * chaos.kills if name == "full" else 0
        what = f"{name}: {sent} sent, {len(has)} there, {dropped} dropped by the kernel, {chaos.own[name]} counted " \
               f"as dropped by those that ended; {missing - counted} others, of at most {most - counted}: " \
               f"{chaos.own_before} counted by the {chaos.kills} that were killed, of all sinks, and what they held"
        check(counted <= missing <= most, what)
        lines.append(what)
    check(not chaos.come.wrong or "came after" in chaos.come.wrong, chaos.come.wrong)
    check(chaos.come.repeats <= chaos.twice,
          f"relay: {chaos.come.repeats} came twice, and {chaos.twice} were said to")
    lines.append(f"relay: {chaos.come.repeats} came twice, of {chaos.twice} that were said to at most")
    return lines


def cable_alive(chaos, seconds):
    """The other stream is heard."""
    path = f"{chaos.directory}/cable.log"
    size = os.path.getsize(path)
    chaos.process.until("the cable is heard again", lambda: os.path.getsize(path) > size, seconds)


def everything():
    os.makedirs(FULL)
    ends(0, "mount", "-t", "tmpfs", "-o", "size=24m", "full", FULL)
    net.lay([f"{ADDRESS}/24"], ["10.8.0.2/24"])
    net.introduce(ADDRESS, "card1", OTHER, "card0", None)
    chaos = Chaos()
    os.makedirs(f"{chaos.directory}/files")
    chaos.begin_process()
    load = senders(PORT, FLOWS, LENGTH, RATE)
    # It sends until it is ended, behind a campaign of any length.
    cable = Bench(f"{ADDRESS}:{CABLE_PORT}", 500, place=OTHER, seconds=2 * SECONDS + 600)
    try:
        chaos.campaign()
    except Failed as why:
        raise Failed(f"SEED={SEED}, action {len(chaos.told)}, {chaos.told[-1]}: {why}") from why
    # Faults stop, and everything drains.
    chaos.cpus = f"0-{os.cpu_count() - 1}"
    chaos.cores()
    if chaos.is_full:
        chaos.fill()
    if not chaos.is_peer_there:
        chaos.peer_changes()
    cable_alive(chaos, HEARD_S)
    sent = load.end()
    cable.end(may_be_refused=True)
    chaos.process.until("everything is decided", lambda: is_decided(chaos.stats()), 120)
    check(chaos.look() == 0, "something waits in the sockets")
    chaos.within("an end", END_S, lambda: chaos.end_process())
    chaos.note_end()
    chaos.peer.go()
    lines = judge(chaos, sent, chaos.dropped())
    numbers([f"{chaos.directory}/cable.log"])
    times = ", ".join(f"{name} {count}" for name, count in sorted(chaos.times.items()))
    slowest = ", ".join(f"{name} {took:.2f} s" for name, took in sorted(chaos.slowest.items()))
    lines = [f"SEED={SEED}, {SECONDS} s at {RATE}/s, {len(chaos.told)} actions: {times}", *lines,
             f"the slowest answers: {slowest}"]
    if "--record" in sys.argv:
        page = ["# Chaos", "", host(UDPD), "", *(f"- {line}" for line in lines)]
        write(f"{sys.argv[sys.argv.index('--record') + 1]}/chaos.md", "\n".join(page) + "\n")
    passed("\n        ".join(lines))


def is_decided(ledger):
    return all(sink["in_flight"] + sink.get("spilled", 0) == 0 for one in ledger["listeners"] for sink in one["sinks"])


print(f"SEED={SEED}", flush=True)
main(everything)
