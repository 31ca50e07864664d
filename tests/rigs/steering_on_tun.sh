#!/usr/bin/env bash
# A multi-queue TUN as a network card that obeys: the descriptor written to chooses the receive queue, the core of the
# writer the core of the softirq. From each queue and on each core, every datagram must reach the lane that the table
# names, and what arrives on another core than the plan has for its queue must be counted exactly. Needs root, for a network namespace of its own, /dev/net/tun and python3; skips with its reason otherwise.
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
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

cat >"$directory/rig.py" <<'EOF'
import fcntl, json, os, signal, socket, struct, subprocess, sys, time

udpd, directory = sys.argv[1:]
QUEUES, EACH, ADDRESS = 4, 1000, "10.77.0.1"
TUNSETIFF, TUN_NO_INFORMATION_MULTI_QUEUE = 0x400454CA, 0x1101

def open_queue(card="card0"):
    queue = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(queue, TUNSETIFF, struct.pack("16sH22x", card.encode(), TUN_NO_INFORMATION_MULTI_QUEUE))
    return queue

def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def packet(source_port, port, address=ADDRESS):
    payload = b"x" * 32
    udp = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload
    def header(check):
        addresses = socket.inet_aton("10.77.0.2") + socket.inet_aton(address)
        return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, check) + addresses
    return header(checksum(header(0))) + udp

def run(spread, lanes, port, address=ADDRESS, card="card0", steer=""):
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
address = "{address}:{port}"
interface = "{card}"
lanes = {lanes}
spread = "{spread}"
sinks = ["out"]
[sink.out]
type = "null"
{steer}
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

def count(spread, port, queues, cores):
    """A card that is steered: from each queue on each core, what arrives on the core of another queue is wrong."""
    address = "10.78.0.1"
    daemon, ask = run(spread, '"auto"', port, address, "card1", '[steer]\ninterfaces = ["card1"]')
    planned = [lane["planned_cpus"] for lane in ask()["lanes"]]
    assert len(planned) == len(queues) and all(len(cores) == 1 for cores in planned), planned
    sent, wrong, by_queue = 0, 0, {}
    for queue, descriptor in enumerate(queues):
        for core in cores:
            here = EACH + 100 * queue + core
            os.sched_setaffinity(0, {core})
            for number in range(here):
                os.write(descriptor, packet(10000 + number, port, address))
            os.sched_setaffinity(0, set(cores))
            sent += here
            wrong += 0 if core in planned[queue] else here
            by_queue.setdefault(str(queue), {})[str(core)] = here
            deadline = time.monotonic() + 60
            while (after := ask())["received"] < sent:
                assert time.monotonic() < deadline, f"only {after['received']} of {sent} have come: {after}"
            if after["wrong_cpu"] is not None:
                assert after["wrong_cpu"] == wrong, f"{spread}: queue {queue}, core {core}: {wrong} are wrong: {after}"
    if after["wrong_cpu"] is None:
        print("passed: wrong_cpu by queue: NOT CHECKED without CAP_BPF")
    else:
        told = {}
        for lane in after["lanes"]:
            for queue, counts in lane["arrived_by_queue"].items():
                for core, arrived in counts.items():
                    cell = told.setdefault(queue, {})
                    cell[core] = cell.get(core, 0) + arrived
        assert told == by_queue, f"{told} is told, {by_queue} was sent"
        print(f"passed: spread = \"{spread}\": {wrong} of {sent} arrived on another core than their queue's, and "
              f"wrong_cpu is {after['wrong_cpu']}")
    daemon.send_signal(signal.SIGTERM)
    stderr = daemon.communicate(timeout=60)[1]
    assert daemon.returncode == 0, stderr

subprocess.check_call(["mount", "-t", "sysfs", "sysfs", "/sys"])  # shows the interfaces of this namespace from here on
queues = [open_queue() for _ in range(QUEUES)]
for command in ("link set lo up", f"addr add {ADDRESS}/24 dev card0", "link set card0 up"):
    subprocess.check_call(["ip", *command.split()])
cores = sorted(os.sched_getaffinity(0))[:8]
steered = [open_queue("card1") for _ in cores[:2]]
for command in ("addr add 10.78.0.1/24 dev card1", "link set card1 up"):
    subprocess.check_call(["ip", *command.split()])

by_queue = compare("queue", '"auto"', 5141, queues, cores, lambda queue, core, lanes: queue)
assert [lane["queue"] for lane in by_queue["lanes"]] == list(range(QUEUES)), "one lane for each queue"
compare("queue", 3, 5142, queues, cores, lambda queue, core, lanes: queue % 3)
by_core = compare("cpu", len(cores), 5143, queues, cores,
                  lambda queue, core, lanes: next(lane["lane"] for lane in lanes if core in lane["planned_cpus"]))
assert by_core["wrong_cpu"] in (0, None), by_core
print(f"passed: wrong_cpu is {by_core['wrong_cpu']}" +
      ("" if by_core["wrong_cpu"] == 0 else ": NOT CHECKED without CAP_BPF"))
count("cpu", 5144, steered, cores)
count("queue", 5145, steered, cores)
EOF
unshare --net --mount python3 "$directory/rig.py" "$udpd" "$directory"
