#!/usr/bin/env bash
# A relay between two cables: a sender behind the one, receivers behind the other. What arrives equals what was sent,
# also in trains and in fragments, with a PROXY header before each or without; with keep_source it comes from the
# sender's own address and port, of either family, and what is longer than the MTU is counted and not sent, until the
# MTU is raised. A destination that no host answers for, one to which there is no way yet, and a relay that loses its
# own address cost nothing beyond themselves, and are over within two seconds of their cause. Nothing outside of the
# three namespaces is touched. Needs root, ip and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED relay_on_veth.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${RELAY_RIG_INSIDE:-}" ]; then
    cargo build --release --bin udpd
    work=$(mktemp -d)
    chmod 755 "$work"
    trap 'rm -rf "$work"' EXIT
    # A copy that also an ordinary user can start.
    install -m 755 "$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")" "$work/udpd"
    RELAY_RIG_INSIDE=1 RELAY_RIG_WORK=$work unshare --net --mount bash tests/rigs/relay_on_veth.sh
    exit
fi
work=$RELAY_RIG_WORK

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
others=()
trap 'kill "${others[@]}" 2>/dev/null || true' EXIT
for _ in receiver sender; do
    unshare --net sleep 600 &
    others+=($!)
    until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
done
ip link set lo up

cat >"$work/rig.py" <<'END'
import atexit, json, os, signal, socket, subprocess, sys, time

work, receiver, sender = sys.argv[1:]
udpd = f"{work}/udpd"
PORT = 5140
PATTERN = bytes(range(251)) * 280

# What is started here ends with this.
started = []
atexit.register(lambda: [child.kill() for child in started if child.poll() is None])

def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

def at(place, *command):
    run("nsenter", "--target", place, "--net", *command)

def lay(here, there, place, net4, net6):
    """A cable from here (.1) to a namespace (.2)."""
    run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", place)
    for prefix, number, device in [((), 1, here), (("nsenter", "--target", place, "--net"), 2, there)]:
        run(*prefix, "ip", "address", "add", f"{net4}.{number}/24", "dev", device)
        run(*prefix, "ip", "address", "add", f"{net6}::{number}/64", "dev", device, "nodad")
        run(*prefix, "ip", "link", "set", device, "up")

lay("out0", "out1", receiver, "10.8.1", "2001:db8:1")
lay("in0", "in1", sender, "10.8.2", "2001:db8:2")
# The receiver reaches the sender the way its packets come, as strict reverse-path filtering wants it.
at(receiver, "ip", "route", "add", "10.8.2.0/24", "via", "10.8.1.1")
at(receiver, "ip", "route", "add", "2001:db8:2::/64", "via", "2001:db8:1::1")
at(receiver, "ip", "link", "set", "lo", "up")
# Who is where is known: a cable that is a moment old answers late, and the kernel keeps few packets for whoever does
# not answer.
def acquaint(device, peer, place, addresses, own):
    def hardware(*prefix):
        command = [*prefix, "ip", "-o", "link", "show", peer if prefix else device]
        words = subprocess.check_output(command, text=True).split()
        return words[words.index("link/ether") + 1]
    inside = ("nsenter", "--target", place, "--net")
    for address in addresses:
        run("ip", "neighbour", "replace", address, "lladdr", hardware(*inside), "dev", device)
    for address in own:
        at(place, "ip", "neighbour", "replace", address, "lladdr", hardware(), "dev", peer)
acquaint("out0", "out1", receiver, ["10.8.1.2", "2001:db8:1::2"], ["10.8.1.1", "2001:db8:1::1", "10.8.1.7"])
acquaint("in0", "in1", sender, ["10.8.2.2", "2001:db8:2::2"], ["10.8.2.1", "2001:db8:2::1"])
TO4, TO6 = "10.8.1.2", "2001:db8:1::2"

# 32 and 33 below are SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python does not name.
SENDER = r'''
import json, socket, sys
PATTERN = bytes(range(251)) * 280
source, to, port, lengths = json.load(sys.stdin)
sender = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, 32, 1 << 24)
sender.bind((source, 0))
for number, length in enumerate(lengths):
    sender.sendto(PATTERN[number % 251:][:length], (to, port))
print(sender.getsockname()[1])
'''

def send(lengths, to="10.8.2.1", source=None):
    """Sends parts of the pattern and returns the port that they came from."""
    source = source or ("2001:db8:2::2" if ":" in to else "10.8.2.2")
    command = ["nsenter", "--target", sender, "--net", sys.executable, "-c", SENDER]
    what = json.dumps([source, to, PORT, list(lengths)])
    done = subprocess.run(command, input=what, text=True, check=True, capture_output=True)
    return int(done.stdout)

RECEIVER = r'''
import json, socket, sys
PATTERN = bytes(range(251)) * 280
address, count, seconds, is_proxied = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "True"
receiver = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
receiver.bind((address, 6000))
receiver.settimeout(seconds)
print("ready", flush=True)
got = []
try:
    while len(got) < count:
        payload, source = receiver.recvfrom(65600)
        if is_proxied:
            assert payload[:13] == b"\r\n\r\n\0\r\nQUIT\n!" and payload[13] in (0x12, 0x22), payload[:16]
            length, bytes_each = int.from_bytes(payload[14:16], "big"), 4 if payload[13] == 0x12 else 16
            family = socket.AF_INET if bytes_each == 4 else socket.AF_INET6
            ports = payload[16 + 2 * bytes_each:]
            source = (socket.inet_ntop(family, payload[16:16 + bytes_each]), int.from_bytes(ports[:2], "big"))
            payload = payload[16 + length:]
        whole = any(payload == PATTERN[shift:][:len(payload)] for shift in range(251))
        got.append([len(payload), source[0], source[1], whole])
except TimeoutError:
    pass
print(json.dumps(got))
'''

class Receiver:
    """Receives so many datagrams behind the other cable."""
    def __init__(self, address, count, seconds=20, is_proxied=False):
        command = ["nsenter", "--target", receiver, "--net", sys.executable, "-c", RECEIVER,
                   address, str(count), str(seconds), str(is_proxied)]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(self.child)
        assert self.child.stdout.readline() == "ready\n"

    def got(self):
        """Length, address and port of each; their bytes are as they were sent."""
        got = json.loads(self.child.stdout.readline())
        self.child.wait()
        assert all(equal for *_, equal in got), "a payload was changed"
        return [tuple(one[:3]) for one in got]

class Daemon:
    number = 0

    def __init__(self, keys, prefix=(), may_end=False):
        Daemon.number += 1
        self.directory = f"{work}/{Daemon.number}"
        os.mkdir(self.directory)
        os.chmod(self.directory, 0o777)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f"{self.directory}/notify")
        os.chmod(f"{self.directory}/notify", 0o777)
        notify.settimeout(30)
        with open(f"{self.directory}/udpd.toml", "w") as file:
            # The queue holds all that is sent here, so that it does not matter how fast this machine is.
            file.write(f'''
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
address = "[::]:{PORT}"
max_length = 65535
batch_size = 64
receive_buffer = "64MiB"
sinks = ["relay"]
[sink.relay]
type = "udp"
queue_bytes = "64MiB"
{keys}
''')
        self.log = open(f"{self.directory}/log", "w+")
        self.child = subprocess.Popen([*prefix, udpd, "run", "-c", f"{self.directory}/udpd.toml"],
                                      env={"NOTIFY_SOCKET": f"{self.directory}/notify"}, stderr=self.log)
        started.append(self.child)
        if may_end:
            return
        while True:
            try:
                if b"READY=1" in notify.recv(4096):
                    return
            except TimeoutError:
                self.fail("it is not ready")

    def text(self):
        return open(f"{self.directory}/log").read()

    def fail(self, why):
        print(json.dumps(self.sinks()) if self.child.poll() is None else "it has ended")
        self.child.kill()
        print(self.text())
        sys.exit(f"FAILED: {why}")

    def sinks(self):
        output = subprocess.check_output([udpd, "stats", "--json", "--socket", f"{self.directory}/control.sock"])
        return json.loads(output)["listeners"][0]["sinks"]

    def wait_for(self, what, condition, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sinks = self.sinks()
            if condition(sinks):
                return sinks
            time.sleep(0.02)
        self.fail(f"{what}: {json.dumps(sinks)}")

    def decided(self, count):
        """Waits until so many have been sent or have failed at every sink."""
        return self.wait_for(f"{count} are decided", lambda sinks: all(
            sink["delivered"] + sum(sink["dropped"].values()) == count and sink["in_flight"] == 0 for sink in sinks))

    def check(self, condition, why):
        if not condition:
            self.fail(why)

    def end(self, arrived):
        self.child.send_signal(signal.SIGTERM)
        self.check(self.child.wait(30) == 0, "it did not end well")
        listener = json.load(open(f"{self.directory}/ledger.json"))["listeners"][0]
        self.check((listener["arrived"], listener["kernel_dropped"], listener["residual"]) == (arrived, 0, 0),
                   f"{arrived} were to arrive, and the ledger is {json.dumps(listener)}")
        return listener["sinks"]

def sums(sink):
    return [(one["sent"], one["failed"], one["too_long"]) for one in sink["destinations"]]

def plain(to):
    """Trains, single ones and fragments."""
    daemon = Daemon(f'destinations = ["{f"[{to}]" if ":" in to else to}:6000"]')
    lengths = [*range(0, 1600), *[512] * 500, *[1452] * 100, 700, *[1472] * 20, *range(1600, 65507, 997), 65507]
    there = Receiver(to, len(lengths))
    send(lengths)
    got = there.got()
    daemon.check([one[0] for one in got] == lengths, f"{len(got)} of {len(lengths)}, or in another order")
    ports = {(one[1], one[2]) for one in got}
    daemon.check(len(ports) == 1 and ports.pop()[0] in ("10.8.1.1", "2001:db8:1::1"), "all from one port of the relay")
    [sink] = daemon.end(len(lengths))
    daemon.check(sums(sink) == [(len(lengths), 0, 0)], json.dumps(sink))
    print(f"passed: {len(lengths)} datagrams of all lengths to {to}, equal and in order")

def proxied(to, at_relay, source, longest):
    """The same with headers, which make trains longer than the way takes, and some datagrams too long for UDP."""
    daemon = Daemon(f'destinations = ["{f"[{to}]" if ":" in to else to}:6000"]\nkeep_source = "proxy"')
    lengths = [*range(0, 1600), *[512] * 500, *[1400] * 100, 700, *[1472] * 200, *range(1600, 65400, 997), longest]
    there = Receiver(to, len(lengths), is_proxied=True)
    port = send([*lengths[:-1], longest + 1, longest], at_relay)
    got = there.got()
    daemon.check(got == [(length, source, port) for length in lengths], f"{len(got)} of {len(lengths)}: {got[-3:]}")
    [sink] = daemon.end(len(lengths) + 1)
    daemon.check(sums(sink) == [(len(lengths), 1, 1)], json.dumps(sink))
    print(f"passed: {len(lengths)} datagrams of all lengths to {to} behind headers that name {source}")

def keeping(to, at_relay, source, headers):
    daemon = Daemon(f'destinations = ["{f"[{to}]" if ":" in to else to}:6000"]\nkeep_source = true')
    fits = 1500 - headers
    lengths = list(range(0, fits + 1))
    there = Receiver(to, len(lengths))
    port = send(lengths, at_relay)
    got = there.got()
    daemon.check(got == [(length, source, port) for length in lengths], f"{got[:3]} ... {len(got)} of {len(lengths)}")
    there = Receiver(to, 1)
    send([fits + 1, 9000 - headers, fits], at_relay)
    daemon.check([one[0] for one in there.got()] == [fits], "only what fits arrives")
    [sink] = daemon.decided(len(lengths) + 3)
    daemon.check(sums(sink) == [(len(lengths) + 1, 2, 2)], json.dumps(sink))
    # Raised all the way, the longer ones pass: the way is looked at once a second.
    run("ip", "link", "set", "out0", "mtu", "9000")
    at(receiver, "ip", "link", "set", "out1", "mtu", "9000")
    time.sleep(1.1)
    send([1], at_relay)
    daemon.decided(len(lengths) + 4)
    there = Receiver(to, 1)
    send([9000 - headers, 9001 - headers], at_relay)
    daemon.check([one[0] for one in there.got()] == [9000 - headers], "the longer one arrives")
    total = len(lengths) + 6
    [sink] = daemon.decided(total)
    daemon.check(sums(sink) == [(total - 3, 3, 3)], json.dumps(sink))
    daemon.end(total)
    lines = [line for line in daemon.text().splitlines() if line.startswith("warn") and "MTU" in line]
    words = ("1501", "1500", "keep_source = false")
    daemon.check(len(lines) == 1 and all(word in lines[0] for word in words), f"one warning with its numbers: {lines}")
    daemon.check("rp_filter" in daemon.text(), "reverse-path filtering is spoken of")
    run("ip", "link", "set", "out0", "mtu", "1500")
    at(receiver, "ip", "link", "set", "out1", "mtu", "1500")
    print(f"passed: the source is kept to {to}, and what exceeds the MTU is counted")

def no_host(distribute):
    """Nobody has the first address, so the kernel takes its packets, throws them away and says so seconds later."""
    daemon = Daemon(f'destinations = ["10.8.1.99:6000", "{TO4}:6000"]\ndistribute = "{distribute}"')
    sources = [f"10.8.2.{number}" for number in range(2, 12)]
    count = 2000 * len(sources)
    there = Receiver(TO4, count, 4)
    for source in sources:
        send([1400] * 2000, source=source)
    sinks = daemon.decided(count)
    got = len(there.got())
    if distribute == "all":
        [dead, living] = sinks
        daemon.check(sums(living) == [(count, 0, 0)] and got == count, f"{got} of {count}: {json.dumps(sinks)}")
        [(sent, failed, _)] = sums(dead)
    else:
        [(sent, failed, _), living] = sums(sinks[0])
        daemon.check(living == (got, 0, 0) and got % 2000 == 0 and 0 < got < count, f"{got}: {json.dumps(sinks)}")
        count -= got
    daemon.check(sent + failed == count, f"{json.dumps(sinks)}")
    # The kernel asks three times, a second apart, before it says that nobody has the address.
    total = 2000 * len(sources)
    end = time.monotonic() + 20
    while not any(
            one["icmp_errors"] for sink in daemon.sinks() for one in sink["destinations"]
            if "10.8.1.99" in one["address"]):
        daemon.check(time.monotonic() < end, "no answer is counted")
        for source in sources:
            send([1400], source=source)
        total += len(sources)
        daemon.decided(total)
        time.sleep(0.2)
    daemon.end(total)
    lines = [line for line in daemon.text().splitlines() if line.startswith("warn") and "10.8.1.99" in line]
    daemon.check(1 <= len(lines) <= 3, f"said once: {lines}")
    print(f"passed: an address that nobody has, distribute = {distribute}: "
          f"{sent} taken, {failed} failed there, and none elsewhere")

def slow_device(rate):
    """A device with a short queue throws away what comes too fast, and the relay sends it again. It waits for as long
    as the device takes something: the slower one needs far longer for one queue of the relay than a dead one is
    given."""
    try:
        run("tc", "qdisc", "add", "dev", "out0", "root", "tbf", "rate", rate, "burst", "10k", "limit", "30k")
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("SKIPPED: a device with a short queue: needs tc with tbf")
        return
    daemon = Daemon(f'destinations = ["{TO4}:6000"]')
    # Each is longer than the one before, so that none travels with another.
    lengths = list(range(200, 1400))
    there = Receiver(TO4, len(lengths))
    send(lengths)
    got = [one[0] for one in there.got()]
    shown = subprocess.check_output(["tc", "-s", "qdisc", "show", "dev", "out0"], text=True)
    thrown = int(shown.split("dropped ")[1].split(",")[0])
    run("tc", "qdisc", "del", "dev", "out0", "root")
    daemon.check(thrown > 0, "the device has kept up")
    daemon.check(got == lengths, f"{len(got)} of {len(lengths)} arrive in order")
    [sink] = daemon.end(len(lengths))
    daemon.check(sums(sink) == [(len(lengths), 0, 0)], json.dumps(sink))
    print(f"passed: a device of {rate} threw away {thrown} packets, and all {len(lengths)} arrived")

def no_way_yet():
    daemon = Daemon('destinations = ["10.9.9.9:6000"]')
    daemon.wait_for("it is said at the start", lambda _: "10.9.9.9:6000: there is no route yet" in daemon.text())
    send([10] * 10)
    [sink] = daemon.decided(10)
    daemon.check(sums(sink) == [(0, 10, 0)], json.dumps(sink))
    at(receiver, "ip", "address", "add", "10.9.9.9/32", "dev", "out1")
    run("ip", "route", "add", "10.9.9.9/32", "via", TO4)
    total = over_within_two_seconds(daemon, "10.9.9.9", 10)
    daemon.end(total)
    run("ip", "route", "del", "10.9.9.9/32")
    at(receiver, "ip", "address", "del", "10.9.9.9/32", "dev", "out1")
    print("passed: no way at the start, and then there is one")

def over_within_two_seconds(daemon, to, total):
    """Sends until something arrives there; returns how many have been sent in all."""
    there = Receiver(to, 1, 3)
    start = time.monotonic()
    while there.child.poll() is None and time.monotonic() - start < 2:
        send([20])
        total += 1
        daemon.decided(total)
        time.sleep(0.05)
    daemon.check(len(there.got()) == 1, "nothing arrives within two seconds")
    return total

def another_address():
    daemon = Daemon(f'destinations = ["{TO4}:6000"]')
    there = Receiver(TO4, 10)
    send([10] * 10)
    daemon.check({one[1] for one in there.got()} == {"10.8.1.1"}, "from the first address")
    run("ip", "address", "del", "10.8.1.1/24", "dev", "out0")
    run("ip", "address", "add", "10.8.1.7/24", "dev", "out0")
    total = over_within_two_seconds(daemon, TO4, 10)
    there = Receiver(TO4, 5)
    send([10] * 5)
    daemon.check({one[1] for one in there.got()} == {"10.8.1.7"}, "from the new address")
    daemon.end(total + 5)
    run("ip", "address", "del", "10.8.1.7/24", "dev", "out0")
    run("ip", "address", "add", "10.8.1.1/24", "dev", "out0")
    print("passed: the relay's own address has changed")

def unprivileged():
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    daemon = Daemon(f'destinations = ["{TO4}:6000"]\nkeep_source = true', nobody, may_end=True)
    daemon.check(daemon.child.wait(30) == 77, "exit 77")
    daemon.check("AmbientCapabilities=CAP_NET_RAW" in daemon.text(), "the right is named")
    print("passed: without the right to keep sources it does not start")

for number in range(3, 12):
    at(sender, "ip", "address", "add", f"10.8.2.{number}/24", "dev", "in1")
plain(TO4)
plain(TO6)
proxied(TO4, "10.8.2.1", "10.8.2.2", 65507 - 28)
proxied(TO4, "2001:db8:2::1", "2001:db8:2::2", 65507 - 52)
proxied(TO6, "2001:db8:2::1", "2001:db8:2::2", 65527 - 52)
keeping(TO4, "10.8.2.1", "10.8.2.2", 28)
keeping(TO6, "2001:db8:2::1", "2001:db8:2::2", 48)
slow_device("80mbit")
slow_device("8mbit")
no_host("all")
no_host("by_source")
no_way_yet()
another_address()
unprivileged()
END
python3 "$work/rig.py" "$work" "${others[@]}"
