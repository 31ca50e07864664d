#!/usr/bin/env bash
# PROXY headers that somebody else writes and reads: dnsdist puts them before the queries that it passes on, and takes
# them off those that it gets. Clients ask through dnsdist, and udpd behind it knows each of them by address and port,
# of both families; clients ask through a udpd relay, and dnsdist behind it knows them. What is sent past dnsdist is
# dropped and counted. All of it in a network namespace of its own, over its loopback. Needs root, unshare, python3 and
# dnsdist; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED dnsdist.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for a network namespace"
for program in unshare ip python3 dnsdist; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net true 2>/dev/null || skip "the right to make a network namespace"

profile=${DNSDIST_RIG_PROFILE:-release}
if [ "$profile" = release ]; then cargo build --release --bin udpd; else cargo build --bin udpd; fi
udpd=$(realpath "${CARGO_TARGET_DIR:-target}/$profile/udpd")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unshare --net bash -c 'ip link set lo up && exec python3 tests/rigs/dnsdist/run.py "$@"' - "$udpd" "$work"
