#!/usr/bin/env bash
# Disks that fail under a file sink: one that fills up and is freed, one whose directory goes away, one that takes every
# write and loses it at the sync, and one that turns read-only. The records resume within a second of the cure, whole,
# and the ledger closes to the datagram. All of it in a mount namespace of its own.
. "$(dirname "$0")/lib/rig.sh"
need python3 mkfs.ext4:e2fsprogs losetup:mount
enter_namespaces
mkdir "$WORK/disk"
mount -t tmpfs -o size=8m tmpfs "$WORK/disk" 2>/dev/null || skip "cannot mount a tmpfs here"
python_part
