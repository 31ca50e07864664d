#!/usr/bin/env bash
# AF_XDP on a cable between two network namespaces: the example af_xdp of mmsg receives at one end, and everything that
# was sent from the other is accounted for, to the datagram. What is delivered equals what an ordinary socket gets, byte
# for byte, of frames that are right, unusual, cut and damaged; ping and a server on another port work throughout.
# XDP_RIG_FRAMES says how many such frames (20000).
# Nothing outside of the two namespaces is touched. Needs root, ip, setpriv and python3; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED xdp.sh: needs $1"
    # Within the namespaces 3 says that to who entered them.
    [ -n "${XDP_RIG_INSIDE:-}" ] && exit 3
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3 setpriv; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

# One namespace for the receiver, which this shell enters by running itself again, and one for the other end.
# The tests of the crate have both ends in one.
faults=(env "RUSTFLAGS=--cfg mmsg_faults" CARGO_TARGET_DIR=target/faults)
if [ -z "${XDP_RIG_INSIDE:-}" ]; then
    cargo build -p mmsg --example af_xdp
    cargo test -p mmsg --test af_xdp --no-run
    "${faults[@]}" cargo test -p mmsg --test af_xdp --no-run
    XDP_RIG_INSIDE=cable unshare --net --mount bash tests/rigs/xdp.sh || { [ $? -eq 3 ] && exit 0 || exit 1; }
    XDP_RIG_INSIDE=tests unshare --net --mount bash tests/rigs/xdp.sh
    exit
fi

# AF_XDP is below the reverse path filter, an ordinary socket above it: without it the two can be compared.
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
ip link set lo up
ip link add probe0 type veth peer name probe1 || skip "a kernel with veth"
ip link del probe0

if [ "$XDP_RIG_INSIDE" = tests ]; then
    # What one end sends to the other's address would else be delivered without a cable, or be from an impostor.
    ip link add card0 type veth peer name card1
    for card in card0 card1; do
        echo 1 >/proc/sys/net/ipv4/conf/$card/accept_local
        ip link set $card up
    done
    ip address add 10.8.0.1/24 dev card0
    ip address add 10.8.0.2/32 dev card1
    # sysfs shows the namespace it was mounted in.
    mount -t sysfs sys /sys
    address=$(cat /sys/class/net/card0/address)
    ip route add 10.8.0.1/32 dev card1 table 100
    ip rule add oif card1 lookup 100 priority 1
    ip neigh add 10.8.0.1 lladdr "$address" dev card1
    export MMSG_XDP_CABLE=1
    cargo test -q -p mmsg --test af_xdp
    "${faults[@]}" cargo test -q -p mmsg --test af_xdp
    exit
fi

work=$(mktemp -d)
unshare --net sleep infinity &
other=$!
trap 'kill $other 2>/dev/null || true; rm -rf "$work"' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done

# Somebody without rights must be able to start it.
chmod 755 "$work"
install -m 755 "${CARGO_TARGET_DIR:-target}/debug/examples/af_xdp" "$work/af_xdp"
python3 -B tests/rigs/xdp/check.py "$work" "$other"
