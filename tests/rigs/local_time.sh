#!/usr/bin/env bash
# Lines and names of files with `time = "local"`, while the clocks of the place go forward or back: the rules of TZ have
# the change a few seconds ahead, as text, and as a file of zic. `date` of coreutils, which reads TZ by the C library,
# and Python's zoneinfo judge what each line and each name says: no code of udpd does.
. "$(dirname "$0")/lib/rig.sh"
need python3 date:coreutils
begin
python_part
