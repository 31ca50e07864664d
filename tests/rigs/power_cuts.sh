#!/usr/bin/env bash
# Power cuts. A udpd writes files (`sync`, `rotate`, `keep`, `compress`) and a spill to a disk that writes down each
# write and each flush, in their order (power_cuts/logged_disk.py, as dm-log-writes does where a kernel has it). The log
# is then played back up to each flush, which is what a disk holds when the power goes there, and sometimes with some of
# the writes behind it, as a disk without power may have them. Each such disk is mounted, a udpd starts on it, and files
# and spill must have what docs/files.md and docs/spill.md promise: see power_cuts/run.py.
#
# The short form has ext4 for some seconds, and a spread of the flushes. LONG=1 has ext4, xfs, and ext4 with files by
# source, 60 s each, and every flush. DISK_SECONDS and STATES set that one by one. SEED repeats what the peer does and
# which writes are missing, but not the moments of the machine. --record FOLDER writes a table there.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3 mkfs.ext4:e2fsprogs losetup:mount
[ -c /dev/fuse ] || skip "needs /dev/fuse"
enter_namespaces "$@"
python_part "$@"
