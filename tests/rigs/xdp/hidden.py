"""Cases of the daemon about what a frame does not show: that it is a train of datagrams, or had a VLAN tag; and about
what does not fit: a frame longer than a chunk, an address that this host has no more."""
import json
import shutil
import statistics
import subprocess

import cable
from lib.check import Failed, check, passed, same, skipped
from lib.net import BLIND, OTHER, ip, run
from subject import Receiving, closes, drops

GENERIC = 'xdp_mode = "generic"'
STRICT = 'xdp_checksums = "strict"'


def trains():
    """Each datagram of a train is one of what is delivered, in every mode."""
    for mode, prefix in [("", ()), *((mode, who) for mode in (GENERIC, f"{GENERIC}\n{STRICT}") for who in ((), BLIND))]:
        # Ten of 100 bytes are shorter than a frame, and ten of 1,000 longer.
        for address, size in [("10.8.0.1", 100), ("fd00::1", 100), ("10.8.0.1", 1000)]:
            daemon = Receiving(mode, before=prefix)
            sent = cable.trains(500, size, address)
            case = f"trains of ten, {mode or 'native'!r}, {size} bytes to {address}{', blind' if prefix else ''}"
            [ledger] = closes(case, [daemon.finish()], sent, size)
            same(drops(ledger), 0, case)


def tags():
    """What has a tag is not for a listener that asked for none, and a kernel that has no such VLAN drops it."""
    for mode, prefix in [("", ()), (GENERIC, ()), ("", BLIND)]:
        daemon = Receiving(mode, before=prefix)
        cable.tagged(50, 64, "10.8.0.1", 1000)
        cable.tagged(50, 64, "fd00::1", 2000)
        sent = cable.numbered(100, 64, "10.8.0.1")
        closes(f"100 with a tag, which are not for it, {mode or 'native'}", [daemon.finish()], sent, 64)
        check(not daemon.said("is not seen"), "a tag is not seen")
    daemon = Receiving(GENERIC, before=BLIND).finish()
    for words in ("a VLAN tag that card0 takes off a frame is not seen", "give it CAP_PERFMON"):
        check(daemon.said(words), f"it does not say: {words}")
    passed("where a tag cannot be seen that is said")


def set_mtu(width):
    ip(f"link set card0 mtu {width}")
    ip(f"link set card1 mtu {width}", OTHER)


def mtu():
    """An MTU that was raised is followed: what fits into a chunk is taken, and the sockets receive what is longer."""
    cable.lay()
    for mode in ["", GENERIC]:
        daemon = Receiving(f'max_length = "9000"\n{mode}')
        try:
            set_mtu(9000)
        except Failed as refusal:
            skipped(f"a wider cable needs a kernel that joins pieces of frames: {refusal}")
            daemon.end()
            break
        daemon.await_log("the MTU of card0 is 9000, and a chunk has room for the frames of 3")
        sent = cable.numbered(1000, 8000, "10.8.0.1")
        sent += cable.numbered(1000, 8000, "fd00::1", sent)
        # The memory of a reload is that of both for a moment.
        daemon.change("[sink.out]", "# another\n[sink.out]")
        set_mtu(1500)
        daemon.await_log("a chunk has room for every frame of card0 again")
        case = f"8,000 bytes by an MTU that was raised, {mode or 'native'}"
        [ledger] = closes(case, [daemon.finish()], sent, 8000)
        same((drops(ledger), daemon.said("the MTU of card0 is")), (0, 1), case)
    cable.lay()


def an_address_that_is_gone():
    """One that is named is taken as long as this host has it."""
    ip("address add 10.8.0.9/24 dev card0")
    cable.know_address("10.8.0.9")
    daemon = Receiving('address = ["10.8.0.1:5140", "10.8.0.9:5140"]').await_log("10.8.0.9")
    sent = cable.numbered(100, 64, "10.8.0.9")
    daemon.await_received(sent)
    ip("address del 10.8.0.9/24 dev card0")
    daemon.await_log("looks for 10.8.0.1\n")
    cable.numbered(100, 64, "10.8.0.9", 1000)
    sent += cable.numbered(100, 64, "10.8.0.1", sent)
    closes("an address that this host has no more is not taken", [daemon.finish()], sent, 64)
    ip("neigh del 10.8.0.9 dev card1", OTHER)


def gigabits():
    """How fast TCP comes over the cable."""
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", "5301", "--forceflush"], stdout=subprocess.PIPE, text=True)
    while "listening" not in server.stdout.readline():
        pass
    told = json.loads(run("iperf3", "-c", "10.8.0.1", "-p", "5301", "-t", "3", "-J", place=OTHER))
    server.communicate()
    return told["end"]["sum_received"]["bits_per_second"] / 1e9


def tcp_beside():
    """TCP with and without the engine, in turns: a measurement, for a machine that does nothing else."""
    if not shutil.which("iperf3"):
        skipped("TCP beside the engine needs iperf3")
        return
    for mode in [GENERIC, ""]:
        pairs = []
        for _ in range(7):
            alone = gigabits()
            daemon = Receiving(mode)
            pairs.append((gigabits(), alone))
            daemon.end()
        ratio = statistics.median(with_it / alone for with_it, alone in pairs)
        print(f"measured: TCP beside {mode or 'native'}: {ratio:.2f} of that without, Gb/s with and without:",
              ", ".join(f"{with_it:.1f}/{alone:.1f}" for with_it, alone in pairs))
