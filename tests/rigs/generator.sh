#!/usr/bin/env bash
# The generator of frames over a cable between two network namespaces, counted by somebody who does not trust it: the
# IP and UDP counters of the receiving namespace, which has checked every checksum, and `udpd bench recv`. Both engines,
# both families, several sizes, from one flow to a million; frames that the driver refuses; and every interface that
# may not be used. Nothing outside of the two namespaces is touched. Needs root, ip and python3; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED generator.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${GENERATOR_RIG_INSIDE:-}" ]; then
    cargo build --release --bin udpd
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    udpd=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
    GENERATOR_RIG_INSIDE=1 GENERATOR_RIG_WORK=$work GENERATOR_RIG_UDPD=$udpd unshare --net --mount \
        bash tests/rigs/generator.sh
    exit
fi

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep 600 &
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

there() {
    nsenter --target "$other" --net "$@"
}
ip link set lo up
ip link add card0 type veth peer name card1 netns "$other"
# The addresses of the flows are nobody's, and no route leads back to them.
for key in all default card0; do echo 0 >"/proc/sys/net/ipv4/conf/$key/rp_filter"; done
ip address add 10.8.0.1/24 dev card0
ip address add 2001:db8::1/64 dev card0 nodad
ip link set card0 up
there ip address add 10.8.0.2/24 dev card1
there ip address add 2001:db8::2/64 dev card1 nodad
there ip link set card1 up
there ip link set lo up

python3 tests/rigs/generator/rig.py "$GENERATOR_RIG_UDPD" "$GENERATOR_RIG_WORK" "$other"
