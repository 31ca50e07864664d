#!/usr/bin/env bash
# The last ledger is right whatever system calls fail, and the daemon ends in bounded time. strace makes calls of a
# running daemon fail, a sender counts what it sends, and the file shows what was delivered. After SIGTERM the ledger
# has to say the same, or null for what cannot be known. Needs the right to trace another process.
. "$(dirname "$0")/lib/rig.sh"
need python3 strace
begin
python_part
