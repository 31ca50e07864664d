#!/usr/bin/env bash
# Two poor hosts, because containers often are such. Without /sys (an empty directory in its place) udpd checks, starts,
# receives and closes its ledger, and says once what it has to assume. In a control group with 16 MiB of memory a longer
# queue ends it with 78 and the sum, where the kernel would have killed it without a word; with the defaults it runs
# there.
. "$(dirname "$0")/lib/rig.sh"
need namespaces python3
begin
python_part
