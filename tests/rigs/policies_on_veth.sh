#!/usr/bin/env bash
# Cables between two network namespaces, cut and laid again under a running udpd. Bound to an interface by name: it has
# a lane for each of the cable's queues, and hears again within two seconds of the interface's return, on every lane, by
# each engine, also without any capability; cut for good, it goes on and its ledger closes. Multicast of both families,
# from any source and from chosen ones, on a wildcard socket and on one bound to the group: each datagram once, nothing
# that was not joined, and again after the interface has returned. Nothing outside of the two namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces
other_namespace
python_part
