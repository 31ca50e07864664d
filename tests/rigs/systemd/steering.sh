# The last part of systemd.sh, which reads this file: a card steered by the shipped units, and what it was before put
# back exactly, however often who steers or receives is stopped, started and killed. No cable of a container has a
# device behind it, and steering refuses one without. So the kernel gives an interface with four queues each way, and
# keeps its masks like a card's; a tmpfs over /sys/class/net shows a device on a bus beside it. Everything that is
# written goes through to the kernel; interrupts and rings are for steering_in_guest.sh.

steered_queues=/sys/class/net/.kernel/class/net/card0/queues

# Makes card0 in the container, with masks as an administrator might have set them.
make_card() {
    # The module of others (ifb, dummy) makes interfaces on this host when it is loaded.
    nsenter --target "$leader" --net ip link add card0 numrxqueues 4 numtxqueues 4 type bridge 2>/dev/null || return 1
    inside test -d /sys/class/net/card0/queues/rx-3 || return 1
    nsenter --target "$leader" --mount --net --pid sh -eu <<'CARD'
mount -t tmpfs -o mode=755 none /sys/class/net
cd /sys/class/net
mkdir .kernel card0 card0/queues .bus .bus/0000:00:09.0
mount -t sysfs none .kernel
mount -o remount,rw .kernel # systemd-nspawn has made the whole of it read-only
ln -s .kernel/class/net/lo lo
touch .bus/0000:00:09.0/uevent .bus/0000:00:09.0/config
for file in .kernel/class/net/card0/*; do
    case ${file##*/} in bridge | brif | device | queues) ;; *) ln -s "../$file" card0 ;; esac
done
ln -s ../.bus/0000:00:09.0 card0/device
for queue in .kernel/class/net/card0/queues/*; do ln -s "../../$queue" card0/queues; done
for queue in 0 1 2 3; do echo 1 >card0/queues/rx-$queue/rps_cpus; done
echo 64 >card0/queues/rx-2/rps_flow_cnt
echo 1 >card0/queues/tx-1/xps_cpus
CARD
}

# Every file of the interface's queues, by its length and sum, and what is in it.
queues_now() {
    inside sh -c "cd $steered_queues && { find . -type f -exec cksum {} + ; grep -ra '' . ; } 2>&1 | sort"
}
steer_with() { # interfaces
    configure ""
    printf '\n[steer]\ninterfaces = [%s]\n' "$1" >>"$directory/etc/udpd.toml"
}
saved_files() { inside sh -c 'ls /run/udpd-steer/*.saved 2>/dev/null | wc -l'; }
masks_set() { inside sh -c 'cat /sys/class/net/card0/queues/rx-*/rps_cpus' | tr -d '0,\n'; }
steer_is() { [ "$(steer_state "" "$1")" = "$2" ]; }
# Property, value, what is wrong otherwise.
await_steer() { wait_for steer_is "$1" "$2" || fail "$3: $1 is $(steer_state "" "$1")"; }
check_applied() {
    [ "$(steer_state "" ActiveState)" = active ] || fail "$1: steering is $(steer_state "" ActiveState)"
    [ -z "$(masks_set)" ] || fail "$1: the plan is not set: $(masks_set)"
    [ "$(saved_files)" -eq 1 ] || fail "$1: $(saved_files) files say what was before"
}
# Stops steering; everything is as it was then, and nothing is kept.
check_restored() {
    inside systemctl stop udpd-steer.service || fail "$1: the stop failed"
    queues_now >"$directory/queues.after"
    cmp -s "$directory/queues.before" "$directory/queues.after" ||
        fail "$1: not as before: $(diff "$directory/queues.before" "$directory/queues.after" || true)"
    [ "$(saved_files)" -eq 0 ] || fail "$1: something is still saved"
    [ "$(steer_state -watch ActiveState)" != active ] || fail "$1: the watch goes on without what it keeps"
}

disturb() { # what happens in this round
    local before
    case $(($1 % 5)) in
    0) inside systemctl kill --signal=KILL udpd.service ;;
    1) inside systemctl kill --signal=KILL udpd-steer-watch.service ;;
    2) inside systemctl restart udpd.service ;;
    3) # An apply that is killed at some moment, and one after it.
        check_restored "round $1, before the kill"
        inside systemctl start --no-block udpd-steer.service
        sleep "0.0$1"
        inside systemctl kill --signal=KILL udpd-steer.service 2>/dev/null || true
        # A start would wait for the try that systemd makes after five seconds.
        inside systemctl restart udpd-steer.service || fail "round $1: no apply after one that was killed"
        ;;
    4) # Who keeps it goes and comes with it.
        before=$(steer_state -watch MainPID)
        inside systemctl restart udpd-steer.service || fail "round $1: no restart"
        [ "$(steer_state -watch MainPID)" != "$before" ] || fail "round $1: the watch was not restarted"
        ;;
    esac
}

inside systemctl stop udpd-steer.service udpd-steer-watch.service
if [ ! -d /sys/module/bridge ]; then
    echo "SKIPPED $RIG: steering a card here would load the module bridge into the kernel of this host"
elif ! make_card; then
    echo "SKIPPED $RIG: steering a card needs an interface of the kernel with several queues (bridge)"
else
    queues_now >"$directory/queues.before"
    [ -n "$(masks_set)" ] || fail "the card has no masks to begin with"
    steer_with '"card0"'
    start "a file that steers"
    for round in $(seq 20); do
        await ActiveState active
        inside systemctl start udpd-steer.service udpd-steer-watch.service || fail "round $round: it does not start"
        disturb "$round"
        check_applied "round $round"
        check_restored "round $round"
    done
    await ActiveState active
    echo "passed: 20 times stopped, started and killed after an apply: what was before is saved, and put back exactly"

    # An interface that is not there is waited for.
    steer_with '"card9"'
    inside systemctl start --no-block udpd-steer.service
    await_steer SubState auto-restart "an absent interface"
    [ "$(steer_state "" ExecMainStatus)" -eq 69 ] || fail "an absent interface: $(steer_state "" ExecMainStatus)"
    steer_with '"card0"'
    await_steer ActiveState active "the interface is there"
    check_applied "an interface that came later"
    check_restored "an interface that came later"
    echo "passed: an absent interface is tried again (69) and steered when it is there"

    # A queue that takes no mask: what is set all the same is put back by a stop.
    nsenter --target "$leader" --mount --net --pid sh -eu <<'REFUSES'
cd /sys/class/net
mkdir .proc .stubborn
mount -t proc none .proc
ln -s ../.proc/sys/net/ipv4/ip_default_ttl .stubborn/rps_cpus
ln -sfn ../../.stubborn card0/queues/rx-3
REFUSES
    inside systemctl start udpd-steer.service || fail "a part that is refused fails the start"
    [ "$(steer_state "" ExecMainStatus)" -eq 5 ] || fail "a refused part ends with $(steer_state "" ExecMainStatus)"
    [ "$(saved_files)" -eq 1 ] || fail "a refused part: what was before is not saved"
    inside sh -c 'cat /sys/class/net/card0/queues/rx-0/rps_cpus' | grep -q '^[0,]*$' || fail "nothing else is set"
    check_restored "after a refused part"
    echo "passed: an apply that sets a part (5) is active, and its stop puts that part back"

    # A restore that fails is a failed stop, and keeps what was before.
    inside systemctl start udpd-steer.service || fail "it does not start"
    inside sh -c 'chmod 666 /run/udpd-steer/*.saved'
    inside systemctl stop udpd-steer.service 2>/dev/null || true
    [ "$(steer_state "" Result)" = exit-code ] || fail "a failed restore is $(steer_state "" Result)"
    [ "$(saved_files)" -eq 1 ] || fail "a failed restore has thrown away what was before"
    inside sh -c 'chmod 600 /run/udpd-steer/*.saved'
    inside /usr/bin/udpd steer restore >/dev/null || fail "restoring by hand"
    check_restored "after restoring by hand"
    echo "passed: a restore that fails is a failed stop, and nothing that was saved is lost"
fi
