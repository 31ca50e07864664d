#!/usr/bin/env bash
# Root is not kept: udpd that root starts becomes an ordinary user, with every thread and with its warden. Files,
# sockets and secrets of root are out of reach, and all that udpd is there for works: low ports, raw sockets, spills,
# reloads, kills, restarts and take-overs. Where the user cannot be had it says so. The users are in a copy of
# /etc/passwd that only this rig's own mount namespace sees. Needs root, unshare, setpriv, python3; skips with its
# reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED user.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, because that is who becomes another user"
for program in unshare ip setpriv python3; do command -v "$program" >/dev/null || skip "$program"; done
unshare --net --mount true 2>/dev/null || skip "the right to make namespaces"

if [ -z "${USER_RIG_WORK:-}" ]; then
    udpd=${UDPD:-}
    if [ -z "$udpd" ]; then
        cargo build --release --bin udpd
        udpd=${CARGO_TARGET_DIR:-target}/release/udpd
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    install -m 755 "$(realpath "$udpd")" "$work/udpd"
    UDPD=$work/udpd USER_RIG_WORK=$work unshare --net --mount bash tests/rigs/user.sh
    exit
fi
udpd=$UDPD
work=$USER_RIG_WORK
chmod 755 "$work"
number=47110
daemon=
helper=
leave() { for process in $daemon $helper; do kill "$process" 2>/dev/null || true; done; }
trap leave EXIT
ip link set lo up
mount -t tmpfs tmpfs /run
cp /etc/passwd "$work/passwd"
cp /etc/group "$work/group"
sed -i '/^udpd:/d' "$work/passwd" "$work/group"
mount --bind "$work/passwd" /etc/passwd
mount --bind "$work/group" /etc/group

fail() {
    echo "FAILED: $*"
    cat "$work/log"
    exit 1
}

# Waits until the log has the words so often.
await() {
    for _ in $(seq 600); do
        [ "$(grep -c -- "$1" "$work/log")" -lt "${2:-1}" ] || return 0
        sleep 0.05
    done
    fail "the log does not say ${2:-1} times: $1"
}

said() { [ "$(grep -c -- "$1" "$work/log")" = "$2" ] || fail "the log does not say $2 times: $1"; }

start() {
    : >"$work/log"
    "$@" 2>>"$work/log" >/dev/null &
    daemon=$!
    await "ready:"
}

finish() {
    kill "$daemon"
    wait "$daemon" || fail "the end is no success"
    daemon=
}

# A start that has to fail: its code, words of the reason, and the command.
refused() {
    local code=0 wanted=$1 words=$2
    shift 2
    "$@" >"$work/log" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "exit code $code and not $wanted: $*"
    grep -q -- "$words" "$work/log" || fail "the reason is not said: $words"
}

# What /proc says of every thread of the daemon.
every_thread() {
    local line
    line=$(grep -hE "^$1:" /proc/"$daemon"/task/*/status | sort -u | tr -s '\t ' ' ' | sed 's/ $//')
    [ "$line" = "$1: $2" ] || fail "$1 of all threads is to be $2, and is $line"
}

# A datagram with a number, to each of the ports, so often.
send() {
    python3 - "$@" <<'PYTHON'
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[1])):
    for port in sys.argv[2:]:
        out.sendto(b"datagram %d" % number, ("127.0.0.1", int(port)))
PYTHON
}

# Waits until the files have so many lines together.
await_lines() {
    local lines=0
    for _ in $(seq 600); do
        lines=$(cat "$work"/log.d/made/*.log 2>/dev/null | wc -l)
        [ "$lines" != "$1" ] || return 0
        sleep 0.05
    done
    fail "the files have $lines lines and not $1"
}

every_file_is_the_users() {
    local others
    others=$(find "$@" ! \( -user $number -group $number \) -printf '%p of %U:%G\n')
    [ -z "$others" ] || fail "of another user: $others"
}

# Sockets of root that listen, and one that root has let the group use. Each writes what it gets.
serve() {
    mkdir -p "$work/peers"
    python3 - "$work/peers" $number <<'PYTHON' &
import os, select, socket, sys
place, group = sys.argv[1], int(sys.argv[2])
sockets = {}
for name, mode, owner in (("closed", 0o600, 0), ("shared", 0o660, group)):
    path = os.path.join(place, name)
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own.bind(path)
    os.chown(path, 0, owner)
    os.chmod(path, mode)
    sockets[own] = open(path + ".got", "wb", buffering=0)
    sockets[own].write(b"")
relayed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
relayed.bind(("127.0.0.1", 5199))
sockets[relayed] = open(os.path.join(place, "relayed.got"), "wb", buffering=0)
while True:
    for ready in select.select(list(sockets), [], [])[0]:
        sockets[ready].write(ready.recv(2048) + b"\n")
PYTHON
    helper=$!
    for _ in $(seq 200); do [ ! -e "$work/peers/relayed.got" ] || return 0; sleep 0.05; done
    fail "the peers do not listen"
}

listener() {
    printf '[[listener]]\nname = "%s"\naddress = "127.0.0.1:%s"\nengine = "%s"\nsinks = %s\n%s\n' "$@"
}

sinks() {
    cat <<TOML
[sink.file]
type = "file"
path = "$work/log.d/made/{listener}.log"
[sink.closed]
type = "unix"
path = "$work/peers/closed"
[sink.shared]
type = "unix"
path = "$work/peers/shared"
spill = { path = "$work/spill.d/made", bytes = "64MiB" }
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:5199"]
keep_source = true
TOML
}

configure() {
    {
        printf '[daemon]\nmetrics_address = ""\nsandbox = "require"\nstats_on_exit = "%s/end/ledger.json"\n' "$work"
        printf '%s\n' "$1"
        listener one 514 recvmmsg '["file", "closed", "shared", "relay"]' ''
        listener two 515 io_uring '["file"]' 'lanes = 2'
        [ "${2:-}" != more ] || listener three 516 recvmmsg '["file"]' ''
        sinks
    } >"$work/udpd.toml"
}

"$udpd" check --sandbox -c config/udpd.toml >"$work/log" 2>&1 ||
    skip "a kernel with seccomp and Landlock, and says: $(grep -E "missing|LET THROUGH" "$work/log")"

# Directories of root, in which the user may make nothing; one is given to it.
mkdir -p "$work/log.d" "$work/spill.d" "$work/end"
chown $number "$work/end"
serve

# Nobody of that name: it stays root, and says so once. So does check.
configure ''
sed -i 's|^sandbox.*|control_socket = ""|; s|log.d/made|root.d|; s|spill.d/made|root.spill|; /^stats_on_exit/d' \
    "$work/udpd.toml"
start "$udpd" run -c "$work/udpd.toml"
said "udpd stays root: this host has no user udpd" 1
every_thread Uid "0 0 0 0"
"$udpd" check -c "$work/udpd.toml" >"$work/checked"
grep -q "^warning: udpd would stay root: this host has no user udpd" "$work/checked" || fail "check does not say it"
finish
configure 'user = "no-such-user"'
refused 78 "$work/udpd.toml:5:8: .*no user \"no-such-user\"" "$udpd" check -c "$work/udpd.toml"
refused 78 "$work/udpd.toml:5:8: .*no user \"no-such-user\"" "$udpd" run -c "$work/udpd.toml"
configure 'user = "root"'
sed -i '/^spill/d' "$work/udpd.toml"
refused 77 "only root can become another user" \
    setpriv --reuid 65534 --regid 65534 --clear-groups "$udpd" run -c "$work/udpd.toml"

# From now on there is one.
echo "udpd:x:$number:$number::/nonexistent:/usr/sbin/nologin" >>"$work/passwd"
echo "udpd:x:$number:" >>"$work/group"

configure 'user = "root"'
sed -i 's|^sandbox.*|control_socket = ""|; s|log.d/made|root.d|; s|spill.d/made|root.spill|; /^stats_on_exit/d' \
    "$work/udpd.toml"
start "$udpd" run -c "$work/udpd.toml"
said 'udpd stays root: user = "root" says so' 1
every_thread Uid "0 0 0 0"
finish

# What it is there for, by everybody's default. The configuration is root's alone at first.
configure ''
chmod 600 "$work/udpd.toml"
: >"$work/peers/shared.got"
: >"$work/peers/relayed.got"
: >"$work/peers/closed.got"
"$udpd" check -c "$work/udpd.toml" >"$work/checked" 2>&1 || fail "check refuses it: $(cat "$work/checked")"
grep -q "^user: udpd (uid $number), which root becomes" "$work/checked" || fail "check does not say the user"
grep -q "^warning: a reload will be refused: root can read" "$work/checked" || fail "check sees with the eyes of root"
start "$udpd" run -c "$work/udpd.toml"
said "user udpd (uid $number): root has started udpd, which has become it" 1
said "a reload will be refused: root can read $work/udpd.toml and user udpd, which udpd becomes, cannot" 1
every_thread Uid "$number $number $number $number"
every_thread Gid "$number $number $number $number"
every_thread Groups "$number"
every_thread NoNewPrivs 1
every_thread Seccomp 2
for set in CapInh CapAmb; do every_thread "$set" 0000000000000000; done
for task in /proc/"$daemon"/task/*; do
    # The consumer of the relay makes raw sockets, with CAP_NET_RAW.
    case $(cat "$task/comm") in sink*-relay) rights=0000000000002000 ;; *) rights=0000000000000000 ;; esac
    for set in CapPrm CapEff CapBnd; do
        grep -q "^$set:[[:space:]]*$rights$" "$task/status" || fail "$(cat "$task/comm") has other rights than $rights"
    done
done
warden=$(pgrep -P "$daemon")
grep -qE "^Uid:([[:space:]]+$number){4}$" "/proc/$warden/status" || fail "the warden is another user"
grep -qE "^Gid:([[:space:]]+$number){4}$" "/proc/$warden/status" || fail "the warden is in another group"
for set in CapPrm CapEff CapBnd; do
    grep -q "^$set:[[:space:]]*0000000000003400$" "/proc/$warden/status" || fail "the warden has other rights"
done
send 50 514 515
await_lines 100
for _ in $(seq 200); do
    [ "$(cat "$work/peers/shared.got" "$work/peers/relayed.got" | wc -l)" != 100 ] || break
    sleep 0.05
done
for peer in shared relayed; do
    [ "$(wc -l <"$work/peers/$peer.got")" = 50 ] || fail "the peer $peer has not what was sent"
done
# Root's own socket is out of reach by the kernel's first rule.
await "peers/closed cannot be reached: Permission denied.*udpd has become user udpd"
[ ! -s "$work/peers/closed.got" ] || fail "a socket of root was reached"
"$udpd" stats --json >"$work/stats"
python3 - "$work/stats" <<'PYTHON'
import json, sys
one = json.load(open(sys.argv[1]))["listeners"][0]
sinks = {sink["name"]: sink for sink in one["sinks"]}
assert one["received"] == 50, one["received"]
assert sinks["closed"]["dropped"]["sink_error"] == 50, sinks["closed"]
for name in ("file", "shared", "relay"):
    assert sinks[name]["delivered"] == 50, sinks[name]
PYTHON
every_file_is_the_users "$work/log.d/made" "$work/spill.d/made" /run/udpd

# A reload reads the file again, as soon as the user may, and binds a low port by the warden. It makes no file where
# only root may.
refused 78 "Permission denied" "$udpd" reload
chgrp $number "$work/udpd.toml"
chmod 640 "$work/udpd.toml"
configure '' more
"$udpd" reload >"$work/said" 2>&1 || fail "a low port cannot be added: $(cat "$work/said")"
send 50 516
await_lines 150
sed -i "s|log.d/made|log.d/other|" "$work/udpd.toml"
refused 77 "Permission denied" "$udpd" reload
[ ! -e "$work/log.d/other" ] || fail "a directory was made where only root may"
configure '' more

# A kill leaves what the next start goes on with.
kill -KILL "$daemon"
{ wait "$daemon"; } 2>/dev/null || true
start "$udpd" run -c "$work/udpd.toml"
send 50 514 515 516
await_lines 300
every_file_is_the_users "$work/log.d/made" "$work/spill.d/made" /run/udpd

# So does whoever takes over, who is root as well.
before=$daemon
: >"$work/log"
"$udpd" run --take-over -c "$work/udpd.toml" 2>>"$work/log" &
daemon=$!
await "took over 4 sockets"
await "ready:"
wait "$before" || fail "the daemon before has not ended well"
every_thread Uid "$number $number $number $number"
send 50 514 515 516
await_lines 450
finish
every_file_is_the_users "$work/log.d/made" "$work/spill.d/made" "$work/end/ledger.json"
[ ! -e /run/udpd/control.sock ] || fail "the control socket stays"

# Whose a port is that cannot be had is said also of a process of root.
python3 -c 'import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("127.0.0.1", 514))
print(flush=True)
time.sleep(600)' >"$work/taken" &
taker=$!
for _ in $(seq 200); do [ ! -s "$work/taken" ] || break; sleep 0.05; done
refused 69 "pid $taker" "$udpd" run -c "$work/udpd.toml"
kill "$taker"
{ wait "$taker"; } 2>/dev/null || true

# What is root's from before is neither taken nor overwritten, and the cure is said.
rm "$work"/log.d/made/*.log
echo "of root" >"$work/log.d/made/one.log"
chmod 640 "$work/log.d/made/one.log"
refused 77 "Permission denied.*udpd has become user udpd before it opened anything" "$udpd" run -c "$work/udpd.toml"
[ "$(cat "$work/log.d/made/one.log")" = "of root" ] || fail "a file of root has changed"
rm "$work/log.d/made/one.log"
install -m 600 /dev/null "$work/token"
head -c 32 /dev/zero | tr '\0' x >"$work/token"
sed -i "s|^metrics_address.*|metrics_address = \"127.0.0.1:9817\"\nmetrics_token_file = \"$work/token\"|" \
    "$work/udpd.toml"
refused 78 "Permission denied" "$udpd" check -c "$work/udpd.toml"
refused 78 "Permission denied.*udpd has become user udpd" "$udpd" run -c "$work/udpd.toml"
chown root "$work/end"
chmod 755 "$work/end"
configure ''
refused 77 "cannot write stats_on_exit" "$udpd" run -c "$work/udpd.toml"
chown $number "$work/end"

# Sockets that root has bound and passes, as a service manager does: more lanes of the same port are the user's.
configure ''
cat >"$work/pass.py" <<'PYTHON'
import os, socket, sys
passed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
passed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
passed.bind(("127.0.0.1", 515))
os.dup2(passed.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="two.0")
os.execv(sys.argv[1], [sys.argv[1], "run", "-c", sys.argv[2]])
PYTHON
start python3 "$work/pass.py" "$udpd" "$work/udpd.toml"
every_thread Uid "$number $number $number $number"
send 50 515
await_lines 50
finish

# Without the sandbox a user keeps what a start takes, and root keeps all.
configure 'user = "udpd"'
sed -i 's|^sandbox.*|sandbox = "off"|' "$work/udpd.toml"
start "$udpd" run -c "$work/udpd.toml"
every_thread Uid "$number $number $number $number"
for set in CapPrm CapEff; do every_thread "$set" 000000c000807400; done
finish
configure ''
sed -i 's|^sandbox.*|sandbox = "off"\ncontrol_socket = ""|; s|made|off|; /^stats_on_exit/d' "$work/udpd.toml"
start "$udpd" run -c "$work/udpd.toml"
said 'udpd stays root: sandbox = "off" gives up nothing' 1
every_thread Uid "0 0 0 0"
finish

# Where root may not become anybody: one warning, or no start.
for without in "setpriv --bounding-set=-setuid" "unshare --user --map-root-user"; do
    configure ''
    sed -i 's|^sandbox.*|control_socket = ""|; /^address/s|:51|:2051|; s|made|bound|' "$work/udpd.toml"
    sed -i '/^keep_source/d; /^stats_on_exit/d' \
        "$work/udpd.toml"
    start $without "$udpd" run -c "$work/udpd.toml"
    said "udpd stays root: it cannot become user udpd" 1
    every_thread Uid "0 0 0 0"
    finish
    sed -i 's|^control_socket|user = "udpd"\ncontrol_socket|' "$work/udpd.toml"
    refused 77 "cannot become user udpd" $without "$udpd" run -c "$work/udpd.toml"
    rm -rf "$work/log.d/bound" "$work/spill.d/bound"
done
echo "user.sh: all as it should be"
