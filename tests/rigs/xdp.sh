#!/usr/bin/env bash
# AF_XDP on a cable between two network namespaces: the example af_xdp of mmsg receives at one end, and everything that
# was sent from the other is accounted for, to the datagram. What is delivered equals what an ordinary socket gets, byte
# for byte, of frames that are right, unusual, cut and damaged; ping and a server on another port work throughout.
# XDP_RIG_FRAMES says how many such frames (20000), XDP_RIG_ONLY=alike runs only the comparisons from a seed. The tests
# of the crate then run with both ends of a cable in one namespace, also with failing system calls.
# Nothing outside of the two namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3 setpriv:util-linux
faults=(env "RUSTFLAGS=--cfg mmsg_faults" CARGO_TARGET_DIR=target/faults)
if [ -z "${RIG_IS_INSIDE:-}" ]; then
    build dev build -p mmsg --example af_xdp
    cargo test -p mmsg --test af_xdp --no-run
    "${faults[@]}" cargo test -p mmsg --test af_xdp --no-run
    work_folder
    # An ordinary user must be able to start it.
    install -m 755 "$built/examples/af_xdp" "$WORK/af_xdp"
    RIG_PART=cable RIG_IS_INSIDE=1 unshare --net --mount bash "$script" || { [ $? -eq 3 ] && exit 0 || exit 1; }
    RIG_PART=tests RIG_IS_INSIDE=1 unshare --net --mount bash "$script"
    exit
fi
enter_namespaces
# AF_XDP is below the reverse path filter, an ordinary socket above it: without it the two can be compared.
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
ip link add probe0 type veth peer name probe1 || { echo "SKIPPED $RIG: needs a kernel with veth"; exit 3; }
ip link del probe0

if [ "$RIG_PART" = cable ]; then
    other_namespace
    python3 tests/rigs/xdp/check.py
    exit
fi
# What one end sends to the other's address would else be delivered without a cable, or be from an impostor.
ip link add card0 type veth peer name card1
for card in card0 card1; do
    echo 1 >/proc/sys/net/ipv4/conf/$card/accept_local
    ip link set $card up
done
ip address add 10.8.0.1/24 dev card0
ip address add 10.8.0.2/32 dev card1
ip route add 10.8.0.1/32 dev card1 table 100
ip rule add oif card1 lookup 100 priority 1
ip neigh add 10.8.0.1 lladdr "$(cat /sys/class/net/card0/address)" dev card1
export MMSG_XDP_CABLE=1
cargo test -q -p mmsg --test af_xdp
"${faults[@]}" cargo test -q -p mmsg --test af_xdp
