#!/usr/bin/env bash
# The real logrotate over a log that is written at 50,000/s, by config/logrotate: with delaycompress, without, and with
# `create`; and `mv` of the current file at 20,000/s with no signal at all. Every datagram that was delivered is in
# exactly one file, compressed or not. ROTATIONS (5) and MOVES (20) make it longer: ROTATIONS=50 MOVES=200 is the long
# form. UDPD names another binary. Needs logrotate; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=logrotate.sh
for tool in logrotate gzip python3; do
    command -v "$tool" >/dev/null || { echo "SKIPPED $name: needs $tool"; exit 0; }
done

[ -n "${UDPD:-}" ] || cargo build --release --bin udpd
udpd=${UDPD:-$PWD/target/release/udpd}
rotations=${ROTATIONS:-5}
moves=${MOVES:-20}
directory=$(mktemp -d)
# logrotate refuses what others could write to.
chmod 750 "$directory"
daemon=
sender=

clean_up() {
    for process in $sender $daemon; do kill -KILL "$process" 2>/dev/null || true; done
    rm -rf "$directory"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $1"
    cat "$directory/stderr" 2>/dev/null || true
    exit 1
}

# A daemon with an empty directory for its log.
start() {
    rm -rf "$directory/log" "$directory/state"
    mkdir -m 750 "$directory/log"
    cat >"$directory/udpd.toml" <<TOML
[daemon]
control_socket = "$directory/control.sock"
metrics_address = ""
stats_on_exit = "$directory/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:5178"
receive_buffer = "64MiB"
sinks = ["archive"]
[sink.archive]
type = "file"
path = "$directory/log/in.log"
rotate = { bytes = 0, every = "0s" }
queue_bytes = "64MiB"
TOML
    "$udpd" run -c "$directory/udpd.toml" 2>"$directory/stderr" &
    daemon=$!
    for _ in $(seq 200); do
        grep -q '^info: ready' "$directory/stderr" && return
        kill -0 "$daemon" 2>/dev/null || fail "the daemon did not start"
        sleep 0.05
    done
    fail "the daemon was not ready within ten seconds"
}

# Sends at this rate until `end` says so.
send() {
    rm -f "$directory/sent.json"
    "$udpd" bench send --to 127.0.0.1:5178 --rate "$1" --seconds 3600 --size 64 --json >"$directory/sent.json" &
    sender=$!
    until_written
}

# Waits until there are some two thousand records in the log, however slow the machine is.
until_written() {
    for _ in $(seq 3000); do
        [ "$(stat -c %s "$directory/log/in.log" 2>/dev/null || echo 0)" -ge 300000 ] && return
        sleep 0.01
    done
    fail "the log did not grow to 300,000 bytes within thirty seconds"
}

# Ends the sender and the daemon, and counts.
end() {
    kill -INT "$sender"
    wait "$sender" || true
    sender=
    kill -TERM "$daemon"
    wait "$daemon" || fail "the daemon ended with $?"
    daemon=
    python3 - "$directory" "$1" <<'PY' || fail "$1: the files do not hold what was delivered"
import glob, gzip, json, sys
directory, what = sys.argv[1:3]
listener = json.load(open(directory + "/ledger.json"))["listeners"][0]
sink = listener["sinks"][0]
lines = []
files = sorted(glob.glob(directory + "/log/*"))
for path in files:
    text = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
    assert text.endswith(b"\n") or not text, "%s ends with a part of a record" % path
    lines += text.split(b"\n")[:-1]
assert listener["residual"] == 0, listener
assert sink["dropped"]["sink_error"] == 0, sink
# Each datagram has its flow, its number and its time: no two are alike.
assert len(set(lines)) == len(lines), "%d lines are there twice" % (len(lines) - len(set(lines)))
assert len(lines) == sink["delivered"], "%d delivered, %d in %d files" % (sink["delivered"], len(lines), len(files))
assert sink["delivered"] > 10000, sink
print("passed: %s: %d delivered and in %d files, %d of them compressed; elsewhere lost: %d" % (
    what, len(lines), len(files), sum(path.endswith(".gz") for path in files),
    listener["kernel_dropped"] + sink["dropped"]["queue_full"]))
PY
}

# What the script of config/logrotate does, also with a udpd that has no `reopen` yet: a signal, and the line that says
# it is done.
if "$udpd" reopen --help >/dev/null 2>&1; then
    reopen="$udpd reopen --socket $directory/control.sock"
else
    cat >"$directory/reopen" <<SH
#!/bin/sh
before=\$(grep -c 'SIGHUP: ' $directory/stderr)
kill -HUP \$(cat $directory/pid)
for _ in \$(seq 1000); do
    [ "\$(grep -c 'SIGHUP: ' $directory/stderr)" -gt "\$before" ] && exit 0
    sleep 0.01
done
exit 1
SH
    chmod 755 "$directory/reopen"
    reopen=$directory/reopen
fi

# $1 is what it is called, $2 a change to config/logrotate.
rotate() {
    start
    echo "$daemon" >"$directory/pid"
    sed -e "s|^/var/log/udpd/\*\.log|$directory/log/*.log|" -e "s|udpd reopen -c .*|$reopen|" \
        -e "s|rotate 14|rotate 1000|" -e "$2" \
        config/logrotate >"$directory/logrotate"
    # As /etc/logrotate.conf has it; config/logrotate must say what it needs.
    printf 'create\nsu %s %s\ninclude %s\n' "$(id -un)" "$(id -gn)" "$directory/logrotate" >"$directory/logrotate.conf"
    chmod 640 "$directory/logrotate" "$directory/logrotate.conf"
    send 50k
    for _ in $(seq "$rotations"); do
        until_written
        logrotate --force --state "$directory/state" "$directory/logrotate.conf" 2>"$directory/said" ||
            fail "logrotate: $(cat "$directory/said")"
        [ ! -s "$directory/said" ] || fail "logrotate complains: $(cat "$directory/said")"
    done
    end "$1, $rotations rotations"
    [ "$(find "$directory/log" -name 'in.log.*' ! -name '*.backup' | wc -l)" -eq "$rotations" ] ||
        fail "$1: not one file for each rotation: $(ls "$directory/log")"
    [ -z "$(find "$directory/log" -name '*.backup')" ] ||
        fail "$1: logrotate found a file where it wanted to make one: $(ls "$directory/log")"
}

rotate "logrotate with delaycompress" ""
rotate "logrotate without delaycompress" "s|^ *delaycompress||"
rotate "logrotate with create" "s|^ *nocreate|create|"

start
send 20k
for number in $(seq "$moves"); do
    until_written
    mv "$directory/log/in.log" "$directory/log/in.log.$number"
done
end "mv of the current file, $moves times"
