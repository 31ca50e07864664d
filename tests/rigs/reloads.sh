#!/usr/bin/env bash
# Reloads under load by the real program: half of them with bad files, lanes and sinks that come and go, and a file that
# is written with other settings every second time. Nothing may be lost or come twice in that file, bad files are
# refused with 78, good ones are in force.
# RELOADS (10) and RATE (20000) make it longer: RELOADS=200 RATE=50000 is the long form. ENGINE is `recvmmsg`, or
# `io_uring`. UDPD names another binary.
#
# Then random reloads while a sink hangs (reloads/hanging.py): each is in force within a second, and the files, the
# socket behind a relay and the ports that are free say so. 25 reloads, or 400 with LONG=1, and as many without such a
# sink: at the end udpd has little more memory than at its start. SEED repeats a run.
# Needs python3; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=reloads.sh
command -v python3 >/dev/null || { echo "SKIPPED $name: needs python3"; exit 0; }
[ -n "${UDPD:-}" ] || cargo build --release --bin udpd
udpd=${UDPD:-$PWD/target/release/udpd}
reloads=${RELOADS:-10}
rate=${RATE:-20000}
engine=${ENGINE:-recvmmsg}
dir=$(mktemp -d)
daemon=
sender=
end() {
    for pid in $daemon $sender; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap end EXIT

write() { # lanes, sinks, tables, how often the file that stays is synced
    cat > "$dir/udpd.toml" <<TOML
[daemon]
control_socket = "$dir/control.sock"
metrics_address = ""
stats_on_exit = "$dir/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:$port"
lanes = $1
engine = "$engine"
sinks = [$2]
[sink.stays]
type = "file"
path = "$dir/stays.log"
sync = "${4:-1s}"
$3
TOML
}

free='import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=$(python3 -c "$free")
write 2 '"stays"' ''
touch "$dir/log"
"$udpd" run -c "$dir/udpd.toml" 2>>"$dir/log" &
daemon=$!
until grep -q 'ready:' "$dir/log"; do kill -0 "$daemon"; sleep 0.1; done

python3 - "$port" "$rate" "$dir/stop" "$dir/sent" <<'PYTHON' &
import os, socket, sys, time
port, rate, stop, result = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
senders = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(8)]
for sender in senders:
    sender.connect(("127.0.0.1", port))
number, begun = 0, time.monotonic()
while not os.path.exists(stop):
    due = int((time.monotonic() - begun) * rate)
    for number in range(number, min(due, number + 1000)):
        senders[number % 8].send(b"%09d" % number)
    number = max(number, min(due, number + 1))
    time.sleep(0.001)
open(result, "w").write(str(number))
PYTHON
sender=$!

round=0
while [ "$round" -lt "$reloads" ]; do
    round=$((round + 1))
    lanes=$((1 + round % 4))
    if [ $((round % 2)) -eq 0 ]; then
        write "$lanes" '"stays"' 'this is = no toml'
        wanted=78
    elif [ $((round % 4)) -eq 1 ]; then
        write "$lanes" '"stays", "guest"' "[sink.guest]
type = \"file\"
path = \"$dir/guest$round.log\""
        wanted=0
    else
        write "$lanes" '"nowhere", "stays"' '[sink.nowhere]
type = "null"' "$((1 + round))s"
        wanted=0
    fi
    code=0
    "$udpd" reload --socket "$dir/control.sock" >>"$dir/answers" 2>&1 || code=$?
    if [ "$code" -ne "$wanted" ]; then
        echo "reload $round ended with $code and not $wanted"
        tail -n 3 "$dir/answers"
        exit 1
    fi
    sleep 0.2
done
touch "$dir/stop"
wait "$sender"
sender=
sleep 0.5
kill "$daemon"
wait "$daemon"
daemon=
python3 - "$dir" "$reloads" "$engine" <<'PYTHON'
import json, sys
directory, reloads = sys.argv[1], sys.argv[2]
ledger = json.load(open(f"{directory}/ledger.json"))
listener = ledger["listeners"][0]
numbers = sorted(int(line) for line in open(f"{directory}/stays.log"))
dropped = listener["kernel_dropped"]
unique = len(set(numbers))
print(f"{reloads} reloads, {sys.argv[3]}: {listener['arrived']} arrived, {dropped} dropped by the kernel, "
      f"{unique} in the file, {len(numbers) - unique} twice, residual {listener['residual']}")
assert listener["residual"] == 0 and unique == len(numbers)
assert unique + dropped == listener["arrived"]
assert dropped == 0, "the receive buffer was full: a reload took too long, or the machine is too slow for this rate"
sent = int(open(f"{directory}/sent").read())
assert listener["arrived"] == sent, (listener["arrived"], sent)
PYTHON

# On a machine that others use as well an answer may take longer.
many=25 limit=5
[ -z "${LONG:-}" ] || { many=400 limit=1; }
for kind in "" --healthy; do
    python3 -B tests/rigs/reloads/hanging.py --program "$udpd" --reloads "$many" --limit "$limit" $kind \
        ${SEED:+--seed "$SEED"}
done
