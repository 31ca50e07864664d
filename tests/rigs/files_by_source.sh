#!/usr/bin/env bash
# Files by source from senders that nobody has: frames with 10,000 source addresses come over a cable between two
# network namespaces, of which 1,000 files are open at once, and then as many again as the sink lets in at all. Counted
# by somebody who does not trust the ledger: every line of every file begins with the address that names the file, and
# there are as many lines as were delivered. Prints resident memory before and after, as a figure; the rig fails when it
# has grown by more than `check` printed for sinks. In the middle the daemon is killed by SIGKILL, and the files of the
# next one parse. LONG=1: 200,000/s for 60 s, and nothing may be lost; for a quiet machine and a release build.
# Takes an own program as UDPD=PATH. Needs root, ip and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED files_by_source.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${FILES_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        cargo build --release --bin udpd
        UDPD=${CARGO_TARGET_DIR:-target}/release/udpd
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    FILES_RIG_INSIDE=1 WORK=$work UDPD=$(realpath "$UDPD") unshare --net --mount bash tests/rigs/files_by_source.sh
    exit
fi

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep 600 >/dev/null 2>&1 &
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

there() {
    nsenter --target "$other" --net "$@"
}
ip link set lo up
ip link add card0 type veth peer name card1 netns "$other"
ip address add 10.8.0.1/24 dev card0
ip link set card0 up
there ip address add 10.8.0.2/24 dev card1
there ip link set card1 up
there ip link set lo up
# The addresses of the senders are nobody's, and no route but this leads back to them.
for key in all default card1; do there sh -c "echo 0 >/proc/sys/net/ipv4/conf/$key/rp_filter"; done
there ip route add 198.18.0.0/15 dev card1
ip neigh replace 10.8.0.2 dev card0 lladdr "$(there ip -br link show card1 | awk '{print $3}')"

python3 tests/rigs/files_by_source/rig.py "$UDPD" "$WORK" "$other" "${LONG:-}"
