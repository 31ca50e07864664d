"""Cases of the daemon, run inside the receiver's namespace; see xdp_daemon.sh. The judge is what the daemon wrote."""
import collections
import errno
import os
import random
import shutil
import subprocess

import cable
import fast
import hidden
import hostile
from cable import ADDRESSES, PORT
from lib import net
from lib.check import LONG, Skipped, check, main, passed, same, setting
from lib.daemon import PATIENCE, dropped_at
from lib.host import read_bytes, write
from lib.net import OTHER, UNPRIVILEGED, ip
from lib.records import json_payload, json_records
from subject import SMALL, TINY, Receiving, by_queue, closes, drops, kill, past_the_stack, unheard

ROUNDS = setting("XDP_RIG_ROUNDS", 20 if LONG else 2)


def every_size():
    sizes = [1, 2, 63, 64, 65, 255, 256, 257, 1000, 1452, 1472, *range(3, 1400, 19), 1473, 1900]

    def line(size):
        return bytes((size + byte * 7) % 256 for byte in range(size)).hex()

    for _ in range(5):
        daemon = Receiving(sink='format = "jsonl"')
        sent = sum(cable.payloads(address, *sizes) for address in ADDRESSES)
        ledger = daemon.end()
        if drops(ledger) + daemon.lost_by_cable() == 0:
            break
    same(ledger["sinks"][0]["delivered"], sent, f"delivered: {ledger}")
    records = records_of(daemon)
    got = collections.Counter(json_payload(record).hex() for record in records)
    expected = collections.Counter({line(size): 2 for size in sizes})
    check(got == expected, lambda: f"what is written is not what was sent: {list((got - expected).items())[:2]}")
    lanes = collections.Counter()
    for lane in ledger["lanes"]:
        lanes[lane["engine"]] += lane["received"]
    # Two of IPv4 are longer than a frame, and three of IPv6.
    same(lanes, {"recvmmsg": 5, "af_xdp": sent - 5}, "by the sockets and past the stack")
    for record in records:
        check((record.get("time_from") == "batch") == (record["lane"] >= 2), record)
    passed(f"{sent} datagrams of every size, as they were sent; fragments by the sockets: {dict(lanes)}")


def records_of(daemon):
    return json_records(read_bytes(daemon.out))


def overload():
    """A reader that begins late, and little room: each policy drops by its own name, and all of it is told."""
    for policy in ["drop_newest", "drop_oldest", "block"]:
        for address in ADDRESSES:
            for size in (64, 1400):
                keys = f'when_full = "{policy}"\nqueue_bytes = "256KiB"'
                absorb = 'absorb = { rate = 20000, stall = "10ms", size = 1400 }'
                daemon = Receiving(absorb, keys, "stdout", stdout=subprocess.PIPE)
                sent = cable.numbered(20000, size, address)
                write(daemon.out, daemon.read_late())
                case = f"overload, {policy}, {size} bytes to {address}"
                [ledger] = closes(case, [daemon], sent, size)
                by_queue_, by_kernel = ledger["sinks"][0]["dropped"]["queue_full"], ledger["kernel_dropped"]
                check(by_kernel + by_queue_ > 0, f"{case}: nothing was lost, so nothing was tested")
                check(by_queue_ == 0 or policy != "block", f"{case}: {ledger}")


def ends_under_load():
    for _ in range(ROUNDS):
        daemon = Receiving()
        traffic = under_load()
        daemon.end()
        check(not cable.has_program(), "the program of a process that has ended")
        sent = traffic.end()
        closes("SIGTERM under load", [daemon], sent, 64,
               nowhere=unheard() - daemon.unheard - daemon.refused_by_sockets())


def killed_under_load():
    for _ in range(ROUNDS):
        daemon = Receiving()
        traffic = under_load()
        kill(daemon)
        traffic.end()
        written = read_bytes(daemon.out).rpartition(b"\n")[0].split(b"\n")
        same(len(set(written)), len(written), "datagrams, none of them twice")
    daemon = Receiving()
    sent = cable.numbered(1000, 64, "fd00::1")
    closes("after kill -9 no program is left, and the next process receives", [daemon.finish()], sent, 64)


def under_load(address=None):
    return cable.Stream(64, address or random.choice(ADDRESSES))


def take_over():
    for _ in range(ROUNDS):
        first = Receiving()
        traffic = under_load()
        second = Receiving(run=("run", "--take-over"), socket=first.socket)
        first.wait()
        check(cable.has_program(), "no program after a take-over")
        sent = traffic.end()
        second.end()
        both = f"{first.directory}/both"
        write(both, read_bytes(first.out) + read_bytes(second.out))
        ledgers = closes("take-over under load", [first, second], sent, 64, path=both)
        check(all(map(past_the_stack, ledgers)), f"each process has received past the stack: {ledgers}")


def reload():
    for _ in range(ROUNDS):
        daemon = Receiving(SMALL)
        traffic = under_load()
        for before, after in (32, 16), (16, 8), (8, 32):
            daemon.change(f"batch_size = {before}", f"batch_size = {after}")
            heard = daemon.listener()["lanes"][2]["received"]
            daemon.await_listener("it goes on", lambda now, than=heard: now["lanes"][2]["received"] > than)
        sent = traffic.end()
        closes("three reloads under load", [daemon.finish()], sent, 64)
        check(not daemon.said("until udpd is restarted"), "a reload asks for a restart")
        passed(f"{[line for line in daemon.log().splitlines() if 'new receivers began' in line]}")


def what_is_beside_goes_on():
    daemon = Receiving()
    dump = None
    if shutil.which("tcpdump"):
        dump = subprocess.Popen(["tcpdump", "-ni", "card0", "-c", "20", "icmp"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
        dump.stderr.readline()
    traffic = under_load("10.8.0.1")
    same(cable.beside(100), 100, "answered")
    if dump:
        seen = dump.communicate(timeout=PATIENCE)[0]
        check(seen.count("echo request") >= 5, seen)
    sent = traffic.end()
    closes("100 pings and 100 questions to another port answered meanwhile", [daemon.finish()], sent, 64)


def addresses_are_followed():
    daemon = Receiving('address = "0.0.0.0:5140"')
    ip("address add 10.8.0.9/24 dev card0")
    daemon.await_log("looks for 10.8.0.1, 10.8.0.9")
    sent = cable.numbered(100, 64, "10.8.0.9")
    ip("address del 10.8.0.9/24 dev card0")
    daemon.until("100 come past the stack", lambda: daemon.past_the_stack() + daemon.lost_by_cable() >= 100)
    closes("an address that the interface got later is received past the stack", [daemon.finish()], sent, 64)


def a_wildcard_stands_for_what_is_left_to_it():
    one = '[[listener]]\nname = "one"\naddress = "10.8.0.1:5140"\nsinks = ["out"]'
    daemon = Receiving(f'address = "0.0.0.0:5140"\n{one}', kind="null")
    ip("address add 10.8.0.9/24 dev card0")
    daemon.await_log("looks for 10.8.0.9\n")
    wanted = cable.payloads("10.8.0.1", *range(5)), cable.payloads("10.8.0.9", *range(3))
    ip("address del 10.8.0.9/24 dev card0")
    daemon.end()
    same([listener["received"] for listener in daemon.last()["listeners"]], [wanted[1], wanted[0]], "received")
    ip("address flush dev card0 scope global")
    Receiving('address = "0.0.0.0:5140"').await_log("card0 has no address").end()
    cable.lay()
    passed("an address that another listener names stays its own, and without one udpd says that it is idle")


def down_and_up():
    ip("link set card0 down")
    ip("link set card0 up")


def the_interface_goes():
    daemon = Receiving()
    sent = cable.numbered(100, 64, "10.8.0.1")
    down_and_up()
    cable.await_answer()
    sent += cable.numbered(100, 64, "10.8.0.1", sent)
    closes("an interface that was down is received again", [daemon.finish()], sent, 64)
    daemon = Receiving(f'address = "0.0.0.0:5140"\n{TINY}')
    sent = cable.numbered(100, 64, "10.8.0.1")
    daemon.await_received(100)
    lost_before = daemon.lost_by_cable()
    ip("link del card0")
    daemon.await_log("its receive queue can be received no more").await_log("interface card0 is gone")
    daemon.await_listener("no interface", lambda now: now["lanes"][1]["xdp"]["state"] == "no_interface")
    # It comes back with another Ethernet address and another number of queues.
    cable.lay(queues=2)
    daemon.await_log("udpd bound its sockets to it again")
    daemon.cable = cable.dropped() - lost_before
    sent += cable.numbered(100, 64, "10.8.0.1", sent)
    daemon.await_log("AF_XDP receives from card0 again, queues: 2")
    before = daemon.past_the_stack()
    sent += cable.numbered(100, 64, "10.8.0.1", sent)
    [ledger] = closes("an interface that came back is received again past the stack", [daemon.finish()], sent, 64)
    check(past_the_stack(ledger) > before, ledger)
    check(daemon.said("XDP program is at card0 again"), "its return is not said")
    cable.lay()


def by_ports(count, first=0):
    """So many times a hundred datagrams, each hundred from a port of its own: the queue follows from that."""
    return sum(cable.numbered(100, 64, ADDRESSES[number % 2], first + 100 * number) for number in range(count))


def queues():
    cable.lay(queues=2)
    daemon = Receiving()
    # The sending end's queue follows from the sender's port.
    sent = by_ports(20)
    [ledger] = closes("two queues, a lane for each", [daemon.finish()], sent, 64)
    check(all(by_queue(ledger)[queue] for queue in (0, 1)), by_queue(ledger))
    cable.lay()


def more_queues():
    cable.lay(queues=3)
    cable.set_queues(1)
    daemon = Receiving(TINY)
    sent = by_ports(4)
    cable.set_queues(3)
    daemon.await_log("queues: 3")
    sent += by_ports(20, sent)
    try:
        net.set_queues("card0", 2)
        check(False, "the kernel takes a queue away that has an engine")
    except OSError as error:
        same(error.errno, errno.EINVAL, "how the kernel refuses to take a queue away")
    [ledger] = closes("two queues more, and each has an engine", [daemon.finish()], sent, 64)
    check(set(by_queue(ledger)) == {0, 1, 2} and all(by_queue(ledger).values()), ledger["lanes"])
    cable.lay()


def a_take_over_that_fails():
    """The old one has taken its program off by then."""
    first = Receiving(SMALL)
    traffic = under_load(ADDRESSES[0])
    # What loads a program takes these rights, which is found out when the old one has stopped.
    without = ("setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin", "--inh-caps=-bpf,-net_admin,-sys_admin")
    Receiving(run=("run", "--take-over"), socket=first.socket, before=without, wait=False).wait(
        77, "CAP_BPF and CAP_NET_ADMIN is missing")
    first.await_log("receives again, in force")
    check(cable.has_program(), "the old one has no program again")
    lanes = [lane["xdp"] for lane in first.listener()["lanes"] if lane["engine"] == "af_xdp"]
    check(lanes and all(lane["state"] == "running" for lane in lanes), lanes)
    before = first.past_the_stack()
    sent = traffic.end()
    [ledger] = closes("a take-over that fails gives the queues back", [first.finish()], sent, 64)
    check(past_the_stack(ledger) > before, f"{before}: {ledger}")


def down_and_up_under_load():
    cable.know_address()
    # The sender does not look for routers, whose frames the cable would count with the others.
    net.set_proc("ipv6/conf/card1/disable_ipv6", 1, OTHER)
    for _ in range(ROUNDS):
        daemon = Receiving('address = "0.0.0.0:5140"')
        traffic = under_load(ADDRESSES[0])
        ip("link set card0 down")
        before = daemon.past_the_stack()
        ip("link set card0 up")
        daemon.await_past_the_stack(before + 1000)
        sent = traffic.end()
        closes("down and up under load", [daemon.finish()], sent, 64)
    cable.lay()


def more_queues_under_load():
    cable.lay(queues=2)
    for _ in range(ROUNDS):
        cable.set_queues(1)
        daemon = Receiving(TINY)
        traffic = under_load()
        cable.set_queues(2)
        daemon.await_log("queues: 2")
        sent = traffic.end()
        closes("a queue more under load", [daemon.finish()], sent, 64)
    cable.lay()


def upstream(case, count, pause, absorb, is_exact):
    """What the sender leaves out, and no more than that where nothing was dropped here; otherwise bounds around it."""
    keys = f'sequence = {{ offset = 0, bytes = 4 }}\n{absorb}'
    for _ in range(5):
        daemon = Receiving(keys, kind="null")
        left_out = cable.gaps(count, ADDRESSES[0], 100, pause)
        ledger = daemon.end()
        by_cable = daemon.lost_by_cable()
        lost = ledger["kernel_dropped"] + by_cable
        if (lost == 0) == is_exact:
            break
    told = ledger["upstream"]
    check(told["missing_at_least"] <= left_out + by_cable <= told["missing_at_most"], (left_out, by_cable, told))
    check(past_the_stack(ledger) > 0, ledger)
    check(told["missing"] == left_out if is_exact else lost > 0 and told["missing"] is None, (left_out, lost, told))
    passed(f"{case}: {left_out} left out, {lost} lost here: {told['missing_at_least']} to {told['missing_at_most']}")


def numbers_that_never_came():
    upstream("sequence past the stack", 5000, 0.002, "", True)
    upstream("sequence past the stack, overloaded", 200000, 0, TINY, False)


def hostile_frames_give_what_an_ordinary_socket_gets():
    card, count, step, seen = cable.lay(), setting("XDP_RIG_FRAMES", 4000), 2000, collections.Counter()
    fields = ("source", "destination", "payload", "payload_base64")
    for seed in range(0, count, step):
        frames = hostile.hostile(card, min(step, count - seed), PORT, seed)
        delivered = {}
        for engine in ["recvmmsg", "af_xdp"]:
            for _ in range(5):
                strict = 'xdp_checksums = "strict"' if engine == "af_xdp" else ""
                daemon = Receiving(strict, 'format = "jsonl"', engine=engine)
                cable.frames(frames)
                ledger = daemon.end()
                # What an ordinary socket drops are wrong checksums: it has room for all of it.
                lost = sum(lane["kernel_dropped"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp")
                if lost + daemon.lost_by_cable() == 0:
                    break
            records = records_of(daemon)
            delivered[engine] = collections.Counter(tuple(str(one.get(key)) for key in fields) for one in records)
            seen[engine] += len(records)
            seen["refused"] += dropped_at(ledger)
            seen["by queues"] += past_the_stack(ledger)
        missing = delivered["recvmmsg"] - delivered["af_xdp"]
        more = delivered["af_xdp"] - delivered["recvmmsg"]
        check(not missing and not more, f"seed {seed}: missing {missing}, too many {more}")
    check(seen["by queues"] > count / 10 and seen["refused"] > 0, dict(seen))
    passed(f"{count} hostile frames give what an ordinary socket gets: {dict(seen)}")


def refusals():
    daemon = Receiving()
    Receiving('address = "10.8.0.1:5141"', wait=False).wait(69, "another XDP program is on this interface")
    # Another program is refused, and what runs goes on.
    said = daemon.change(":5140", ":5141", 78)
    check("this takes a restart" in said, said)
    sent = cable.numbered(100, 64, "10.8.0.1")
    closes("a reload that wants another program is refused and changes nothing", [daemon.finish()], sent, 64)
    Receiving(kind="null", before=UNPRIVILEGED, owner=65534, wait=False).wait(
        77, "CAP_BPF and CAP_NET_ADMIN is missing")
    passed("what stands in the way is named: another program, no rights")


CASES = {
    "sizes": every_size,
    "overload": overload,
    "end": ends_under_load,
    "kill": killed_under_load,
    "take_over": take_over,
    "failing_take_over": a_take_over_that_fails,
    "reload": reload,
    "beside": what_is_beside_goes_on,
    "addresses": addresses_are_followed,
    "wildcard": a_wildcard_stands_for_what_is_left_to_it,
    "queues": queues,
    "more_queues": more_queues,
    "down_under_load": down_and_up_under_load,
    "more_queues_under_load": more_queues_under_load,
    "sequence": numbers_that_never_came,
    "hostile": hostile_frames_give_what_an_ordinary_socket_gets,
    "trains": hidden.trains,
    "tags": hidden.tags,
    "mtu": hidden.mtu,
    "gone": hidden.an_address_that_is_gone,
    "refusals": refusals,
    "interface": the_interface_goes,
    "fast": fast.all_events,
}
if LONG:
    CASES |= {"tcp": hidden.tcp_beside, "flat_out": fast.overloads}


def all_cases():
    cable.lay()
    first = Receiving(wait=False)
    first.until("it is ready or refuses", lambda: first.said("ready: ") or first.child.poll() is not None)
    if first.child.poll() is not None:
        check(cable.is_not_possible(first.log()), "udpd has ended")
        raise Skipped(f"needs AF_XDP on a virtual cable: {first.log().strip()}")
    first.end()
    for name in os.environ.get("XDP_RIG_CASES", ",".join(CASES)).split(","):
        CASES[name]()


main(all_cases)
