#!/usr/bin/env bash
# Every form of the bench on loopback under strace, over a configuration with a sink of every kind: each path that is
# opened for writing, made, renamed or removed lies in a directory that the bench has made, and each address that is
# connected to, sent to or bound is one of loopback that is not configured. The checker is itself checked with
# --real-sinks, to which it has to object.
. "$(dirname "$0")/lib/rig.sh"
need strace python3
strace -f -o /dev/null true 2>/dev/null || skip "needs the right to trace a process"
begin
python_part
