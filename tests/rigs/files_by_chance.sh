#!/usr/bin/env bash
# Files by source under deeds by chance: configurations, payloads and what is done beside the daemon are drawn from a
# seed. It is reloaded, restarted and killed; files and directories are moved away; lists are removed; links, pipes and
# other people's files stand in its places; the disk is full for a while. Every file that was ever written is read back
# byte for byte by somebody who does not believe the ledger, see tests/rigs/files_by_chance/campaign.py. Prints the seed
# of each round; SEED=N repeats one. LONG=1 goes through 400 rounds instead of 12; UDPD names a binary. Needs root, for
# a mount namespace, and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED files_by_chance.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for a mount namespace"
for program in unshare mount python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a mount namespace"

if [ -z "${CHANCE_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        cargo build --release --bin udpd
        UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    install -m 755 "$UDPD" "$work/udpd"
    CHANCE_RIG_INSIDE=1 unshare --net --mount bash "$0" "$work"
    exit
fi

ip link set lo up 2>/dev/null || ifconfig lo up
mkdir "$1/disk"
mount -t tmpfs -o size=24m tmpfs "$1/disk"
python3 -B tests/rigs/files_by_chance/campaign.py "$1"
