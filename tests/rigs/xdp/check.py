"""Cases of the AF_XDP rig, run inside the receiver's namespace: WORK is a folder, OTHER a process in the sender's."""
import collections
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import alike
import wire

WORK, OTHER = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 5140
ADDRESSES = ["10.8.0.1", "fd00::1"]


def run(*command, there=False):
    prefix = ["nsenter", "--target", OTHER, "--net"] if there else []
    done = subprocess.run([*prefix, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def python_there(script, *arguments):
    command = ["nsenter", "--target", OTHER, "--net", "python3", "-B", f"{HERE}/{script}", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def sender(*arguments):
    return python_there("send.py", *arguments)


def load():
    """A sender that is under way, and ends a thousand datagrams after it is told to."""
    process = sender("load", 64, PORT, "10.8.0.1")
    assert process.stdout.readline() == "begun\n"
    return process


def send(*arguments):
    with sender(*arguments) as process:
        out = process.communicate()[0]
    assert process.returncode == 0, f"the sender of {arguments} ended with {process.returncode}"
    return int(out)


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
    # And the second family too: an address that was just given may not be used yet.
    for _ in range(100):
        if send("payloads", PORT + 1, "fd00::1", 1) and "fd00::1" in run("ip", "-6", "neigh", there=True):
            return bytes.fromhex(json.loads(run("ip", "-j", "link", "show", "card0"))[0]["address"].replace(":", ""))
        time.sleep(0.05)
    raise AssertionError("the cable has no IPv6")


def dropped_by_cable():
    stats = json.loads(run("ip", "-s", "-j", "link", "show", "card1", there=True))[0]["stats64"]
    return stats["tx"]["dropped"]


def has_program():
    return "xdp" in json.loads(run("ip", "-j", "link", "show", "card0"))[0]


class Receiver:
    """The example, from its start to its account."""

    def __init__(self, *options, write=False, prefix=()):
        self.file, self.account_of_engine = f"{WORK}/datagrams", ""
        options = [*options, "--write", self.file] if write else options
        command = [*prefix, f"{WORK}/af_xdp", *map(str, options), "card0", str(PORT), *ADDRESSES]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.cable = dropped_by_cable()
        first = self.process.stdout.readline()
        if first != "ready\n":
            raise RuntimeError(self.process.communicate()[1])

    def finish(self):
        """Ends the engine, while the ordinary socket goes on."""
        self.process.stdin.write("finish\n")
        self.process.stdin.flush()
        self.account_of_engine = self.process.stdout.readline()

    def end(self):
        """The account as numbers; `cable` is what never came out of it."""
        out, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        account = collections.Counter()
        for line in (self.account_of_engine + out).splitlines():
            words = line.split()
            if words[0] == "queue":
                words = words[2:]
            for name, value in zip(words[::2], words[1::2]):
                account["socket_dropped" if name == "dropped" else name] += int(value)
        account["cable"] = dropped_by_cable() - self.cable
        return account

    def datagrams(self):
        """Who got what, once the account is made."""
        lines = [line.split(" ", 1) for line in open(self.file)]
        return {who: collections.Counter(line for name, line in lines if name == who) for who in ("engine", "ordinary")}


def total(account):
    return sum(account[name] for name in ("datagrams", "refused", "lost", "ordinary", "socket_dropped", "cable"))


def closes(case, sent, account):
    assert total(account) == sent, f"{case}: sent {sent}, accounted for {total(account)}: {dict(account)}"
    print(f"passed: {case}: sent {sent} = {', '.join(f'{name} {number}' for name, number in account.items() if number)}")


def whole(case, attempt):
    """A comparison of contents needs a cable that dropped nothing; a busy machine's may. What the socket dropped are
    wrong checksums: its buffer has room for all of it."""
    for _ in range(5):
        account, result = attempt()
        if account["cable"] + account["lost"] == 0:
            return account, result
        print(f"again: {case}: the machine was too slow for the cable: {dict(account)}")
    raise AssertionError(f"{case}: the cable dropped frames five times over")


def write_frames(frames):
    path = f"{WORK}/frames"
    with open(path, "wb") as out:
        for frame in frames:
            out.write(struct.pack("!H", len(frame)) + frame)
    return path


def payloads_arrive_as_they_were_sent(options, case):
    sizes = [0, 1, 2, 63, 64, 65, 255, 256, 257, 1000, 1452, 1472, *range(3, 1400, 9)]
    fragmented = [1473, 3000, 20000]

    def attempt():
        receiver = Receiver(*options, write=True)
        sent = sum(send("payloads", PORT, address, *sizes, *fragmented) for address in ADDRESSES)
        return receiver.end(), (receiver, sent)

    account, (receiver, sent) = whole(case, attempt)
    # Fragments are frames of their own, and one datagram each for the socket that puts them together.
    closes(case, sent, account)
    expected = {
        family: collections.Counter(
            bytes((size + byte * 7) % 256 for byte in range(size)).hex() for size in [*sizes, *fragmented]
        )
        for family in ADDRESSES
    }
    got = {family: collections.Counter() for family in ADDRESSES}
    by = receiver.datagrams()
    for line, count in (by["engine"] + by["ordinary"]).items():
        source, destination, payload = line.rstrip("\n").split(" ")
        assert destination in got, line
        assert source.startswith(("10.8.0.2:", "[fd00::2]:")), line
        got[destination][payload] += count
    assert got == expected, f"{case}: what arrived is not what was sent"
    longest_in_frame = {"10.8.0.1": 1472, "fd00::1": 1452}
    in_frames = sum(size <= longest for longest in longest_in_frame.values() for size in sizes)
    assert sum(by["engine"].values()) == in_frames, f"{case}: {sum(by['engine'].values())} of {in_frames} by AF_XDP"


def hostile_frames_give_what_an_ordinary_socket_gets(card):
    count = int(os.environ.get("XDP_RIG_FRAMES", "20000"))
    step, seen, exchanged = 3000, collections.Counter(), ["--wire", "--copy-up-to", 0]
    for seed in range(0, count, step):
        path = write_frames(wire.hostile(card, min(step, count - seed), PORT, seed))
        delivered = {}
        for name, options in [("ordinary", ["--no-engine"]), ("copied", ["--wire"]), ("exchanged", exchanged)]:

            def attempt():
                receiver = Receiver(*options, write=True)
                send("frames", path)
                return receiver.end(), receiver.datagrams()

            account, by = whole(f"hostile frames, {name}", attempt)
            delivered[name] = by["engine"] + by["ordinary"]
            seen[name] += sum(by["engine"].values())
            seen["refused"] += account["refused"]
        for name in ("copied", "exchanged"):
            missing, more = delivered["ordinary"] - delivered[name], delivered[name] - delivered["ordinary"]
            assert not missing and not more, f"{name}, seed {seed}: missing {missing}, too many {more}"
        seen["ordinary"] += sum(delivered["ordinary"].values())
    assert seen["copied"] == seen["exchanged"] > count / 10, dict(seen)
    assert 0 < seen["copied"] < seen["ordinary"], f"some pass to the stack: {dict(seen)}"
    print(f"passed: {count} hostile frames, each way: the same {seen['ordinary']} datagrams, {seen['copied']} by AF_XDP")


def tags(card):
    frames = []
    for source, destination in wire.PAIRS:
        for number in range(50):
            body = wire.udp(source, destination, PORT, bytes([number]))
            frames.append(wire.frame(card, wire.ip(source, destination, body), tag=number))
    path = write_frames(frames)

    def attempt(*options):
        receiver = Receiver(*options)
        sent = send("frames", path)
        return receiver.end(), sent

    account, sent = whole("tags", lambda: attempt("--tagged"))
    assert account["datagrams"] == sent == 100, dict(account)
    account, sent = whole("tags", attempt)
    # A tag of 0 means none, to the stack.
    assert (account["datagrams"], account["ordinary"]) == (0, 2), dict(account)
    print("passed: 100 datagrams with a tag are taken when they are asked for, and pass otherwise")


def what_is_beside_goes_on():
    receiver = Receiver()
    traffic = load()
    answered = send("beside", server.getsockname()[1], "10.8.0.1", 100)
    sent = int(traffic.communicate()[0])
    assert answered == 100, f"{answered} of 100 answered"
    account = receiver.end()
    closes("100 pings and 100 questions to another port answered meanwhile", sent, account)


def checksums_left_to_the_device_may_be_refused():
    receiver = Receiver("--wire")
    sent = send("plain", 1000, 64, PORT, "10.8.0.1")
    account = receiver.end()
    closes("a sender on this host, refused as if it came over a wire", sent, account)
    assert account["refused"] + account["cable"] == 1000, dict(account)


def overload():
    for address in ADDRESSES:
        for size in (64, 1400):
            # Room for 128 frames, and a reader that rests.
            receiver = Receiver("--batches", 2, "--pause-ms", 50)
            sent = send("plain", 30000, size, PORT, address)
            account = receiver.end()
            assert account["lost"] > 0, f"nothing was lost, so nothing was tested: {dict(account)}"
            closes(f"overload, {size} bytes to {address}", sent, account)


def queues():
    cable(queues=2)

    def by_queue(*options):
        receiver = Receiver(*options)
        # The sending end's queue follows from the sender's port.
        sent = sum(send("plain", 100, 64, PORT, address) for address in ADDRESSES for _ in range(10))
        account = receiver.end()
        return account, sent

    account, sent = by_queue("--queues", 2)
    closes("two queues with an engine each", sent, account)
    assert account["ordinary"] == 0, dict(account)
    account, sent = by_queue("--queues", 1)
    closes("the queue that has no engine passes to the ordinary socket", sent, account)
    assert account["datagrams"] > 0 and account["ordinary"] > 0, dict(account)
    cable()


def a_device_that_cannot_write_by_itself():
    receiver = Receiver("--zero-copy")
    sent = send("plain", 1000, 64, PORT, "10.8.0.1")
    account = receiver.end()
    closes("zero-copy asked of a device that has none: copied", sent, account)
    # What is lost is known only where the kernel copies.
    assert account["datagrams"] + account["cable"] == 1000, dict(account)


def the_end_under_load():
    for _ in range(5):
        receiver = Receiver("--batches", 8)
        traffic = load()
        receiver.finish()
        sent = int(traffic.communicate()[0])
        account = receiver.end()
        assert account["datagrams"] > 0 and account["ordinary"] > 0, dict(account)
        closes("the engine ends under load and the ordinary socket goes on", sent, account)


def killed():
    for _ in range(3):
        receiver = Receiver()
        traffic = load()
        assert has_program()
        receiver.process.kill()
        receiver.process.communicate()
        # The kernel takes it away when the last descriptor is closed, which it does by itself.
        end = time.monotonic() + 30
        while has_program():
            assert time.monotonic() < end, "the program of a killed process is still there"
        traffic.communicate()
    receiver = Receiver()
    sent = send("plain", 1000, 64, PORT, "fd00::1")
    closes("after kill -9 no program is left, and the next process receives", sent, receiver.end())


def refusals():
    def refused(expected, *options, prefix=()):
        command = [*prefix, f"{WORK}/af_xdp", *options, "card0", str(PORT + 2), *ADDRESSES]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode != 0 and expected in done.stderr, f"{options}: {done.stdout}{done.stderr}"

    refused("no such receive queue", "--queues", "3")
    receiver = Receiver()
    refused("another XDP program is on this interface")
    receiver.end()
    refused("CAP_BPF and CAP_NET_ADMIN is missing", prefix=("setpriv", "--reuid", "65534", "--clear-groups"))
    print("passed: what stands in the way is named: another program, no such queue, no rights")


def the_interface_goes():
    receiver = Receiver()
    sent = send("plain", 100, 64, PORT, "10.8.0.1")
    run("ip", "link", "set", "card0", "down")
    run("ip", "link", "set", "card0", "up")
    while not send("beside", server.getsockname()[1], "10.8.0.1", 1):
        pass
    sent += send("plain", 100, 64, PORT, "10.8.0.1")
    account = receiver.end()
    closes("an interface that was down is received again", sent, account)
    assert account["datagrams"] + account["cable"] == 200, dict(account)
    receiver = Receiver()
    run("ip", "link", "del", "card0")
    said = receiver.process.stdout.readline()
    assert "No such device or address" in said, said
    receiver.process.communicate()
    assert receiver.process.returncode != 0, "an interface that is gone is an error"
    print(f"passed: an interface that is gone is said: {said.strip()}")
    cable()


def echo():
    while True:
        data, asker = server.recvfrom(2000)
        server.sendto(data, asker)


server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 0))
threading.Thread(target=echo, daemon=True).start()
card = cable()
try:
    Receiver().end()
except RuntimeError as refusal:
    if "Linux 5.10" in str(refusal) or "native mode" in str(refusal) or "does not count" in str(refusal):
        print(f"SKIPPED xdp.sh: needs AF_XDP on a virtual cable: {str(refusal).strip()}")
        sys.exit(3)
    raise
if os.environ.get("XDP_RIG_ONLY") == "alike":
    alike.all_modes(sys.modules[__name__], card)
    sys.exit(0)
payloads_arrive_as_they_were_sent([], "every size")
payloads_arrive_as_they_were_sent(["--copy-up-to", 0], "every size, nothing copied")
payloads_arrive_as_they_were_sent(["--generic"], "every size, above the driver")
hostile_frames_give_what_an_ordinary_socket_gets(card)
tags(card)
alike.all_modes(sys.modules[__name__], card)
what_is_beside_goes_on()
checksums_left_to_the_device_may_be_refused()
overload()
queues()
a_device_that_cannot_write_by_itself()
the_end_under_load()
killed()
refusals()
the_interface_goes()
