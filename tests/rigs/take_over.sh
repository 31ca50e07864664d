#!/usr/bin/env bash
# Upgrades without a service manager, under load, in a network namespace of their own: one udpd after another takes over
# from the one that runs, with 2 to 4 lanes; and new ones that fail, at every step up to the last. What was sent is
# counted in the file by its numbers: see tests/rigs/take_over/campaign.py. The short form is a few of each at a small
# rate. LONG=1 is the long one: 50 upgrades with each engine and 20 failures at 100,000/s, where anything the kernel
# dropped fails as well, and so does a gap above 200 ms.
#
# Then tests/rigs/take_over/kills.py: the old process of a take-over is killed at a random moment, under a load that
# overflows the receive buffers; 6 times, with LONG=1 100 times at 60,000/s. ONLY=kills runs this part alone, KILLS and
# SEED set it. RATE, UPGRADES, FAILURES and STRICT are set one by one as well;
# UDPD names a binary, UDPD_OTHER the one to upgrade to. Needs root, for the namespace and for receive buffers as `udpd
# check` plans them; skips with its reason otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=take_over.sh
skip() {
    echo "SKIPPED $name: $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "needs root, for a network namespace and large receive buffers"
for program in unshare ip python3; do command -v "$program" >/dev/null || skip "needs $program"; done
unshare --net true 2>/dev/null || skip "no right to make a network namespace"

kills_rate=${RATE:-20000}
if [ "${LONG:-0}" = 1 ]; then
    kills_rate=${RATE:-60000}
    export KILLS=${KILLS:-100}
    export RATE=${RATE:-100000} UPGRADES=${UPGRADES:-50} FAILURES=${FAILURES:-20} STRICT=${STRICT:-1}
fi
if [ -z "${UDPD:-}" ]; then
    cargo build --release --bin udpd
    UDPD=$(realpath "${CARGO_TARGET_DIR:-target}/release/udpd")
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
install -m 755 "$UDPD" "$directory/udpd"
# The same program in another file, as a package leaves it.
install -m 755 "${UDPD_OTHER:-$UDPD}" "$directory/other"

export PYTHONDONTWRITEBYTECODE=1
[ "${ONLY:-}" = kills ] || unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
    python3 tests/rigs/take_over/campaign.py "$directory" "$directory/udpd" "$directory/other"
unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
    env RATE="$kills_rate" python3 tests/rigs/take_over/kills.py "$directory" "$directory/udpd"
