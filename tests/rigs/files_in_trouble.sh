#!/usr/bin/env bash
# Disks that fail under a file sink: one that fills up and is freed, one whose directory goes away, one that takes every
# write and loses it at the sync, and one that turns read-only. The records resume within a second of the cure, whole,
# and the books close to the datagram. Needs root, to mount; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=files_in_trouble.sh
if [ "$(id -u)" -ne 0 ]; then
    echo "SKIPPED $name: needs root, to mount file systems of its own"
    exit 0
fi
for tool in mkfs.ext4 losetup python3; do
    command -v "$tool" >/dev/null || { echo "SKIPPED $name: needs $tool"; exit 0; }
done

cargo build --release --bin udpd
udpd=$PWD/target/release/udpd
directory=$(mktemp -d)
daemon=
mounted=()
loops=()

clean_up() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    for ((at = ${#mounted[@]} - 1; at >= 0; at--)); do umount -l "${mounted[at]}" 2>/dev/null || true; done
    for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    rm -rf "$directory"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $1"
    cat "$directory/stderr" 2>/dev/null || true
    exit 1
}

mkdir "$directory/disk"
if ! mount -t tmpfs -o size=8m tmpfs "$directory/disk" 2>/dev/null; then
    echo "SKIPPED $name: cannot mount a tmpfs here"
    exit 0
fi
mounted+=("$directory/disk")

# What the ledger says now, of the file sink and of the null sink beside it.
ledger() {
    "$udpd" stats --json --socket "$directory/control.sock" | python3 -c '
import json, sys
listener = json.load(sys.stdin)["listeners"][0]
archive, beside = listener["sinks"]
files = archive["files"]
print({"received": listener["received"], "delivered": archive["delivered"], "failed": archive["dropped"]["sink_error"],
       "beside": beside["delivered"], "full": archive["dropped"]["queue_full"],
       "sync_failures": files["sync_failures"], "doubtful": files["doubtful_bytes"]}[sys.argv[1]])' "$1"
}

# The second argument is when to sync, the third which sandbox.
start() {
    cat >"$directory/udpd.toml" <<TOML
[daemon]
control_socket = "$directory/control.sock"
metrics_address = ""
stats_on_exit = "$directory/ledger.json"
sandbox = "${3:-auto}"
[[listener]]
name = "in"
address = "127.0.0.1:5177"
receive_buffer = "16MiB"
sinks = ["archive", "beside"]
[sink.archive]
type = "file"
path = "$1"
rotate = { bytes = 0, every = "0s" }
sync = "$2"
queue_bytes = "64MiB"
[sink.beside]
type = "null"
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

# Sends so many datagrams at 20,000/s.
send() {
    "$udpd" bench send --to 127.0.0.1:5177 --rate 20k --count "$1" --size "${size:-200}" --json >"$directory/sent.json"
}
# The same for so many seconds, in the background, until `sent` waits for it.
send_for() {
    "$udpd" bench send --to 127.0.0.1:5177 --rate 20k --seconds "$1" --size "${size:-200}" --json \
        >"$directory/sent.json" &
    sender=$!
}

# Waits until the ledger's number $1 is over $2, $3 tenths of a second at most.
until_over() {
    for _ in $(seq "$3"); do
        [ "$(ledger "$1")" -gt "$2" ] && return 0
        sleep 0.1
    done
    return 1
}

end_and_close() {
    kill -TERM "$daemon"
    wait "$daemon" || fail "the daemon ended with $?"
    daemon=
    python3 - "$directory/ledger.json" "$directory/sent.json" <<'PY' || fail "the books do not close"
import json, sys
ledger, sent = (json.load(open(path)) for path in sys.argv[1:3])
listener = ledger["listeners"][0]
sent = sent["report"]["sent"]
archive, beside = listener["sinks"]
assert listener["arrived"] == sent, (listener["arrived"], sent)
assert listener["residual"] == 0 and listener["kernel_dropped"] == 0, listener
for sink in (archive, beside):
    assert sink["offered"] == sink["delivered"] + sum(sink["dropped"].values()), sink
assert beside["delivered"] == sent, beside
print("sent %d, delivered %d, failed %d" % (sent, archive["delivered"], archive["dropped"]["sink_error"]))
PY
}

of_sink() {
    python3 -c "import json,sys; print(json.load(sys.stdin)['listeners'][0]['sinks'][0]$1)" <"$directory/ledger.json"
}
delivered_of() { of_sink "['delivered']"; }
failed_of() { of_sink "['dropped']['sink_error']"; }

# 1. The disk fills up, is freed, and the records resume.
start "$directory/disk/archive.log" never
head -c 6M /dev/zero >"$directory/disk/filler"
send_for 6
until_over failed 0 100 || fail "a full disk was never noticed"
before=$(ledger delivered)
rm "$directory/disk/filler"
until_over delivered "$before" 10 || fail "records did not resume within a second of the disk being freed"
wait "$sender"
end_and_close
lines=$(wc -l <"$directory/disk/archive.log")
[ "$lines" -eq "$(delivered_of)" ] || fail "$lines lines are in the file and $(delivered_of) were delivered"
[ "$(tail -c 1 "$directory/disk/archive.log" | od -An -tu1 | tr -d ' ')" = 10 ] ||
    fail "the file does not end with a whole record"
grep -q 'free some space on that file system' "$directory/stderr" || fail "the cure was not said"
# Each time that it was written again, and the end, says what it cost, and all of it together is what the ledger says.
said=$(sed -n 's/.* written again.*; \([0-9]*\) datagrams .* were lost meanwhile .*/\1/p' "$directory/stderr" |
    python3 -c 'import sys; print(sum(map(int, sys.stdin)))')
[ "$said" -eq "$(failed_of)" ] || fail "the log says that $said datagrams were lost and the ledger $(failed_of)"
echo "passed: a full disk costs what it could not take, and records resume within a second"

# 2. The directory is removed. Without the sandbox udpd makes it again; inside, it may not, says so, and counts.
rm "$directory/disk/archive.log"
for sandbox in off auto; do
    mkdir "$directory/disk/deep"
    start "$directory/disk/deep/archive.log" never $sandbox
    size=64 send_for 3
    until_over delivered 1000 100 || fail "nothing was delivered"
    # Whoever is slow finds the next file in it already.
    until rm -r "$directory/disk/deep" 2>/dev/null; do :; done
    if [ $sandbox = off ] || ! grep -q '^Seccomp:.2' "/proc/$daemon/status"; then
        for _ in $(seq 10); do
            [ -s "$directory/disk/deep/archive.log" ] && break
            sleep 0.1
        done
        [ -s "$directory/disk/deep/archive.log" ] || fail "the file was not begun again within a second"
    else
        until_over failed 0 100 || fail "what cannot be written is not counted as failed"
        grep -q 'was removed meanwhile, restart udpd' "$directory/stderr" || fail "the cure was not said"
    fi
    wait "$sender"
    end_and_close
    rm -rf "$directory/disk/deep"
done
echo "passed: a removed directory is made again within a second, and inside the sandbox its loss is counted"

# 3. A disk that takes every write and loses it at the sync: a file system in a sparse file on the small tmpfs.
truncate -s 64M "$directory/disk/sparse"
if loop=$(losetup --find --show "$directory/disk/sparse" 2>/dev/null) &&
    mkfs.ext4 -q -O ^has_journal "$loop" 2>/dev/null; then
    loops+=("$loop")
    mkdir "$directory/lying"
    mount "$loop" "$directory/lying"
    mounted+=("$directory/lying")
    start "$directory/lying/archive.log" 200ms
    send 60000
    until_over sync_failures 0 100 || fail "a sync that fails was never noticed"
    [ "$(ledger doubtful)" -gt 0 ] || fail "what may be lost is not counted as doubtful"
    ls "$directory/lying" | grep -q '^archive\.log\..*\.failed$' ||
        fail "the failed file was not set aside: $(ls "$directory/lying")"
    end_and_close
    grep -q 'cannot sync .* to the disk' "$directory/stderr" || fail "the failed sync was not said"
    echo "passed: a sync that fails is final: the file is set aside and its unsynced bytes are doubtful"
else
    echo "SKIPPED $name, the failing sync: no loop device, or no file system on it"
fi

# 4. A file system that finds an error in itself and turns read-only, until another is mounted in its place.
mkdir "$directory/large" "$directory/place"
mount -t tmpfs -o size=96m tmpfs "$directory/large"
mounted+=("$directory/large")
truncate -s 64M "$directory/large/image"
loop=$(losetup --find --show "$directory/large/image" 2>/dev/null) && loops+=("$loop") || loop=
trigger=/sys/fs/ext4/${loop#/dev/}/trigger_fs_error
if [ -n "$loop" ] && mkfs.ext4 -q "$loop" 2>/dev/null &&
    mount -o errors=remount-ro "$loop" "$directory/place" 2>/dev/null &&
    mounted+=("$directory/place") && [ -w "$trigger" ]; then
    # Inside the sandbox another file system is not found.
    start "$directory/place/archive.log" never off
    size=64 send_for 5
    until_over delivered 1000 100 || fail "nothing was delivered"
    echo 1 >"$trigger"
    until_over failed 0 100 || fail "a read-only file system was never noticed"
    grep -q 'Read-only file system' "$directory/stderr" || fail "it is not said what is wrong"
    before=$(ledger delivered)
    umount -l "$directory/place"
    mount -t tmpfs -o size=64m tmpfs "$directory/place"
    mounted+=("$directory/place")
    until_over delivered "$before" 10 || fail "records did not resume within a second of the new mount"
    wait "$sender"
    end_and_close
    [ "$(tail -c 1 "$directory/place/archive.log" | od -An -tu1 | tr -d ' ')" = 10 ] ||
        fail "the new file does not end with a whole record"
    echo "passed: a file system that turned read-only costs what it could not take;" \
        "records resume within a second of another"
else
    echo "SKIPPED $name, the read-only file system: no loop device, or no ext4 on it that could be made to fail"
fi
