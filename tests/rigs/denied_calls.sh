#!/usr/bin/env bash
# The end is true, whatever the kernel denies. strace makes calls of a running daemon fail, a sender counts what it
# sends, and the file says what was delivered. The ledger has to say the same, or null where it cannot be known, and
# SIGTERM ends the daemon in bounded time. Needs the right to trace another process.
. "$(dirname "$0")/lib/rig.sh"
need python3 strace
begin
python_part
