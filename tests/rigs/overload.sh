#!/usr/bin/env bash
# More than can be taken, in every mixture: both engines, every `when_full`, one to three sinks of which some read
# slowly, late or never, lone datagrams, bursts and floods of every length, trains among them. The sender numbers its
# datagrams and is no part of udpd; what comes out of each sink is read by the judge. overload/trial.py makes a run,
# overload/sinks.py reads the sinks, overload/campaign.py chooses and judges.
#
# As it stands: a few runs, the same ones every time. The whole:
#
#     RUNS=200 tests/rigs/overload.sh --record benches/runs/DATE-HOST
#
# takes two or three minutes and writes each run into overload.csv and a table into overload.md. UDPD names another
# binary. `--only NUMBER,...` repeats single runs. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v python3 >/dev/null || { echo "SKIPPED overload.sh: needs python3"; exit 0; }
[ -n "${UDPD:-}" ] || cargo build --release --bin udpd
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 143' TERM INT
python3 -B tests/rigs/overload/campaign.py --program "${UDPD:-target/release/udpd}" --directory "$directory" \
    --runs "${RUNS:-10}" "$@"
