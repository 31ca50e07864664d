#!/usr/bin/env bash
# The kernel's own names for its drops: a full buffer, no listener, a bad checksum and a wrong way back, each provoked
# in a network namespace and watched by a process of an ordinary user that has CAP_PERFMON alone. Root only reads the
# two files that describe the tracepoints. tracefs is mounted in a mount namespace of this script.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3 setpriv:util-linux
tracing=/sys/kernel/tracing
unshare --mount mount -t tracefs tracefs $tracing 2>/dev/null || skip "needs a kernel with tracefs"
unshare --mount sh -c "mount -t tracefs t $tracing && grep -q NO_SOCKET $tracing/events/skb/kfree_skb/format" ||
    skip "needs a kernel that names its drops (Linux 5.17)"
if [ -z "${RIG_IS_INSIDE:-}" ]; then
    build release test -p udpd-hostloss --test drops --no-run
    build release build -p udpd-hostloss --example drops
    export built
    work_folder
fi
enter_namespaces
mount -t tracefs tracefs $tracing
other_namespace
# What root hands on: the text of two files.
install -m 755 "$built/examples/drops" "$WORK/drops"
install -m 444 $tracing/events/udp/udp_fail_queue_rcv_skb/format "$WORK/udp_fail"
install -m 444 $tracing/events/skb/kfree_skb/format "$WORK/kfree_skb"

echo "---- the tests of the crate, with counts compared to the socket's own"
build release test -q -p udpd-hostloss --test drops -- --nocapture 2>&1 | tee "$WORK/tests"
! grep "^not tested" "$WORK/tests" || { echo "FAILED: root may not watch here"; exit 1; }
echo "---- one right and no other"
python_part
