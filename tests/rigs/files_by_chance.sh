#!/usr/bin/env bash
# Files by source while random things happen to the daemon and beside it: a seed draws configurations, payloads and
# events. The daemon is reloaded, restarted and killed; files and directories are moved away; lists are removed; links,
# pipes and files of others stand in its places; the disk is full for a while. The rig reads back every file that was
# ever written, byte for byte, and compares the ledger with them; see files_by_chance/run.py. Prints the seed of each
# round; SEED=N repeats one. LONG=1 goes through 400 rounds instead of 12. Needs root, for a mount namespace.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
mkdir "$WORK/disk"
mount -t tmpfs -o size=24m tmpfs "$WORK/disk"
python_part
