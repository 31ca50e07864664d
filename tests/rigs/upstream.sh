#!/usr/bin/env bash
# Real exporters behind a network that loses, repeats and reorders: softflowd for NetFlow 5, NetFlow 9 and IPFIX,
# senders of our own for sFlow and RTP. A relay between them and udpd knows what it did, and udpd must say the same.
# Everything happens in a network namespace of its own. Needs root, unshare, ip, python3 and softflowd; skips with its
# reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED upstream.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for a network namespace"
for program in unshare ip python3 softflowd; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net true 2>/dev/null || skip "the right to make a network namespace"

profile=${UPSTREAM_RIG_PROFILE:-release}
if [ "$profile" = release ]; then cargo build --release --bin udpd; else cargo build --bin udpd; fi
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/$profile/udpd")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unshare --net sh -c "ip link set lo up && exec python3 tests/rigs/upstream/relay.py '$udpd' '$work'"
