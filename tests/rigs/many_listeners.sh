#!/usr/bin/env bash
# A thousand listeners in one process: every port is bound, ten numbered datagrams to each from a sender of its own are
# counted by listener, in `stats --json` and in /metrics, scrapes beside a load on one listener lose nothing, and the
# end is clean with a closed ledger. Prints, as figures and not as promises: resident memory, the time until READY, CPU
# when idle, and what a scrape and a reading take. Needs no root, but the limits for a thousand threads and sockets.
. "$(dirname "$0")/lib/rig.sh"
need python3
has_at_least() { [ "$(ulimit "$1")" = unlimited ] || [ "$(ulimit "$1")" -ge "$2" ]; }
has_at_least -Hn 4096 || skip "needs 4096 open files (ulimit -Hn)"
has_at_least -Hu 2048 || skip "needs 2048 threads (ulimit -Hu)"
[ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -ge 1048576 ] || skip "needs 1 GiB of free memory"
begin
python_part
