#!/usr/bin/env bash
# Files by source from senders that no host has: frames with 10,000 source addresses come over a cable between two
# network namespaces, of which 1,000 files are open at once, and then as many again as the sink lets in at all. The rig
# checks the ledger against the files: every line of every file begins with the address that names the file, and there
# are as many lines as were delivered. Prints resident memory before and after, as a figure; the rig fails when it has
# grown by more than `check` printed for sinks. In the middle the daemon is killed by SIGKILL, and the files of the next
# one parse. LONG=1: 200,000/s for 60 s, and nothing may be lost; for a quiet machine and a release build.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
other_namespace
python_part
