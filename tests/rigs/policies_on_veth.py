"""Interfaces that go and come back, and multicast; see policies_on_veth.sh."""
import errno
import os
import socket
import struct
import time

from lib import net
from lib.check import check, main, passed, same, until
from lib.daemon import NULL, UDPD, Daemon, all_delivered, engines, file_sink, listening
from lib.host import execute, read
from lib.net import UNPRIVILEGED, OTHER, cut

PORT = 5140
V4, V4B, V6, V6B = "10.8.0.2", "10.8.0.3", "2001:db8::2", "2001:db8::3"
HERE, HERE6 = "10.8.0.1", "2001:db8::1"
A, B, STRANGE = "239.8.1.1", "239.8.1.2", "239.8.1.9"
A6, B6, STRANGE6 = "ff15::8:1", "ff15::8:2", "ff15::8:9"


def lay(queues=2):
    net.lay([f"{HERE}/24", f"{HERE6}/64"], [f"{V4}/24", f"{V4B}/24", f"{V6}/64", f"{V6B}/64"], queues=queues)


def send(source, to, count, payload):
    """From 16 sockets of the far end, so that each lane gets some."""
    senders = [net.udp_socket(source, place=OTHER) for _ in range(16)]
    with net.inside(OTHER):
        index = socket.if_nametoindex("card1")
    for sender in senders:
        if ":" in to:
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        else:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", b"", b"", index))
    for number in range(count):
        until(f"a way to {to}", lambda: is_sent(senders[number % 16], payload.encode(), to), 10, 0.02)
    for sender in senders:
        sender.close()


def is_sent(sender, payload, to):
    """The kernel makes the multicast route of IPv6 a moment after the cable."""
    try:
        return sender.sendto(payload, (to, PORT)) or True
    except OSError as error:
        if error.errno != errno.ENETUNREACH:
            raise
        return False


def run(keys, before=(), **more):
    return Daemon(listening(keys, out=file_sink("DIR/out.log")), before=before,
                  owner=65534 if before else None, **more)


def end(daemon, arrived):
    """The lines of the file."""
    all_delivered(daemon.end(), arrived)
    return read(f"{daemon.directory}/out.log").split()


def a_cable_that_is_cut():
    """One lane for each queue, and with fewer cores than queues one for each core."""
    lay(4)
    said = execute(UDPD, "steer", "plan", "card0")
    check(said.returncode != 0 and "virtual cable" in said.stderr, f"why a cable has no plan is not said: {said}")
    lanes = min(4, os.cpu_count())
    daemon = Daemon(listening(f'address = "0.0.0.0:{PORT}"\ninterface = "card0"', nothing=NULL))
    check(f"ready: {lanes} lanes receive" in daemon.log(), f"not one lane for each queue or core: {daemon.log()}")
    senders = [net.udp_socket(place=OTHER) for _ in range(64)]
    for number in range(20000):
        senders[number % 64].sendto(b"x" * 200, (HERE, PORT))
        if number % 50 == 49:
            time.sleep(0.001)
    daemon.await_arrived(20000)
    cut()
    time.sleep(0.2)
    all_delivered(daemon.end(), 20000)
    passed(f"20000 of 20000 over a cable, {lanes} lanes; it was cut, udpd went on, and the ledger closes")


def cut_and_laid_again(what, keys, before=()):
    """Every lane hears again within two seconds of the return, three times over."""
    lay()
    daemon = run(f'address = "0.0.0.0:{PORT}"\ninterface = "card0"\nlanes = 2\n{keys}', before)
    arrived = 2000
    send(V4, HERE, 2000, "before")
    daemon.await_arrived(arrived)
    for turn in range(3):
        before = {lane["lane"]: lane["received"] for lane in daemon.listener()["lanes"]}
        cut()
        if turn != 1:
            # In the second turn it is back before udpd has looked.
            daemon.await_log("interface card0 is gone", 1 + turn // 2)
        lay()

        def hears():
            send(V4, HERE, 64, "probe")
            return daemon.listener()["arrived"] > arrived

        until("it hears again", hears, 2, 0)
        # The kernel has no count of what no socket took. All probes have been sent; those that were heard have been
        # counted once the sum stands still.
        arrived = -1
        while arrived != daemon.listener()["arrived"]:
            arrived = daemon.listener()["arrived"]
            time.sleep(0.2)
        send(V4, HERE, 2000, f"after{turn}")
        arrived += 2000
        lanes = daemon.await_arrived(arrived)["lanes"]
        idle = [lane["lane"] for lane in lanes if lane["received"] == before[lane["lane"]]]
        check(not idle, f"lanes {idle} hear nothing any more")
    lines = end(daemon, arrived)
    for word in ("before", "after0", "after1", "after2"):
        same(lines.count(word), 2000, word)
    same(daemon.said("interface card0 is back; udpd bound its sockets to it again"), 3, "its return is said")
    check(" also has " not in daemon.log() and not daemon.last()["listeners"][0]["shared_with"],
          f"it takes its own sockets for those of another process: {daemon.log()}")
    cut()
    passed(f"a cable cut and laid again three times, {what}")


def multicast(what, keys, joined, foreign):
    """Each datagram that was joined once, none that was not; and again after the interface has returned."""
    lay()
    daemon = run(keys)
    expected = 0
    for turn in range(2):
        if turn == 1:
            cut()
            daemon.await_log("interface card0 is gone")
            lay()
            daemon.await_log("interface card0 is back")
        for source, to in foreign:
            send(source, to, 100, f"foreign-{source}-{to}")
        for source, to in joined:
            send(source, to, 100, f"{source}-{to}-{turn}")
        expected += 100 * len(joined)
        daemon.await_arrived(expected)
    lines = end(daemon, expected)
    for turn in range(2):
        for source, to in joined:
            same(lines.count(f"{source}-{to}-{turn}"), 100, f"from {source} to {to}, turn {turn}")
    cut()
    passed(f"multicast, {what}")


def all_of_multicast():
    wildcard, six = f'address = "0.0.0.0:{PORT}"\n', f'address = "[::]:{PORT}"\n'
    interface = 'multicast_interface = "card0"'
    multicast("any source, a wildcard of IPv4, two lanes",
              f'{wildcard}multicast_groups = ["{A}", "{B}"]\n{interface}\nlanes = 2',
              [(V4, A), (V4B, A), (V4, B), (V4, HERE)], [(V4, STRANGE), (V6, A6)])
    multicast("any source, one socket for both families, bound to the interface",
              f'{six}multicast_groups = ["{A}", "{A6}", "{B6}"]\ninterface = "card0"',
              [(V4, A), (V6, A6), (V6B, B6), (V6, HERE6)], [(V4, B), (V6, STRANGE6)])
    multicast("bound to the groups",
              f'address = ["{A}:{PORT}", "[{A6}]:{PORT}"]\nmulticast_groups = ["{A}", "{A6}"]\n{interface}',
              [(V4, A), (V6, A6)], [(V4, B), (V6, B6), (V4, HERE)])
    multicast("from chosen sources",
              f'{six}multicast_groups = ["232.8.1.1", "ff35::8:1"]\nsources = ["{V4}", "{V6}"]\n{interface}',
              [(V4, "232.8.1.1"), (V6, "ff35::8:1")], [(V4B, "232.8.1.1"), (V6B, "ff35::8:1")])


def busy_poll(before, words):
    """A cable has no queue that could be polled, and an ordinary user may not have all of it, which is how much depends
    on the kernel: each is said once, and nothing is lost."""
    lay()
    daemon = run(f'address = "0.0.0.0:{PORT}"\nlanes = 2\nbusy_poll = "50us"', before)
    send(V4, HERE, 1000, "polled")
    daemon.await_log(words)
    # Two more looks of the daemon, which asks for its drops once a second: nothing more is said.
    time.sleep(2.2)
    end(daemon, 1000)
    warnings = [line for line in daemon.log().splitlines() if line.startswith("warn") and "busy_poll" in line]
    same(len(warnings), 1 + (bool(before) and "nothing to poll" in warnings[-1]), f"warnings: {warnings}")
    cut()
    passed(f"busy_poll, {words}")


def groups_by_lane():
    """Each lane gets the groups that it joined and no others, whatever sockets they come from."""
    lay()
    for engine in engines():
        for groups, address in ([[A, B], "0.0.0.0"], [[A6, B6], "[::]"], [[A, B, A6, B6], "[::]"]):
            keys = f'lanes = 2\nmulticast_groups = {groups}\nmulticast_interface = "card0"\nengine = "{engine}"'
            daemon = Daemon(listening(f'address = "{address}:{PORT}"\n{keys}', out=NULL))
            for number, group in enumerate(groups):
                send(V6 if ":" in group else V4, group, 32 * (number + 1), "x")
            total = sum(32 * (number + 1) for number in range(len(groups)))
            daemon.await_arrived(total)
            by_lane = [lane["received"] for lane in daemon.end()["lanes"]]
            of_each = [sum(32 * (number + 1) for number in range(lane, len(groups), 2)) for lane in (0, 1)]
            same(by_lane, of_each, f"{engine}, {groups}: received by lane")
    cut()
    passed("two and four groups over two lanes: each in the lane that joined it")


def what_others_have_joined():
    """It does not reach a listener that has joined nothing."""
    lay()
    stranger = net.udp_socket("0.0.0.0", 9)
    membership = struct.pack("4s4si", socket.inet_aton(A), b"\0" * 4, socket.if_nametoindex("card0"))
    stranger.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    daemon = run(f'address = "0.0.0.0:{PORT}"\nlanes = 2')
    send(V4, A, 100, "foreign")
    send(V4, HERE, 100, "own")
    daemon.await_arrived(100)
    end(daemon, 100)
    passed("what others have joined is not heard")


def cables_that_come_back():
    cut_and_laid_again("by recvmmsg", 'engine = "recvmmsg"')
    cut_and_laid_again("without any capability", 'engine = "recvmmsg"', UNPRIVILEGED)
    if "io_uring" in engines():
        cut_and_laid_again("by io_uring that lets gather", 'engine = "io_uring"\ngather = "1ms"')
    cut_and_laid_again("spread at random, which is a program of the group", 'spread = "random"')


def busy_polls():
    busy_poll([], "busy_poll has nothing to poll")
    busy_poll(UNPRIVILEGED, "works only in part: receivers")


main(a_cable_that_is_cut, cables_that_come_back, all_of_multicast, groups_by_lane, busy_polls, what_others_have_joined)
