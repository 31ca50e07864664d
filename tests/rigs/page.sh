#!/usr/bin/env bash
# The page in a real Chromium: under load, with a sink that is stuck, through restarts of the daemon, on screens of
# every kind, and with a token. Its console has to stay empty. Pictures are kept in target/page/.
. "$(dirname "$0")/lib/rig.sh"
need chromium chromedriver:chromium-driver python3
begin
status=0
python_part || status=$?
mkdir -p target/page
cp "$WORK"/*.png target/page/ 2>/dev/null || true
[ "$status" -eq 0 ] || echo "FAILED: see target/page/"
exit "$status"
