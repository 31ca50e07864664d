#!/usr/bin/env bash
# A daemon that is killed with SIGKILL in the middle of spilling and in the middle of sending what it has spilled, a
# peer that is away for a while under load, a spill on a disk that is full, and one on a disk that fails: nothing is
# lost that was accepted but what is counted, each sender's order is kept, nothing comes twice but after a kill and then
# no more than the daemon says, and the ledgers close. spill/run.py, and disks.py and faults.py beside it, say how the
# rig counts. LONG=1 kills 50 times each instead of 3, has the peer away for 60 s at 50,000/s, and tries more failures
# of the disk, and 200 disks of each kind that are full at sizes by chance. SEED repeats a run.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
mkdir "$WORK/disk"
mount -t tmpfs -o size=8m tmpfs "$WORK/disk"
python_part
