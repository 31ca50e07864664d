#!/usr/bin/env bash
# Lines and names of files with `time = "local"`, while the clocks of the place go forward or back: the rules of TZ have
# the change a few seconds ahead, as text, and as a file of zic. What each line and each name says is judged by `date` of
# coreutils, which reads TZ by the C library, and by Python's zoneinfo: by no code of udpd.
. "$(dirname "$0")/lib/rig.sh"
need python3 date:coreutils
begin
python_part
