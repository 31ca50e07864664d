#!/usr/bin/env bash
# Cables between two network namespaces, cut and laid again under a running udpd. Bound to an interface by name: it
# hears again within two seconds of the interface's return, on every lane, by each engine, also without any capability.
# Multicast of both families, from any source and from chosen ones, on a wildcard socket and on one bound to the group:
# each datagram once, nothing that was not joined, and again after the interface has returned. Every ledger closes.
# Nothing outside of the two namespaces is touched. Needs root, ip and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED policies_on_veth.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${POLICIES_RIG_INSIDE:-}" ]; then
    cargo build --release --bin udpd
    work=$(mktemp -d)
    chmod 755 "$work"
    trap 'rm -rf "$work"' EXIT
    # A copy that also an ordinary user can start.
    install -m 755 "$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")" "$work/udpd"
    POLICIES_RIG_INSIDE=1 POLICIES_RIG_WORK=$work unshare --net --mount bash tests/rigs/policies_on_veth.sh
    exit
fi
work=$POLICIES_RIG_WORK

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep 600 &
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link set lo up

cat >"$work/rig.py" <<'END'
import json, os, signal, socket, struct, subprocess, sys, time

work, other = sys.argv[1:]
udpd = f"{work}/udpd"
PORT = 5140

def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

def there(*command):
    run("nsenter", "--target", other, "--net", *command)

def lay():
    """The cable: card0 here, card1 there, two addresses of each family on the far end."""
    run("ip", "link", "add", "card0", "numrxqueues", "2", "numtxqueues", "2", "type", "veth",
        "peer", "name", "card1", "numrxqueues", "2", "numtxqueues", "2", "netns", other)
    run("ip", "address", "add", "10.8.0.1/24", "dev", "card0")
    run("ip", "address", "add", "2001:db8::1/64", "dev", "card0", "nodad")
    run("ip", "link", "set", "card0", "up")
    for address in ["10.8.0.2/24", "10.8.0.3/24"]:
        there("ip", "address", "add", address, "dev", "card1")
    for address in ["2001:db8::2/64", "2001:db8::3/64"]:
        there("ip", "address", "add", address, "dev", "card1", "nodad")
    there("ip", "link", "set", "card1", "up")

def cut():
    run("ip", "link", "del", "card0")

SENDER = r'''
import errno, json, socket, struct, sys, time
def send(sender, payload, to):
    # The kernel lays the multicast route of IPv6 a moment after the cable.
    end = time.monotonic() + 10
    while True:
        try:
            return sender.sendto(payload, to)
        except OSError as error:
            if error.errno != errno.ENETUNREACH or time.monotonic() > end:
                raise
            time.sleep(0.02)
for source, to, port, count, payload in json.load(sys.stdin):
    v6 = ":" in to
    senders = []
    for _ in range(16):
        sender = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((source, 0))
        index = socket.if_nametoindex("card1")
        if v6:
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        else:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", b"", b"", index))
        senders.append(sender)
    for number in range(count):
        send(senders[number % 16], payload.encode(), (to, port))
'''

def send(*loads):
    subprocess.run(["nsenter", "--target", other, "--net", sys.executable, "-c", SENDER],
                   input=json.dumps(loads), text=True, check=True)

class Daemon:
    number = 0

    def __init__(self, keys, prefix=()):
        Daemon.number += 1
        self.directory = f"{work}/{Daemon.number}"
        os.mkdir(self.directory)
        os.chmod(self.directory, 0o777)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f"{self.directory}/notify")
        os.chmod(f"{self.directory}/notify", 0o777)
        notify.settimeout(30)
        with open(f"{self.directory}/udpd.toml", "w") as file:
            file.write(f'''
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
{keys}
sinks = ["out"]
[sink.out]
type = "file"
rotate.every = "0s"
path = "{self.directory}/out.log"
''')
        self.log = open(f"{self.directory}/log", "w+")
        self.child = subprocess.Popen([*prefix, udpd, "run", "-c", f"{self.directory}/udpd.toml"],
                                      env={"NOTIFY_SOCKET": f"{self.directory}/notify"}, stderr=self.log)
        while True:
            try:
                if b"READY=1" in notify.recv(4096):
                    return
            except TimeoutError:
                self.fail("it is not ready")

    def fail(self, why):
        self.child.kill()
        print(open(f"{self.directory}/log").read())
        sys.exit(f"FAILED: {why}")

    def ledger(self):
        output = subprocess.check_output([udpd, "stats", "--json", "--socket", f"{self.directory}/control.sock"])
        return json.loads(output)["listeners"][0]

    def wait_for(self, what, condition, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ledger = self.ledger()
            if condition(ledger):
                return ledger
            time.sleep(0.02)
        self.fail(f"{what}: {json.dumps(ledger)}")

    def wait_for_line(self, words, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if words in open(f"{self.directory}/log").read():
                return
            time.sleep(0.02)
        self.fail(f"{words!r} is not said")

    def end(self, arrived):
        self.child.send_signal(signal.SIGTERM)
        if self.child.wait(30) != 0:
            self.fail("it did not end well")
        listener = json.load(open(f"{self.directory}/ledger.json"))["listeners"][0]
        sink = listener["sinks"][0]
        sums = (listener["arrived"], listener["kernel_dropped"], listener["residual"], sink["delivered"])
        if sums != (arrived, 0, 0, arrived):
            self.fail(f"{arrived} were to arrive, and the ledger is {json.dumps(listener)}")
        return open(f"{self.directory}/out.log").read().split()

def cut_and_laid_again(what, keys, prefix=()):
    """Every lane hears again within two seconds of the return, three times over."""
    lay()
    daemon = Daemon(f'address = "0.0.0.0:{PORT}"\ninterface = "card0"\nlanes = 2\n{keys}', prefix)
    arrived = 2000
    send(["10.8.0.2", "10.8.0.1", PORT, 2000, "before"])
    daemon.wait_for("the first arrive", lambda ledger: ledger["arrived"] == arrived)
    for turn in range(3):
        before = {lane["lane"]: lane["received"] for lane in daemon.ledger()["lanes"]}
        cut()
        if turn != 1:
            # In the second turn it is back before anybody has looked.
            daemon.wait_for_line("interface card0 is gone")
        lay()
        back = time.monotonic()
        while True:
            send(["10.8.0.2", "10.8.0.1", PORT, 64, "probe"])
            ledger = daemon.ledger()
            if ledger["arrived"] > arrived:
                break
            if time.monotonic() - back > 2:
                daemon.fail("it does not hear again within 2 s")
        # The kernel has no count of what no socket took. All probes have been sent; those that were heard have been
        # counted once the sum stands still.
        arrived = -1
        while arrived != daemon.ledger()["arrived"]:
            arrived = daemon.ledger()["arrived"]
            time.sleep(0.2)
        send(["10.8.0.2", "10.8.0.1", PORT, 2000, f"after{turn}"])
        arrived += 2000
        ledger = daemon.wait_for("all arrive again", lambda ledger: ledger["arrived"] == arrived)
        idle = [lane["lane"] for lane in ledger["lanes"] if lane["received"] == before[lane["lane"]]]
        if idle:
            daemon.fail(f"lanes {idle} hear nothing any more")
    lines = daemon.end(arrived)
    for word in ["before", "after0", "after1", "after2"]:
        if lines.count(word) != 2000:
            daemon.fail(f"{lines.count(word)} of 2000 {word}")
    text = open(f"{daemon.directory}/log").read()
    if text.count("interface card0 is back; udpd bound its sockets to it again") != 3:
        daemon.fail("its return is not said three times")
    if " also has " in text or json.load(open(f"{daemon.directory}/ledger.json"))["listeners"][0]["shared_with"] != []:
        daemon.fail("it takes its own sockets for somebody else's")
    cut()
    print(f"passed: a cable cut and laid again three times, {what}")

def multicast(what, keys, joined, foreign):
    """Each datagram that was joined once, none that was not; and again after the interface has returned."""
    lay()
    daemon = Daemon(keys)
    expected, lines = 0, {}
    for turn in range(2):
        if turn == 1:
            cut()
            daemon.wait_for_line("interface card0 is gone")
            lay()
            daemon.wait_for_line("interface card0 is back")
        send(*[[source, to, PORT, 100, f"foreign-{source}-{to}"] for source, to in foreign])
        send(*[[source, to, PORT, 100, f"{source}-{to}-{turn}"] for source, to in joined])
        expected += 100 * len(joined)
        daemon.wait_for("all arrive", lambda ledger: ledger["arrived"] >= expected)
    lines = daemon.end(expected)
    for turn in range(2):
        for source, to in joined:
            if lines.count(f"{source}-{to}-{turn}") != 100:
                daemon.fail(f"{lines.count(f'{source}-{to}-{turn}')} of 100 from {source} to {to}, turn {turn}")
    cut()
    print(f"passed: multicast, {what}")

unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
cut_and_laid_again("by recvmmsg", 'engine = "recvmmsg"')
cut_and_laid_again("without any capability", 'engine = "recvmmsg"', unprivileged)
with open(f"{work}/uring.toml", "w") as file:
    file.write('[[listener]]\nname = "in"\naddress = "127.0.0.1:1"\nengine = "io_uring"\n'
               'sinks = ["s"]\n[sink.s]\ntype = "null"\n')
refused = subprocess.run([udpd, "check", "-c", f"{work}/uring.toml"], capture_output=True, text=True)
if refused.returncode == 0:
    cut_and_laid_again("by io_uring that lets gather", 'engine = "io_uring"\ngather = "1ms"')
else:
    print(f"SKIPPED policies_on_veth.sh: the part with io_uring: {refused.stderr.strip()}")
cut_and_laid_again("spread at random, which is a program of the group", 'spread = "random"')

A, B, OTHER = "239.8.1.1", "239.8.1.2", "239.8.1.9"
A6, B6, OTHER6 = "ff15::8:1", "ff15::8:2", "ff15::8:9"
V4, V4B, V6, V6B = "10.8.0.2", "10.8.0.3", "2001:db8::2", "2001:db8::3"
multicast("any source, a wildcard of IPv4, two lanes",
          f'address = "0.0.0.0:{PORT}"\nmulticast_groups = ["{A}", "{B}"]\nmulticast_interface = "card0"\nlanes = 2',
          [(V4, A), (V4B, A), (V4, B), (V4, "10.8.0.1")], [(V4, OTHER), (V6, A6)])
multicast("any source, one socket for both families, bound to the interface",
          f'address = "[::]:{PORT}"\nmulticast_groups = ["{A}", "{A6}", "{B6}"]\ninterface = "card0"',
          [(V4, A), (V6, A6), (V6B, B6), (V6, "2001:db8::1")], [(V4, B), (V6, OTHER6)])
multicast("bound to the groups",
          f'address = ["{A}:{PORT}", "[{A6}]:{PORT}"]\nmulticast_groups = ["{A}", "{A6}"]\n'
          'multicast_interface = "card0"',
          [(V4, A), (V6, A6)], [(V4, B), (V6, B6), (V4, "10.8.0.1")])
multicast("from chosen sources",
          f'address = "[::]:{PORT}"\nmulticast_groups = ["232.8.1.1", "ff35::8:1"]\nsources = ["{V4}", "{V6}"]\n'
          'multicast_interface = "card0"',
          [(V4, "232.8.1.1"), (V6, "ff35::8:1")], [(V4B, "232.8.1.1"), (V6B, "ff35::8:1")])

# A cable has no queue that could be polled, and an ordinary user may not have all of it, which is how much depends on
# the kernel: each is said once, and nothing is lost.
for prefix, words in [([], "busy_poll has nothing to poll"),
                      (unprivileged, "works only in part: receivers")]:
    lay()
    daemon = Daemon(f'address = "0.0.0.0:{PORT}"\nlanes = 2\nbusy_poll = "50us"', prefix)
    send([V4, "10.8.0.1", PORT, 1000, "polled"])
    daemon.wait_for_line(words)
    # Two more looks of the daemon, which asks for its drops once a second: nothing more is said.
    time.sleep(2.2)
    daemon.end(1000)
    warnings = [line for line in open(f"{daemon.directory}/log") if line.startswith("warn") and "busy_poll" in line]
    if len(warnings) != 1 + (len(prefix) > 0 and "nothing to poll" in warnings[-1]):
        daemon.fail(f"not one warning: {warnings}")
    cut()
    print(f"passed: busy_poll, {words}")

# What somebody else of the host has joined does not reach a listener that has joined nothing.
lay()
stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stranger.bind(("0.0.0.0", 9))
stranger.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                    struct.pack("4s4si", socket.inet_aton(A), b"\0" * 4, socket.if_nametoindex("card0")))
daemon = Daemon(f'address = "0.0.0.0:{PORT}"\nlanes = 2')
send([V4, A, PORT, 100, "foreign"], [V4, "10.8.0.1", PORT, 100, "own"])
daemon.wait_for("the own arrive", lambda ledger: ledger["arrived"] >= 100)
daemon.end(100)
print("passed: what others have joined is not heard")
END
python3 "$work/rig.py" "$work" "$other"
