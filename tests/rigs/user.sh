#!/usr/bin/env bash
# udpd that root starts becomes an ordinary user, with every thread and with its helper process. It can no longer reach
# files, sockets and secrets of root, and everything that it is for still works: low ports, raw sockets, spills,
# reloads, kills, restarts and take-overs. Where it cannot become the user it says so. The users are in a copy of
# /etc/passwd that only this rig's own mount namespace sees.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux
enter_namespaces
mount -t tmpfs tmpfs /run
for table in passwd group; do
    sed '/^udpd:/d' "/etc/$table" >"$WORK/$table"
    mount --bind "$WORK/$table" "/etc/$table"
done
python_part
