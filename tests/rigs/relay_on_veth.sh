#!/usr/bin/env bash
# A relay between two cables: a sender behind the one, receivers behind the other. What arrives equals what was sent,
# also in trains and in fragments, with a PROXY header before each or without; with keep_source it comes from the
# sender's own address and port, of either family, and what is longer than the MTU is counted and not sent, until the
# MTU is raised. A destination that no host answers for, one to which there is no way yet, and a relay that loses its
# own address cost nothing beyond themselves, and are over within two seconds of their cause. Nothing outside of the
# three namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces
other_namespace
RECEIVER=$OTHER
other_namespace
RECEIVER=$RECEIVER python_part
