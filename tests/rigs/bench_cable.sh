#!/usr/bin/env bash
# The bench on a cable: `udpd bench max --engine af_xdp` and `udpd bench ladder --interface`. On a cable of its own it
# leaves no trace in the namespace that it was started in; on two interfaces that are named, every frame that it says it
# has sent is in the receiver's own counter; and what cannot be measured is refused with its reason and the cure.
# Nothing outside of namespaces made here is touched. Needs root, ip, setpriv and python3; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED bench_cable.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${BENCH_CABLE_INSIDE:-}" ]; then
    cargo build --release --bin udpd
    BENCH_CABLE_INSIDE=1 unshare --net --mount bash tests/rigs/bench_cable.sh \
        "$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")"
    exit
fi

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
ip link set lo up
ip link add card0 type veth peer name card1 || skip "a kernel with veth"
ip address add 10.8.0.1/24 dev card0
for card in card0 card1; do ip link set "$card" up; done

python3 - "$1" <<'END'
import json, os, subprocess, sys

udpd = sys.argv[1]
SHORT = ["--seconds", "0.3", "--rate", "5k..20k", "--precision", "50%", "--json"]


def bench(*arguments, status=0, prefix=()):
    done = subprocess.run([*prefix, udpd, "bench", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != status:
        sys.exit(f"FAILED: bench {' '.join(arguments)}: exit {done.returncode}, not {status}: {done.stderr}")
    return json.loads(done.stdout)["report"] if status == 0 else done.stderr


def links():
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout


def received(interface):
    with open("/proc/net/dev") as file:
        return int(next(line for line in file if line.split(":")[0].strip() == interface).split(":")[1].split()[1])


def must(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def must_add_up(report):
    must(report["trials"], "no trial")
    for trial in report["trials"]:
        must(trial["sent"] == trial["delivered"] + sum(trial["lost"].values()), f"does not add up: {trial}")
    must(any(trial["delivered"] for trial in report["trials"]), "nothing was delivered")


# A cable of its own, which nobody outside sees.
before = (links(), os.readlink("/proc/self/ns/net"), open("/proc/self/mounts").read())
own = bench("max", "--engine", "af_xdp", "--to", "null:", "--flows", "100k", *SHORT)
must_add_up(own)
must(any("virtual cable" in line for line in own["changed"]), f"it does not say where: {own['changed']}")
ladder = bench("ladder", "--interface", "--steps", "pinned,io_uring,af_xdp,af_xdp_gather", "--rounds", "1",
               "--seconds", "0.2", "--rate", "20k", "--json")
for row in ladder["steps"]:
    if row["obstacle"] is not None:
        must(row["step"] == "io_uring", f"an obstacle: {row}")
        continue
    must(row["offered"] == row["received"] + sum(row["lost"].values()), f"does not add up: {row}")
    must(row["received"] > 0, f"nothing was received: {row}")
must(before == (links(), os.readlink("/proc/self/ns/net"), open("/proc/self/mounts").read()), "it has left something")
print("passed: a cable of its own")

# Two interfaces that are wired to each other. The receiver's counter knows nothing of the bench.
for engine in ("af_xdp", "recvmmsg"):
    start = received("card0")
    named = bench("max", "--engine", engine, "--interface", "card0", "--from", "card1", "--to", "null:", *SHORT)
    must_add_up(named)
    sent, came = sum(trial["sent"] for trial in named["trials"]), received("card0") - start
    # The kernel itself may have something to say to its neighbours.
    must(sent <= came <= sent + 50, f"{engine}: {sent} sent, and {came} came")
    must("prog/xdp" not in links(), "its program has stayed")
    print(f"passed: two interfaces, {engine}: {sent} sent, {came} counted by the receiver")

LONE = ["--to", "null:", "--interface", "card0"]
for arguments, status, words in (
    (["--to", "null:", "--interface", "card7", "--from", "card1"], 69, "ip link"),
    (["--to", "null:", "--interface", "card1", "--from", "card0"], 69, "ip address add"),
    (["--to", "null:", "--interface", "lo", "--from", "card0"], 69, "is loopback"),
    (LONE, 2, "--from IF"),
    ([*LONE, "--from", "card1", "--gso", "4"], 2, "--gso"),
    ([*LONE, "--from", "card1", "--threads", "2"], 2, "--threads"),
    (["--to", "null:", "--from", "card1"], 2, "--interface"),
    (["--engine", "af_xdp", "--to", "null:", "--real-sinks"], 2, "--interface IF --from IF"),
):
    said = bench("max", *arguments, status=status)
    must(words in said, f"bench max {' '.join(arguments)} says {said!r}")
subprocess.run(["ip", "route", "add", "default", "dev", "card1"], check=True)
said = bench("max", *LONE, "--from", "card1", *SHORT, status=2)
must("--despite-default-route" in said, said)
must_add_up(bench("max", *LONE, "--from", "card1", "--despite-default-route", *SHORT))
said = bench("ladder", "--interface", "--sizes", status=2)
must("--sizes" in said, said)
nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
said = bench("max", "--engine", "af_xdp", "--to", "null:", status=77, prefix=nobody)
must("CAP_SYS_ADMIN" in said, said)
print("passed: what cannot be measured is refused with its reason")
END
