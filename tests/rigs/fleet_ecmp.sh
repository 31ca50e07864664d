#!/usr/bin/env bash
# Members behind a router that shares flows out over them (ECMP), with BIRD on the router and on each member and the
# files of config/fleet/ecmp: each drains and is replaced in turn under load, and every datagram that was sent is in
# the files once. Then one is killed: what is missing was sent to it, and before the route was withdrawn. The rig counts
# by the numbers in the datagrams. The short form has one round at 4,000/s; LONG=1 is three rounds at 40,000/s. ROUNDS,
# RATE and MEMBERS are set one by one as well. The router, the sender and each member are a network namespace of their
# own.
. "$(dirname "$0")/lib/rig.sh"
need python3 bird:bird2
enter_namespaces
PLACES=
for _ in $(seq "${MEMBERS:-4}"); do
    other_namespace
    PLACES="$PLACES $OTHER"
done
export PLACES
other_namespace
python_part
