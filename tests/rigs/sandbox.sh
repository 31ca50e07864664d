#!/usr/bin/env bash
# The sandbox inside, where it takes root to try it: interfaces that go and come back under a daemon that has given up
# its rights, low ports that its warden binds again and that nobody binds without one, an ordinary user, and kernels
# that lack a part. Each engine. Nothing outside of a network namespace of its own is touched. Needs root, ip, setpriv,
# python3 and strace; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED sandbox.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for network namespaces"
for program in unshare ip setpriv python3 strace; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

if [ -z "${SANDBOX_RIG_WORK:-}" ]; then
    udpd=${UDPD:-}
    if [ -z "$udpd" ]; then
        cargo build --release --bin udpd
        udpd=${CARGO_TARGET_DIR:-target}/release/udpd
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # A copy that also an ordinary user can start.
    install -m 755 "$(realpath "$udpd")" "$work/udpd"
    UDPD=$work/udpd SANDBOX_RIG_WORK=$work unshare --net --mount bash tests/rigs/sandbox.sh
    exit
fi
udpd=$UDPD
work=$SANDBOX_RIG_WORK
chmod 755 "$work"
daemon=
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true' EXIT
# sysfs shows the namespace it was mounted in.
mount -t sysfs sys /sys
ip link set lo up

fail() {
    echo "FAILED: $*"
    cat "$work/log"
    exit 1
}

# Waits until the log has the words so often.
await() {
    for _ in $(seq 600); do
        [ "$(grep -c "$1" "$work/log")" -lt "$2" ] || return 0
        sleep 0.1
    done
    fail "the log does not say $2 times: $1"
}

# What /proc says of every thread.
every_thread() {
    local line
    line=$(grep -hE "^$1:" /proc/"$daemon"/task/*/status | sort -u | tr -s '\t ' ' ')
    [ "$line" = "$1: $2" ] || fail "$1 of all threads is to be $2, and is $line"
}

configure() {
    rm -rf "${work:?}/out"
    mkdir "$work/out"
    cat >"$work/udpd.toml" <<END
[daemon]
control_socket = "$work/out/control.sock"
metrics_address = ""
stats_on_exit = "$work/out/ledger.json"
sandbox = "$1"
[[listener]]
name = "in"
address = "0.0.0.0:$2"
interface = "card0"
engine = "$3"
sinks = ["file", "relay"]
[sink.file]
type = "file"
path = "$work/out/in.log"
[sink.relay]
type = "udp"
destinations = ["10.9.0.2:5199"]
END
}

start() {
    : >"$work/log"
    "$@" "$udpd" run -c "$work/udpd.toml" 2>"$work/log" &
    daemon=$!
    await "ready:" 1
}

finish() {
    kill "$daemon"
    wait "$daemon" || fail "the end is no success"
    daemon=
}

cable() {
    ip link add card0 numrxqueues 1 numtxqueues 1 type veth peer name card1
    ip address add 10.9.0.1/24 dev card0
    ip link set card0 up
    ip link set card1 up
}

# Whole frames on the other end of the cable: one namespace is enough.
send() {
    python3 - "$1" "$2" <<'END'
import socket, struct, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("card1", 0))
mac = bytes.fromhex(open("/sys/class/net/card0/address").read().strip().replace(":", ""))
for number in range(count):
    payload = b"datagram %d" % number
    udp = struct.pack("!HHHH", 5000, port, 8 + len(payload), 0) + payload
    ends = bytes([10, 9, 0, 9]), bytes([10, 9, 0, 1])
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, *ends)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:]
    out.send(mac + bytes(6) + b"\x08\x00" + head + udp)
END
}

received() {
    "$udpd" stats --json --socket "$work/out/control.sock" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["listeners"][0]["received"])'
}

await_received() {
    for _ in $(seq 600); do
        [ "$(received)" != "$1" ] || return 0
        sleep 0.1
    done
    fail "received $(received) and not $1"
}

"$udpd" check --sandbox -c config/udpd.toml >"$work/log" 2>&1 ||
    skip "a kernel with seccomp and Landlock, and says: $(grep -E "missing|LET THROUGH" "$work/log")"

for engine in recvmmsg io_uring; do
    # The interface goes and comes back three times: new sockets are made and bound inside.
    cable
    configure require 5140 "$engine"
    start
    for round in 1 2 3; do
        send 5140 50
        await_received $((50 * round))
        ip link del card0
        await "interface card0 is gone" "$round"
        cable
        await "udpd bound its sockets to it again" "$round"
    done
    send 5140 50
    await_received 200
    every_thread NoNewPrivs 1
    every_thread Seccomp 2
    for set in CapInh CapPrm CapEff CapBnd CapAmb; do every_thread "$set" 0000000000000000; done
    finish
    ! grep -E "not permitted|Permission denied|less of a sandbox" "$work/log" || fail "something was denied"
    ip link del card0

    # A low port is bound again, by the warden: it alone has rights, and no more than it needs. So is one that a reload
    # adds, with more receive buffer than everybody may have.
    cable
    configure require 514 "$engine"
    start
    warden=$(pgrep -P "$daemon")
    for set in CapPrm CapEff; do
        grep -q "^$set:[[:space:]]*0000000000003400$" "/proc/$warden/status" || fail "the warden has other rights"
    done
    grep -qE "^Seccomp:[[:space:]]*2$" "/proc/$warden/status" || fail "the warden is in no sandbox"
    for set in CapInh CapPrm CapEff CapBnd CapAmb; do every_thread "$set" 0000000000000000; done
    send 514 50
    await_received 50
    ip link del card0
    await "interface card0 is gone" 1
    cable
    await "udpd bound its sockets to it again" 1
    send 514 50
    await_received 100
    cat >>"$work/udpd.toml" <<END
[[listener]]
name = "added"
address = "127.0.0.1:515"
receive_buffer = $(($(cat /proc/sys/net/core/rmem_max) * 4))
sinks = ["file"]
END
    "$udpd" reload --socket "$work/out/control.sock" >"$work/said" || fail "a low port cannot be added"
    ! grep -q "clamped\|rmem_max" "$work/log" || fail "the receive buffer is cut down"

    # Signals are for the daemon. Without the warden a low port is refused, once and with the reason.
    kill "$warden"
    kill -HUP "$warden"
    kill -KILL "$warden"
    ip link del card0
    await "interface card0 is gone" 2
    cable
    await "which udpd gave up when it had started (sandbox)" 1
    sleep 3
    [ "$(grep -c "back but unusable" "$work/log")" = 1 ] || fail "it is said more than once"
    [ "$(grep -c "udpd-warden) does not answer" "$work/log")" = 1 ] || fail "the end of the warden is not said once"
    finish
    ip link del card0
    cable
    # Without the sandbox it is bound again.
    configure off 514 "$engine"
    start
    ip link del card0
    await "interface card0 is gone" 1
    cable
    await "udpd bound its sockets to it again" 1
    finish

    # An ordinary user.
    configure require 5140 "$engine"
    chown -R 65534 "$work/out"
    start setpriv --reuid 65534 --regid 65534 --clear-groups
    send 5140 50
    await_received 50
    every_thread Uid "65534 65534 65534 65534"
    every_thread NoNewPrivs 1
    every_thread Seccomp 2
    for set in CapInh CapPrm CapEff CapAmb; do every_thread "$set" 0000000000000000; done
    finish
    ip link del card0
done

# A kernel that lacks a part: one warning, or no start.
cable
for lacking in landlock_create_ruleset:error=ENOSYS seccomp:error=EINVAL capset:error=EPERM; do
    configure auto 5140 recvmmsg
    : >"$work/log"
    strace -f -qq -o /dev/null -e "inject=$lacking" "$udpd" run -c "$work/udpd.toml" 2>"$work/log" &
    tracer=$!
    await "ready:" 1
    [ "$(grep -c "running with less of a sandbox" "$work/log")" = 1 ] || fail "$lacking: there is not one warning"
    daemon=$(pgrep -P "$tracer")
    kill "$daemon"
    wait "$tracer" || fail "$lacking: the end is no success"
    daemon=
    configure require 5140 recvmmsg
    code=0
    strace -f -qq -o /dev/null -e "inject=$lacking" "$udpd" run -c "$work/udpd.toml" 2>"$work/log" || code=$?
    [ "$code" = 77 ] || fail "$lacking: exit code $code and not 77"
    grep -q 'sandbox = "require"' "$work/log" || fail "$lacking: the reason is not said"
done
try_ways_out() {
    command -v cc >/dev/null || { echo "SKIPPED injections of sandbox.sh: needs cc"; return; }
    [ "$(uname -m)" = x86_64 ] || { echo "SKIPPED injections of sandbox.sh: needs the registers of x86_64"; return; }
    cc -O1 -Wall -static -o "$work/inject" tests/rigs/sandbox/inject.c 2>"$work/log" ||
        cc -O1 -Wall -o "$work/inject" tests/rigs/sandbox/inject.c 2>"$work/log" || fail "inject.c does not compile"
    local user engine
    for engine in recvmmsg io_uring; do
        for user in 0 65534; do
            timeout 120 python3 tests/rigs/sandbox/injections.py "$udpd" "$work/inject" "$work" "$user" "$engine" ||
                fail "something was let through"
        done
    done
}

# What code in a thread could do: each way out, tried in each thread of a daemon that runs.
try_ways_out
echo "sandbox.sh: all as it should be"
