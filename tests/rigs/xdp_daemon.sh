#!/usr/bin/env bash
# The daemon with engine = "af_xdp" on a cable between two network namespaces, judged by the numbers in what it wrote:
# each datagram is delivered once or dropped for a named reason, whatever the sinks do, and however the daemon ends.
# Ping, a server on another port and tcpdump work beside it, and hostile frames give what an ordinary socket gets.
# XDP_RIG_FRAMES says how many such frames (4000), XDP_RIG_ROUNDS how often what happens under load is tried (2, with
# LONG=1 20), XDP_RIG_RATE how many frames a second the generator makes for it (50000, with LONG=1 500000 and a release
# build), and XDP_RIG_CASES which cases (all; their names stand at the end of xdp/daemon.py). Nothing outside of the two
# namespaces is touched.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3 setpriv:util-linux
begin "$([ -z "${LONG:-}" ] && echo dev || echo release)"
enter_namespaces
# AF_XDP is below the reverse path filter, an ordinary socket above it: without it the two can be compared.
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
other_namespace
python3 tests/rigs/xdp/daemon.py
