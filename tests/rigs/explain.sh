#!/usr/bin/env bash
# `udpd explain` with real losses: the rig provokes each case in a network namespace; explain must name the right cause
# first, and the cure that it prints, applied as it stands, must take the loss away. Nothing outside of the namespaces
# is changed, but for a control group that is made and removed. What only a card or the first namespace can do is
# provoked by steering_in_guest.sh, see guest/causes.py. Needs nft for some cases. Situations of one and two causes are
# checked by their amounts as well. A dozen cases are the short form, LONG=1 runs all, some from a seed (SEED=N), and
# CASES="a b" only those.
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
