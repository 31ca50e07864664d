#!/usr/bin/env bash
# What a Prometheus server will say: the metrics of a running udpd, the rules and alerts, and every query of the
# dashboard, all read by promtool. Needs promtool, python3 and curl; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

for program in promtool python3 curl; do
    if ! command -v "$program" >/dev/null; then
        echo "SKIPPED promtool.sh: needs $program"
        exit 0
    fi
done
udpd=${UDPD:-}
if [ -z "$udpd" ]; then
    cargo build --release --bin udpd
    udpd="${CARGO_TARGET_DIR:-target}/release/udpd"
fi
udpd=$(realpath "$udpd")
work=$(mktemp -d)
daemon=
trap 'kill ${daemon:+$daemon} 2>/dev/null || true; rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    cat "$work/log" 2>/dev/null || true
    exit 1
}

promtool check rules config/prometheus/udpd.rules.yml || fail "the rules"
promtool test rules config/prometheus/udpd.rules.test.yml || fail "the tests of the rules"
echo "passed: the rules are valid and alert where they should"

# Each query of the dashboard as a rule, with what Grafana puts in place of its variables.
python3 - config/grafana/udpd.json "$work/dashboard.yml" <<'END'
import json, sys
board = json.load(open(sys.argv[1]))
targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
targets += [note["expr"] for note in board["annotations"]["list"]]
assert len(targets) > 15, targets
exprs = [text.replace("$__rate_interval", "1m") for text in targets]
rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, open(sys.argv[2], "w"))
END
promtool check rules "$work/dashboard.yml" >"$work/said" || { cat "$work/said"; fail "a query of the dashboard"; }
echo "passed: every query of the dashboard is valid"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/udpd.toml" <<END
[daemon]
control_socket = ""
metrics_address = "127.0.0.1:$port"
[[listener]]
name = "in"
address = "127.0.0.1:$port"
sequence = { offset = 0, bytes = 4, order = "big" }
sinks = ["nothing", "file", "relay"]
[sink.nothing]
type = "null"
[sink.file]
type = "file"
path = "$work/in.log"
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:9"]
END
"$udpd" run -c "$work/udpd.toml" 2>"$work/log" &
daemon=$!
timeout 60 sh -c "until grep -q ready: $work/log; do sleep 0.05; done" || fail "udpd is not ready"
scrape() { curl -sSf "http://127.0.0.1:$port/metrics"; }
python3 - "$port" <<'END'
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(100):
    sender.sendto(number.to_bytes(4, "big") + b"x" * 96, ("127.0.0.1", int(sys.argv[1])))
END
export port
# Waits until the metrics have a line that fits.
scraped() { timeout 60 sh -c 'until curl -s "http://127.0.0.1:$port/metrics" | grep -Eq "$1"; do sleep 0.1; done' - "$1"; }
scraped 'udpd_received_bytes_total.* 10000' || fail "100 datagrams have not arrived"
# The histograms and what the senders' own numbers tell are to be looked at as well.
scraped 'udpd_residence_seconds_count.* [1-9]' || fail "no residence was measured"
scraped '^udpd_upstream_.* [1-9]' || fail "no sequence was followed"
scrape | promtool check metrics >"$work/said" 2>&1 || { cat "$work/said"; fail "the metrics"; }
[ ! -s "$work/said" ] || { cat "$work/said"; fail "promtool has advice on the metrics"; }
echo "passed: promtool finds nothing in the metrics of a running udpd"
