#!/usr/bin/env bash
# What a Prometheus server will say: the metrics of a running udpd, the rules and alerts, and every query of the
# dashboard, all read by promtool.
. "$(dirname "$0")/lib/rig.sh"
need promtool:prometheus python3
begin
python_part
