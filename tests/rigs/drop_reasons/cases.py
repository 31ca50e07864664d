"""Provokes drops of known reasons and known counts while a process with CAP_PERFMON alone watches, and compares what it
says with what was sent. Called by drop_reasons.sh: cases.py FOLDER PROCESS_IN_THE_OTHER_NAMESPACE."""

import re
import socket
import struct
import subprocess
import sys
import time

folder, other = sys.argv[1:]
HERE, PORT, NOBODY = "10.9.0.1", 20514, 20515
RIGHT = "--inh-caps=-all,+perfmon --ambient-caps=-all,+perfmon --bounding-set=-all,+perfmon"
NO_RIGHT = "--inh-caps=-all --bounding-set=-all"


def command(caps):
    who = f"setpriv --reuid 65534 --regid 65534 --clear-groups {caps}"
    return f"{who} {folder}/drops stdin {folder}/udp_fail {folder}/kfree_skb".split()


def counter(file, group, name):
    lines = [line.split() for line in open(f"/proc/net/{file}") if line.startswith(group + ":")]
    return int(lines[1][lines[0].index(name)])


def udp_header(port, payload, checksum):
    return struct.pack("!HHHH", 4000, port, 8 + len(payload), checksum) + payload


def in_other_namespace(script):
    subprocess.run(["nsenter", "--target", other, "--net", "python3", "-c", script], check=True)


class Overrun(Exception):
    """More was dropped on this machine than the rings hold, so some of it has no name."""


class Watch:
    """Watches while the block runs; afterwards `lines` has the counts by what they are of."""

    def __enter__(self):
        self.process = subprocess.Popen(
            command(RIGHT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        first = self.process.stdout.readline()
        assert first == "watching\n", first + self.process.stderr.read()
        return self

    def __exit__(self, kind, *_):
        text, errors = self.process.communicate()
        if kind is None:
            assert self.process.returncode == 0, errors
            self.lines = {key: int(count) for key, count in re.findall(r"^([^:\n]+): (\d+)", text, re.M)}
            self.text = text
            if "not named: 0 reasons, 0 ports" not in text:
                raise Overrun(text)


def full_buffer():
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    receiver.bind(("127.0.0.1", PORT))
    receiver.setblocking(False)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    before = counter("snmp", "Udp", "RcvbufErrors")
    with Watch() as watch:
        for _ in range(500):
            sender.sendto(b"x" * 100, ("127.0.0.1", PORT))
        received = 0

        def all_are_known():
            nonlocal received
            try:
                while receiver.recv(2000):
                    received += 1
            except BlockingIOError:
                return received + drops_of(PORT) == 500

        wait_for(all_are_known)
        settle()
    dropped = drops_of(PORT)
    named = watch.lines[f"port {PORT} SOCKET_RCVBUFF"]
    assert named == dropped == counter("snmp", "Udp", "RcvbufErrors") - before, (named, dropped, watch.text)
    print(f"passed: {named} of {dropped} datagrams that a full buffer dropped are named, with their port")


def no_listener():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    before = counter("snmp", "Udp", "NoPorts")
    with Watch() as watch:
        for _ in range(30):
            sender.sendto(b"x", ("127.0.0.1", NOBODY))
        wait_for(lambda: counter("snmp", "Udp", "NoPorts") - before == 30)
        settle()
    at_least(watch, "IPv4 NO_SOCKET", 30)


def bad_checksums():
    """Short ones are found when they arrive, long ones when a program reads them: those have no reason in older
    kernels."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", PORT))
    receiver.setblocking(False)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    before = counter("snmp", "Udp", "InCsumErrors")
    with Watch() as watch:
        for length in [20] * 12 + [1000] * 5:
            raw.sendto(udp_header(PORT, b"y" * length, 0x1234), ("127.0.0.1", 0))
        wait_for(lambda: counter("snmp", "Udp", "InCsumErrors") - before >= 12)
        settle()
        try:
            while True:
                receiver.recv(2000)
                raise SystemExit("a datagram with a bad checksum was received")
        except BlockingIOError:
            pass
        settle()
    assert counter("snmp", "Udp", "InCsumErrors") - before == 17
    at_least(watch, "IPv4 UDP_CSUM", 12)
    assert watch.lines["IPv4 UDP_CSUM"] + watch.lines["without a reason"] >= 17, watch.text


def wrong_way_back():
    """A source address that this host would answer through another interface."""
    before = counter("netstat", "TcpExt", "IPReversePathFilter")
    spoof = (
        "import socket, struct\n"
        "raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)\n"
        f"udp = struct.pack('!HHHH', 4000, {PORT}, 9, 0) + b'x'\n"
        "address = socket.inet_aton\n"
        f"ip = struct.pack('!BBHHHBBH', 0x45, 0, 0, 0, 0, 64, 17, 0) + address('192.0.2.7') + address('{HERE}')\n"
        f"for _ in range(25): raw.sendto(ip + udp, ('{HERE}', 0))\n"
    )
    with Watch() as watch:
        in_other_namespace(spoof)
        wait_for(lambda: counter("netstat", "TcpExt", "IPReversePathFilter") - before == 25)
        settle()
    at_least(watch, "IPv4 IP_RPFILTER", 25)


def frames_of_others():
    """What is no IP is neither named nor missed: the kernel keeps it to itself, or the watch would be overrun."""
    frames = (
        "import socket\n"
        "frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
        "frames.bind(('there', 0))\n"
        "for _ in range(40): frames.send(b'\\xff' * 6 + b'\\x02' + b'\\0' * 5 + b'\\x88\\xb5' + b'z' * 60)\n"
    )
    before = dropped_by_interface()
    with Watch() as watch:
        in_other_namespace(frames)
        wait_for(lambda: dropped_by_interface() - before >= 40)
        settle()
    assert "IPv4 UNHANDLED_PROTO" not in watch.lines and "IPv6 UNHANDLED_PROTO" not in watch.lines, watch.text
    print("passed: 40 frames that are no IP are neither counted nor missed")


def without_the_right():
    refused = subprocess.run(command(NO_RIGHT), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if refused.returncode == 0 and int(open("/proc/sys/kernel/perf_event_paranoid").read()) < 0:
        print("SKIPPED: this host lets everybody watch (kernel.perf_event_paranoid = -1)")
        return
    assert refused.returncode != 0 and "AmbientCapabilities=CAP_PERFMON" in refused.stderr, refused
    print("passed: without the right it is refused and the right is named")


def drops_of(port):
    """What the kernel counts at the socket itself."""
    rows = [line.split() for line in open("/proc/net/udp")][1:]
    return sum(int(row[-1]) for row in rows if row[1].endswith(f":{port:04X}"))


def dropped_by_interface():
    row = next(line.split() for line in open("/proc/net/dev") if line.strip().startswith("here:"))
    return int(row[4])


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.01)


def settle():
    """The watch empties its rings fifty times a second, and once more when it ends; this is for what is on its way."""
    time.sleep(0.1)


def at_least(watch, what, count):
    """Others on this machine may drop for the same reason meanwhile: a watch sees every namespace."""
    # An example says of a shared reason that it is shared, behind the count.
    found = watch.lines.get(what, 0)
    assert found >= count, f"{what}: {found} instead of {count}\n{watch.text}"
    print(f"passed: {what}: {found} named, {count} provoked")


def in_quiet(case):
    """Others on this machine may overrun the rings. They do not do so every time."""
    for _ in range(5):
        try:
            return case()
        except Overrun as overrun:
            last = overrun
    raise last


for case in (full_buffer, no_listener, bad_checksums, wrong_way_back, frames_of_others, without_the_right):
    in_quiet(case)
