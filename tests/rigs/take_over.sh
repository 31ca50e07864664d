#!/usr/bin/env bash
# Upgrades without a service manager, under load, in a network namespace of their own: one udpd after another takes over
# from the one that runs, with 2 to 4 lanes; and new processes that fail, at every step up to the last. What was sent is
# counted in the file by its numbers: see take_over/run.py. The short form is a few of each at a small rate. LONG=1 is
# the long one: 50 upgrades with each engine and 20 failures at 100,000/s, where anything the kernel dropped fails as
# well, and so does a gap above 200 ms.
#
# Then take_over/kills.py: the old process of a take-over is killed at a random moment, under a load that overflows the
# receive buffers; 6 times, with LONG=1 100 times at 60,000/s. ONLY=kills runs this part alone, KILLS and SEED set it.
# RATE, UPGRADES, FAILURES and STRICT are set one by one as well; UDPD_OTHER names the program to upgrade to. Needs
# root, for the namespace and for receive buffers as `udpd check` plans them.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
# The same program in another file, as a package leaves it.
install -m 755 "${UDPD_OTHER:-$UDPD}" "$WORK/other"
export UDPD_OTHER=$WORK/other
[ "${ONLY:-}" = kills ] || python_part
python3 tests/rigs/take_over/kills.py
