#!/usr/bin/env bash
# A file system that freezes under a file sink and resumes: nothing is lost for as long as `absorb` asks for. Lone
# datagrams and bursts of 16, of 20 to 9,000 bytes, at 100 to 100,000 a second. The file system is ext4 on a loop device
# in a mount namespace of its own; `fsfreeze` stops it. stalls/run.py makes the runs. Then stalls/frozen.py: it freezes
# for longer, the log names the sink, and twelve reloads work meanwhile.
#
# As it stands: a few cells. All of them, and a table with the date:
#
#     RUNS=all tests/rigs/stalls.sh --record benches/runs/DATE-HOST
. "$(dirname "$0")/lib/rig.sh"
need python3 losetup:mount mkfs.ext4:e2fsprogs fsfreeze:util-linux
enter_namespaces "$@"
python_part "$@"
python3 tests/rigs/stalls/frozen.py
