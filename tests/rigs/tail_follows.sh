#!/usr/bin/env bash
# What readers see that follow a log by its name while udpd rotates it, and while it is moved away: one that reads on in
# the old file for a second sees every line once and in order, as collectors of logs do. `tail -F` sees none twice, and
# misses what udpd wrote into the old file after the new one was there.
. "$(dirname "$0")/lib/rig.sh"
need python3 tail:coreutils
begin
python_part
