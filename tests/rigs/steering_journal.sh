#!/usr/bin/env bash
# Attacks what `udpd steer` saves, with the real binary and the real kernel: in network and mount namespaces of its own,
# with veth interfaces and a journal written by hand for their RPS and XPS. After each attack the file is still there,
# nothing else was written, the cause is named and the exit is not 0. Touches nothing of this host: no interface, no
# /run, no /sys outside of its namespaces.
. "$(dirname "$0")/lib/rig.sh"
need namespaces setpriv:util-linux flock:util-linux
can_be_made='mount -t sysfs none /sys && ip link add card0 type veth peer name peer0'
unshare --net --mount sh -c "$can_be_made" 2>/dev/null || skip "needs the right to make veth interfaces"
enter_namespaces
mount -t tmpfs -o mode=755 none /run
mkdir /run/netns
folder=/run/udpd-steer
passed=0

# A veth with two queues each way, under a given number: card0 and its other end.
make_card() {
    ip link add card0 index 77 address "$1" numrxqueues 2 numtxqueues 2 type veth peer name peer0 index 78
    ip link set card0 up
}
rps=/sys/class/net/card0/queues/rx-0/rps_cpus
xps=/sys/class/net/card0/queues/tx-1/xps_cpus
address=02:00:00:00:00:07
make_card "$address"
inode=$(stat -L -c %i /proc/self/ns/net)
device=$(stat -L -c %d /proc/self/ns/net)
file=$folder/card0.77.$inode.saved
original_rps=$(cat $rps) original_xps=$(cat $xps)

write_journal() { # Says that everything was as it is; then everything is changed.
    rm -rf $folder
    mkdir -m 700 $folder
    printf 'steering journal 2: what was, before it was changed\nname\tcard0\nindex\t77\nnamespace\t%s:%s\n' \
        "$device" "$inode" >"$file"
    printf 'address\t%s\nbus\t\nbanned\t\nrps 0\t%s\nxps 1\t%s\nend\n' \
        "$address" "$original_rps" "$original_xps" >>"$file"
    chmod 600 "$file"
    echo 3 >$rps
    echo 2 >$xps
    changed_rps=$(cat $rps) changed_xps=$(cat $xps)
}

pass() {
    passed=$((passed + 1))
    echo "passed: $1"
}

# restore must fail with these words; the journal and every setting stay as they are.
refused() { # what, words, a command that runs restore
    local what=$1 words=$2 said code=0 before
    shift 2
    before=$(cat "$file" 2>/dev/null || true)
    said=$("$@" 2>&1) || code=$?
    [ "$code" -ne 0 ] || fail "$what: exit 0" "$said"
    case $said in *"$words"*) ;; *) fail "$what: the cause is not named: $words" "$said" ;; esac
    [ -e "$file" ] || [ -L "$file" ] || fail "$what: what was saved is gone" "$said"
    [ "$before" = "$(cat "$file" 2>/dev/null || true)" ] || fail "$what: what was saved is changed" "$said"
    if [ -e $rps ]; then
        [ "$(cat $rps) $(cat $xps)" = "$changed_rps $changed_xps" ] || fail "$what: a setting was written" "$said"
    fi
    pass "$what (exit $code)"
}

restored() { # what
    "$UDPD" steer restore >/dev/null || fail "$1: it cannot be restored afterwards"
    [ "$(cat $rps) $(cat $xps)" = "$original_rps $original_xps" ] || fail "$1: not as it was"
    [ ! -e "$file" ] || fail "$1: what was saved should be gone"
    pass "$1: restored afterwards"
}

write_journal
restored "a journal for RPS and XPS of a veth"

# Of sysfs.
write_journal
without_sys() { unshare --mount sh -c 'umount -l /sys; exec "$UDPD" steer restore'; }
empty_sys() { unshare --mount sh -c 'mount -t tmpfs none /sys; exec "$UDPD" steer restore'; }
# shellcheck disable=SC2016  # The inner shell expands it.
read_only_sys() { unshare --mount sh -c 'mount -o remount,bind,ro /sys; exec "$UDPD" steer restore'; }
refused "/sys is not mounted" "cannot " without_sys
refused "/sys is empty" "cannot list the interfaces" empty_sys
refused "/sys is read-only" "ead-only file system" read_only_sys
restored "the states of /sys"

# Of namespaces: one with an interface of the same name and number, seen with its own sysfs and with ours.
write_journal
ip netns add elsewhere
foreign() { ip netns exec elsewhere "$@"; }
foreign sh -c "ip link add card0 index 77 address $address numrxqueues 2 numtxqueues 2 type veth peer name peer0 &&
    ip link set card0 up && echo 1 >$rps && echo 1 >$xps"
foreign_before=$(foreign cat $rps $xps)
in_netns_exec() { ip netns exec elsewhere "$UDPD" steer restore; }
in_nsenter() { nsenter --net=/run/netns/elsewhere "$UDPD" steer restore; }
refused "under ip netns exec, with the same name, number and address" "belongs to the network namespace" in_netns_exec
refused "in another namespace with our sysfs" "belongs to the network namespace" in_nsenter
# Our own namespace, with the sysfs of the other one.
foreign_sys() { # The mount comes from a mount namespace in which it was mounted for the other network namespace.
    nsenter --net=/run/netns/elsewhere unshare --mount sh -c 'mount -t sysfs none /sys &&
        exec nsenter --net=/proc/'$$'/ns/net "$UDPD" steer restore'
}
nsenter --net=/run/netns/elsewhere ip link add other0 type dummy 2>/dev/null ||
    nsenter --net=/run/netns/elsewhere ip link add other0 type veth peer name other1
refused "sysfs of another namespace" "does not show the interfaces of this network namespace" foreign_sys
[ "$(foreign cat $rps $xps)" = "$foreign_before" ] || fail "an interface of another namespace was changed"
restored "another namespace"

# Of the interface.
write_journal
ip link set card0 address 02:00:00:00:00:09
refused "another address" "and what was saved is of interface 77 with address $address" "$UDPD" steer restore
ip link set card0 address $address
ip link set card0 down
ip link set card0 name lan0
rps=/sys/class/net/lan0/queues/rx-0/rps_cpus xps=/sys/class/net/lan0/queues/tx-1/xps_cpus
restored "an interface with a new name"
ip link set lan0 name card0
rps=/sys/class/net/card0/queues/rx-0/rps_cpus xps=/sys/class/net/card0/queues/tx-1/xps_cpus
write_journal
ip link del card0
refused "an interface that is gone" "is gone" "$UDPD" steer restore
"$UDPD" steer restore card0 --forget >/dev/null || fail "it cannot be given up"
[ ! -e "$file" ] || fail "what was given up is still there"
pass "an interface that is gone: given up with --forget"
make_card "$address"

# Of the folder and its files.
secret=/run/secret
printf 'only root may read or write this\n' >$secret
chmod 600 $secret
unprivileged() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
write_journal
unprivileged ln -s $secret "$folder/lock" 2>/dev/null && fail "an ordinary user put a link into the folder"
chown 65534 $folder
unprivileged ln -s $secret "$folder/card0.new"
refused "a folder of the service user, with a link planted in it" "belongs to user 65534" "$UDPD" steer restore
refused "apply does not write through it either" "belongs to user 65534" "$UDPD" steer apply card0
chown 0 $folder
rm $folder/card0.new
ln -s $secret $folder/lock.link
mv $folder/lock.link $folder/lock
refused "the lock is a link" "is a symbolic link" "$UDPD" steer restore
[ "$(cat $secret)" = "only root may read or write this" ] || fail "a file was written through a link"
rm $folder/lock
chmod 777 $folder
refused "a folder that all users may write to" "is writable by others" "$UDPD" steer restore
chmod 700 $folder
chown 65534 "$file"
refused "a journal of the service user" "belongs to user 65534" "$UDPD" steer restore
chown 0 "$file"
ln "$file" /run/second-name
refused "a hard link" "has 2 names" "$UDPD" steer restore
rm /run/second-name
mv "$file" /run/forged
ln -s /run/forged "$file"
refused "a symbolic link" "is a symbolic link" "$UDPD" steer restore
rm "$file"
mv /run/forged "$file"
cp -p "$file" /run/whole
head -c 100 /run/whole >"$file"
refused "half a journal" "is damaged" "$UDPD" steer restore
cp -p /run/whole "$file"
mv $folder /run/moved
ln -s /run/moved $folder
refused "the folder is a link" "is not a directory itself" "$UDPD" steer restore
rm $folder
mv /run/moved $folder
restored "links and owners"

# One that is of no use beside one that is.
write_journal
printf 'no journal\n' >$folder/card9.99.$inode.saved
said=$("$UDPD" steer restore 2>&1) && fail "a damaged journal was not told" "$said"
[ "$(cat $rps) $(cat $xps)" = "$original_rps $original_xps" ] || fail "one damaged journal blocked another" "$said"
[ ! -e "$file" ] && [ -e $folder/card9.99.$inode.saved ] || fail "the wrong one was kept" "$said"
pass "one damaged journal does not block the others"

# Two at once, and one behind a process that is stopped.
for round in $(seq 20); do
    write_journal
    "$UDPD" steer restore >/run/one 2>&1 & one=$!
    "$UDPD" steer restore >/run/two 2>&1 & two=$!
    wait $one || fail "two restores at once, round $round" "$(cat /run/one)"
    wait $two || fail "two restores at once, round $round" "$(cat /run/two)"
    [ "$(cat $rps) $(cat $xps)" = "$original_rps $original_xps" ] || fail "two restores at once, round $round"
    [ ! -e "$file" ] || fail "two restores at once, round $round: what was saved is still there"
done
pass "two restores at once, 20 times"
write_journal
touch $folder/lock
chmod 600 $folder/lock
echo "process 1 (a rig that holds the lock)" >$folder/lock
exec 9<>$folder/lock
flock 9
refused "another process holds the lock" "process 1 (a rig that holds the lock) holds $folder/lock" \
    "$UDPD" steer restore
exec 9>&-
restored "the lock is free again"
echo "steering_journal.sh: $passed passed"
