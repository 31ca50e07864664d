#!/usr/bin/env bash
# Real exporters behind a network that loses, repeats and reorders: softflowd for NetFlow 5, NetFlow 9 and IPFIX,
# senders of our own for sFlow and RTP. A relay between them and udpd knows what it did, and udpd must say the same.
# Everything happens in a network namespace of its own.
. "$(dirname "$0")/lib/rig.sh"
need python3 softflowd
enter_namespaces
python_part
