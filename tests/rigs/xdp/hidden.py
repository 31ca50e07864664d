"""Cases of the rig of the daemon about what a frame does not show: that it is a train of datagrams, or had a VLAN tag;
and about what does not fit: a frame longer than a chunk, an address that this host has no more. `rig` is the module of
the cases."""
import json
import shutil
import statistics
import subprocess
import time

GENERIC = 'xdp_mode = "generic"'
STRICT = 'xdp_checksums = "strict"'
# Rights of root without those by which the kernel is asked what a frame is.
BLIND = ("setpriv", "--bounding-set=-perfmon,-sys_admin", "--inh-caps=-perfmon,-sys_admin")


def trains(rig):
    """Each datagram of a train is one of what is delivered, in every mode."""
    for mode, prefix in [("", ()), *((mode, who) for mode in (GENERIC, f"{GENERIC}\n{STRICT}") for who in ((), BLIND))]:
        # Ten of 100 bytes are shorter than a frame, and ten of 1,000 longer.
        for address, size in [("10.8.0.1", 100), ("fd00::1", 100), ("10.8.0.1", 1000)]:
            daemon = rig.Daemon(listener=mode, prefix=prefix).ready()
            sent = rig.send("trains", 500, size, rig.PORT, address, 0)
            case = f"trains of ten, {mode or 'native'!r}, {size} bytes to {address}{', blind' if prefix else ''}"
            [ledger] = rig.closes(case, [daemon.end()], sent, size)
            assert rig.drops(ledger) == 0, ledger


def tags(rig):
    """What has a tag is not for who asked for none, and a kernel that has no such VLAN drops it."""
    for mode, prefix in [("", ()), (GENERIC, ()), ("", BLIND)]:
        daemon = rig.Daemon(listener=mode, prefix=prefix).ready()
        rig.send("tagged", 50, 64, rig.PORT, "10.8.0.1", 1000)
        rig.send("tagged", 50, 64, rig.PORT, "fd00::1", 2000)
        sent = rig.send("numbered", 100, 64, rig.PORT, "10.8.0.1", 0)
        rig.closes(f"100 with a tag, which are not for it, {mode or 'native'}", [daemon.end()], sent, 64)
        assert "is not seen" not in daemon.log(), daemon.log()
    daemon = rig.Daemon(listener=GENERIC, prefix=BLIND).ready().end()
    assert "a VLAN tag that card0 takes off a frame is not seen" in daemon.log(), daemon.log()
    assert "give it CAP_PERFMON" in daemon.log(), daemon.log()
    print("passed: where a tag cannot be seen that is said")


def set_mtu(rig, mtu):
    rig.run("ip", "link", "set", "card0", "mtu", str(mtu))
    rig.run("ip", "link", "set", "card1", "mtu", str(mtu), there=True)


def mtu(rig):
    """An MTU that was raised is followed: what fits into a chunk is taken, and the sockets receive what is longer."""
    rig.cable()
    for mode in ["", GENERIC]:
        daemon = rig.Daemon(listener=f'max_length = "9000"\n{mode}').ready()
        try:
            set_mtu(rig, 9000)
        except AssertionError as refusal:
            print(f"SKIPPED a wider cable: needs a kernel that joins pieces of frames: {refusal}")
            daemon.end()
            break
        daemon.await_word("the MTU of card0 is 9000, and a chunk has room for the frames of 3")
        sent = rig.send("numbered", 1000, 8000, rig.PORT, "10.8.0.1", 0)
        sent += rig.send("numbered", 1000, 8000, rig.PORT, "fd00::1", sent)
        # The memory of a reload is that of both for a moment.
        done = daemon.reload(lambda text: text + "\n# another\n")
        assert done.returncode == 0, done
        set_mtu(rig, 1500)
        daemon.await_word("a chunk has room for every frame of card0 again")
        [ledger] = rig.closes(f"8,000 bytes by an MTU that was raised, {mode or 'native'}", [daemon.end()], sent, 8000)
        assert rig.drops(ledger) == 0 and daemon.log().count("the MTU of card0 is") == 1, (ledger, daemon.log())
    rig.cable()


def an_address_that_is_gone(rig):
    """One that is named is taken as long as this host has it."""
    rig.run("ip", "address", "add", "10.8.0.9/24", "dev", "card0")
    card = json.loads(rig.run("ip", "-j", "link", "show", "card0"))[0]["address"]
    # The sender goes on after nobody answers for it.
    rig.run("ip", "neigh", "replace", "10.8.0.9", "lladdr", card, "dev", "card1", "nud", "permanent", there=True)
    daemon = rig.Daemon(listener='address = ["10.8.0.1:5140", "10.8.0.9:5140"]').await_word("10.8.0.9").ready()
    sent = rig.send("numbered", 100, 64, rig.PORT, "10.8.0.9", 0)
    end = time.monotonic() + rig.PATIENCE
    while daemon.stats()["received"] + rig.cable_dropped() - daemon.cable < sent:
        assert time.monotonic() < end, daemon.stats()
    rig.run("ip", "address", "del", "10.8.0.9/24", "dev", "card0")
    daemon.await_word("looks for 10.8.0.1\n")
    rig.send("numbered", 100, 64, rig.PORT, "10.8.0.9", 1000)
    sent += rig.send("numbered", 100, 64, rig.PORT, "10.8.0.1", sent)
    rig.closes("an address that this host has no more is not taken", [daemon.end()], sent, 64)
    rig.run("ip", "neigh", "del", "10.8.0.9", "dev", "card1", there=True)


def gigabits(rig):
    """How fast TCP comes over the cable."""
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", "5301", "--forceflush"], stdout=subprocess.PIPE, text=True)
    while "listening" not in server.stdout.readline():
        pass
    told = json.loads(rig.run("iperf3", "-c", "10.8.0.1", "-p", "5301", "-t", "3", "-J", there=True))
    server.communicate()
    return told["end"]["sum_received"]["bits_per_second"] / 1e9


def tcp_beside(rig):
    """TCP with and without the engine, in turns: a measurement, for a machine that does nothing else."""
    if not shutil.which("iperf3"):
        print("SKIPPED TCP beside the engine: needs iperf3")
        return
    for mode in [GENERIC, ""]:
        pairs = []
        for _ in range(7):
            alone = gigabits(rig)
            daemon = rig.Daemon(listener=mode).ready()
            pairs.append((gigabits(rig), alone))
            daemon.end()
        ratio = statistics.median(with_it / alone for with_it, alone in pairs)
        print(f"measured: TCP beside {mode or 'native'}: {ratio:.2f} of that without, Gb/s with and without:",
              ", ".join(f"{with_it:.1f}/{alone:.1f}" for with_it, alone in pairs))
