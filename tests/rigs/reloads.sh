#!/usr/bin/env bash
# Reloads under load by the real program: half of them with bad files, lanes and sinks that come and go, and a file that
# is written with other settings every second time. Nothing may be lost or come twice in that file, bad files are
# refused with 78, good ones are in force. RELOADS (10) and RATE (20000) make it longer: RELOADS=200 RATE=50000 is the
# long form. ENGINE is `recvmmsg`, or `io_uring`.
#
# Then random reloads while a sink hangs (reloads/hanging.py): each is in force within a second, and the files, the
# socket behind a relay and the ports that are free say so. 25 reloads, or 600 with LONG=1, and as many without such a
# sink: at the end udpd has little more memory than at its start, or after 200 of the 600. SEED repeats a run.
. "$(dirname "$0")/lib/rig.sh"
need python3
begin
python_part
for kind in hanging healthy; do python3 tests/rigs/reloads/hanging.py $kind; done
