#!/usr/bin/env bash
# promtool, the checker of Prometheus, reads what a Prometheus server will read: the metrics of a running udpd, the
# rules and alerts, and every query of the dashboard.
. "$(dirname "$0")/lib/rig.sh"
need promtool:prometheus python3
begin
python_part
