"""Drives `udpd bench send --engine xdp|packet` in the other namespace and counts in its own; see generator.sh."""
import json
import signal
import subprocess
import sys
import time

from lib import net
from lib.check import check, main, passed, skipped, until
from lib.daemon import UDPD, start
from lib.host import execute
from lib.load import bench_command
from lib.net import UNPRIVILEGED, OTHER, gro, ip, set_proc

PORT = 5140
V4, V6 = f"10.8.0.1:{PORT}", f"[2001:db8::1]:{PORT}"
# One datagram over the cable.
SHORT = ["--count", "1", "--interface", "card1"]


def lay():
    # No host has the addresses of the flows, and no route leads back to them.
    for key in ("all", "default"):
        set_proc(f"ipv4/conf/{key}/rp_filter", 0)
    net.lay(["10.8.0.1/24", "2001:db8::1/64"], ["10.8.0.2/24", "2001:db8::2/64"])
    set_proc("ipv4/conf/card0/rp_filter", 0)
    ip("link set lo up", OTHER)
    gro("card0", True)


def send(to, *arguments, prefix=(), code=0):
    """The report, or with another code what was said."""
    command = bench_command(to, *arguments, program=[*prefix, UDPD], place=OTHER)
    done = execute(*command)
    check(done.returncode == code, lambda: f"{command}: exit {done.returncode}, not {code}: {done.stderr}")
    return json.loads(done.stdout)["report"] if code == 0 else done.stderr


def counted(engine, to, count, *arguments):
    """No process listens, so each datagram that is whole counts as one without a port, and no other does."""
    before = net.udp_counters()
    report = send(to, "--engine", engine, "--interface", "card1", "--count", count, *arguments)
    refused = sum(report["refused"].values())
    check(report["sent"] + refused == count, f"{report['sent']} sent and {refused} refused of {count}")
    where, wrong = ("Udp:NoPorts", "Udp:InCsumErrors") if to == V4 else ("Udp6NoPorts", "Udp6InCsumErrors")

    def grown(name):
        return net.udp_counters()[name] - before[name]

    until(f"{count} are counted", lambda: grown(where) >= report["sent"], 20)
    # One more would still be under way.
    time.sleep(0.05)
    arrived = grown(where)
    bad = [grown(name) for name in (wrong, "Ip:InHdrErrors", "Ip:InAddrErrors", "Ip6InHdrErrors")]
    check(arrived == report["sent"] and not any(bad),
          f"{engine} {to} {arguments}: {report['sent']} sent, {arrived} counted, bad {bad}")
    check(report["interface"]["packets"] >= report["sent"],
          f"the interface has sent less than the report says: {report['interface']} {report['sent']}")
    return report


def in_order(engine, to, flows, count, *arguments):
    """`bench recv` finds each flow's sequences without a gap that no layer answers for."""
    receiver = start([UDPD, "bench", "recv", "--json", "--listen", to, "--lanes", "1", "--flows", flows, "--expect",
                      count], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "receiving on" not in (line := receiver.stderr.readline()):
        check(line, "bench recv has ended before it received")
    sent = send(to, "--engine", engine, "--interface", "card1", "--flows", flows, "--count", count, *arguments)
    report = json.loads(receiver.communicate(timeout=120)[0])["report"]
    refused, layers = sum(sent["refused"].values()), report["layers"]
    known = sum(lane["dropped"] for lane in layers["kernel"]) + layers["queue_full"] + layers["no_batch"]
    wrong = {name: report[name] for name in
             ["duplicated", "reordered", "late", "untracked", "corrupted", "foreign", "truncated"] if report[name]}
    check(not wrong and report["received"] + report["lost"] == count and report["lost"] == known + refused,
          f"{engine} {to} {flows} flows: {wrong}, {report['received']} received, {report['lost']} lost, "
          f"{known} of them here, {refused} refused there, of {count}")
    check(count < 2 * flows or flows - report["lost"] <= report["flow_count"] <= flows,
          f"{report['flow_count']} flows of {flows}, {report['lost']} lost")
    return report


def resolve_addresses():
    """Asks for the far end's addresses, so that the neighbour table there knows them, without a datagram of UDP."""
    ask = ("import socket\n"
           "for address in ['10.8.0.1', '2001:db8::1']:\n"
           "    try: socket.create_connection((address, 1), 5)\n"
           "    except ConnectionRefusedError: pass\n")
    net.run(sys.executable, "-c", ask, place=OTHER)


def refuses(words, engine, *arguments, code, to=V4, prefix=()):
    told = send(to, "--engine", engine, *arguments, prefix=prefix, code=code)
    check(words in told, f"{arguments}: {words!r} is not said in: {told}")


def what_may_not_be_used():
    refuses("is not known on card1", "packet", *SHORT, code=69)
    resolve_addresses()
    refuses("CAP_NET_RAW", "packet", *SHORT, code=77, prefix=UNPRIVILEGED)
    refuses("CAP_BPF and CAP_NET_ADMIN", "xdp", *SHORT, code=77, prefix=UNPRIVILEGED)
    refuses("loopback", "xdp", "--count", "1", "--interface", "lo", code=2)
    refuses("there is no card9", "xdp", "--count", "1", "--interface", "card9", code=69)
    refuses("write 1472 or less", "xdp", *SHORT, "--size", "1473", code=2)
    ip("route add default via 10.8.0.1", OTHER)
    refuses("--despite-default-route", "packet", *SHORT, code=2)
    counted("packet", V4, 10, "--despite-default-route")
    ip("route del default", OTHER)
    passed("what may not be used is refused with its reason")


def loads(engine):
    many = 100_000 if engine == "xdp" else 20_000
    runs = 1
    for to in [V4, V6]:
        for flows in ["1", "1000", "1M"]:
            for size in ["64", "8", "17:33", "1400", "imix" if to == V4 else "0:1452"]:
                counted(engine, to, many, "--rate", "max", "--flows", flows, "--size", size)
                runs += 1
        for mix in ["round-robin", "hot:20%", "zipf:1.1"]:
            counted(engine, to, many, "--rate", "max", "--flows", "100k", "--mix", mix)
            counted(engine, to, 20_001, "--rate", "100k", "--flows", "100k", "--mix", mix, "--burst", "7")
            runs += 2
    counted(engine, V4, many, "--rate", "max", "--no-checksum")
    passed(f"{engine}: {runs} loads, each counted exactly by the receiving kernel")


def flows_in_order(engine):
    for to in [V4, V6]:
        in_order(engine, to, 1_000, 100_000, "--rate", "100k", "--mix", "uniform", "--size", "16:200")
    report = in_order(engine, V4, 300_000, 600_000, "--rate", "200k", "--mix", "round-robin")
    mib = report["flow_memory_bytes"] >> 20
    passed(f"{engine}: {report['flow_count']} flows followed, sequence by sequence, in {mib} MiB")


def frames_that_are_refused():
    """The driver takes no frame that is longer than the other end does, and none behind it in the same few."""
    ip("link set card0 mtu 1280")
    refused = counted("xdp", V4, 200_000, "--rate", "max", "--size", "64:1400", "--flows", "1000")["refused"]
    check(list(refused) == ["ENOBUFS"] and 20_000 < refused["ENOBUFS"] < 180_000,
          f"frames longer than the other end takes: {refused}")
    ip("link set card0 mtu 1500")
    passed(f"{refused['ENOBUFS']} frames that the driver refused are not called sent")
    gro("card0", False)
    refuses("ethtool -K PEER gro on", "xdp", *SHORT, code=69)
    gro("card0", True)
    passed("a cable that would lose frames without a count is refused")


def nothing_stays():
    """However it ends, nothing stays attached."""
    command = bench_command(V4, "--engine", "xdp", "--interface", "card1", "--rate", "10k", "--flows", "1M",
                            place=OTHER)
    child = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = net.udp_counters()["Udp:NoPorts"]
    until("it sends", lambda: net.udp_counters()["Udp:NoPorts"] > before or child.poll() is not None)
    check(child.poll() is None, f"it has ended with {child.returncode}")
    child.send_signal(signal.SIGKILL)
    child.wait()
    resolve_addresses()
    for place in (None, OTHER):
        check("xdp" not in ip("-d link", place).replace("gro_max", ""), "a program is still attached")
    counted("xdp", V4, 1_000)
    passed("after kill -9 nothing is attached, and the next run counts exactly")


def both_engines():
    engines = ["packet", "xdp"]
    tried = execute(*bench_command(V4, "--engine", "xdp", *SHORT, place=OTHER))
    if tried.returncode != 0:
        skipped(f"the part with live frames: {tried.stderr.strip()}")
        engines.remove("xdp")
    for case in (loads, flows_in_order):
        for engine in engines:
            case(engine)
    if "xdp" in engines:
        frames_that_are_refused()
        nothing_stays()


main(lay, what_may_not_be_used, both_engines)
