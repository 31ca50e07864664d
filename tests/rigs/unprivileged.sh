#!/usr/bin/env bash
# An ordinary user without any capability: udpd works on loopback, says once what it could not get, and names the right
# that a low port needs. Needs root, to become that user; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" -ne 0 ] || ! command -v setpriv >/dev/null; then
    echo "SKIPPED unprivileged.sh: needs root and setpriv, to become an ordinary user"
    exit 0
fi

cargo build --release --bin udpd
directory=$(mktemp -d)
daemon=
clean_up() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    rm -rf "$directory"
}
trap clean_up EXIT
chmod 755 "$directory"
install -m 755 target/release/udpd "$directory/udpd"
install -d -o 65534 -g 65534 "$directory/home"
as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all
    env -i "XDG_RUNTIME_DIR=$directory/home" "$directory/udpd")

fail() {
    echo "FAILED: $1"
    cat "$directory/home/stderr" 2>/dev/null || true
    exit 1
}

# A low port: exit 77, the capability and the line that grants it.
first=$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)
if [ "$first" -gt 514 ]; then
    status=0
    "${as_nobody[@]}" run --listen 127.0.0.1:514 --to null: 2>"$directory/home/stderr" || status=$?
    [ "$status" -eq 77 ] || fail "a low port without the capability ended with $status, not 77"
    grep -q 'AmbientCapabilities=CAP_NET_BIND_SERVICE' "$directory/home/stderr" ||
        fail "the line that grants the right is missing"
    echo "passed: a low port without the capability is exit 77 and names the cure"
else
    echo "SKIPPED: this host lets everybody bind port 514 (net.ipv4.ip_unprivileged_port_start = $first)"
fi

# A high port: works; the clamped receive buffer is said once, with its cure.
cat >"$directory/home/udpd.toml" <<EOF
[daemon]
metrics_address = ""
stats_on_exit = "$directory/home/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:25140"
receive_buffer = "256MiB"
busy_poll = "50us"
sinks = ["file"]
[sink.file]
type = "file"
rotate.every = "0s"
path = "$directory/home/in.log"
EOF
mkfifo "$directory/home/stderr.pipe"
chown 65534 "$directory/home/stderr.pipe" "$directory/home/udpd.toml"
"${as_nobody[@]}" run -c "$directory/home/udpd.toml" 2>"$directory/home/stderr.pipe" &
daemon=$!
# The daemon's own word that it is ready is the event to wait for.
exec 3<"$directory/home/stderr.pipe"
while read -r line <&3; do
    echo "$line" >>"$directory/home/stderr"
    case $line in *"ready:"*) break ;; esac
done
grep -q 'ready:' "$directory/home/stderr" || fail "an ordinary user cannot start udpd"
for number in 1 2 3; do echo "line $number" >/dev/udp/127.0.0.1/25140; done
kill -TERM "$daemon"
cat <&3 >>"$directory/home/stderr"
status=0
wait "$daemon" || status=$?
daemon=
[ "$status" -eq 0 ] || fail "the daemon of an ordinary user ended with $status"
[ "$(cat "$directory/home/in.log")" = "$(printf 'line 1\nline 2\nline 3')" ] ||
    fail "the file does not hold the three lines"
[ "$(grep -c 'sysctl -w net.core.rmem_max=' "$directory/home/stderr")" -eq 1 ] ||
    fail "the clamped buffer is not said exactly once"
# Newer kernels let everybody poll; where it is refused it is said, and in no case is it a reason not to start.
[ "$(grep -c 'SO_BUSY_POLL' "$directory/home/stderr")" -le 1 ] || fail "refused busy polling is said more than once"
grep -q '"residual": 0' "$directory/home/ledger.json" || fail "the ledger does not close"
echo "passed: an ordinary user receives on loopback, and a clamped buffer is said once with its cure"
