#!/usr/bin/env bash
# Datagrams that are lost in every layer at once: dropped by the interface, the reverse path filter, IP, reassembly,
# checksums, a full socket of udpd, a full socket of another process, and by a port where no process listens. What udpd
# says this host lost must be what is missing, to the datagram: ROUNDS random overloads, 6 unless said otherwise. A
# cable between two network namespaces carries them. Nothing outside of the two is touched. SEED repeats a run.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
other_namespace
python_part
