#!/usr/bin/env bash
# The generator of frames over a cable between two network namespaces. The rig does not rely on its report: the IP and
# UDP counters of the receiving namespace, whose kernel verifies every checksum, and `udpd bench recv` count the
# datagrams. Both engines, both families, several sizes, from one flow to a million; frames that the driver refuses; and
# every interface that may not be used. Nothing outside of the two namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces
other_namespace
python_part
