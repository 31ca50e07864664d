#!/usr/bin/env bash
# A cable with four queues between two network namespaces: udpd bound to one end by name receives from the other, its
# lanes are as many as the cable has queues, and when the cable is cut under it the books still close. Nothing outside
# of the two namespaces is touched. Needs root, ip and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED veth.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

cargo build --release --bin udpd
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
work=$(mktemp -d)
# One namespace for udpd, which this shell enters by running itself again, and one for the other end.
if [ -z "${VETH_RIG_INSIDE:-}" ]; then
    trap 'rm -rf "$work"' EXIT
    VETH_RIG_INSIDE=1 VETH_RIG_WORK=$work unshare --net --mount bash "tests/rigs/veth.sh"
    exit
fi
rmdir "$work"
work=$VETH_RIG_WORK

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep 120 &
other=$!
daemon=
trap 'kill $other ${daemon:+$daemon} 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

ip link set lo up
ip link add card0 numrxqueues 4 numtxqueues 4 type veth peer name card1 numrxqueues 4 numtxqueues 4 netns "$other"
ip address add 10.8.0.1/24 dev card0
ip link set card0 up
nsenter --target "$other" --net sh -c 'ip address add 10.8.0.2/24 dev card1 && ip link set card1 up'

fail() {
    echo "FAILED: $*"
    cat "$work/log"
    exit 1
}

# What a cable cannot be steered by is said, and nothing is changed.
if "$udpd" steer plan card0 2>"$work/log"; then fail "a cable has a plan"; fi
grep -q "virtual cable" "$work/log" || fail "why a cable has no plan is not said"

cat >"$work/udpd.toml" <<END
[daemon]
control_socket = "$work/control.sock"
metrics_address = ""
stats_on_exit = "$work/ledger.json"
[[listener]]
name = "in"
address = "0.0.0.0:5140"
interface = "card0"
sinks = ["nothing"]
[sink.nothing]
type = "null"
END
"$udpd" run -c "$work/udpd.toml" 2>"$work/log" &
daemon=$!
timeout 20 sh -c "until grep -q ready: $work/log; do sleep 0.05; done" || fail "udpd is not ready"
# One lane for each queue, and with fewer cores than queues one for each core.
lanes=$(($(nproc) < 4 ? $(nproc) : 4))
grep -q "ready: $lanes lanes receive" "$work/log" || fail "not one lane for each queue or core"

cat >"$work/send.py" <<'END'
import socket, time
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(64)]
for number in range(20000):
    senders[number % 64].sendto(b"x" * 200, ("10.8.0.1", 5140))
    if number % 50 == 49:
        time.sleep(0.001)
END
nsenter --target "$other" --net python3 "$work/send.py"
arrived() {
    "$udpd" stats --json --socket "$work/control.sock" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["listeners"][0]["arrived"])'
}
for _ in $(seq 100); do [ "$(arrived)" = 20000 ] && break; sleep 0.05; done
[ "$(arrived)" = 20000 ] || fail "$(arrived) of 20000 arrived"
echo "passed: 20000 of 20000 over the cable, $lanes lanes"

# The cable is cut while udpd runs.
ip link del card0
sleep 0.2
kill -0 $daemon || fail "udpd did not survive the end of its interface"
kill $daemon
wait $daemon || fail "udpd ended with $?"
daemon=
python3 - "$work/ledger.json" <<'END' || fail "the ledger does not close"
import json, sys
listener = json.load(open(sys.argv[1]))["listeners"][0]
sink = listener["sinks"][0]
assert (listener["arrived"], listener["residual"]) == (20000, 0), listener
assert sink["delivered"] + sum(sink["dropped"].values()) == listener["received"], sink
END
echo "passed: the cable was cut, udpd went on, the ledger closes"
