#!/usr/bin/env bash
# `udpd explain` before losses that are really there: each case is provoked in a network namespace, the right cause must
# be told first, and the cure that is printed, applied as it stands, must take the loss away. Nothing outside of the
# namespaces is changed, but for a control group that is made and removed. What only a card or the first namespace can
# do is provoked by steering_in_guest.sh, see guest/causes.py. Needs root, ip and python3, and nft for a case; skips
# with its reason otherwise. CASES="a b" runs only those. UDPD names a program to test instead of building one.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED explain.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 sysctl chrt setpriv; do
    command -v "$program" >/dev/null || skip "$program"
done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

# One namespace for udpd, which this shell enters by running itself again, and one for the other end.
if [ -z "${EXPLAIN_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        profile=${EXPLAIN_RIG_PROFILE:-release}
        cargo build --profile "$profile" --bin udpd
        UDPD=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/udpd
    fi
    binary=$(realpath "$UDPD")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp "$binary" "$work/udpd"
    EXPLAIN_RIG_INSIDE=1 EXPLAIN_RIG_WORK=$work unshare --net --mount bash "tests/rigs/explain.sh"
    exit
fi
work=$EXPLAIN_RIG_WORK
export PATH=$work:$PATH
unshare --net sleep infinity &
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

# sysfs shows the namespace it was mounted in; control groups and tracepoints stay where they were below it.
mkdir "$work/cgroup" "$work/tracing"
mount --rbind /sys/fs/cgroup "$work/cgroup" 2>/dev/null || true
mount -t sysfs sys /sys
mount --rbind "$work/cgroup" /sys/fs/cgroup 2>/dev/null || true
mount -t tracefs tracing /sys/kernel/tracing 2>/dev/null || true

ip link set lo up
ip link add card0 type veth peer name card1 netns "$other"
ip address add 10.9.0.1/24 dev card0
ip link set card0 up
nsenter --target "$other" --net sh -c \
    'ip address add 10.9.0.2/24 dev card1; ip link set card1 up; ip link set lo up; ip route add default via 10.9.0.1'

PYTHONPATH=$PWD/tests/rigs python3 -u tests/rigs/explain/run.py "$work" "$other"
