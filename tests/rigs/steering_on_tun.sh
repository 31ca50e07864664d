#!/usr/bin/env bash
# A multi-queue TUN as a network card that obeys: the descriptor written to chooses the receive queue, the core of the
# writer the core of the softirq. From each queue and on each core, every datagram must reach the lane that the table
# names, and must be counted where it came from and where it arrived. Needs root, for a network namespace of its own,
# /dev/net/tun and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing=
[ "$(id -u)" -eq 0 ] || missing="root, for a network namespace"
[ -c /dev/net/tun ] || missing="/dev/net/tun"
for program in unshare ip python3; do command -v "$program" >/dev/null || missing=$program; done
if [ -z "$missing" ] && ! unshare --net --mount true 2>/dev/null; then
    missing="the right to make a network namespace"
fi
if [ -n "$missing" ]; then
    echo "SKIPPED steering_on_tun.sh: needs $missing"
    exit 0
fi

cargo build --release --bin udpd
cargo build --release -p mmsg --example arrivals
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
arrivals=$(realpath "${CARGO_TARGET_DIR:-target}/release/examples/arrivals")
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

cat >"$directory/rig.py" <<'EOF'
import fcntl, json, os, signal, socket, struct, subprocess, sys, time

udpd, arrivals, directory = sys.argv[1:]
QUEUES, EACH, ADDRESS = 4, 1000, "10.77.0.1"
TUNSETIFF, TUN_NO_INFORMATION_MULTI_QUEUE = 0x400454CA, 0x1101

def open_queue():
    queue = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(queue, TUNSETIFF, struct.pack("16sH22x", b"card0", TUN_NO_INFORMATION_MULTI_QUEUE))
    return queue

def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def packet(source_port, port):
    payload = b"x" * 32
    udp = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload
    def header(check):
        addresses = socket.inet_aton("10.77.0.2") + socket.inet_aton(ADDRESS)
        return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, check) + addresses
    return header(checksum(header(0))) + udp

def run(spread, lanes, port):
    """Starts udpd and returns it with a way to ask for its lanes."""
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(f"{directory}/notify-{port}")
    ready.settimeout(60)
    with open(f"{directory}/{port}.toml", "w") as file:
        file.write(f'''
[daemon]
control_socket = "{directory}/{port}.sock"
metrics_address = ""
stats_on_exit = "{directory}/{port}.json"
[[listener]]
name = "in"
address = "{ADDRESS}:{port}"
interface = "card0"
lanes = {lanes}
spread = "{spread}"
sinks = ["out"]
[sink.out]
type = "null"
''')
    daemon = subprocess.Popen([udpd, "run", "-c", f"{directory}/{port}.toml"],
                              env={"NOTIFY_SOCKET": f"{directory}/notify-{port}"}, stderr=subprocess.PIPE, text=True)
    while b"READY=1" not in ready.recv(4096):
        pass
    def ask():
        answer = subprocess.check_output([udpd, "stats", "--json", "--socket", f"{directory}/{port}.sock"])
        return json.loads(answer)["listeners"][0]
    return daemon, ask

def compare(spread, lanes, port, queues, cores, wanted):
    """Sends from every queue on every core; `wanted(queue, core, lanes)` is the number of the right lane."""
    daemon, ask = run(spread, lanes, port)
    before, sent = ask(), 0
    for queue, descriptor in enumerate(queues):
        for core in cores:
            os.sched_setaffinity(0, {core})
            for number in range(EACH):
                os.write(descriptor, packet(10000 + number, port))
            os.sched_setaffinity(0, set(cores))
            sent += EACH
            deadline = time.monotonic() + 60
            while (after := ask())["received"] < sent:
                assert time.monotonic() < deadline, f"only {after['received']} of {sent} have come: {after}"
            got = [new["received"] - old["received"] for new, old in zip(after["lanes"], before["lanes"])]
            right = wanted(queue, core, after["lanes"])
            assert got == [EACH if lane == right else 0 for lane in range(len(got))], \
                f"{spread}: queue {queue}, core {core}: lane {right} is right, and the lanes got {got}: {after}"
            before = after
    daemon.send_signal(signal.SIGTERM)
    stderr = daemon.communicate(timeout=60)[1]
    assert daemon.returncode == 0, stderr
    ledger = json.load(open(f"{directory}/{port}.json"))["listeners"][0]
    assert ledger["arrived"] == sent and ledger["residual"] == 0, ledger
    print(f"passed: spread = \"{spread}\", {len(queues)} queues x {len(cores)} cores: "
          f"{sent} of {sent} on the lane of the table")
    return ledger

def count(port, queues, cores):
    """What the counter says of datagrams whose queue and core are known, another number of each."""
    counter = subprocess.Popen([arrivals, f"{ADDRESS}:{port}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    if counter.stdout.readline() != "counting\n":
        print(f"NOT CHECKED: the counter by queue: {counter.communicate()[1].strip()}")
        return
    sent = []
    for core in cores:
        os.sched_setaffinity(0, {core})
        for queue, descriptor in enumerate(queues):
            here = EACH + 100 * queue + core
            for number in range(here):
                os.write(descriptor, packet(10000 + number, port))
            sent.append(f"queue {queue} core {core}: {here}")
    os.sched_setaffinity(0, set(cores))
    told = counter.communicate()[0].splitlines()
    assert told == sent, f"counted {told}, sent {sent}"
    print(f"passed: the counter tells {len(queues)} queues x {len(cores)} cores apart, to the datagram")

subprocess.check_call(["mount", "-t", "sysfs", "sysfs", "/sys"])  # shows the interfaces of this namespace from here on
queues = [open_queue() for _ in range(QUEUES)]
for command in ("link set lo up", f"addr add {ADDRESS}/24 dev card0", "link set card0 up"):
    subprocess.check_call(["ip", *command.split()])
cores = sorted(os.sched_getaffinity(0))[:8]

# One lane for each queue, and with fewer cores than queues one for each core.
lanes = min(QUEUES, len(os.sched_getaffinity(0)))
by_queue = compare("queue", '"auto"', 5141, queues, cores, lambda queue, core, _: queue % lanes)
assert [lane["queue"] for lane in by_queue["lanes"]] == list(range(lanes)), by_queue
compare("queue", QUEUES, 5144, queues, cores, lambda queue, core, lanes: queue)
compare("queue", 3, 5142, queues, cores, lambda queue, core, lanes: queue % 3)
by_core = compare("cpu", len(cores), 5143, queues, cores,
                  lambda queue, core, lanes: next(lane["lane"] for lane in lanes if core == lane["cpu"]))
assert by_core["wrong_cpu"] is None, by_core
print("passed: nobody steers the interface, so no core is wrong")
count(5144, queues, cores)
EOF
unshare --net --mount python3 "$directory/rig.py" "$udpd" "$arrivals" "$directory"
