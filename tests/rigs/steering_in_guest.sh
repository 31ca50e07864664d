#!/usr/bin/env bash
# A machine with two memory nodes and a network card with four receive queues, in software: the whole way from the
# queue's interrupt to the lane, applied, checked under traffic, drifted, taken back, and killed in the middle. Nothing
# else here can show that an interrupt really fires where the plan puts it, or that restoring is exact on a real kernel.
# Needs root, /dev/net/tun, python3, and Debian's packages for what is missing: qemu, a kernel, busybox and ethtool.
# Skips with its reason otherwise; with --prepare it only fetches what is missing. The card's other end is a tap in a
# network namespace of its own; nothing outside of it is touched.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED steering_in_guest.sh: needs $1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "root, for a network namespace"
[ -c /dev/net/tun ] || skip "/dev/net/tun"
for program in unshare ip python3 apt-get dpkg-deb cpio ldd; do
    command -v "$program" >/dev/null || { [ "$program" = cpio ] && apt-get install -qy cpio >/dev/null 2>&1; } ||
        skip "$program"
done
unshare --net --mount true 2>/dev/null || skip "the right to make a network namespace"

cache=$(realpath -m "${CARGO_TARGET_DIR:-target}")/rig-cache
mkdir -p "$cache"

# Unpacks a package below the cache, without installing it.
fetch() {
    [ -d "$cache/$1" ] && return
    (cd "$cache" && apt-get download -q "$1" >/dev/null 2>&1 && dpkg-deb -x "$1"_*.deb "$1.part" && mv "$1.part" "$1")
}

if ! command -v qemu-system-x86_64 >/dev/null; then
    apt-get update -q >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends qemu-system-x86 >/dev/null 2>&1 ||
        skip "qemu-system-x86, which apt-get could not install"
fi
kernel=$(apt-cache depends linux-image-amd64 2>/dev/null |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || skip "the package linux-image-amd64"
for package in "$kernel" busybox-static ethtool; do
    fetch "$package" || skip "the package $package, which apt-get could not download"
done
[ "${1:-}" != --prepare ] || exit 0

# UDPD_RIG_BINARY: a udpd that is built already.
udpd=${UDPD_RIG_BINARY:-}
if [ -z "$udpd" ]; then
    cargo build --release --bin udpd
    udpd=${CARGO_TARGET_DIR:-target}/release/udpd
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The guest's whole file system: busybox, ethtool, udpd, the modules of the cards, and the checks.
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,modules}
cp "$cache/busybox-static/bin/busybox" "$root/bin/"
cp "$cache"/ethtool/{usr/,}sbin/ethtool "$root/bin/" 2>/dev/null || [ -x "$root/bin/ethtool" ]
cp "$udpd" "$root/bin/udpd"
strip --strip-debug "$root/bin/udpd" 2>/dev/null || true
for library in $(ldd "$udpd" "$root/bin/ethtool" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover
    net_failover virtio_net vmxnet3)
for module in "${modules[@]}"; do
    found=$(find "$cache/$kernel" -name "$module.ko" | head -n 1)
    [ -z "$found" ] || cp "$found" "$root/modules/"
done
printf '%s\n' "${modules[@]}" >"$root/modules/order"
cp tests/rigs/guest/init "$root/init"
cp tests/rigs/guest/checks.sh "$root/checks.sh"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initramfs"

image=$(find "$cache/$kernel/boot" -name 'vmlinuz-*' | head -n 1)
unshare --net --mount python3 tests/rigs/guest/host.py "$image" "$work/initramfs" "$work"
