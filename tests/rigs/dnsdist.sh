#!/usr/bin/env bash
# PROXY headers that another program writes and reads: dnsdist puts them before the queries that it passes on, and takes
# them off those that it gets. Clients ask through dnsdist, and udpd behind it knows each of them by address and port,
# of both families; clients ask through a udpd relay, and dnsdist behind it knows them. What is sent past dnsdist is
# dropped and counted. All of it in a network namespace of its own, over its loopback.
. "$(dirname "$0")/lib/rig.sh"
need python3 dnsdist
enter_namespaces
python_part
