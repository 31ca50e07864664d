#!/usr/bin/env bash
# The daemon with engine = "af_xdp" on a cable between two network namespaces, judged by numbers in what it wrote: what
# was sent is delivered once or dropped by a named reason, whatever the sinks do, and however the daemon ends. Ping, a
# server on another port and tcpdump go on beside it, and hostile frames give what an ordinary socket gets.
# XDP_RIG_FRAMES says how many such frames (4000), XDP_RIG_ROUNDS how often what happens under load is tried (2, with
# LONG=1 20), XDP_RIG_RATE how many frames a second the generator makes for it (50000, with LONG=1 500000 and a release
# build), and XDP_RIG_CASES which cases (all; their names stand at the end of xdp/daemon.py).
# Nothing outside of the two namespaces is touched. Needs root, ip, setpriv and python3; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED xdp_daemon.sh: needs $1"
    # Within the namespaces 3 says that to who entered them.
    [ -n "${XDP_RIG_INSIDE:-}" ] && exit 3
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${XDP_RIG_INSIDE:-}" ]; then
    if [ -z "${LONG:-}" ]; then cargo build --bin udpd; else cargo build --release --bin udpd; fi
    XDP_RIG_INSIDE=1 unshare --net --mount bash tests/rigs/xdp_daemon.sh || { [ $? -eq 3 ] && exit 0 || exit 1; }
    exit
fi

# AF_XDP is below the reverse path filter, an ordinary socket above it: without it the two can be compared.
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
ip link set lo up
ip link add probe0 type veth peer name probe1 || skip "a kernel with veth"
ip link del probe0
work=$(mktemp -d)
unshare --net sleep infinity &
other=$!
trap 'kill $other 2>/dev/null || true; rm -rf "$work"' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

# Somebody without rights must be able to start it.
chmod 755 "$work"
[ -z "${LONG:-}" ] && profile=debug || profile=release
install -m 755 "${CARGO_TARGET_DIR:-target}/$profile/udpd" "$work/udpd"
python3 -B tests/rigs/xdp/daemon.py "$work" "$other"
