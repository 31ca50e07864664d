#!/usr/bin/env bash
# Restarts, kills, upgrades and starts in vain of a daemon whose sockets a service manager keeps, under load, in a
# network namespace of their own. What was sent is counted in the files by its numbers, and the kernel is asked what it
# dropped: see restarts/run.py. The short form is a few of each at a small rate. LONG=1 is the long one: 100 restarts
# with each engine, 50 kills, 50 upgrades and 20 starts in vain at 100,000/s, where any loss by a restart fails and so
# does a gap above 200 ms.
#
# Then restarts/changes.py: kills under a load that overflows the receive buffers, each followed by a start with another
# gro, engine, number of lanes or address; 5 of them, with LONG=1 50 at 60,000/s. Each datagram is in a file, or in a
# ledger, or within what the next process says, and the ledgers say what the kernel counted. ONLY=changes runs this part
# alone, CHANGES and SEED set it. --record FILE writes the table there, --record alone to benches/runs. RATE, RESTARTS,
# KILLS, UPGRADES and IN_VAIN are set one by one as well; UDPD_OTHER names the program to upgrade to. Needs root, for
# the namespace and for receive buffers as `udpd check` plans them.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces "$@"
# The same program in another file, as a package leaves it.
install -m 755 "${UDPD_OTHER:-$UDPD}" "$WORK/other"
export UDPD_OTHER=$WORK/other
record=()
[ "${1:-}" != --record ] || record=("$(realpath "${2:-benches/runs/2026-11-22-xeon-2-cores/restarts.md}")")
[ "${ONLY:-}" = changes ] || python_part "${record[@]}"
python3 tests/rigs/restarts/changes.py
