# What every rig begins with. A rig sources this file first, then says what it needs, and may enter namespaces:
#
#     . "$(dirname "$0")/lib/rig.sh"
#     need python3
#     enter_namespaces "$@"
#     python_part
#
# UDPD names a program to test; without it one is built. What cannot run here prints `SKIPPED name: reason` and ends
# with 0. The Python parts import tests/rigs/lib; they find UDPD, WORK, OTHER and RIG in their environment.
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
RIG=$(basename "$script")
export RIG PYTHONPATH=$PWD/tests/rigs PYTHONDONTWRITEBYTECODE=1

skip() {
    echo "SKIPPED $RIG: $1"
    exit 0
}

# Ends the rig: what is wrong, and more of it. A rig that has evidence to show defines `show_evidence`.
fail() {
    printf '%s\n' "FAILED: $1" ${2:+"$2"}
    show_evidence || true
    exit 1
}
show_evidence() { :; }

# Waits until a command succeeds, ten times longer than it takes.
wait_for() {
    local _
    for _ in $(seq 300); do
        if "$@"; then return; fi
        sleep 0.1
    done
    return 1
}

# The ledger in a file must close, over $2 datagrams where that is said.
check_last_ledger() { python3 -c 'import sys; from lib.daemon import last_ledger; last_ledger(*sys.argv[1:])' "$@"; }

# Skips unless all of it is there: `root`, `namespaces`, or programs, each with its Debian package behind a colon where
# that has another name.
need() {
    local what
    for what; do
        case $what in
        root) [ "$(id -u)" -eq 0 ] || skip "needs root" ;;
        namespaces)
            need root unshare:util-linux nsenter:util-linux ip:iproute2
            unshare --net --mount true 2>/dev/null || skip "needs the right to make namespaces"
            ;;
        *) command -v "${what%%:*}" >/dev/null || skip "needs ${what%%:*} (Debian package ${what##*:})" ;;
        esac
    done
}

# Commands that run at the end of the rig, however it ends, the last one first.
at_end_commands=()
at_end() { at_end_commands+=("$*"); }
run_at_end() {
    local at
    set +e
    for ((at = ${#at_end_commands[@]} - 1; at >= 0; at--)); do eval "${at_end_commands[at]}" 2>/dev/null; done
}
trap run_at_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Builds what cargo is told to, in the profile RIG_PROFILE or in $1, and sets $built to the folder where it lies.
build() { # profile, arguments of cargo
    local profile=${RIG_PROFILE:-$1}
    cargo "${2:-build}" --profile "$profile" "${@:3}"
    built=$(realpath -m "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}")
}

# A folder that is removed at the end, in which an ordinary user may read.
work_folder() {
    WORK=$(mktemp -d)
    export WORK
    at_end "rm -rf '$WORK'"
    chmod 755 "$WORK"
}

# The same with a copy of the program, which an ordinary user may start as well.
begin() { # profile
    [ -z "${WORK:-}" ] || return 0
    if [ -z "${UDPD:-}" ]; then
        build "${1:-release}" build --bin udpd
        UDPD=$built/udpd
    fi
    work_folder
    install -m 755 "$UDPD" "$WORK/udpd"
    export UDPD=$WORK/udpd
}

# Runs this rig again in a network and a mount namespace of its own; returns there.
enter_namespaces() { # arguments of the rig
    need namespaces
    if [ -z "${RIG_IS_INSIDE:-}" ]; then
        begin
        RIG_IS_INSIDE=1 unshare --net --mount bash "$script" "$@"
        exit
    fi
    # sysfs shows the namespace in which it was mounted.
    mount -t sysfs sys /sys
    ip link set lo up
}

# Makes another network namespace, which ends with the rig. OTHER is a process in it.
other_namespace() {
    unshare --net sleep infinity >/dev/null 2>&1 &
    OTHER=$!
    export OTHER
    at_end "kill $OTHER"
    until [ "$(readlink "/proc/$OTHER/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do :; done
}

# The Python part: NAME.py beside NAME.sh, or NAME/run.py.
python_part() {
    local part=${script%.sh}.py
    [ -e "$part" ] || part=${script%.sh}/run.py
    python3 "$part" "$@"
}
