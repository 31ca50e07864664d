#!/usr/bin/env bash
# A host that tells nothing, and one that has nothing. Without /sys (an empty directory in its place) udpd checks,
# starts, receives and closes its books, and says once what it has to assume. In a control group with 16 MiB of memory
# a longer queue ends it with 78 and the sum, where the kernel would have killed it without a word; with the defaults it
# runs there.
# Needs root, for a mount namespace and a control group, and python3, to send; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED poor_host.sh: $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "needs root, for a mount namespace and a control group"
for program in unshare python3; do command -v "$program" >/dev/null || skip "needs $program"; done
unshare --mount true 2>/dev/null || skip "needs the right to make a mount namespace"

cargo build --release --bin udpd
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
work=$(mktemp -d)
daemon=
group=

clean_up() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $1"
    cat "$work/log" 2>/dev/null || true
    exit 1
}

# A port on loopback that nobody holds, below those that the kernel gives away.
port=$(python3 -c '
import random, socket
while True:
    port = random.randrange(20000, 32000)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", port))
        print(port)
        break
    except OSError:
        pass')

# Writes a configuration: lines of the listener, lines of the sink.
configure() {
    cat >"$work/udpd.toml" <<END
[daemon]
control_socket = "$work/control.sock"
metrics_address = ""
stats_on_exit = "$work/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:$port"
$1
sinks = ["out"]
[sink.out]
type = "null"
$2
END
}

# Starts udpd by the command in front of it and waits until it is ready, for 1000 datagrams, and for its end.
receives_a_thousand_by() {
    rm -f "$work/ledger.json"
    "$@" "$udpd" run -c "$work/udpd.toml" >"$work/log" 2>&1 &
    daemon=$!
    until grep -q "ready: " "$work/log"; do
        kill -0 "$daemon" 2>/dev/null || fail "it has ended before it was ready"
        sleep 0.05
    done
    python3 - "$port" <<'END'
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(1000):
    sender.sendto(b"hello", ("127.0.0.1", int(sys.argv[1])))
END
    kill -TERM "$daemon"
    wait "$daemon" || fail "it did not end well"
    daemon=
    python3 - "$work/ledger.json" <<'END' || fail "the ledger does not close over 1000 datagrams"
import json, sys
listener = json.load(open(sys.argv[1]))["listeners"][0]
sys.exit((listener["arrived"], listener["residual"]) != (1000, 0))
END
}

# A directory that is not /sys in its place; then one that nobody may read.
for mode in 755 000; do
    hidden="mount -t tmpfs -o mode=$mode none /sys"
    # Root may read everything, unless it gives that right away.
    without_rights="setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-all"
    command -v setpriv >/dev/null || without_rights=
    configure "lanes = 2" ""
    unshare --mount sh -c "$hidden && exec $without_rights $udpd check -c $work/udpd.toml" >"$work/log" 2>&1 ||
        fail "check does not pass"
    grep -q "^warning: cannot read the cores of this machine below /sys: .* one memory node" "$work/log" ||
        fail "check does not say what it assumes"
    receives_a_thousand_by unshare --mount sh -c "$hidden && exec $without_rights \"\$@\"" sh
    [ "$(grep -c "^warn: cannot read the cores of this machine" "$work/log")" = 1 ] || fail "it is not said once"
    grep -q "listener in, lane 1: .* core [0-9]*, node 0" "$work/log" || fail "the lanes have no core"
done
echo "passed: without /sys it receives on the cores that it may use, and says so once"

# Where control groups limit memory: the second version, or the first. A group needs the controller from its parent.
own_of() { sed -n "s|^$1:||p" /proc/self/cgroup; }
unified=$(awk '$9 == "cgroup2" || $10 == "cgroup2" { print $5 }' /proc/self/mountinfo | head -n 1)
if [ -n "$unified" ] && grep -qw memory "$unified$(own_of 0:)/../cgroup.subtree_control" 2>/dev/null; then
    group=$unified$(dirname "$(own_of 0:)")/udpd-rig-$$
    limit=memory.max
elif memory=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup) && [ -n "$memory" ]; then
    group=$(awk '/ - cgroup .*[ ,]memory(,|$)/ { print $5 }' /proc/self/mountinfo | head -n 1)$memory/udpd-rig-$$
    limit=memory.limit_in_bytes
else
    echo "SKIPPED poor_host.sh: the part with 16 MiB: no control group for memory is to be had here"
    exit 0
fi
if ! mkdir "$group" 2>/dev/null || ! echo $((16 << 20)) >"$group/$limit" 2>/dev/null; then
    rmdir "$group" 2>/dev/null || true
    group=
    echo "SKIPPED poor_host.sh: the part with 16 MiB: cannot make a control group for memory here"
    exit 0
fi
in_group="echo \$\$ >$group/cgroup.procs && exec \"\$@\""

configure "" 'queue_bytes = "16MiB"'
for command in check run; do
    status=0
    sh -c "$in_group" sh "$udpd" $command -c "$work/udpd.toml" >"$work/log" 2>&1 || status=$?
    [ $status = 78 ] || fail "$command ends with $status in 16 MiB"
    for words in "in batches" "allows 16.0 MiB" "$limit" "lower queue_bytes (16MiB of sink out)"; do
        grep -qF "$words" "$work/log" || fail "$command does not say: $words"
    done
done
configure "" ""
receives_a_thousand_by sh -c "$in_group" sh
echo "passed: 16 MiB are too little for a queue of 16 MiB, which is said, and enough for the defaults"
