#!/usr/bin/env bash
# A file system that stands still under a file sink, and goes on: nothing is lost for as long as `absorb` asks for. Lone
# datagrams and bursts of 16, of 20 to 9,000 bytes, at 100 to 100,000 a second. The file system is ext4 on a loop device
# in a mount namespace of its own; `fsfreeze` stops it. stalls/campaign.py makes the runs.
# Then stalls/frozen.py: it stands for longer, the log names the sink, and twelve reloads go on meanwhile.
#
# As it stands: a few cells. All of them, and a table with the date:
#
#     RUNS=all tests/rigs/stalls.sh --record benches/runs/DATE-HOST
#
# UDPD names another binary. Needs root; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED stalls.sh: $1"
    exit 0
}

if [ -z "${STALLS_INSIDE:-}" ]; then
    [ "$(id -u)" -eq 0 ] || skip "needs root, to mount a file system of its own and to freeze it"
    for tool in python3 unshare losetup mkfs.ext4 fsfreeze; do
        command -v "$tool" >/dev/null || skip "needs $tool"
    done
    unshare --mount true 2>/dev/null || skip "needs the right to make a mount namespace"
    [ -n "${UDPD:-}" ] || cargo build --release --bin udpd
    STALLS_INSIDE=yes exec unshare --mount --propagation private "$0" "$@"
fi

work=$(mktemp -d)
loop=

# A frozen file system can neither be unmounted nor written back.
clean_up() {
    fsfreeze -u "$work/disk" 2>/dev/null || true
    umount -l "$work/disk" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 143' TERM INT

mkdir "$work/disk"
truncate -s 512M "$work/image"
mkfs.ext4 -q -F "$work/image"
loop=$(losetup --show -f "$work/image" 2>/dev/null) || { loop=; skip "no loop device can be had here"; }
mount "$loop" "$work/disk" 2>/dev/null || skip "cannot mount ext4 here"
fsfreeze -f "$work/disk" 2>/dev/null || skip "this kernel does not freeze ext4"
fsfreeze -u "$work/disk"
[ "${RUNS:-}" != all ] || set -- --all "$@"
python3 -B tests/rigs/stalls/campaign.py --program "${UDPD:-target/release/udpd}" --directory "$work" \
    --disk "$work/disk" "$@"
# The same for longer than any queue lasts, with reloads meanwhile.
python3 -B tests/rigs/stalls/frozen.py --program "${UDPD:-target/release/udpd}" --directory "$work" --disk "$work/disk"
