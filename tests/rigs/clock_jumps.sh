#!/usr/bin/env bash
# The wall clock is set by -1 h, +1 h, -30 y and +30 y while files rotate every second, and while `keep` removes some:
# with plain names and with dates in them. A new file begins within three seconds each time, every record is in exactly
# one file, and what is removed is the oldest, by the order in which it was written. libfaketime sets the clock for the
# daemon alone; the monotonic clock stays as it is, as on a real host.
. "$(dirname "$0")/lib/rig.sh"
need python3
library=$(find /usr/lib -name libfaketimeMT.so.1 2>/dev/null | head -n 1)
[ -n "$library" ] || skip "needs libfaketime (Debian package faketime)"
begin
python_part "$library"
