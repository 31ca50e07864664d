#!/usr/bin/env bash
# Streams over TCP, in plain text and by TLS, to peers that end, are killed and come back while numbered datagrams
# arrive: one of our own that reads octet counting, and rsyslog where it is installed, which reads both framings. The
# judge reads what the peers have, and believes the ledger only on how many may be there twice. See tcp_streams.py. RATE
# sets another rate.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces "$@"
python_part
