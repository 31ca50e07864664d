#!/usr/bin/env bash
# A stranger with the binary and README.md alone: the lines to paste are taken from its text as they stand, and it is
# timed until the first datagram is seen (bar: 1 minute), the first ledger (2) and the first loss that `udpd explain`
# has cured (5). Reading takes no time here. In a network namespace of its own.
. "$(dirname "$0")/lib/rig.sh"
need python3 logger:bsdutils
enter_namespaces
PATH=$WORK:$PATH python_part
