#!/usr/bin/env bash
# Every system call of the daemon made to fail, one at a time, while datagrams come in: what was sent must be on disk or
# counted, or the daemon must end and say why. faults/calls.py lists the calls and their errors, faults/fail_nth.c makes
# them fail, faults/books.py reads the files and judges.
#
# As it stands: the first time for each call, from the start and from ready on. The whole:
#
#     RUNS=all tests/rigs/faults.sh --record benches/runs/DATE-HOST
#
# takes about 45 minutes, in more than 5,000 runs, and writes each run into faults.csv and a table into faults.md.
# `--only CALL,...` and `--variants lines,pcapng,lanes,ring` take less. Needs no root. With root the calls of lanes past
# the kernel's stack follow (`queue`), on cables between two network namespaces of their own; QUEUE_ONLY=1 tries nothing
# else, and QUEUE_CALLS says which.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=faults.sh
for tool in cc python3; do
    command -v "$tool" >/dev/null || { echo "SKIPPED $name: needs $tool"; exit 0; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
trap 'exit 143' TERM INT
cc -O2 -Wall -Wextra -o "$build/fail_nth" tests/rigs/faults/fail_nth.c
if ! "$build/fail_nth" --survey --report "$build/report" -- true 2>"$build/why"; then
    echo "SKIPPED $name: this kernel does not let a program answer another's system calls: $(cat "$build/why")"
    exit 0
fi
[ "${RUNS:-}" != all ] || set -- --all "$@"
profile=${FAULTS_RIG_PROFILE:-release}
if [ "$profile" = release ]; then cargo build --release --bin udpd; else cargo build --bin udpd; fi
campaign=(python3 -B tests/rigs/faults/campaign.py --program "${CARGO_TARGET_DIR:-target}/$profile/udpd"
    --fail-nth "$build/fail_nth" --directory "$build")
[ -n "${QUEUE_ONLY:-}" ] || "${campaign[@]}" "$@"

# What lanes past the stack call that others do not, and what they call the same way to other ends.
calls=socket,bind,mmap,setsockopt,getsockopt,bpf,ioctl,recvfrom,recvmsg,sendto,poll,ppoll,membarrier,clone3
calls=${QUEUE_CALLS:-$calls}
if [ "$(id -u)" -ne 0 ] || ! unshare --net --mount true 2>/dev/null; then
    echo "SKIPPED $name, lanes past the stack: needs root, and the right to make a network namespace"
    exit 0
fi
[ "${RUNS:-}" != all ] || campaign+=(--all)
unshare --net --mount bash -s -- "${campaign[@]}" --variants queue --only "$calls" <<'END'
set -euo pipefail
mount -t sysfs sys /sys
ip link set lo up
for one in all default; do echo 0 >/proc/sys/net/ipv4/conf/$one/rp_filter; done
unshare --net sleep infinity >/dev/null 2>&1 &
export FAULTS_OTHER=$!
trap 'kill $FAULTS_OTHER' EXIT
until [ "$(readlink "/proc/$FAULTS_OTHER/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add probe0 type veth peer name probe1 || { echo "SKIPPED faults.sh, queue: needs a kernel with veth"; exit 0; }
ip link del probe0
"$@"
END
