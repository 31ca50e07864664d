#!/usr/bin/env bash
# An interface and an address that go and come back three times each while 50,000 datagrams a second are on their way to
# a running udpd, by each engine: it receives again within two seconds, and everything that the kernel could deliver
# meanwhile is in the file. outages.py says how the rig counts that. Nothing outside of two network namespaces is
# touched. RATE sets another rate.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
other_namespace
python_part
