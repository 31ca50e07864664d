#!/usr/bin/env bash
# `udpd explain` before losses that are really there: each case is provoked in a network namespace, the right cause must
# be told first, and the cure that is printed, applied as it stands, must take the loss away. Nothing outside of the
# namespaces is changed, but for a control group that is made and removed. What only a card or the first namespace can
# do is provoked by steering_in_guest.sh, see guest/causes.py. Needs nft for a case. CASES="a b" runs only those.
. "$(dirname "$0")/lib/rig.sh"
need python3 sysctl:procps chrt:util-linux setpriv:util-linux
# Control groups and tracepoints stay where they were below a new /sys.
if [ -n "${RIG_IS_INSIDE:-}" ]; then
    mkdir "$WORK/cgroup"
    mount --rbind /sys/fs/cgroup "$WORK/cgroup" 2>/dev/null || true
fi
enter_namespaces
mount --rbind "$WORK/cgroup" /sys/fs/cgroup 2>/dev/null || true
mount -t tracefs tracing /sys/kernel/tracing 2>/dev/null || true
other_namespace
PATH=$WORK:$PATH python_part
