"""Cases of the rig of the daemon, run inside the receiver's namespace: WORK is a folder with udpd, OTHER a process in
the sender's. Each datagram has a number, and the judge is what the daemon wrote: none twice, none that was not sent, and
sent = written + dropped by the ledger + dropped by the cable before there was anybody."""
import atexit
import collections
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import fast
import hidden
import wire

WORK, OTHER = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = int(os.environ.get("XDP_RIG_ROUNDS", "20" if os.environ.get("LONG") else "2"))
PORT, PATIENCE = 5140, 60
ADDRESSES = ["10.8.0.1", "fd00::1"]
# Engines that are made again have their memory counted as locked, and this host may have a limit.
SMALL = 'batch_size = 32\nabsorb = { rate = 50000, stall = "20ms", size = 64 }'
TINY = 'batch_size = 16\nabsorb = { rate = 20000, stall = "10ms", size = 64 }'
BOTH = 'address = ["0.0.0.0:5140", "[fd00::1]:5140"]'


def run(*command, there=False):
    prefix = ["nsenter", "--target", OTHER, "--net"] if there else []
    done = subprocess.run([*prefix, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def sender(*arguments):
    command = ["nsenter", "--target", OTHER, "--net", "python3", "-B", f"{HERE}/send.py", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(*arguments):
    with sender(*arguments) as process:
        out = process.communicate()[0]
    assert process.returncode == 0, f"the sender of {arguments} ended with {process.returncode}"
    return int(out)


def stream(size, address):
    """A sender that is under way, and ends a thousand datagrams after it is told to."""
    process = sender("stream", size, PORT, address)
    assert process.stdout.readline() == "begun\n"
    return process


def cable(queues=1):
    run("sh", "-c", "ip link del card0 2>/dev/null; true")
    size = ["numrxqueues", str(queues), "numtxqueues", str(queues)]
    run("ip", "link", "add", "card0", *size, "type", "veth", "peer", "name", "card1", *size, "netns", OTHER)
    for there, card, number in [(False, "card0", 1), (True, "card1", 2)]:
        run("ip", "address", "add", f"10.8.0.{number}/24", "dev", card, there=there)
        run("ip", "address", "add", f"fd00::{number}/64", "dev", card, "nodad", there=there)
        run("ip", "link", "set", card, "up", there=there)
    # So that the first datagram finds its way, and the cable knows its neighbours.
    while not send("beside", server.getsockname()[1], "10.8.0.1", 1):
        pass
    for _ in range(100):
        if send("payloads", PORT + 1, "fd00::1", 1) and "fd00::1" in run("ip", "-6", "neigh", there=True):
            return bytes.fromhex(json.loads(run("ip", "-j", "link", "show", "card0"))[0]["address"].replace(":", ""))
        time.sleep(0.05)
    raise AssertionError("the cable has no IPv6")


def set_queues(count):
    """The end here first: it must be able to take what the other one sends."""
    run("python3", "-B", f"{HERE}/send.py", "queues", "card0", str(count))
    run("python3", "-B", f"{HERE}/send.py", "queues", "card1", str(count), there=True)


def cable_dropped():
    return json.loads(run("ip", "-s", "-j", "link", "show", "card1", there=True))[0]["stats64"]["tx"]["dropped"]


def nobody_listened():
    """What came to the port when no socket was there, and what sockets refused."""
    lines = [line.split() for line in open("/proc/net/snmp") if line.startswith("Udp:")]
    four, six = dict(zip(*lines)), dict(line.split() for line in open("/proc/net/snmp6"))
    return sum(int(four[name]) + int(six[f"Udp6{name}"]) for name in ("NoPorts", "InErrors"))


def has_program():
    return "xdp" in json.loads(run("ip", "-j", "link", "show", "card0"))[0]


class Daemon:
    def __init__(self, listener="", sink="", kind="file", run=("run",), prefix=(), number=[0], engine="af_xdp",
                 control=f"{WORK}/control.sock"):
        number[0] += 1
        self.base = f"{WORK}/{number[0]}"
        self.out = f"{self.base}.out"
        path = f'path = "{self.out}"' if kind == "file" else ""
        with open(f"{self.base}.toml", "w") as file:
            file.write(f"""
[daemon]
control_socket = "{control}"
metrics_address = ""
stats_on_exit = "{self.base}.json"
[[listener]]
name = "in"
{BOTH if "address" not in listener else ""}
interface = "card0"
engine = "{engine}"
sinks = ["out"]
{listener}
[sink.out]
type = "{kind}"
{path}
{sink}
""")
        self.cable, self.nobody = cable_dropped(), nobody_listened()
        stdout = open(self.out, "wb") if kind == "null" else subprocess.PIPE if kind == "stdout" else subprocess.DEVNULL
        with open(f"{self.base}.log", "w") as log:
            command = [*prefix, f"{WORK}/udpd", *run, "-c", f"{self.base}.toml"]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=log)
        # Nothing is left behind by a case that fails.
        atexit.register(self.child.kill)

    def log(self):
        return open(f"{self.base}.log").read()

    def ready(self):
        return self.await_word("ready: ")

    def await_word(self, words):
        end = time.monotonic() + PATIENCE
        while words not in self.log():
            assert self.child.poll() is None, f"it ended with {self.child.returncode}: {self.log()}"
            assert time.monotonic() < end, f"it has not said {words!r}: {self.log()}"
            time.sleep(0.005)
        return self

    def stats(self):
        return json.loads(run(f"{WORK}/udpd", "stats", "--json", "--socket", f"{WORK}/control.sock"))["listeners"][0]

    def refused(self, code, words):
        assert self.child.wait(PATIENCE) == code, f"exit {self.child.returncode}, not {code}: {self.log()}"
        assert words in self.log(), f"{words!r} is not in: {self.log()}"

    def reload(self, change):
        path = f"{self.base}.toml"
        text = change(open(path).read())
        with open(path, "w") as file:
            file.write(text)
        command = [f"{WORK}/udpd", "reload", "--socket", f"{WORK}/control.sock"]
        return subprocess.run(command, capture_output=True, text=True)

    def ledger(self):
        return json.load(open(f"{self.base}.json"))["listeners"][0]

    def wait(self):
        assert self.child.wait(PATIENCE) == 0, self.log()
        return self

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        return self.wait()


def numbers(path, size):
    """How many datagrams are in a file, each a number that comes once."""
    lines = open(path, "rb").read().split(b"\n")
    assert lines.pop() == b"", "the last record is not whole"
    seen = set()
    for line in lines:
        assert len(line) == size, f"{len(line)} bytes and not {size}: {line[:80]}"
        seen.add(int(line[:10]))
    assert len(seen) == len(lines), f"{len(lines) - len(seen)} came twice"
    return seen


def drops(ledger):
    at_sinks = sum(sum(sink["dropped"].values()) for sink in ledger["sinks"])
    return ledger["kernel_dropped"] + sum(ledger["dropped"].values()) + at_sinks


def closes(case, daemons, sent, size, path=None, nobody=0):
    """The account of all processes that had the port one after the other."""
    written = numbers(path or daemons[0].out, size)
    assert not written or max(written) < sent, f"{case}: {max(written)} was never sent"
    ledgers = [daemon.ledger() for daemon in daemons]
    for daemon, ledger in zip(daemons, ledgers):
        assert ledger["residual"] == 0, f"{case}: residual {ledger['residual']}: {daemon.log()}"
    delivered = sum(ledger["sinks"][0]["delivered"] for ledger in ledgers)
    assert delivered == len(written), f"{case}: {delivered} delivered by the ledger, {len(written)} are there"
    lost = sum(drops(ledger) for ledger in ledgers)
    cable_lost = cable_dropped() - daemons[0].cable
    told = f"{len(written)} written + {lost} dropped + {cable_lost} by the cable + {nobody} to nobody"
    assert len(written) + lost + cable_lost + nobody == sent, f"{case}: sent {sent} = {told}: {daemons[0].log()}"
    print(f"passed: {case}: sent {sent} = {told}")
    return ledgers


def every_size():
    sizes = [1, 2, 63, 64, 65, 255, 256, 257, 1000, 1452, 1472, *range(3, 1400, 19), 1473, 1900]

    def line(size):
        return bytes((size + byte * 7) % 256 for byte in range(size)).hex()

    for attempt in range(5):
        daemon = Daemon(sink='format = "jsonl"').ready()
        sent = sum(send("payloads", PORT, address, *sizes) for address in ADDRESSES)
        ledger = daemon.end().ledger()
        if drops(ledger) + cable_dropped() - daemon.cable == 0:
            break
    assert ledger["residual"] == 0 and ledger["sinks"][0]["delivered"] == sent, f"{ledger}"
    got = collections.Counter(payload_of(record) for record in open(daemon.out))
    expected = collections.Counter({line(size): 2 for size in sizes})
    assert got == expected, f"what is written is not what was sent: {list((got - expected).items())[:2]}"
    lanes = collections.Counter()
    for lane in ledger["lanes"]:
        lanes[lane["engine"]] += lane["received"]
    # Two of IPv4 are longer than a frame, and three of IPv6.
    assert lanes == {"recvmmsg": 5, "af_xdp": sent - 5}, lanes
    for record in map(json.loads, open(daemon.out)):
        assert (record.get("time_from") == "batch") == (record["lane"] >= 2), record
    print(f"passed: {sent} datagrams of every size, as they were sent; fragments by the sockets: {dict(lanes)}")


def payload_of(record):
    record = json.loads(record)
    import base64
    return base64.b64decode(record["payload_base64"]).hex() if "payload_base64" in record \
        else record["payload"].encode().hex()


def overload():
    """A reader that begins late, and little room: each policy drops by its own name, and all of it is told."""
    for policy in ["drop_newest", "drop_oldest", "block"]:
        for address in ADDRESSES:
            for size in (64, 1400):
                keys = f'when_full = "{policy}"\nqueue_bytes = "256KiB"'
                absorb = 'absorb = { rate = 20000, stall = "10ms", size = 1400 }'
                daemon = Daemon(listener=absorb, sink=keys, kind="stdout").ready()
                sent = send("numbered", 20000, size, PORT, address, 0)
                with open(daemon.out, "wb") as out:
                    reader = threading.Thread(target=lambda: out.write(daemon.child.stdout.read()))
                    reader.start()
                    daemon.end()
                    reader.join()
                case = f"overload, {policy}, {size} bytes to {address}"
                [ledger] = closes(case, [daemon], sent, size)
                by_queue, by_kernel = ledger["sinks"][0]["dropped"]["queue_full"], ledger["kernel_dropped"]
                assert by_kernel + by_queue > 0, f"{case}: nothing was lost, so nothing was tested"
                assert by_queue == 0 or policy != "block", f"{case}: {ledger}"


def the_end_under_load(how):
    for _ in range(ROUNDS):
        daemon = Daemon(kind="file").ready()
        traffic = stream(64, random.choice(ADDRESSES))
        daemon.child.send_signal(how)
        if how == signal.SIGKILL:
            daemon.child.wait(PATIENCE)
            end = time.monotonic() + 30
            while has_program():
                assert time.monotonic() < end, "the program of a killed process is still there"
            traffic.communicate()
            written = open(daemon.out, "rb").read().rpartition(b"\n")[0].split(b"\n")
            assert len(set(written)) == len(written), "a datagram came twice"
            continue
        daemon.wait()
        assert not has_program(), "the program of a process that has ended"
        sent = int(traffic.communicate()[0])
        # The sockets refuse until they are closed, which is after the last look at them.
        told = sum(lane["kernel_dropped"] for lane in daemon.ledger()["lanes"] if lane["engine"] == "recvmmsg")
        closes("SIGTERM under load", [daemon], sent, 64, nobody=nobody_listened() - daemon.nobody - told)
    if how == signal.SIGKILL:
        daemon = Daemon().ready()
        sent = send("numbered", 1000, 64, PORT, "fd00::1", 0)
        closes("after kill -9 no program is left, and the next process receives", [daemon.end()], sent, 64)


def take_over():
    for _ in range(ROUNDS):
        first = Daemon().ready()
        traffic = stream(64, random.choice(ADDRESSES))
        second = Daemon(listener="", sink=f'# after\n', run=("run", "--take-over"))
        # It writes where the first one wrote.
        second.ready()
        first.wait()
        assert has_program()
        sent = int(traffic.communicate()[0])
        second.end()
        both = f"{first.base}.both"
        with open(both, "wb") as out:
            out.write(open(first.out, "rb").read() + open(second.out, "rb").read())
        ledgers = closes("take-over under load", [first, second], sent, 64, path=both)
        of_queues = [sum(lane["received"] for lane in one["lanes"] if lane["engine"] == "af_xdp") for one in ledgers]
        assert all(of_queues), f"each process has received past the stack: {of_queues}"


def reload():
    for _ in range(ROUNDS):
        daemon = Daemon(listener=SMALL).ready()
        traffic = stream(64, random.choice(ADDRESSES))
        for before, after in (32, 16), (16, 8), (8, 32):
            done = daemon.reload(lambda text: text.replace(f"batch_size = {before}", f"batch_size = {after}"))
            before = daemon.stats()["lanes"][2]["received"]
            assert done.returncode == 0, done
            end = time.monotonic() + PATIENCE
            while daemon.stats()["lanes"][2]["received"] <= before:
                assert time.monotonic() < end, f"{daemon.stats()} {daemon.log()}"
        sent = int(traffic.communicate()[0])
        [ledger] = closes("three reloads under load", [daemon.end()], sent, 64)
        assert "until udpd is restarted" not in daemon.log(), daemon.log()
        told = [line for line in daemon.log().splitlines() if "new receivers began" in line]
        print(f"passed: {told}")


def what_is_beside_goes_on():
    daemon = Daemon().ready()
    dump = None
    if subprocess.run(["sh", "-c", "command -v tcpdump"], capture_output=True).returncode == 0:
        dump = subprocess.Popen(["tcpdump", "-ni", "card0", "-c", "20", "icmp"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
        dump.stderr.readline()
    traffic = stream(64, "10.8.0.1")
    answered = send("beside", server.getsockname()[1], "10.8.0.1", 100)
    assert answered == 100, f"{answered} of 100 answered"
    if dump:
        seen = dump.communicate(timeout=PATIENCE)[0]
        assert seen.count("echo request") >= 5, seen
    sent = int(traffic.communicate()[0])
    closes("100 pings and 100 questions to another port answered meanwhile", [daemon.end()], sent, 64)


def addresses_are_followed():
    daemon = Daemon(listener='address = "0.0.0.0:5140"').ready()

    def by_engine():
        return sum(lane["received"] for lane in daemon.stats()["lanes"] if lane["engine"] == "af_xdp")

    run("ip", "address", "add", "10.8.0.9/24", "dev", "card0")
    daemon.await_word("looks for 10.8.0.1, 10.8.0.9")
    sent = send("numbered", 100, 64, PORT, "10.8.0.9", 0)
    run("ip", "address", "del", "10.8.0.9/24", "dev", "card0")
    end = time.monotonic() + PATIENCE
    while by_engine() + cable_dropped() - daemon.cable < 100:
        assert time.monotonic() < end, daemon.stats()
    closes("an address that the interface got later is received past the stack", [daemon.end()], sent, 64)


def a_wildcard_stands_for_what_is_left_to_it():
    one = '[[listener]]\nname = "one"\naddress = "10.8.0.1:5140"\nsinks = ["out"]'
    daemon = Daemon(listener=f'address = "0.0.0.0:5140"\n{one}', kind="null").ready()
    run("ip", "address", "add", "10.8.0.9/24", "dev", "card0")
    daemon.await_word("looks for 10.8.0.9\n")
    wanted = send("payloads", PORT, "10.8.0.1", *range(5)), send("payloads", PORT, "10.8.0.9", *range(3))
    run("ip", "address", "del", "10.8.0.9/24", "dev", "card0")
    daemon.end()
    received = [listener["received"] for listener in json.load(open(f"{daemon.base}.json"))["listeners"]]
    assert received == [wanted[1], wanted[0]], f"{wanted} were sent: {received}"
    run("ip", "address", "flush", "dev", "card0", "scope", "global")
    daemon = Daemon(listener='address = "0.0.0.0:5140"').await_word("card0 has no address").ready()
    daemon.end()
    cable()
    print("passed: an address that another listener names stays its own, and without one udpd says that it is idle")


def the_interface_goes():
    daemon = Daemon().ready()
    sent = send("numbered", 100, 64, PORT, "10.8.0.1", 0)
    run("ip", "link", "set", "card0", "down")
    run("ip", "link", "set", "card0", "up")
    while not send("beside", server.getsockname()[1], "10.8.0.1", 1):
        pass
    sent += send("numbered", 100, 64, PORT, "10.8.0.1", sent)
    [ledger] = closes("an interface that was down is received again", [daemon.end()], sent, 64)
    daemon = Daemon(listener=f'address = "0.0.0.0:5140"\n{TINY}').ready()
    sent = send("numbered", 100, 64, PORT, "10.8.0.1", 0)
    end = time.monotonic() + PATIENCE
    while daemon.stats()["received"] + cable_dropped() - daemon.cable < 100:
        assert time.monotonic() < end, daemon.stats()
    lost_before = cable_dropped() - daemon.cable
    run("ip", "link", "del", "card0")
    daemon.await_word("its receive queue can be received no more")
    daemon.await_word("interface card0 is gone")
    end = time.monotonic() + PATIENCE
    while daemon.stats()["lanes"][1]["xdp"]["state"] != "no_interface":
        assert time.monotonic() < end, daemon.stats()
    # It comes back with another Ethernet address and another number of queues.
    cable(queues=2)
    daemon.await_word("udpd bound its sockets to it again")
    daemon.cable = cable_dropped() - lost_before
    sent += send("numbered", 100, 64, PORT, "10.8.0.1", sent)
    daemon.await_word("AF_XDP receives from card0 again, queues: 2")
    before = past_the_stack(daemon.stats())
    sent += send("numbered", 100, 64, PORT, "10.8.0.1", sent)
    [ledger] = closes("an interface that came back is received again past the stack", [daemon.end()], sent, 64)
    assert past_the_stack(ledger) > before, ledger
    assert "XDP program is at card0 again" in daemon.log()
    cable()


def past_the_stack(ledger):
    return sum(lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp")


def by_ports(count, first=0):
    """So many times a hundred datagrams, each hundred from a port of its own: the queue follows from that."""
    return sum(send("numbered", 100, 64, PORT, ADDRESSES[number % 2], first + 100 * number) for number in range(count))


def more_queues():
    cable(queues=3)
    set_queues(1)
    daemon = Daemon(listener=TINY).ready()
    sent = by_ports(4)
    set_queues(3)
    daemon.await_word("queues: 3")
    sent += by_ports(20, sent)
    fewer = subprocess.run(["python3", "-B", f"{HERE}/send.py", "queues", "card0", "2"], capture_output=True, text=True)
    assert "Invalid argument" in fewer.stderr, f"the kernel takes no queue away that has an engine: {fewer}"
    [ledger] = closes("two queues more, and each has an engine", [daemon.end()], sent, 64)
    received = {lane["queue"]: lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp"}
    assert set(received) == {0, 1, 2} and all(received.values()), (received, daemon.log(), ledger["lanes"])
    cable()


def a_take_over_that_fails():
    """The old one has taken its program off by then."""
    first = Daemon(listener=SMALL).ready()
    traffic = stream(64, ADDRESSES[0])
    # What loads a program takes these rights, which is found out when the old one has stopped.
    without = ("setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin", "--inh-caps=-bpf,-net_admin,-sys_admin")
    Daemon(run=("run", "--take-over"), prefix=without).refused(77, "CAP_BPF and CAP_NET_ADMIN is missing")
    first.await_word("receives again, in force")
    assert has_program()
    lanes = [lane["xdp"] for lane in first.stats()["lanes"] if lane["engine"] == "af_xdp"]
    assert lanes and all(lane["state"] == "running" for lane in lanes), (lanes, first.log())
    before = past_the_stack(first.stats())
    sent = int(traffic.communicate()[0])
    [ledger] = closes("a take-over that fails gives the queues back", [first.end()], sent, 64)
    assert past_the_stack(ledger) > before, f"{before}: {ledger}"


def down_and_up_under_load():
    card = json.loads(run("ip", "-j", "link", "show", "card0"))[0]["address"]
    # The sender goes on while the cable has no carrier, and does not ask who has the address.
    run("ip", "neigh", "replace", "10.8.0.1", "lladdr", card, "dev", "card1", "nud", "permanent", there=True)
    # Nor does it look for routers, whose frames the cable would count with the others.
    run("sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/card1/disable_ipv6", there=True)
    for _ in range(ROUNDS):
        daemon = Daemon(listener='address = "0.0.0.0:5140"').ready()
        traffic = stream(64, ADDRESSES[0])
        run("ip", "link", "set", "card0", "down")
        before = past_the_stack(daemon.stats())
        run("ip", "link", "set", "card0", "up")
        end = time.monotonic() + PATIENCE
        while past_the_stack(daemon.stats()) <= before + 1000:
            assert time.monotonic() < end, daemon.log()
        sent = int(traffic.communicate()[0])
        closes("down and up under load", [daemon.end()], sent, 64)
    cable()


def more_queues_under_load():
    cable(queues=2)
    for _ in range(ROUNDS):
        set_queues(1)
        daemon = Daemon(listener=TINY).ready()
        traffic = stream(64, random.choice(ADDRESSES))
        set_queues(2)
        daemon.await_word("queues: 2")
        sent = int(traffic.communicate()[0])
        closes("a queue more under load", [daemon.end()], sent, 64)
    cable()


def queues():
    cable(queues=2)
    daemon = Daemon().ready()
    # The sending end's queue follows from the sender's port.
    sent = sum(send("numbered", 100, 64, PORT, address, 100 * number)
               for number, address in enumerate(ADDRESSES * 10))
    ledger = closes("two queues, a lane for each", [daemon.end()], sent, 64)[0]
    received = {lane["queue"]: lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp"}
    assert all(received[queue] > 0 for queue in (0, 1)), received
    cable()


def upstream(case, count, pause, absorb, is_exact):
    """What the sender leaves out, and no more than that where nothing was dropped here; otherwise bounds around it."""
    keys = f'sequence = {{ offset = 0, bytes = 4 }}\n{absorb}'
    for attempt in range(5):
        daemon = Daemon(listener=keys, kind="null").ready()
        left_out = send("gaps", count, PORT, ADDRESSES[0], 100, pause)
        ledger = daemon.end().ledger()
        lost = ledger["kernel_dropped"] + cable_dropped() - daemon.cable
        if (lost == 0) == is_exact:
            break
    told = ledger["upstream"]
    by_cable = cable_dropped() - daemon.cable
    assert told["missing_at_least"] <= left_out + by_cable <= told["missing_at_most"], (left_out, by_cable, told)
    assert ledger["residual"] == 0 and past_the_stack(ledger) > 0, ledger
    if is_exact:
        assert told["missing"] == left_out, (left_out, told)
    else:
        assert lost > 0 and told["missing"] is None, (lost, told)
    print(f"passed: {case}: {left_out} left out, {lost} lost here: {told['missing_at_least']} to {told['missing_at_most']}")


def numbers_that_never_came():
    upstream("sequence past the stack", 5000, 0.002, "", True)
    upstream("sequence past the stack, overloaded", 200000, 0, TINY, False)


def hostile_frames_give_what_an_ordinary_socket_gets(card):
    count, step, seen = int(os.environ.get("XDP_RIG_FRAMES", "4000")), 2000, collections.Counter()
    for seed in range(0, count, step):
        path = f"{WORK}/frames"
        with open(path, "wb") as out:
            for frame in wire.hostile(card, min(step, count - seed), PORT, seed):
                out.write(len(frame).to_bytes(2, "big") + frame)
        delivered = {}
        for engine in ["recvmmsg", "af_xdp"]:
            for _ in range(5):
                strict = 'xdp_checksums = "strict"' if engine == "af_xdp" else ""
                daemon = Daemon(listener=strict, sink='format = "jsonl"', engine=engine).ready()
                send("frames", path)
                ledger = daemon.end().ledger()
                assert ledger["residual"] == 0, ledger
                # What an ordinary socket drops are wrong checksums: it has room for all of it.
                lost = sum(lane["kernel_dropped"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp")
                if lost + cable_dropped() - daemon.cable == 0:
                    break
            records = [json.loads(record) for record in open(daemon.out)]
            fields = ("source", "destination", "payload", "payload_base64")
            delivered[engine] = collections.Counter(tuple(str(one.get(key)) for key in fields) for one in records)
            seen[engine] += len(records)
            seen["refused"] += sum(ledger["dropped"].values())
            seen["by queues"] += sum(lane["received"] for lane in ledger["lanes"] if lane["engine"] == "af_xdp")
        missing = delivered["recvmmsg"] - delivered["af_xdp"]
        more = delivered["af_xdp"] - delivered["recvmmsg"]
        assert not missing and not more, f"seed {seed}: missing {missing}, too many {more}"
    assert seen["by queues"] > count / 10 and seen["refused"] > 0, dict(seen)
    print(f"passed: {count} hostile frames give what an ordinary socket gets: {dict(seen)}")


def refusals():
    daemon = Daemon().ready()
    other = Daemon(listener='address = "10.8.0.1:5141"', control="")
    other.refused(69, "another XDP program is on this interface")
    # Another program is refused, and what runs goes on.
    done = daemon.reload(lambda text: text.replace(":5140", ":5141"))
    assert done.returncode == 78 and "this takes a restart" in done.stderr, done
    sent = send("numbered", 100, 64, PORT, "10.8.0.1", 0)
    closes("a reload that wants another program is refused and changes nothing", [daemon.end()], sent, 64)
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    Daemon(kind="null", prefix=nobody, control="").refused(77, "CAP_BPF and CAP_NET_ADMIN is missing")
    print("passed: what stands in the way is named: another program, no rights")


def echo():
    while True:
        data, asker = server.recvfrom(2000)
        server.sendto(data, asker)


server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 0))
threading.Thread(target=echo, daemon=True).start()
card = cable()
first = Daemon()
while "ready: " not in first.log():
    if first.child.poll() is not None:
        why = first.log()
        if any(words in why for words in ("Linux 5.10", "native mode", "does not count")):
            print(f"SKIPPED xdp_daemon.sh: needs AF_XDP on a virtual cable: {why.strip()}")
            sys.exit(3)
        raise AssertionError(why)
first.end()
CASES = {
    "sizes": every_size,
    "overload": overload,
    "end": lambda: the_end_under_load(signal.SIGTERM),
    "kill": lambda: the_end_under_load(signal.SIGKILL),
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
    "hostile": lambda: hostile_frames_give_what_an_ordinary_socket_gets(cable()),
    "trains": lambda: hidden.trains(sys.modules[__name__]),
    "tags": lambda: hidden.tags(sys.modules[__name__]),
    "mtu": lambda: hidden.mtu(sys.modules[__name__]),
    "gone": lambda: hidden.an_address_that_is_gone(sys.modules[__name__]),
    "refusals": refusals,
    "interface": the_interface_goes,
    "fast": lambda: fast.all_events(sys.modules[__name__]),
}
if os.environ.get("LONG"):
    CASES["tcp"] = lambda: hidden.tcp_beside(sys.modules[__name__])
    CASES["flat_out"] = lambda: fast.overloads(sys.modules[__name__])
for name in os.environ.get("XDP_RIG_CASES", ",".join(CASES)).split(","):
    CASES[name]()
