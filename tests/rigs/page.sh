#!/usr/bin/env bash
# The page in a real Chromium: under load, with a sink that is stuck, through restarts of the daemon, on screens of
# every kind, and with a token. Its console has to stay empty. Pictures are kept in target/page/. Needs chromium,
# chromedriver and python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

for program in chromium chromedriver python3; do
    if ! command -v "$program" >/dev/null; then
        echo "SKIPPED page.sh: needs $program"
        exit 0
    fi
done
udpd=${UDPD:-}
if [ -z "$udpd" ]; then
    cargo build --release --bin udpd
    udpd="${CARGO_TARGET_DIR:-target}/release/udpd"
fi
udpd=$(realpath "$udpd")
# On a short path, because the path of a socket has to be short.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
python3 tests/rigs/page/check.py "$udpd" "$work" || status=$?
mkdir -p target/page
cp "$work"/*.png target/page/ 2>/dev/null || true
[ "$status" -eq 0 ] || { echo "FAILED: see target/page/"; cat "$work/log"; }
exit "$status"
