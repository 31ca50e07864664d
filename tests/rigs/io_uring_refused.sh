#!/usr/bin/env bash
# A host that refuses io_uring, as most containers do: `engine = "io_uring"` does not start and says why, "auto"
# receives by recvmmsg and says why. The refusal is a seccomp filter on udpd alone, which needs no root; nothing of the
# host is changed. The filter has the number that io_uring_setup has on x86_64.
. "$(dirname "$0")/lib/rig.sh"
need python3
[ "$(uname -m)" = x86_64 ] || skip "needs x86_64"
begin
python_part
