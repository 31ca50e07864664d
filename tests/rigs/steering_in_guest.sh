#!/usr/bin/env bash
# Steering on emulated machines of many shapes: from a queue's interrupt to the lane, planned, applied, checked under
# traffic, undone by what undoes it in practice, restored, and killed in the middle. No other rig can show that an
# interrupt really fires where the plan puts it, or that restoring is exact on a real kernel. The guests also show
# losses that only a card or a setting of the whole machine causes, with what `udpd explain` says of them; and random
# overloads that mix all layers, where the sum of what the ledger says must be what is missing. SEED repeats those of a
# run.
#
# As it stands it takes the shapes that are hardest to get right. All of them, and what takes minutes:
#
#     SHAPES=all tests/rigs/steering_in_guest.sh --record benches/runs/DATE-HOST
#
# SHAPES may name single ones, see guest/shapes.py, `--only` single parts, see guest/host.py, and `--whole` takes the
# long form of those. GUEST_BLESS=1 only writes the plans below guest/plans anew, to be read before they go in.
#
# Needs /dev/net/tun, and Debian's packages for what is missing: qemu, a kernel, busybox, ethtool and irqbalance; with
# --prepare it only fetches what is missing. The cards' other ends are taps in a network namespace of their own; nothing
# outside of it is touched, and irqbalance runs in the guest alone.
. "$(dirname "$0")/lib/rig.sh"
command -v cpio >/dev/null || apt-get install -qy cpio >/dev/null 2>&1 || true
need namespaces python3 apt-get:apt dpkg-deb:dpkg cpio ldd:libc-bin
[ -c /dev/net/tun ] || skip "needs /dev/net/tun"

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
        skip "needs qemu-system-x86, which apt-get could not install"
fi
kernel=$(apt-cache depends linux-image-amd64 2>/dev/null |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || skip "needs the package linux-image-amd64"
libraries=(libglib2.0-0 libnuma1 libcap-ng0 libsystemd0)
for package in "$kernel" busybox-static ethtool irqbalance netcat-traditional "${libraries[@]}"; do
    fetch "$package" || skip "needs the package $package, which apt-get could not download"
done
[ "${1:-}" != --prepare ] || exit 0

begin
work=$WORK

# The whole file system of every guest: busybox, ethtool, irqbalance, a reader of datagrams, udpd, and modules.
root=$work/root
mkdir -p "$root"/{bin,etc,proc,sys,dev,run,tmp,var,modules}
cp "$cache/busybox-static/bin/busybox" "$root/bin/"
cp "$cache"/ethtool/{usr/,}sbin/ethtool "$root/bin/" 2>/dev/null || [ -x "$root/bin/ethtool" ]
cp "$cache/irqbalance/usr/sbin/irqbalance" "$root/bin/"
cp "$cache/netcat-traditional/bin/nc.traditional" "$root/bin/"
cp "$UDPD" "$root/bin/udpd"
strip --strip-debug "$root/bin/udpd" 2>/dev/null || true
# What the host has is taken before what was fetched.
fetched=$(printf ":$cache/%s/usr/lib/x86_64-linux-gnu:$cache/%s/lib/x86_64-linux-gnu" \
    $(printf '%s\n' "${libraries[@]}" | sed p))
for library in $(LD_LIBRARY_PATH=/lib/x86_64-linux-gnu$fetched ldd "$root"/bin/{udpd,ethtool,irqbalance} |
    sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
    case $library in
    /lib64/*) place=/lib64 ;;
    *) place=/lib/x86_64-linux-gnu ;;
    esac
    mkdir -p "$root$place"
    cp -L "$library" "$root$place/"
done
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover
    net_failover virtio_net vmxnet3 e1000e inet_diag udp_diag)
# What a check loads itself: nothing else shall have connections tracked.
later=(crc32c_generic libcrc32c nf_defrag_ipv4 nf_defrag_ipv6 nf_conntrack)
for module in "${modules[@]}" "${later[@]}"; do
    found=$(find "$cache/$kernel" -name "$module.ko" | head -n 1)
    [ -z "$found" ] || cp "$found" "$root/modules/"
done
printf '%s\n' "${modules[@]}" >"$root/modules/order"
printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
cp tests/rigs/guest/{init,agent.sh,snapshot.sh} "$root/"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"

image=$(find "$cache/$kernel/boot" -name 'vmlinuz-*' | head -n 1)
python3 tests/rigs/guest/host.py --image "$image" --initramfs "$work/initramfs" \
    --folder "$work" --shapes "${SHAPES:-short}" ${GUEST_BLESS:+--bless} "$@"
