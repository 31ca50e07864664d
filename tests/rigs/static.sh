#!/usr/bin/env bash
# The static binary and the file system of the container that holds nothing else: it needs no library, checks its
# configuration, receives as the image's user under a limit of the control group, answers its health check, and ends
# when it is told. The container is a root directory, namespaces and a control group; where docker has a daemon, it
# builds the image besides. Needs the Rust target for musl; UDPD_RIG_STATIC_BINARY names a binary that is built already.
. "$(dirname "$0")/lib/rig.sh"
need root unshare:util-linux readelf:binutils pgrep:procps python3
work_folder
directory=$WORK
group= daemon=
# Whatever ends it, nothing stays mounted.
at_end '[ -z "$group" ] || rmdir "$group"'
at_end 'mountpoint -q "$directory/root/sys" && umount -l "$directory/root/sys"'
at_end '[ -z "$daemon" ] || { kill -KILL "$daemon"; wait "$daemon"; }'
show_evidence() { tail -n 20 "$directory/log"; }

# The quick build: what is checked here is how it is linked and what it needs.
target=$(uname -m)-unknown-linux-musl
rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >/dev/null 2>&1 ||
    skip "rustup cannot add the target $target here"
udpd=${UDPD_RIG_STATIC_BINARY:-}
[ -n "$udpd" ] || udpd=$(UDPD_STATIC_PROFILE=dev packaging/static.sh) || fail "it cannot be built"

# 1. No library, no linker.
! readelf --program-headers "$udpd" | grep -q INTERP || fail "it asks for a dynamic linker"
! readelf --dynamic "$udpd" 2>/dev/null | grep -q NEEDED || fail "it needs a library"
ldd "$udpd" 2>&1 | grep -Eq 'statically linked|not a dynamic executable' || fail "ldd: $(ldd "$udpd" 2>&1)"
echo "passed: one file that needs no library ($(($(stat -c %s "$udpd") >> 20)) MiB with what debuggers want)"

# 2. The tree of the image, and nothing else.
packaging/container.sh --binary "$udpd" --to "$directory/image"
mkdir "$directory/root"
cp -a "$directory/image/system/." "$directory/image/own/." "$directory/root/"
find "$directory/root/run" "$directory/root/var" -type d -exec chown 65532:65532 {} +
mkdir "$directory/root/proc" "$directory/root/sys" "$directory/root/dev"

# A group with 64 MiB, where control groups limit memory.
read -r group limit < <(python3 -c 'from lib.groups import memory_place; print(*memory_place())' 2>/dev/null) || true
if [ -z "$group" ] || ! mkdir "$group" 2>/dev/null || ! echo $((64 << 20)) >"$group/$limit" 2>/dev/null; then
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    group=
    echo "SKIPPED $RIG: the part with a limit on memory: no control group for memory is to be had here"
fi

# As the image says: that root and that user; and what every runtime adds: /proc and /sys.
mount --rbind /sys "$directory/root/sys" && mount --make-rslave "$directory/root/sys"
contained() {
    unshare --mount --pid --fork --kill-child sh -euc '
        [ -z "$1" ] || echo 0 >"$1/cgroup.procs"
        mount -t proc proc "$2/proc"
        root=$2
        shift 2
        exec chroot --userspec=65532:65532 "$root" "$@"' sh "$group" "$directory/root" "$@"
}

# 3. The configuration of the image fits the limit, and one that does not is refused with both numbers.
contained /usr/bin/udpd check -c /etc/udpd/udpd.toml >"$directory/log" 2>&1 || fail "check, in the image"
if [ -n "$group" ]; then
    sed 's/^metrics_address.*/&\npool_bytes = "1GiB"/' packaging/container.toml >"$directory/root/etc/udpd/large.toml"
    status=0
    contained /usr/bin/udpd check -c /etc/udpd/large.toml >"$directory/log" 2>&1 || status=$?
    [ "$status" -eq 78 ] || fail "1 GiB in a group of 64 MiB ends with $status"
    grep -qF "allows 64.0 MiB" "$directory/log" || fail "the limit is not named"
    echo "passed: it reads the limit of the control group"
fi

# 4. It receives, answers the health check of the image, and ends when it is told.
health() { contained /usr/bin/udpd stats --socket /run/udpd/control.sock "$@"; }
if health >"$directory/log" 2>&1; then fail "the health check passes without a daemon"; fi
sed 's/5140/5179/; s/^metrics_address.*/metrics_address = ""/' packaging/container.toml \
    >"$directory/root/etc/udpd/udpd.toml"
contained /usr/bin/udpd run -c /etc/udpd/udpd.toml >"$directory/daemon" 2>&1 &
daemon=$!
wait_for grep -q 'ready: ' "$directory/daemon" || { cp "$directory/daemon" "$directory/log"; fail "it is not ready"; }
health >"$directory/log" 2>&1 || fail "the health check"
# By pairs, each awaited, so that no machine is too slow.
python3 - "$directory/root/var/log/udpd/in.log" <<'PY' >"$directory/log" 2>&1 || fail "what was sent is not in the file"
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(50):
    for half in range(2):
        sender.sendto(b"datagram %d" % (2 * number + half), ("127.0.0.1", 5179))
    for _ in range(300):
        if len(open(sys.argv[1]).readlines()) == 2 * number + 2:
            break
        time.sleep(0.1)
lines = open(sys.argv[1]).read().splitlines()
assert sorted(lines) == sorted("datagram %d" % number for number in range(100)), lines
PY
[ "$(stat -c %u "$directory/root/var/log/udpd/in.log")" -eq 65532 ] || fail "the file is not the user's"
health --json >"$directory/stats.json" || fail "the ledger"
python3 -c 'import json, sys; from lib.daemon import all_delivered, closed
all_delivered(closed(json.load(open(sys.argv[1]))), 100)' "$directory/stats.json" || fail "the ledger of 100 datagrams"
process=$(pgrep -u 65532 -f '^/usr/bin/udpd run -c /etc/udpd/udpd.toml$' | head -n 1)
kill -TERM "$process"
status=0
wait "$daemon" || status=$?
daemon=
cp "$directory/daemon" "$directory/log"
[ "$status" -eq 0 ] && grep -q 'stopping: SIGTERM' "$directory/log" || fail "SIGTERM ends it with $status"
echo "passed: as uid 65532 it receives 100 of 100, answers its health check, and ends with 0"

# 5. The image itself, where it can be built.
if docker info >/dev/null 2>&1; then
    docker build --quiet "$directory/image" >"$directory/log" 2>&1 || fail "docker build"
    echo "passed: docker builds the image"
else
    echo "SKIPPED $RIG: docker build: no docker daemon here; root directory, namespaces and group stood for it"
fi
