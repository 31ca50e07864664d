#!/usr/bin/env bash
# A member of a fleet behind a cable, with a service address that a route of the sender leads to. It is drained, taken
# back, stopped and killed with kill -9, alone and with its helper process, while datagrams come: the address is there
# while it is ready, and gone otherwise, and what still comes in a drain is not lost. An address that was there before
# stays. A full disk, a peer that takes nothing, an interface that goes and a reload with a bad file: each makes it as
# ready as docs/fleet.md says. Checks of health in any number, and slow clients, cost no datagram and get their answers.
# Nothing outside of the two namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
other_namespace
python_part
