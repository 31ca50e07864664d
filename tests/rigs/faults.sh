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
# `--only CALL,...` and `--variants lines,pcapng,lanes,ring` take less. Needs no root.
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
cargo build --release --bin udpd
python3 -B tests/rigs/faults/campaign.py --program target/release/udpd \
    --fail-nth "$build/fail_nth" --directory "$build" "$@"
