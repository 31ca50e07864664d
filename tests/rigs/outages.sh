#!/usr/bin/env bash
# An interface and an address that go and come back three times each while 50,000 datagrams a second are on their way to
# a running udpd, by each engine: it receives again within two seconds, and what the kernel could deliver meanwhile is
# in the file. See tests/rigs/outages/campaign.py for how that is counted. Nothing outside of two network namespaces is
# touched. RATE sets another rate, UDPD names a binary. Needs root, ip and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED outages.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${OUTAGES_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        cargo build --release --bin udpd
        UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    install -m 755 "$UDPD" "$work/udpd"
    OUTAGES_RIG_INSIDE=1 unshare --net --mount bash "$0" "$work"
    exit
fi

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep 600 &
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link set lo up
PYTHONPATH=tests/rigs/restarts python3 tests/rigs/outages/campaign.py "$1" "$other"
