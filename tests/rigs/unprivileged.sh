#!/usr/bin/env bash
# An ordinary user without any capability: udpd works on loopback, logs once what it could not get, and names the right
# that a low port needs. Needs root, to become that user.
. "$(dirname "$0")/lib/rig.sh"
need root python3 setpriv:util-linux
begin
python_part
