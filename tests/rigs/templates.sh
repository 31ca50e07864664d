#!/usr/bin/env bash
# NetFlow 9 and IPFIX exporters behind a relay with `templates`, and nfcapd as its destinations: after a reload from two
# to three, the exporters that move can be read at once by the third, although none of them sends a template again.
# Without `templates` the third reads nothing. Everything happens in a network namespace of its own.
. "$(dirname "$0")/lib/rig.sh"
need python3 nfcapd:nfdump nfdump
enter_namespaces
python_part
