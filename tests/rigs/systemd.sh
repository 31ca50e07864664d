#!/usr/bin/env bash
# The shipped units in a real systemd: Debian's, booted in a container of its own with a network of its own. Restarts,
# bad configurations, the watchdog with idle, stopped and disk-bound threads, kills and stops, and the units of
# steering, each as an operator meets them. With --prepare it only makes the file system of the container. FROZEN_S (6)
# is how many seconds a disk stands still.
. "$(dirname "$0")/lib/rig.sh"
. tests/rigs/systemd/container.sh
need_container mkfs.ext4:e2fsprogs fsfreeze:util-linux losetup:mount python3
work_folder
directory=$WORK
make_image
[ "${1:-}" != --prepare ] || exit 0

if [ -z "${UDPD:-}" ]; then
    build release build --bin udpd
    UDPD=$built/udpd
fi
install -m 755 "$UDPD" "$WORK/udpd"
udpd=$WORK/udpd
stop_thread=$PWD/tests/rigs/systemd/stop_thread.py
loop= sender= tracer= frozen=
at_end '[ -z "$loop" ] || losetup -d "$loop"'
at_end 'mountpoint -q "$directory/disk" && umount -l "$directory/disk"'
at_end end_container
at_end '[ -z "$sender$tracer" ] || kill -KILL $sender $tracer'
at_end '[ -z "$frozen" ] || fsfreeze --unfreeze "$directory/disk"'

show_evidence() {
    [ -n "$leader" ] || return 0
    inside systemctl status --no-pager -l udpd.service || true
    inside journalctl --no-pager -n 40 -u 'udpd*.service' -o short-monotonic
}

# Files of the sink lie on a disk that can be frozen.
mkdir -p "$directory/etc" "$directory/disk" "$directory/units/udpd.service.d"
truncate -s 64M "$directory/image"
loop=$(losetup --find --show "$directory/image" 2>/dev/null) && mkfs.ext4 -q "$loop" &&
    mount "$loop" "$directory/disk" ||
    skip "no loop device with a file system on it, which is to be frozen"
cp config/udpd.service config/udpd-steer.service config/udpd-steer-watch.service "$directory/units/"

configure() {
    cat >"$directory/etc/udpd.toml" <<TOML
[daemon]
stats_on_exit = "/var/lib/udpd/ledger.json"
$1
[[listener]]
name = "in"
address = "127.0.0.1:5178"
max_length = "512B"
sinks = ["archive"]
[sink.archive]
type = "file"
path = "/var/log/udpd/{listener}.log"
sync = "200ms"
queue_bytes = "32MiB"
TOML
}
configure ""

boot_container --bind-ro="$udpd:/usr/bin/udpd" --bind="$directory/etc:/etc/udpd" \
    --bind="$directory/disk:/var/log/udpd" --bind="$directory/units:/run/systemd/system.control" \
    --bind-ro="$PWD/config/udpd.sysusers:/usr/lib/sysusers.d/udpd.conf"
inside /usr/bin/udpd --version >/dev/null 2>&1 || skip "a udpd that was built here does not run in the container"
inside systemd-sysusers
inside systemctl daemon-reload

property() { inside systemctl show --value --property="$1" udpd.service; }
# Waits for the property $1 to be $2 (or, with "!=" as $3, to be something else).
is() { [ "$(property "$1")" "$2" "$3" ]; }
await() { wait_for is "$1" "${3:-=}" "$2" || fail "${4:-$1 did not become $2}"; }
# How many lines of the unit's journal match; kept, because a reader that has seen enough would break the writer's pipe.
journal() {
    inside journalctl --no-pager --unit=udpd.service >"$directory/journal"
    grep -c -- "$1" "$directory/journal" || true
}
start() { inside systemctl start udpd.service || fail "it does not start: $1"; }
# Lines for a drop-in of the unit.
override() {
    printf '[Service]\n%s\n' "$1" >"$directory/units/udpd.service.d/rig.conf"
    inside systemctl daemon-reload
}
# By count: a sender that is held up sends fewer in a second, and the ledger is compared with all of them.
send() { inside /usr/bin/udpd bench send --to 127.0.0.1:5178 --rate "$1" --count $(($1 * $2)) --size 200 --json; }
sent() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["report"]["sent"])' "$directory/sent.json"; }
stats() {
    inside /usr/bin/udpd stats --json --socket /run/udpd/control.sock | python3 -c '
import json, sys
listener = json.load(sys.stdin)["listeners"][0]
print({"arrived": listener["arrived"], "delivered": listener["sinks"][0]["delivered"]}[sys.argv[1]])' "$1"
}
has_delivered() { [ "$(stats delivered)" -ge "$1" ]; }
# The ledger at exit closes; with $1, over so many datagrams.
check_ledger() {
    inside cat /var/lib/udpd/ledger.json >"$directory/ledger.json"
    check_last_ledger "$directory/ledger.json" "$@" || fail "the ledger does not close: $(cat "$directory/ledger.json")"
}

# 1. The unit says nothing that systemd does not know, and starts.
verified=$(inside systemd-analyze verify --man=no /run/systemd/system.control/udpd.service 2>&1) ||
    fail "the unit does not verify: $verified"
[ -z "$verified" ] || fail "systemd-analyze verify has something to say: $verified"
start "the shipped unit with a good file"
await ActiveState active
inside systemd-analyze security --offline=true --threshold=14 --no-pager \
    /run/systemd/system.control/udpd.service >"$directory/exposure" ||
    fail "the unit is more exposed than 1.4: $(tail -n 1 "$directory/exposure")"
tail -n 1 "$directory/exposure" | cut -c5-
echo "passed: the unit verifies clean and starts; $(property StatusText)"

# 2. Deliberate restarts are no failures, however many.
for round in $(seq 10); do
    inside systemctl restart udpd.service || fail "restart $round of 10 was refused"
done
await ActiveState active
[ "$(property NRestarts)" -eq 0 ] || fail "healthy restarts count as failures"
echo "passed: ten healthy restarts in a row"

# 3. A bad file ends at once with 78, without retries, says where it is bad, and a mended one starts at once; again and
#    again.
for round in $(seq 6); do
    configure "no_such_key = 1"
    inside systemctl restart udpd.service 2>/dev/null && fail "a bad file has started"
    await ActiveState failed
    [ "$(property Result)" = exit-code ] && [ "$(property ExecMainStatus)" -eq 78 ] ||
        fail "a bad file ended with $(property Result), $(property ExecMainStatus)"
    [ "$(property NRestarts)" -eq 0 ] || fail "a bad file was tried again"
    configure ""
    start "the file is mended, round $round"
done
[ "$(journal 'udpd.toml:3:1.*no_such_key')" -eq 6 ] || fail "the journal does not say where the file is bad"
echo "passed: a bad file ends once with 78, and a mended one starts at once"

# 4. Idle is well, also within a short limit.
override "WatchdogSec=2"
inside systemctl restart udpd.service || fail "it does not restart"
pid=$(property MainPID)
sleep 20
[ "$(property MainPID)" = "$pid" ] && [ "$(property NRestarts)" -eq 0 ] ||
    fail "the watchdog has killed a healthy, idle daemon"
echo "passed: WatchdogSec=2 and 20 s without traffic: the same process"

# 5. A frozen disk is no hang of ours: three times the limit of it, under traffic, and every datagram accounted for.
frozen_s=${FROZEN_S:-6}
send 2000 "$((frozen_s + 4))" >"$directory/sent.json" 2>/dev/null &
sender=$!
wait_for has_delivered 1000 || fail "nothing is delivered"
fsfreeze --freeze "$directory/disk" && frozen=1
sleep "$frozen_s"
[ "$(property MainPID)" = "$pid" ] || fail "the watchdog has killed a daemon that waits for a frozen disk"
fsfreeze --unfreeze "$directory/disk" && frozen=
wait "$sender" || fail "the sender failed"
sender=
[ "$(property MainPID)" = "$pid" ] && [ "$(property NRestarts)" -eq 0 ] ||
    fail "the daemon did not outlive a frozen disk"
inside systemctl stop udpd.service
[ "$(property Result)" = success ] || fail "the stop ended with $(property Result)"
check_ledger "$(sent)"
echo "passed: a disk frozen for $frozen_s s with WatchdogSec=2: the same process, and a closed ledger"

# 6. A thread that is stopped is a hang, whichever it is and although it rested: systemd starts the daemon anew.
tells_of_timeouts() { [ "$(journal 'Watchdog timeout')" -eq "$1" ]; }
timeouts=0
for thread in rx0- sink0- udpd-control main; do
    start "after a stop"
    await ActiveState active
    pid=$(property MainPID)
    restarts=$(property NRestarts)
    case $thread in
    main) id=$pid ;;
    *) id=$(inside sh -c "grep -l '^$thread' /proc/$pid/task/*/comm" | head -n 1 | cut -d/ -f5) ;;
    esac
    [ -n "$id" ] || fail "there is no thread $thread"
    mkfifo "$directory/stopped"
    nsenter --target "$leader" --pid python3 "$stop_thread" "$id" >"$directory/stopped" &
    tracer=$!
    read -r word <"$directory/stopped" || fail "thread $thread cannot be stopped"
    began=$(date +%s%N)
    rm "$directory/stopped"
    await MainPID "$pid" != "the watchdog has not noticed that $thread is stopped"
    await ActiveState active
    [ "$(property NRestarts)" -gt "$restarts" ] || fail "it was not systemd that has restarted the daemon"
    wait "$tracer" || true
    tracer=
    echo "        $thread $word: back after $((($(date +%s%N) - began) / 1000000)) ms"
    timeouts=$((timeouts + 1))
    # The journal hears of it when it gets to it.
    wait_for tells_of_timeouts "$timeouts" ||
        fail "it was not the watchdog: the journal tells of it $(journal 'Watchdog timeout') times, not $timeouts"
    inside systemctl stop udpd.service
done
[ "$(journal 'watchdog: .*was stopped from outside')" -eq "$timeouts" ] ||
    fail "the journal does not name the threads that were stopped"
echo "passed: a stopped receiver, consumer, control or main thread is a restart by the watchdog, which names it"

# 7. A stop that takes longer than the watchdog's limit, because a sink takes nothing, is a clean stop; also one that
#    systemd did not ask for.
start "before a slow stop"
pid=$(property MainPID)
send 2000 1 >/dev/null 2>&1
fsfreeze --freeze "$directory/disk" && frozen=1
send 2000 1 >/dev/null 2>&1
inside systemctl kill --signal=TERM udpd.service
sleep 4
fsfreeze --unfreeze "$directory/disk" && frozen=
await ActiveState inactive
[ "$(property Result)" = success ] || fail "a slow stop ended with $(property Result)"
check_ledger 4000
echo "passed: a stop of 4 s with WatchdogSec=2 is clean"

# 8. A kill is a restart; a stop under traffic is clean.
start "before a kill"
pid=$(property MainPID)
inside systemctl kill --signal=KILL udpd.service
await MainPID "$pid" != "a killed daemon was not started again"
await ActiveState active
[ "$(property NRestarts)" -eq 1 ] || fail "a kill made $(property NRestarts) restarts"
send 2000 4 >"$directory/sent.json" 2>/dev/null &
sender=$!
wait_for has_delivered 1000 || fail "nothing is delivered"
inside systemctl stop udpd.service
[ "$(property Result)" = success ] && [ "$(property ExecMainStatus)" -eq 0 ] ||
    fail "a stop under traffic ended with $(property Result)"
check_ledger
wait "$sender" || true
sender=
echo "passed: kill -9 is one restart, and a stop under traffic is clean"

# 9. Restarts and kills between a sender's datagrams: all of them are in the file, and none twice. The rate is one at
#    which the smallest receive buffer holds what comes in a restart on the slowest machine.
rm -f "$directory"/disk/*.log
start "before restarts under traffic"
send 100 25 >"$directory/sent.json" 2>/dev/null &
sender=$!
wait_for has_delivered 100 || fail "nothing is delivered"
for round in $(seq 5); do
    pid=$(property MainPID)
    inside systemctl restart udpd.service || fail "restart $round of 5 under traffic"
    [ "$(property NFileDescriptorStore)" -eq 2 ] ||
        fail "systemd keeps $(property NFileDescriptorStore) descriptors, and not socket and record"
    [ "$(property MainPID)" != "$pid" ] || fail "it was not restarted"
done
wait "$sender" || fail "a sender was told that no process listens"
sender=
# What was killed had delivered all it had; what comes before the next process is there waits for it.
delivered=$(stats delivered)
for _ in $(seq 100); do sleep 0.1; [ "$(stats delivered)" != "$delivered" ] || break; delivered=$(stats delivered); done
sleep 0.5
pid=$(property MainPID)
inside systemctl kill --signal=KILL udpd.service
send 100 1 >"$directory/late.json" 2>/dev/null || fail "a sender was told that no process listens"
await MainPID "$pid" != "a killed daemon was not started again"
await ActiveState active
inside systemctl stop udpd.service
wanted=$(($(sent) + 100))
lines=$(cat "$directory"/disk/*.log | wc -l)
distinct=$(cat "$directory"/disk/*.log | LC_ALL=C sort -u | wc -l)
[ "$lines $distinct" = "$wanted $wanted" ] ||
    fail "of $wanted datagrams $lines are in the file, $distinct of them different"
[ "$(property NFileDescriptorStore)" -eq 0 ] || fail "a stop leaves sockets behind"
echo "passed: 5 restarts and a kill -9 under traffic, $lines of $wanted datagrams in the file"

# 10. A socket unit of the same name: the daemon goes on with its socket, from the first datagram on.
printf '[Socket]\nListenDatagram=127.0.0.1:5178\n' >"$directory/units/udpd.socket"
inside systemctl daemon-reload
inside systemctl start udpd.socket
start "with the socket of a unit"
send 100 1 >"$directory/sent.json" 2>/dev/null
inside systemctl restart udpd.service || fail "it does not restart with the socket of a unit"
send 100 1 >/dev/null 2>&1 || fail "the socket of the unit was left deaf"
wait_for has_delivered 100 || fail "what came after the restart is not delivered"
inside systemctl stop udpd.socket udpd.service
check_ledger 100
[ "$(journal 'is shared with')" -eq 0 ] || fail "another process is called the holder"
rm "$directory/units/udpd.socket"
inside systemctl daemon-reload
echo "passed: a socket unit"

# 11. The units of steering, first without anything to steer.
steer_state() { inside systemctl show --value --property="$2" "udpd-steer$1.service"; }
verified=$(inside systemd-analyze verify --man=no /run/systemd/system.control/udpd-steer.service \
    /run/systemd/system.control/udpd-steer-watch.service 2>&1) || fail "the units of steering do not verify: $verified"
[ -z "$verified" ] || fail "systemd-analyze verify has something to say: $verified"
inside systemd-analyze security --offline=true --threshold=25 --no-pager \
    /run/systemd/system.control/udpd-steer.service >"$directory/exposure" ||
    fail "the unit of steering is more exposed than 2.5: $(tail -n 1 "$directory/exposure")"
configure ""
inside systemctl start udpd-steer.service udpd-steer-watch.service || fail "no interface in [steer] is a failure"
[ "$(steer_state "" ActiveState) $(steer_state "" Result)" = "active success" ] ||
    fail "with nothing to do it is $(steer_state "" ActiveState)"
[ "$(steer_state -watch Result) $(steer_state -watch NRestarts)" = "success 0" ] ||
    fail "with nothing to do the watch ended with $(steer_state -watch Result)"
echo "passed: the units of steering verify clean, and without an interface there is nothing to do"

# 12. The same with a card.
. tests/rigs/systemd/steering.sh
