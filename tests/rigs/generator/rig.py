"""Drives `udpd bench send --engine xdp|packet` in the namespace of process OTHER and counts in its own."""

import array, fcntl, json, os, signal, socket, struct, subprocess, sys, time

udpd, work, other = sys.argv[1:]
PORT = 5140
V4, V6 = f"10.8.0.1:{PORT}", f"[2001:db8::1]:{PORT}"
there = ["nsenter", "--target", other, "--net"]


def fail(why):
    sys.exit(f"FAILED: {why}")


def gro(interface, is_on):
    """Switches GRO, and with it NAPI: without NAPI a cable takes no XDP frames."""
    ETHTOOL_SGRO, SIOCETHTOOL = 0x2C, 0x8946
    value = array.array("B", struct.pack("II", ETHTOOL_SGRO, is_on))
    with socket.socket() as asker:
        fcntl.ioctl(asker, SIOCETHTOOL, struct.pack("16sP8x", interface.encode(), value.buffer_info()[0]))


def counters():
    """What the receiving kernel has counted, after it has verified headers and checksums."""
    found = {name: int(value) for name, value in (line.split() for line in open("/proc/net/snmp6"))}
    lines = [line.split() for line in open("/proc/net/snmp")]
    for names, values in zip(lines[::2], lines[1::2]):
        found.update({names[0] + name: int(value) for name, value in zip(names[1:], values[1:])})
    return found


def send(*arguments, prefix=(), code=0):
    child = subprocess.run([*there, *prefix, udpd, "bench", "send", "--json", *arguments], capture_output=True, text=True)
    if child.returncode != code:
        fail(f"{' '.join(arguments)}: exit {child.returncode}, not {code}: {child.stderr}")
    return json.loads(child.stdout)["report"] if code == 0 else child.stderr


def frames(engine, to, *arguments, **more):
    return send("--engine", engine, "--interface", "card1", "--to", to, *arguments, **more)


def counted(engine, to, count, *arguments):
    """Nobody listens, so each datagram that is whole counts as one without a port, and no other does."""
    before = counters()
    report = frames(engine, to, "--count", str(count), *arguments)
    refused = sum(report["refused"].values())
    if report["sent"] + refused != count:
        fail(f"{report['sent']} sent and {refused} refused of {count}")
    where, wrong = ("Udp:NoPorts", "Udp:InCsumErrors") if to == V4 else ("Udp6NoPorts", "Udp6InCsumErrors")
    end = time.monotonic() + 20
    while True:
        now = counters()
        arrived = now[where] - before[where]
        if arrived >= report["sent"] or time.monotonic() > end:
            break
        time.sleep(0.01)
    # One more would still be under way.
    time.sleep(0.05)
    now = counters()
    arrived = now[where] - before[where]
    bad = [now[name] - before[name] for name in [wrong, "Ip:InHdrErrors", "Ip:InAddrErrors", "Ip6InHdrErrors"]]
    if arrived != report["sent"] or any(bad):
        fail(f"{engine} {to} {arguments}: {report['sent']} sent, {arrived} counted, bad {bad}")
    if report["interface"]["packets"] < report["sent"]:
        fail(f"the interface has sent less than the report says: {report['interface']} {report['sent']}")
    return report


def in_order(engine, to, flows, count, *arguments):
    """`bench recv` finds each flow's sequences without a gap that nobody answers for."""
    receive = [udpd, "bench", "recv", "--json", "--listen", to, "--lanes", "1", "--flows", str(flows),
               "--expect", str(count)]
    receiver = subprocess.Popen(receive, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "receiving on" not in (line := receiver.stderr.readline()):
        if not line:
            fail("bench recv has ended before it received")
    sent = frames(engine, to, "--flows", str(flows), "--count", str(count), *arguments)
    report = json.loads(receiver.communicate(timeout=120)[0])["report"]
    refused = sum(sent["refused"].values())
    layers = report["layers"]
    known = sum(lane["dropped"] for lane in layers["kernel"]) + layers["queue_full"] + layers["no_batch"]
    wrong = {name: report[name] for name in
             ["duplicated", "reordered", "late", "untracked", "corrupted", "foreign", "truncated"] if report[name]}
    if wrong or report["received"] + report["lost"] != count or report["lost"] != known + refused:
        fail(f"{engine} {to} {flows} flows: {wrong}, {report['received']} received, {report['lost']} lost, "
             f"{known} of them here, {refused} refused there, of {count}")
    if count >= 2 * flows and not flows - report["lost"] <= report["flow_count"] <= flows:
        fail(f"{report['flow_count']} flows of {flows}, {report['lost']} lost")
    return report


def kept_alive():
    """Asks for the far end's addresses, so that the neighbour table there knows them, without a datagram of UDP."""
    ask = ("import socket\n"
           "for address in ['10.8.0.1', '2001:db8::1']:\n"
           "    try: socket.create_connection((address, 1), 5)\n"
           "    except ConnectionRefusedError: pass\n")
    subprocess.run([*there, sys.executable, "-c", ask], check=True)


def refuses(words, *arguments, code, prefix=()):
    told = send(*arguments, prefix=prefix, code=code)
    if words not in told:
        fail(f"{' '.join(arguments)}: {words!r} is not said in: {told}")


gro("card0", True)

# Whoever is not there yet, and who may not.
short = ["--count", "1", "--interface", "card1", "--to", V4]
refuses("is not known on card1", "--engine", "packet", *short, code=69)
kept_alive()
nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
os.chmod(work, 0o755)
copy = f"{work}/udpd"
subprocess.run(["install", "-m", "755", udpd, copy], check=True)
udpd_of_root, udpd = udpd, copy
refuses("CAP_NET_RAW", "--engine", "packet", *short, code=77, prefix=nobody)
refuses("CAP_BPF and CAP_NET_ADMIN", "--engine", "xdp", *short, code=77, prefix=nobody)
udpd = udpd_of_root
refuses("loopback", "--engine", "xdp", "--count", "1", "--interface", "lo", "--to", V4, code=2)
refuses("there is no card9", "--engine", "xdp", "--count", "1", "--interface", "card9", "--to", V4, code=69)
refuses("write 1472 or less", "--engine", "xdp", *short, "--size", "1473", code=2)
subprocess.run([*there, "ip", "route", "add", "default", "via", "10.8.0.1"], check=True)
refuses("--despite-default-route", "--engine", "packet", *short, code=2)
counted("packet", V4, 10, "--despite-default-route")
subprocess.run([*there, "ip", "route", "del", "default"], check=True)
print("passed: what may not be used is refused with its reason")

engines = ["packet", "xdp"]
tried = subprocess.run([*there, udpd, "bench", "send", "--engine", "xdp", *short], capture_output=True, text=True)
if tried.returncode != 0:
    print(f"SKIPPED generator.sh: the part with live frames: {tried.stderr.strip()}")
    engines.remove("xdp")

for engine in engines:
    many = 100_000 if engine == "xdp" else 20_000
    runs = 0
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
    print(f"passed: {engine}: {runs + 1} loads, each counted exactly by the receiving kernel")

for engine in engines:
    for to in [V4, V6]:
        in_order(engine, to, 1_000, 100_000, "--rate", "100k", "--mix", "uniform", "--size", "16:200")
    report = in_order(engine, V4, 300_000, 600_000, "--rate", "200k", "--mix", "round-robin")
    mib = report["flow_memory_bytes"] >> 20
    print(f"passed: {engine}: {report['flow_count']} flows followed, sequence by sequence, in {mib} MiB")

if "xdp" in engines:
    # The driver takes no frame that is longer than the other end does, and none behind it in the same few.
    subprocess.run(["ip", "link", "set", "card0", "mtu", "1280"], check=True)
    report = counted("xdp", V4, 200_000, "--rate", "max", "--size", "64:1400", "--flows", "1000")
    refused = report["refused"]
    if list(refused) != ["ENOBUFS"] or not 20_000 < refused["ENOBUFS"] < 180_000:
        fail(f"frames longer than the other end takes: {refused}")
    subprocess.run(["ip", "link", "set", "card0", "mtu", "1500"], check=True)
    print(f"passed: {refused['ENOBUFS']} frames that the driver refused are not called sent")

    gro("card0", False)
    refuses("ethtool -K PEER gro on", "--engine", "xdp", *short, code=69)
    gro("card0", True)
    print("passed: a cable that would lose frames without a count is refused")

    # Whatever ends it, nothing stays attached.
    child = subprocess.Popen([*there, udpd, "bench", "send", "--engine", "xdp", "--interface", "card1", "--to", V4,
                              "--rate", "10k", "--flows", "1M"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = counters()["Udp:NoPorts"]
    while counters()["Udp:NoPorts"] == before:
        if child.poll() is not None:
            fail(f"it has ended with {child.returncode}")
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept_alive()
    for command in [["ip", "-d", "link"], [*there, "ip", "-d", "link"]]:
        if "xdp" in subprocess.check_output(command, text=True).replace("gro_max", ""):
            fail("a program is still attached")
    counted("xdp", V4, 1_000)
    print("passed: after kill -9 nothing is attached, and the next run counts exactly")
