#!/usr/bin/env bash
# Everything that can happen to a daemon, mixed from a seed for as long as asked: restarts, kills, reloads to other
# configurations, take-overs, a full disk, a peer that goes and comes, clocks that are set, cores that are taken away,
# and interfaces and addresses that go and come back. Numbered datagrams come all the while. At the end files and the
# peer are read by their numbers: what was sent is there, or counted, or within what kills may have held; nothing is
# there twice but what a spill said of itself; and each command answered within its time. See chaos.py.
#
# SEED repeats the actions of a run, SECONDS_OF_CHAOS is for how long (60), behind 20 s without kills, RATE how much
# comes. LONG=1 takes an hour. --record FOLDER writes the result there.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces "$@"
other_namespace
FAKETIME=$(find /usr/lib -name libfaketimeMT.so.1 2>/dev/null | head -n 1)
[ -z "${NO_CLOCK:-}" ] || FAKETIME=
export FAKETIME
[ -n "$FAKETIME" ] || echo "SKIPPED $RIG: the part with clocks: needs libfaketime (Debian package faketime)"
# First without kills, where the sum has no term that is only bounded: nothing may be missing that is not counted.
mkdir "$WORK/exact"
WORK=$WORK/exact KILLS=0 SECONDS_OF_CHAOS=${SECONDS_WITHOUT_KILLS:-20} python_part
ip link delete card0
python_part "$@"
