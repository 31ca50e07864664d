#!/usr/bin/env bash
# Datagrams that are lost in every layer at once: dropped by the interface, the reverse path filter, IP, reassembly,
# checksums, a full socket of udpd, a full socket of another process, and by a port where nobody listens. What udpd says
# this host lost must be what is missing, to the datagram: ROUNDS random overloads, 6 unless said otherwise. A cable
# between two network namespaces carries them. Nothing outside of the two is touched. Needs root, ip and python3; skips
# with its reason otherwise. UDPD names a program to test instead of building one.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED host_ledger.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare nsenter ip python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${HOST_RIG_INSIDE:-}" ]; then
    if [ -z "${UDPD:-}" ]; then
        cargo build --release --bin udpd
        UDPD=${CARGO_TARGET_DIR:-target}/release/udpd
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    UDPD=$(realpath "$UDPD") HOST_RIG_INSIDE=1 HOST_RIG_WORK=$work unshare --net --mount bash tests/rigs/host_ledger.sh
    exit
fi
work=$HOST_RIG_WORK

# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
unshare --net sleep infinity &
other=$!
daemon=
trap 'kill $other ${daemon:+$daemon} 2>/dev/null || true' EXIT
until [ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
elsewhere() { nsenter --target "$other" --net "$@"; }

# Nothing but the datagrams of the rig is on the cable: no IPv6, and nobody asks for addresses. Packets longer than this
# end takes are dropped by the interface.
quiet='echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
sh -c "$quiet" 2>/dev/null || true
elsewhere sh -c "$quiet" 2>/dev/null || true
here_address=02:00:00:00:00:01 there_address=02:00:00:00:00:02
ip link set lo up
ip link add card0 address $here_address type veth peer name card1 address $there_address netns "$other"
ip address add 10.8.0.1/24 dev card0
ip link set card0 mtu 900 up
elsewhere ip address add 10.8.0.2/24 dev card1
elsewhere ip link set card1 up
ip neighbour replace 10.8.0.2 lladdr $there_address dev card0 nud permanent
for address in 10.8.0.1 10.8.0.77; do
    elsewhere ip neighbour replace $address lladdr $here_address dev card1 nud permanent
done
for interface in all card0; do echo 1 >/proc/sys/net/ipv4/conf/$interface/rp_filter; done
# Fragments that miss the others wait for a second.
echo 1 >/proc/sys/net/ipv4/ipfrag_time

cat >"$work/udpd.toml" <<END
[daemon]
control_socket = "$work/control.sock"
metrics_address = ""
[[listener]]
name = "in"
address = "0.0.0.0:5140"
lanes = 1
gro = "off"
receive_buffer = "16KiB"
sinks = ["nothing"]
[sink.nothing]
type = "null"
END
"$UDPD" run -c "$work/udpd.toml" 2>"$work/log" &
daemon=$!
timeout 20 sh -c "until grep -q ready: $work/log; do sleep 0.05; done" || {
    echo "FAILED: udpd is not ready"
    cat "$work/log"
    exit 1
}
python3 tests/rigs/host_ledger/judge.py "$UDPD" "$work/control.sock" "$daemon" "$other" "${ROUNDS:-6}" || {
    tail -5 "$work/log"
    exit 1
}
