#!/usr/bin/env bash
# The clock of dates is set by -1 h, +1 h, -30 y and +30 y while files rotate every second, and while `keep` removes
# some: with plain names and with dates in them. A new file begins within three seconds each time, every record is in
# exactly one file, and what is removed is the oldest, by the order in which it was written. libfaketime sets the clock
# for the daemon alone; the clock that only goes on stays as it is, as with a real one. UDPD names another binary. Needs
# libfaketime; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=clock_jumps.sh
library=$(find /usr/lib -name libfaketimeMT.so.1 2>/dev/null | head -n 1)
[ -n "$library" ] || { echo "SKIPPED $name: needs libfaketime"; exit 0; }
command -v python3 >/dev/null || { echo "SKIPPED $name: needs python3"; exit 0; }

[ -n "${UDPD:-}" ] || cargo build --release --bin udpd
udpd=${UDPD:-$PWD/target/release/udpd}
directory=$(mktemp -d)
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

set_clock() { echo "$1" >"$directory/clock.new" && mv "$directory/clock.new" "$directory/clock"; }
faked=(env "LD_PRELOAD=$library" "FAKETIME_TIMESTAMP_FILE=$directory/clock" FAKETIME_NO_CACHE=1
    FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1)

set_clock +3y
[ "$("${faked[@]}" date +%Y)" -eq "$(($(date +%Y) + 3))" ] ||
    { echo "SKIPPED $name: libfaketime sets no clock here"; exit 0; }
set_clock +0

for sink in all dated; do mkdir "$directory/$sink" "$directory/kept_$sink"; done
# What others have put there, and what looks like ours and is not.
foreign=("kept_all/in.log.20200101T000000Z" "kept_dated/20200101000000.log"
    "kept_all/in.log.20990101T000000Z" "kept_dated/note")
for file in "${foreign[@]}"; do echo "somebody else's" >"$directory/$file"; done
cat >"$directory/udpd.toml" <<TOML
[daemon]
control_socket = "$directory/control.sock"
metrics_address = ""
stats_on_exit = "$directory/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:5179"
receive_buffer = "16MiB"
sinks = ["all", "dated", "kept_all", "kept_dated"]
[sink.all]
type = "file"
format = "jsonl"
path = "$directory/all/in.log"
rotate = { bytes = 0, every = "1s" }
queue_bytes = "8MiB"
[sink.dated]
type = "file"
format = "jsonl"
path = "$directory/dated/%Y%m%d%H%M%S.log"
rotate = { bytes = 0, every = "0s" }
queue_bytes = "8MiB"
[sink.kept_all]
type = "file"
format = "jsonl"
path = "$directory/kept_all/in.log"
rotate = { bytes = 0, every = "1s" }
keep = { files = 3, bytes = 0 }
queue_bytes = "8MiB"
[sink.kept_dated]
type = "file"
format = "jsonl"
path = "$directory/kept_dated/%Y%m%d%H%M%S.log"
rotate = { bytes = 0, every = "0s" }
keep = { files = 3, bytes = 0 }
queue_bytes = "8MiB"
TOML

"${faked[@]}" "$udpd" run -c "$directory/udpd.toml" 2>"$directory/stderr" &
daemon=$!
for _ in $(seq 200); do
    grep -q '^info: ready' "$directory/stderr" && break
    kill -0 "$daemon" 2>/dev/null || fail "the daemon did not start"
    sleep 0.05
done
"$udpd" bench send --to 127.0.0.1:5179 --rate 2k --seconds 3600 --size 64 --json >"$directory/sent.json" &
sender=$!

# How many files each sink has finished, in the order of the configuration.
finished() {
    "$udpd" stats --json --socket "$directory/control.sock" | python3 -c '
import json, sys
print(*(sink["files"]["finished"] for sink in json.load(sys.stdin)["listeners"][0]["sinks"]))'
}

# Waits until every sink has finished so many files more than before, three seconds at most for each.
until_finished() {
    local before=($1) now
    for _ in $(seq $((30 * $2))); do
        now=($(finished))
        local all=yes
        for index in 0 1 2 3; do [ "${now[index]}" -ge $((before[index] + $2)) ] || all=; done
        [ -z "$all" ] || return 0
        sleep 0.1
    done
    fail "$3: finished ${before[*]} files before and ${now[*]} now"
}

until_finished "0 0 0 0" 3 "before anybody set the clock"
for jump in -1h +0 +1h +0 -30y +0 +30y +0; do
    before=$(finished)
    set_clock "$jump"
    until_finished "$before" 2 "set to $jump"
done
kill -INT "$sender"
wait "$sender" || true
sender=
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with $?"
daemon=

for file in "${foreign[@]}"; do
    [ "$(cat "$directory/$file")" = "somebody else's" ] || fail "$file is not udpd's and was touched"
done
python3 - "$directory" <<'PY' || fail "the files do not hold what was delivered"
import glob, json, sys
directory = sys.argv[1]
listener = json.load(open(directory + "/ledger.json"))["listeners"][0]
assert listener["residual"] == 0, listener

def records_of(sink):
    """By file, the payloads and when the kernel says they came, which no clock of this daemon has touched."""
    files = {}
    for path in glob.glob("%s/%s/*" % (directory, sink)):
        lines = open(path, "rb").read().split(b"\n")[:-1]
        if lines != [b"somebody else's"]:
            records = [json.loads(line) for line in lines]
            files[path] = [(record["time"], record.get("payload_base64") or record["payload"]) for record in records]
    return files

whole = {}
for sink in listener["sinks"]:
    assert not any(sink["dropped"].values()), sink
    files = records_of(sink["name"])
    lines = [record for records in files.values() for record in records]
    assert len(set(lines)) == len(lines), "%s: a record is there twice" % sink["name"]
    if sink["name"].startswith("kept"):
        full = [path for path, records in files.items() if records]
        assert sink["files"]["removed"] > 0 and 2 <= len(full) <= 4, (sink, full)
        # The other sink had the same datagrams: none that was removed came after one that was kept.
        removed = whole[sink["name"][5:]] - set(lines)
        assert max(removed) < min(lines), (max(removed), min(lines))
    else:
        assert len(lines) == sink["delivered"], (sink["name"], len(lines), sink["delivered"])
        whole[sink["name"]] = set(lines)
    print("passed: %s: %d finished, %d removed, %d lines in %d files" % (
        sink["name"], sink["files"]["finished"], sink["files"]["removed"], len(lines), len(files)))
PY
