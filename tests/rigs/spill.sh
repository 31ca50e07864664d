#!/usr/bin/env bash
# A daemon that is killed with SIGKILL in the middle of spilling and in the middle of sending what it has spilled, a
# peer that is away for a while under load, a spill on a disk that is full, and one on a disk that fails: nothing is
# lost that was accepted but what is counted, each sender's order is kept, nothing comes twice but after a kill and
# then no more than the daemon says, and the books close. See tests/rigs/spill/campaign.py and faults.py beside it for
# how that is counted. LONG=1 kills 50 times each instead of 3, has the peer away for 60 s at 50,000/s, and tries more
# failures of the disk, and 200 disks of each kind that are full at sizes by chance; UDPD names a binary. Needs root,
# for a mount namespace, and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED spill.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for a mount namespace"
for program in unshare mount python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a mount namespace"

if [ -z "${SPILL_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        cargo build --release --bin udpd
        UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    install -m 755 "$UDPD" "$work/udpd"
    SPILL_RIG_INSIDE=1 unshare --net --mount bash "$0" "$work"
    exit
fi

ip link set lo up 2>/dev/null || ifconfig lo up
mkdir "$1/disk"
mount -t tmpfs -o size=8m tmpfs "$1/disk"
python3 -B tests/rigs/spill/campaign.py "$1"
