#!/usr/bin/env bash
# Root is not kept: udpd that root starts becomes an ordinary user, with every thread and with its warden. Files,
# sockets and secrets of root are out of reach, and all that udpd is there for works: low ports, raw sockets, spills,
# reloads, kills, restarts and take-overs. Where the user cannot be had it says so. The users are in a copy of
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
