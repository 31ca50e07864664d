#!/usr/bin/env bash
# The kernel's own names for its drops: a full buffer, no listener, a bad checksum and a wrong way back, each provoked
# in a network namespace and watched by a process that is nobody and has CAP_PERFMON alone. Root only reads the two
# files that describe the tracepoints. tracefs is mounted in a mount namespace of this script.
# Needs root, ip, setpriv and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED drop_reasons.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"
unshare --mount mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || skip "a kernel with tracefs"
events=events/skb/kfree_skb/format
unshare --mount sh -c "mount -t tracefs t /sys/kernel/tracing && grep -q NO_SOCKET /sys/kernel/tracing/$events" ||
    skip "a kernel that names its drops (Linux 5.17)"

# One namespace for who loses, which this shell enters by running itself again.
if [ -z "${DROP_REASONS_RIG_INSIDE:-}" ]; then
    cargo build --release -p udpd-hostloss --example drops
    cargo test --release -p udpd-hostloss --test drops --no-run
    DROP_REASONS_RIG_INSIDE=1 unshare --net --mount bash tests/rigs/drop_reasons.sh
    exit
fi

mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up
work=$(mktemp -d)
unshare --net sleep infinity &
other=$!
trap 'kill $other 2>/dev/null || true; rm -rf "$work"' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add here type veth peer name there netns "$other"
ip address add 10.9.0.1/24 dev here
ip link set here up
echo 1 >/proc/sys/net/ipv4/conf/here/rp_filter
nsenter --target "$other" --net sh -c 'ip address add 10.9.0.2/24 dev there && ip link set there up'

# What root hands on: the text of two files.
chmod 755 "$work"
install -m 755 "${CARGO_TARGET_DIR:-target}/release/examples/drops" "$work/drops"
install -m 444 /sys/kernel/tracing/events/udp/udp_fail_queue_rcv_skb/format "$work/udp_fail"
install -m 444 /sys/kernel/tracing/events/skb/kfree_skb/format "$work/kfree_skb"

echo "---- the tests of the crate, with counts compared to the socket's own"
cargo test --release -q -p udpd-hostloss --test drops -- --nocapture 2>&1 | tee "$work/tests"
if grep -q "^not tested" "$work/tests"; then
    echo "FAILED: root may not watch here"
    exit 1
fi
echo "---- one right and no other"
python3 -B tests/rigs/drop_reasons/cases.py "$work" "$other"
