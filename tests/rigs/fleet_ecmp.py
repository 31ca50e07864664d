"""Members of a fleet behind a router that shares flows out; see fleet_ecmp.sh."""
import collections
import glob
import json
import os
import re
import time

from lib import net
from lib.check import LONG, check, check_the_judge, main, passed, same, setting, until
from lib.daemon import WORK, Daemon, closed, start
from lib.host import read, write
from lib.load import Bench, numbers_sent
from lib.net import ip
from lib.records import bench_numbers

SENDER = net.OTHER
SERVICE, PORT = "192.0.2.53", 2055
ROUNDS = setting("ROUNDS", 3 if LONG else 1)
RATE = setting("RATE", 40_000 if LONG else 4_000)
FLOWS = 400
FOLDER = "config/fleet/ecmp"


def next_hops():
    """How many members the router sends to."""
    routes = json.loads(ip(f"-j route show {SERVICE}"))
    return sum(len(route.get("nexthops", [route])) for route in routes)


def await_hops(count):
    until(lambda: f"the router has {count} members, and not {next_hops()}", lambda: next_hops() == count)


def bird(name, text, place=None):
    """BIRD in a place."""
    write(f"{WORK}/{name}.conf", text)
    command = ["bird", "-f", "-c", f"{WORK}/{name}.conf", "-s", f"{WORK}/{name}.ctl"]
    with open(f"{WORK}/{name}.log", "w", encoding="utf-8") as log:
        start(net.at(place, *command), stdout=log, stderr=log)


class Member:
    """A namespace with BIRD, and the udpd that runs there now. Its files stay when udpd is replaced."""

    def __init__(self, number, place):
        self.number, self.place, self.directory = number, place, f"{WORK}/member{number}"
        own, router = f"10.9.{number}.2", f"10.9.{number}.1"
        net.lay([f"{router}/24"], [f"{own}/24"], f"member{number}", "up0", place)
        ip("link set lo up", place)
        ip(f"route add default via {router}", place)
        net.introduce(own, f"member{number}", None, "up0", place)
        net.introduce(router, "up0", place, f"member{number}", None)
        bird(f"bird{number}", read(f"{FOLDER}/member.conf").replace("10.9.1.2", own).replace("10.9.1.1", router), place)
        self.ledgers = []

    def start(self):
        """The configuration of the fleet, with the paths of this rig."""
        text = read(f"{FOLDER}/member.toml")
        keys = [line for line in text.splitlines() if re.match("announce|health_address|drain", line)]
        tables = text[text.index("[[listener]]"):].replace("/var/log/udpd", "DIR")
        tables = tables.replace('sinks = ["archive"]', 'sinks = ["archive"]\nreceive_buffer = "16MiB"')
        self.daemon = Daemon(tables, daemon="\n".join(['user = "root"', *keys]), directory=self.directory,
                             before=net.at(self.place))
        return self

    def drained(self):
        """Leaves the fleet and ends; how long that took."""
        began = time.monotonic()
        told = self.daemon.ask("drain", "--for", "30s")
        same(told.returncode, 0, lambda: f"udpd drain: {told.stdout}{told.stderr}")
        self.daemon.wait()
        self.ledgers.append(closed(self.daemon.last()))
        return time.monotonic() - began

    def numbers(self):
        """All that is in its files."""
        found = []
        for path in glob.glob(f"{self.directory}/flows.lines*"):
            numbers, is_cut = bench_numbers(path)
            check(not is_cut, f"{path} ends within a record")
            found += numbers
        return found


def judge(sent, found):
    """Each that was sent is in the files once."""
    times = collections.Counter(found)
    strange = set(times) - sent
    twice = sum(count > 1 for count in times.values())
    missing = len(sent - set(times))
    same((missing, twice, len(strange)), (0, 0, 0), "missing, twice, never sent")


def missing_of(sent, found):
    """By flow, the numbers that are nowhere."""
    gaps = collections.defaultdict(list)
    for flow, number in sorted(sent - set(found)):
        gaps[flow].append(number)
    return gaps


def members():
    places = os.environ["PLACES"].split()
    net.lay(["10.8.0.1/24"], ["10.8.0.2/24"], "senders", "card0", SENDER)
    ip("link set lo up", SENDER)
    ip("route add default via 10.8.0.1", SENDER)
    net.set_proc("ipv4/ip_forward", 1)
    net.set_proc("ipv4/fib_multipath_hash_policy", 1)
    bird("router", read(f"{FOLDER}/router.conf"))
    made = [Member(number, place) for number, place in enumerate(places, 1)]
    for member in made:
        member.start()
    await_hops(len(made))
    return made


def load():
    return Bench(f"{SERVICE}:{PORT}", RATE, "--flows", FLOWS, place=SENDER)


def each_in_turn():
    """Each member is drained and replaced, as in a rolling upgrade."""
    fleet = members()
    bench = load()
    took = []
    for _ in range(ROUNDS):
        for member in fleet:
            member.daemon.await_listener("it receives", lambda listener: listener["arrived"] > 0)
            took.append(member.drained())
            await_hops(len(fleet) - 1)
            member.start()
            await_hops(len(fleet))
    report = bench.end()
    for member in fleet:
        member.drained()
    sent = numbers_sent(report)
    found = [number for member in fleet for number in member.numbers()]
    check_the_judge(judge, {"one is missing": (sent, found[1:]), "one is there twice": (sent, found + found[:1])})
    judge(sent, found)
    arrived = sum(ledger["arrived"] for member in fleet for ledger in member.ledgers)
    same(arrived, len(sent), "the sum of the ledgers")
    shares = [sum(ledger["arrived"] for ledger in member.ledgers) for member in fleet]
    passed(f"{len(took)} members left and came back at {RATE}/s: {len(sent)} sent, each in the files once; "
           f"shares {shares}; a drain took {min(took):.1f} to {max(took):.1f} s")
    return fleet


def a_member_is_killed(fleet):
    """What is missing was on its way to the one that died, in one gap of each of its flows."""
    before = {member.number: len(member.numbers()) for member in fleet}
    for member in fleet:
        member.start()
    await_hops(len(fleet))
    bench = load()
    victim, *others = fleet
    for member in fleet:
        member.daemon.await_listener("it receives", lambda listener: listener["arrived"] > RATE // 8)
    victim.daemon.kill()
    killed = time.monotonic()
    await_hops(len(others))
    withdrawn = time.monotonic() - killed
    for member in others:
        counted = member.daemon.listener()["arrived"]
        member.daemon.await_listener("the others go on", lambda listener: listener["arrived"] > counted + RATE // 8)
    report = bench.end()
    for member in others:
        member.drained()
    sent = numbers_sent(report)
    found = [number for member in fleet for number in member.numbers()[before[member.number]:]]
    same(len(found), len(set(found)), "none came twice")
    gaps = missing_of(sent, found)
    for flow, gap in gaps.items():
        same(gap, list(range(gap[0], gap[-1] + 1)), f"what flow {flow} lost is one gap")
    lost = sum(map(len, gaps.values()))
    check(len(gaps) <= FLOWS / len(fleet) * 2, f"{len(gaps)} of {FLOWS} flows lost something")
    passed(f"a member is killed at {RATE}/s: the route was withdrawn after {withdrawn * 1000:.0f} ms, "
           f"{lost} of {len(sent)} lost, all of its own {len(gaps)} flows")


def cases():
    a_member_is_killed(each_in_turn())


main(cases)
