"""Cases of the example af_xdp, run inside the receiver's namespace; see xdp.sh."""
import collections
import os
import subprocess

import alike
import cable
import hostile
from cable import ADDRESSES, PORT
from lib import packets
from lib.check import Skipped, check, main, passed, same, setting
from lib.daemon import WORK
from lib.host import execute
from lib.net import UNPRIVILEGED, ip
from receiver import Receiver, closes, whole


def payloads_arrive_as_they_were_sent(options, case):
    sizes = [0, 1, 2, 63, 64, 65, 255, 256, 257, 1000, 1452, 1472, *range(3, 1400, 9)]
    fragmented = [1473, 3000, 20000]

    def attempt():
        receiver = Receiver(*options, write=True)
        sent = sum(cable.payloads(address, *sizes, *fragmented) for address in ADDRESSES)
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
        check(destination in got, line)
        check(source.startswith(("10.8.0.2:", "[fd00::2]:")), line)
        got[destination][payload] += count
    check(got == expected, f"{case}: what arrived is not what was sent")
    longest_in_frame = {"10.8.0.1": 1472, "fd00::1": 1452}
    in_frames = sum(size <= longest for longest in longest_in_frame.values() for size in sizes)
    check(sum(by["engine"].values()) == in_frames, f"{case}: {sum(by['engine'].values())} of {in_frames} by AF_XDP")


def hostile_frames_give_what_an_ordinary_socket_gets(card):
    count = setting("XDP_RIG_FRAMES", 20_000)
    step, seen, exchanged = 3000, collections.Counter(), ["--wire", "--copy-up-to", 0]
    for seed in range(0, count, step):
        frames = hostile.hostile(card, min(step, count - seed), PORT, seed)
        delivered = {}
        for name, options in [("ordinary", ["--no-engine"]), ("copied", ["--wire"]), ("exchanged", exchanged)]:

            def attempt():
                receiver = Receiver(*options, write=True)
                cable.frames(frames)
                return receiver.end(), receiver.datagrams()

            account, by = whole(f"hostile frames, {name}", attempt)
            delivered[name] = by["engine"] + by["ordinary"]
            seen[name] += sum(by["engine"].values())
            seen["refused"] += account["refused"]
        for name in ("copied", "exchanged"):
            missing, more = delivered["ordinary"] - delivered[name], delivered[name] - delivered["ordinary"]
            check(not missing and not more, f"{name}, seed {seed}: missing {missing}, too many {more}")
        seen["ordinary"] += sum(delivered["ordinary"].values())
    check(seen["copied"] == seen["exchanged"] > count / 10, dict(seen))
    check(0 < seen["copied"] < seen["ordinary"], f"some pass to the stack: {dict(seen)}")
    passed(f"{count} hostile frames, each way: the same {seen['ordinary']} datagrams, {seen['copied']} by AF_XDP")


def tags(card):
    frames = []
    for source, destination in hostile.PAIRS:
        for number in range(50):
            body = packets.udp(source, destination, PORT, bytes([number]))
            frames.append(packets.frame(card, packets.ip(source, destination, body), tag=number))

    def attempt(*options):
        receiver = Receiver(*options)
        sent = cable.frames(frames)
        return receiver.end(), sent

    account, sent = whole("tags", lambda: attempt("--tagged"))
    check(account["datagrams"] == sent == 100, dict(account))
    account, sent = whole("tags", attempt)
    # A tag of 0 means none, to the stack.
    check((account["datagrams"], account["ordinary"]) == (0, 2), dict(account))
    passed("100 datagrams with a tag are taken when they are asked for, and pass otherwise")


def what_is_beside_goes_on():
    receiver = Receiver()
    traffic = cable.Stream(64, "10.8.0.1", is_numbered=False)
    same(cable.beside(100), 100, "answered")
    sent = traffic.end()
    account = receiver.end()
    closes("100 pings and 100 questions to another port answered meanwhile", sent, account)


def checksums_left_to_the_device_may_be_refused():
    receiver = Receiver("--wire")
    sent = cable.plain(1000, 64, "10.8.0.1")
    account = receiver.end()
    closes("a sender on this host, refused as if it came over a wire", sent, account)
    check(account["refused"] + account["cable"] == 1000, dict(account))


def overload():
    for address in ADDRESSES:
        for size in (64, 1400):
            # Room for 128 frames, and a reader that rests.
            receiver = Receiver("--batches", 2, "--pause-ms", 50)
            sent = cable.plain(30000, size, address)
            account = receiver.end()
            check(account["lost"] > 0, f"nothing was lost, so nothing was tested: {dict(account)}")
            closes(f"overload, {size} bytes to {address}", sent, account)


def queues():
    cable.lay(queues=2)

    def by_queue(*options):
        receiver = Receiver(*options)
        # The sending end's queue follows from the sender's port.
        sent = sum(cable.plain(100, 64, address) for address in ADDRESSES for _ in range(10))
        account = receiver.end()
        return account, sent

    account, sent = by_queue("--queues", 2)
    closes("two queues with an engine each", sent, account)
    check(account["ordinary"] == 0, dict(account))
    account, sent = by_queue("--queues", 1)
    closes("the queue that has no engine passes to the ordinary socket", sent, account)
    check(account["datagrams"] > 0 and account["ordinary"] > 0, dict(account))
    cable.lay()


def a_device_that_cannot_write_by_itself():
    receiver = Receiver("--zero-copy")
    sent = cable.plain(1000, 64, "10.8.0.1")
    account = receiver.end()
    closes("zero-copy asked of a device that has none: copied", sent, account)
    # What is lost is known only where the kernel copies.
    check(account["datagrams"] + account["cable"] == 1000, dict(account))


def the_end_under_load():
    for _ in range(5):
        receiver = Receiver("--batches", 8)
        traffic = cable.Stream(64, "10.8.0.1", is_numbered=False)
        receiver.finish()
        sent = traffic.end()
        account = receiver.end()
        check(account["datagrams"] > 0 and account["ordinary"] > 0, dict(account))
        closes("the engine ends under load and the ordinary socket goes on", sent, account)


def killed():
    for _ in range(3):
        receiver = Receiver()
        traffic = cable.Stream(64, "10.8.0.1", is_numbered=False)
        check(cable.has_program(), "the receiver has no program")
        receiver.process.kill()
        receiver.process.communicate()
        cable.await_no_program()
        traffic.end()
    receiver = Receiver()
    sent = cable.plain(1000, 64, "fd00::1")
    closes("after kill -9 no program is left, and the next process receives", sent, receiver.end())


def refusals():
    def refused(expected, *options, prefix=()):
        command = [*prefix, f"{WORK}/af_xdp", *options, "card0", str(PORT + 2), *ADDRESSES]
        done = execute(*command, stdin=subprocess.DEVNULL)
        check(done.returncode != 0 and expected in done.stderr, f"{options}: {done.stdout}{done.stderr}")

    refused("no such receive queue", "--queues", "3")
    receiver = Receiver()
    refused("another XDP program is on this interface")
    receiver.end()
    refused("CAP_BPF and CAP_NET_ADMIN is missing", prefix=UNPRIVILEGED)
    passed("what stands in the way is named: another program, no such queue, no rights")


def the_interface_goes():
    receiver = Receiver()
    sent = cable.plain(100, 64, "10.8.0.1")
    ip("link set card0 down")
    ip("link set card0 up")
    cable.await_answer()
    sent += cable.plain(100, 64, "10.8.0.1")
    account = receiver.end()
    closes("an interface that was down is received again", sent, account)
    check(account["datagrams"] + account["cable"] == 200, dict(account))
    receiver = Receiver()
    ip("link del card0")
    said = receiver.process.stdout.readline()
    check("No such device or address" in said, said)
    receiver.process.communicate()
    check(receiver.process.returncode != 0, "an interface that is gone is an error")
    passed(f"an interface that is gone is said: {said.strip()}")
    cable.lay()


def all_cases():
    card = cable.lay()
    try:
        Receiver().end()
    except RuntimeError as refusal:
        check(cable.is_not_possible(str(refusal)), refusal)
        raise Skipped(f"needs AF_XDP on a virtual cable: {str(refusal).strip()}") from refusal
    if os.environ.get("XDP_RIG_ONLY") == "alike":
        alike.all_modes(card)
        return
    payloads_arrive_as_they_were_sent([], "every size")
    payloads_arrive_as_they_were_sent(["--copy-up-to", 0], "every size, nothing copied")
    payloads_arrive_as_they_were_sent(["--generic"], "every size, above the driver")
    hostile_frames_give_what_an_ordinary_socket_gets(card)
    tags(card)
    alike.all_modes(card)
    for case in (what_is_beside_goes_on, checksums_left_to_the_device_may_be_refused, overload, queues,
                 a_device_that_cannot_write_by_itself, the_end_under_load, killed, refusals, the_interface_goes):
        case()


main(all_cases)
