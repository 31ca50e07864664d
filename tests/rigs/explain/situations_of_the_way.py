"""What the kernel throws away before a socket: firewalls, addresses, frames and headers."""
import shutil
import socket

from lib import net, packets
from lib.check import Skipped
from lib.host import execute
from lib.net import OTHER, ip, run
from scene import HERE
from situations import Flow, Situation, as_case, chances
from situations_of_readers import FIRST_IN_LINE, PAUSE, REFUSE_LONG, instead

PORT = 5942
sent = lambda case: lambda situation: {case: situation.sent["flow"]}


def rules(scene, text):
    """Rules of nftables in this namespace, and none of them at the end."""
    if not shutil.which("nft"):
        raise Skipped("nft")
    run("nft", text)
    scene.undo.append(lambda: execute("nft", "flush ruleset"))


def chain(hook, rule, family="ip", kind="filter", policy="accept", priority=0, device=""):
    return (f"add table {family} rig; add chain {family} rig {hook} {{ type {kind} hook {hook} {device} priority "
            f"{priority}; policy {policy}; }}; " + (f"add rule {family} rig {hook} {rule}; " if rule else ""))


def raw(scene, build, destination=None, source=b"\x02\0\0\0\0\x02"):
    """A flow of frames that are written at the sender's card as they are."""
    to = destination or bytes.fromhex(net.link("card0")["address"].replace(":", ""))
    with net.inside(OTHER):
        own = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    own.bind(("card1", 0x0800))
    frame = packets.frame(to, build, source)

    class Raw(Flow):
        def __init__(self, port, rate):
            super().__init__(port, rate)
            self.own, self.one = own, lambda: own.send(frame)

    return Raw


def of_rule(*arguments, **options):
    def make(scene):
        scene.reader(PORT, before=FIRST_IN_LINE)
        rules(scene, chain(*arguments, **options))
        return Situation(PORT, Flow(PORT, 400), truth=sent("firewall"))
    return make


def named(name, make):
    make.__name__ = name
    return make


FIREWALLS = [named(name, make) for name, make in {
    "input_with_a_counter": of_rule("input", f"udp dport {PORT} counter drop"),
    "input_without_a_counter": of_rule("input", f"udp dport {PORT} drop"),
    "raw_prerouting": of_rule("prerouting", f"udp dport {PORT} counter drop", priority=-300),
    "ingress_of_a_card": of_rule("ingress", f"udp dport {PORT} counter drop", family="netdev", device="device card0"),
    "reject": of_rule("input", f"udp dport {PORT} counter reject"),
    "by_its_source": of_rule("input", "ip saddr 10.9.0.2 counter drop"),
    "by_policy": of_rule("input", "", family="inet", policy="drop"),
}.items()]


def one_of_two_rules(scene):
    """Two chains may drop it, and only the counter tells which one."""
    scene.reader(PORT, before=FIRST_IN_LINE)
    rules(scene, chain("input", f"udp dport {PORT} counter drop")
          + chain("prerouting", f"udp dport {PORT} ip saddr 10.9.0.99 counter drop", priority=-300))
    return Situation(PORT, Flow(PORT, 400), truth=sent("firewall"))


def a_rule_and_a_reader(scene):
    """Two causes at once."""
    scene.reader(PORT, PAUSE, before=FIRST_IN_LINE)
    rules(scene, chain("input", "ip saddr 10.9.0.3 counter drop"))
    return Situation(PORT, Flow(PORT, 500, "ruled", source="10.9.0.3"), Flow(PORT, 4000),
                     truth=lambda it: {"firewall": it.sent["ruled"], "reader_does_not_read": it.at_socket},
                     cured=instead(scene, port=PORT))


def of_packet(case, build, destination=None):
    def make(scene):
        scene.reader(PORT, before=FIRST_IN_LINE)
        return Situation(PORT, raw(scene, build(), destination)(PORT, 400), truth=sent(case))
    return make


def ip_packet(source="10.9.0.2", to=HERE):
    return lambda: packets.ip(source, to, packets.udp(source, to, PORT, b"x" * 60))


def damaged(at, value):
    def build():
        whole = bytearray(ip_packet()())
        whole[at] ^= value
        return bytes(whole)
    return build


FRAMES = [named(name, make) for name, make in {
    "source_of_loopback": of_packet("martian_source", ip_packet("127.0.0.5")),
    "source_of_this_host": of_packet("martian_source", ip_packet(HERE)),
    "source_of_a_group": of_packet("martian_source", ip_packet("224.0.0.9")),
    "wrong_ethernet_address": of_packet("wrong_mac", ip_packet(), b"\x02\x11\x22\x33\x44\x55"),
    "address_of_another_host": of_packet("wrong_address", ip_packet(to="10.9.0.77")),
    "address_of_another_network": of_packet("wrong_address", ip_packet(to="198.51.100.7")),
    "wrong_sum_of_the_header": of_packet("header_errors", damaged(10, 0x55)),
    "wrong_version": of_packet("header_errors", damaged(0, 0x30)),
    "wrong_sum_of_udp": of_packet("bad_checksums", lambda: packets.ip("10.9.0.2", HERE, packets.udp(
        "10.9.0.2", HERE, PORT, b"x" * 60, 0x1234))),
}.items()]


def group_that_no_program_joined(scene):
    scene.reader(PORT, before=FIRST_IN_LINE)
    own = net.udp_socket("10.9.0.2", place=OTHER)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.9.0.2"))
    join = f"s.setsockopt(0, 35, socket.inet_aton('239.7.7.7') + socket.inet_aton('{HERE}'))"
    return Situation(PORT, Flow(PORT, 400, to="239.7.7.7", socket=own), truth=sent("group_not_joined"),
                     cured=instead(scene, "pass", join, port=PORT))


def longer_than_the_mtu(scene):
    scene.reader(PORT, before=FIRST_IN_LINE)
    ip("link set dev card1 mtu 3000", OTHER)
    scene.undo.append(lambda: (ip("link set dev card1 mtu 1500", OTHER), ip("link set dev card0 mtu 1500")))
    return Situation(PORT, Flow(PORT, 400, size=2500), truth=sent("longer_than_mtu"))


def closed_port(scene):
    return Situation(PORT, Flow(PORT, 400), truth=sent("no_listener"))


def reverse_path(scene):
    ip("address replace 172.31.0.5/32 dev card1", OTHER)
    scene.reader(PORT, before=FIRST_IN_LINE)
    run("sysctl", "-qw", "net.ipv4.conf.card0.rp_filter=1")
    scene.undo.append(lambda: run("sysctl", "-qw", "net.ipv4.conf.card0.rp_filter=0"))
    return Situation(PORT, Flow(PORT, 400, source="172.31.0.5"), truth=sent("reverse_path_filter"))


def by_chance(scene, chance):
    """A cause on the way and one at the socket, each perhaps, with rates by chance."""
    ways = ["rule", "raw", "mac", "martian", "none"]
    readers = {"quick": ("pass", ""), "pauses": (PAUSE, ""), "filter": ("pass", REFUSE_LONG),
               "both": (PAUSE, REFUSE_LONG)}
    way, reader = chance.choice(ways), chance.choice(list(readers))
    if way == "none" and reader == "quick":
        reader = "pauses"
    scene.reader(PORT, *readers[reader], before=FIRST_IN_LINE)
    flows = [Flow(PORT, chance.randrange(3000, 5000))]
    case = {"rule": "firewall", "raw": "firewall", "mac": "wrong_mac", "martian": "martian_source"}.get(way)
    rate = chance.randrange(300, 900)
    if way in ("rule", "raw"):
        hook, priority = ("input", 0) if way == "rule" else ("prerouting", -300)
        rules(scene, chain(hook, "ip saddr 10.9.0.3 counter drop", priority=priority))
        flows.append(Flow(PORT, rate, "way", source="10.9.0.3"))
    elif way != "none":
        build = ip_packet("127.0.0.5" if way == "martian" else "10.9.0.2")
        flows.append(raw(scene, build(), b"\x02\x11\x22\x33\x44\x55" if way == "mac" else None)(PORT, rate))
        flows[-1].name = "way"
    if "filter" in reader or reader == "both":
        flows.append(Flow(PORT, chance.randrange(300, 900), "long", size=200))

    def truth(situation):
        wanted = {case: situation.sent["way"]} if case else {}
        refused = situation.sent.get("long", 0)
        if refused:
            wanted["socket_filter"] = refused
        if situation.at_socket - refused > 50:
            wanted["reader_does_not_read"] = situation.at_socket - refused
        return wanted

    def cured():
        instead(scene, port=PORT)()
        return ["socket_filter", "reader_does_not_read"]

    return Situation(PORT, *flows, truth=truth, seconds=chance.choice([0.9, 1.2, 1.6]), cured=cured)


SITUATIONS = [as_case(make) for make in (
    FIREWALLS[0], FIREWALLS[3], a_rule_and_a_reader, FRAMES[0], group_that_no_program_joined,
    *FIREWALLS[1:3], *FIREWALLS[4:], one_of_two_rules, *FRAMES[1:], longer_than_the_mtu, closed_port, reverse_path,
)]
BY_CHANCE = list(chances(by_chance, 20))
