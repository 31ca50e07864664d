#!/usr/bin/env bash
# The bench on a cable: `udpd bench max --engine af_xdp` and `udpd bench ladder --interface`. On a cable of its own it
# leaves no trace in the namespace that it was started in; on two interfaces that are named, every frame that it says it
# has sent is in the receiver's own counter; and what cannot be measured is refused with its reason and the cure.
# Nothing outside of namespaces made here is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces
ip link add card0 type veth peer name card1 || skip "needs a kernel with veth"
ip address add 10.8.0.1/24 dev card0
for card in card0 card1; do ip link set "$card" up; done
python_part
