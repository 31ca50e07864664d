# What the rigs with a real systemd share, read by them: Debian's, booted in a container of its own with a network of
# its own. debootstrap makes the container's file system once, and it is kept; what a run changes in it is not.
# Nothing of the systemd that this host may run is touched. The rig sets `directory`.

machine=udpd-rig-$$
image=${XDG_CACHE_HOME:-$HOME/.cache}/udpd-rigs/bookworm
nspawn= leader= maker= unfinished=
cgroups=()

need_container() { need root systemd-nspawn:systemd-container debootstrap nsenter:util-linux "$@"; }

# The file system of the container, made once on this machine.
make_image() {
    [ ! -e "$image/etc/os-release" ] || return 0
    echo "making $image, once"
    mkdir -p "$(dirname "$image")"
    unfinished=$image.$$
    timeout 600 debootstrap --variant=minbase --include=systemd,systemd-sysv bookworm "$unfinished" \
        >"$directory/debootstrap" 2>&1 &
    maker=$!
    if ! wait "$maker"; then
        tail -n 5 "$directory/debootstrap"
        skip "debootstrap cannot make $image"
    fi
    maker=
    # Another run may have been quicker; then this one is removed at the end.
    mv -T "$unfinished" "$image" 2>/dev/null || true
}

# A cgroup of its own, so that nothing is left in this host's.
enter_own_cgroup() {
    local number controllers path root
    while IFS=: read -r number controllers path; do
        case $number:$controllers in
        0:) root=/sys/fs/cgroup && [ -d /sys/fs/cgroup/unified ] && root=/sys/fs/cgroup/unified ;;
        *:name=systemd) root=/sys/fs/cgroup/systemd ;;
        *) continue ;;
        esac
        if mkdir "$root$path/$machine" 2>/dev/null; then cgroups+=("$root$path/$machine"); fi
    done </proc/self/cgroup
}

inside() { nsenter --target "$leader" --mount --uts --ipc --net --pid "$@"; }

is_up() {
    local state
    for _ in $(seq 300); do
        kill -0 "$nspawn" 2>/dev/null || return 1
        leader=$(cut -d' ' -f1 "/proc/$nspawn/task/$nspawn/children" 2>/dev/null || true)
        if [ -n "$leader" ] && [ "$(readlink "/proc/$leader/ns/pid")" != "$(readlink /proc/self/ns/pid)" ]; then
            state=$(inside systemctl is-system-running 2>/dev/null || true)
            case $state in running | degraded) return 0 ;; esac
        fi
        sleep 0.1
    done
    return 1
}

boot_container() { # further options of systemd-nspawn
    enter_own_cgroup
    (
        for cgroup in "${cgroups[@]}"; do echo "$BASHPID" >"$cgroup/cgroup.procs"; done
        exec systemd-nspawn --quiet --directory="$image" --machine="$machine" --volatile=overlay --boot \
            --private-network --register=no --keep-unit --console=pipe "$@"
    ) >"$directory/console" 2>&1 </dev/null &
    nspawn=$!
    if ! is_up; then
        tail -n 5 "$directory/console"
        leader=
        skip "the container does not boot here"
    fi
    echo "booted: $(inside systemctl --version | head -n 1)"
}

end_container() {
    local cgroup
    # It hands the signal on to everything that it has started.
    [ -z "$maker" ] || { kill -TERM "$maker" 2>/dev/null && wait "$maker" 2>/dev/null; } || true
    if [ -n "$nspawn" ]; then
        # The first signal asks the container to halt, the second ends it.
        for _ in 1 2; do
            kill -TERM "$nspawn" 2>/dev/null || true
            for _ in $(seq 50); do kill -0 "$nspawn" 2>/dev/null || break 2; sleep 0.1; done
        done
        kill -KILL "$nspawn" 2>/dev/null || true
        wait "$nspawn" 2>/dev/null || true
    fi
    for cgroup in "${cgroups[@]}"; do
        find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    rmdir "/run/systemd/nspawn/propagate/$machine" 2>/dev/null || true
    rm -rf ${unfinished:+"$unfinished"}
}
