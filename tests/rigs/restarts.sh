#!/usr/bin/env bash
# Restarts, kills, upgrades and starts in vain of a daemon whose sockets a service manager keeps, under load, in a
# network namespace of their own. What was sent is counted in the files by its numbers, and the kernel is asked what it
# dropped: see tests/rigs/restarts/campaign.py. The short form is a few of each at a small rate. LONG=1 is the long
# one: 100 restarts with each engine, 50 kills, 50 upgrades and 20 starts in vain at 100,000/s, where any loss by a
# restart fails and so does a gap above 200 ms.
#
# Then tests/rigs/restarts/changes.py: kills under a load that overflows the receive buffers, each followed by a start
# with another gro, engine, number of lanes or address; 5 of them, with LONG=1 50 at 60,000/s. Each datagram is in a
# file, or in a ledger, or within what the next process says, and the ledgers say what the kernel counted. ONLY=changes
# runs this part alone, CHANGES and SEED set it. --record FILE writes the table there, --record alone to benches/runs.
# RATE, RESTARTS, KILLS, UPGRADES and IN_VAIN are set one by one as well; UDPD names a binary, UDPD_OTHER the one to
# upgrade to. Needs root, for the namespace and for receive buffers as `udpd check` plans them; skips with its reason
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=restarts.sh
skip() {
    echo "SKIPPED $name: $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "needs root, for a network namespace and large receive buffers"
for program in unshare ip python3 setpriv; do command -v "$program" >/dev/null || skip "needs $program"; done
unshare --net true 2>/dev/null || skip "no right to make a network namespace"

changes_rate=${RATE:-20000}
if [ "${LONG:-0}" = 1 ]; then
    changes_rate=${RATE:-60000}
    export CHANGES=${CHANGES:-50}
    export RATE=${RATE:-100000} RESTARTS=${RESTARTS:-100} KILLS=${KILLS:-50} UPGRADES=${UPGRADES:-50}
    export IN_VAIN=${IN_VAIN:-20} STRICT=${STRICT:-1}
fi
record=()
if [ "${1:-}" = --record ]; then
    record=("$(realpath "${2:-benches/runs/2026-11-22-xeon-2-cores/restarts.md}")")
fi

if [ -z "${UDPD:-}" ]; then
    cargo build --release --bin udpd
    UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
fi
directory=$(mktemp -d)
# Also a user without rights gets to its own part of it.
chmod 711 "$directory"
trap 'rm -rf "$directory"' EXIT
install -m 755 "$UDPD" "$directory/udpd"
# The same program in another file, as a package leaves it.
install -m 755 "${UDPD_OTHER:-$UDPD}" "$directory/other"

# No kernel here has a program that owns groups of sockets, so one option is answered by a library before the C library.
if command -v cc >/dev/null; then
    cat >"$directory/owner.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
int getsockopt(int fd, int level, int option, void *value, socklen_t *length) {
    if (level == 17 && option == 200) { *(int *)value = 0; return 0; }
    int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    return next(fd, level, option, value, length);
}
C
    cc -shared -fPIC -o "$directory/owner.so" "$directory/owner.c" -ldl
    for preloaded in "$directory/owner.so" ""; do
        unshare --net env LD_PRELOAD="$preloaded" timeout --preserve-status --signal=TERM 2 "$directory/udpd" run \
            --listen 0.0.0.0:5188 --to null: 2>"$directory/said" </dev/null || true
        grep -q 'ready:' "$directory/said" || { echo "FAILED: no start: $(cat "$directory/said")"; exit 1; }
        said=$(grep -c 'another program owns the groups' "$directory/said" || true)
        [ "$said" = "${preloaded:+1}" ] || [ "$said$preloaded" = 0 ] ||
            { echo "FAILED: $said warnings with LD_PRELOAD=$preloaded: $(cat "$directory/said")"; exit 1; }
    done
    echo "passed: another owner of the groups of sockets is warned of, and none is not"
else
    echo "NOT CHECKED: another owner of the groups of sockets: no C compiler"
fi

export PYTHONDONTWRITEBYTECODE=1
campaign() {
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
        python3 tests/rigs/restarts/campaign.py "$directory" "$directory/udpd" "$directory/other" "${record[@]}"
}
[ "${ONLY:-}" = changes ] || campaign
unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
    env RATE="$changes_rate" python3 tests/rigs/restarts/changes.py "$directory" "$directory/udpd"
