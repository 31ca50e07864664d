#!/usr/bin/env bash
# The real logrotate over a log that is written at 50,000/s, by config/logrotate: with delaycompress, without, and with
# `create`; and `mv` of the current file at 20,000/s with no signal at all. Every datagram that was delivered is in
# exactly one file, compressed or not. ROTATIONS (5) and MOVES (20) make it longer: ROTATIONS=50 MOVES=200 is the long
# form.
. "$(dirname "$0")/lib/rig.sh"
need logrotate gzip python3
begin
python_part
