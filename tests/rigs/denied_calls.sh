#!/usr/bin/env bash
# The end is true, whatever the kernel denies. strace makes calls of a running daemon fail, a sender counts what it
# sends, and the file says what was delivered. The ledger has to say the same, or null where nobody can know, and
# SIGTERM ends the daemon in bounded time. Needs strace, python3, and the right to trace another process of one's own.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED denied_calls.sh: $1"
    exit 0
}
command -v strace >/dev/null || skip "strace is not installed"
command -v python3 >/dev/null || skip "python3 is not installed"
sleep 60 &
sleeper=$!
timeout 5 strace -qq -o /dev/null -p "$sleeper" 2>/dev/null &
tracer=$!
until grep -q "TracerPid:[[:space:]]*[1-9]" "/proc/$sleeper/status" || ! kill -0 "$tracer" 2>/dev/null; do :; done
grep -q "TracerPid:[[:space:]]*[1-9]" "/proc/$sleeper/status" && may_trace=yes || may_trace=no
kill "$sleeper"
wait "$tracer" 2>/dev/null || true
[ "$may_trace" = yes ] || skip "this process may not trace another"

cargo build --release --bin udpd
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 tests/rigs/denied_calls/run.py target/release/udpd "$directory"
