#!/usr/bin/env bash
# A multi-queue TUN as a network card that obeys: the descriptor written to chooses the receive queue, the core of the
# writer the core of the softirq. From each queue and on each core, every datagram must reach the lane that the table
# names, and must be counted where it came from and where it arrived. ARRIVALS names a built example of mmsg.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3
[ -c /dev/net/tun ] || skip "needs /dev/net/tun"
if [ -z "${ARRIVALS:-}" ]; then
    build release build -p mmsg --example arrivals
    export ARRIVALS=$built/examples/arrivals
fi
enter_namespaces
python_part
