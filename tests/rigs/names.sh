#!/usr/bin/env bash
# A relay whose destinations move: names whose answers change, whose resolver goes and comes back, that no resolver
# knows at the start, or that lead back to udpd itself; files by the names of senders, which lie, escape or hang; and a
# link-local address on an interface that is removed and comes back with another number. Every datagram is delivered
# where the destination is, or counted. The resolver is one of our own, in a network and a mount namespace of its own.
. "$(dirname "$0")/lib/rig.sh"
need python3
enter_namespaces
# What the resolver of the C library reads here, and no other process of the host.
mkdir "$WORK/etc"
printf 'nameserver 127.0.0.53\noptions timeout:3 attempts:1\n' >"$WORK/etc/resolv.conf"
echo "127.0.0.1 localhost" >"$WORK/etc/hosts"
echo "hosts: files dns" >"$WORK/etc/nsswitch.conf"
for file in resolv.conf hosts nsswitch.conf; do
    [ -e "/etc/$file" ] || skip "needs a file /etc/$file to put another in the place of"
    mount --bind "$WORK/etc/$file" "$(realpath "/etc/$file")"
done
other_namespace
python_part
