#!/usr/bin/env bash
# A relay whose destinations move: names whose answers change, whose resolver goes and comes back, that nobody knows at
# the start, or that lead back to udpd itself; and a link-local address on an interface that is removed and comes back
# with another number. Every datagram is delivered where the destination is, or counted. The resolver is one of our own,
# in a network and a mount namespace of its own. Needs root, unshare, nsenter, ip and python3; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED names.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for namespaces"
for program in unshare nsenter ip python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${NAMES_RIG_INSIDE:-}" ]; then
    profile=${NAMES_RIG_PROFILE:-release}
    if [ "$profile" = release ]; then cargo build --release --bin udpd; else cargo build --bin udpd; fi
    NAMES_RIG_WORK=$(mktemp -d)
    trap 'rm -rf "$NAMES_RIG_WORK"' EXIT
    NAMES_RIG_UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/$profile/udpd")
    export NAMES_RIG_WORK NAMES_RIG_UDPD NAMES_RIG_INSIDE=1
    unshare --net --mount bash tests/rigs/names.sh
    exit
fi
work=$NAMES_RIG_WORK

# What the resolver of the C library reads here, and nobody else.
mkdir "$work/etc"
echo "nameserver 127.0.0.53" >"$work/etc/resolv.conf"
echo "options timeout:1 attempts:1" >>"$work/etc/resolv.conf"
echo "127.0.0.1 localhost" >"$work/etc/hosts"
echo "hosts: files dns" >"$work/etc/nsswitch.conf"
for file in resolv.conf hosts nsswitch.conf; do
    [ -e "/etc/$file" ] || skip "a file /etc/$file to put another in the place of"
    mount --bind "$work/etc/$file" "$(realpath "/etc/$file")"
done
mount -t sysfs sys /sys
ip link set lo up
unshare --net sleep 600 &
other=$!
trap 'kill "$other" 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
python3 tests/rigs/names/run.py "$NAMES_RIG_UDPD" "$work" "$other"
