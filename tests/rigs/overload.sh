#!/usr/bin/env bash
# More datagrams than udpd can take, in every mixture: both engines, every `when_full`, one to three sinks of which some
# read slowly, late or never, lone datagrams, bursts and floods of every length, trains among them. The sender numbers
# its datagrams and is no part of udpd; what comes out of each sink is read by the judge. overload/trial.py makes a run,
# lib/readers.py reads the sinks, overload/run.py chooses and judges.
#
# As it stands: a few runs, the same ones every time. The whole:
#
#     RUNS=200 tests/rigs/overload.sh --record benches/runs/DATE-HOST
#
# takes two or three minutes and writes each run into overload.csv and a table into overload.md. `--only NUMBER,...`
# repeats single runs. Needs no root.
. "$(dirname "$0")/lib/rig.sh"
need python3
begin
python_part "$@"
