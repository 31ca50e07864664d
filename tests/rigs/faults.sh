#!/usr/bin/env bash
# Every system call of the daemon made to fail, one at a time, while datagrams come in: what was sent must be on disk or
# counted, or the daemon must end and say why. faults/calls.py lists the calls and their errors, faults/fail_nth.c makes
# them fail, faults/verdict.py reads the files and judges.
#
# As it stands: the first time for each call, from the start and from ready on. The whole:
#
#     RUNS=all tests/rigs/faults.sh --record benches/runs/DATE-HOST
#
# takes about 45 minutes, in more than 5,000 runs, and writes each run into faults.csv and a table into faults.md.
# `--only CALL,...` and `--variants lines,pcapng,lanes,ring` take less. Needs no root. With root the calls of lanes past
# the kernel's stack follow (`queue`), on cables between two network namespaces of their own; QUEUE_ONLY=1 tries nothing
# else, and QUEUE_CALLS says which.
. "$(dirname "$0")/lib/rig.sh"
need cc:gcc python3
if [ -z "${RIG_IS_INSIDE:-}" ]; then
    begin
    cc -O2 -Wall -Wextra -o "$WORK/fail_nth" tests/rigs/faults/fail_nth.c
    "$WORK/fail_nth" --survey --report "$WORK/report" -- true 2>"$WORK/why" ||
        skip "this kernel does not let a program answer another's system calls: $(cat "$WORK/why")"
    [ -n "${QUEUE_ONLY:-}" ] || python_part "$@"
fi
enter_namespaces
other_namespace
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
# What lanes past the stack call that others do not, and what they call the same way to other ends.
calls=socket,bind,mmap,setsockopt,getsockopt,bpf,ioctl,recvfrom,recvmsg,sendto,poll,ppoll,membarrier,clone3
python_part --variants queue --only "${QUEUE_CALLS:-$calls}"
