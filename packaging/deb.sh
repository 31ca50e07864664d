#!/usr/bin/env bash
# Builds the Debian package from a compiled udpd: packaging/deb.sh --binary target/release/udpd --to DIRECTORY.
# Prints its path. For another architecture add --architecture arm64 and --run UDPD, a program of this machine. Needs
# dpkg-deb, which every Debian has, and dpkg-shlibdeps (dpkg-dev) where the binary is not static.
#
# With dpkg-deb and not cargo-deb: one list (install.sh) says for every package what is installed where, we write the
# maintainer scripts either way, and dpkg-deb need not be compiled first.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
cd "$here/.."

# What Cargo.toml says of every package; a fork changes it there.
said() { sed -n "s/^$1 = \[\?\"\([^\"]*\)\".*/\1/p" Cargo.toml | head -n 1; }
binary= to= run= architecture=$(dpkg --print-architecture)
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$(realpath "${2:?}") && shift 2 ;;
    --to) to=$(realpath "${2:?}") && shift 2 ;;
    --run) run=$(realpath "${2:?}") && shift 2 ;;
    --architecture) architecture=${2:?} && shift 2 ;;
    *) echo "usage: packaging/deb.sh --binary UDPD --to DIRECTORY" >&2 && exit 2 ;;
    esac
done
[ -n "$binary" ] && [ -d "$to" ] || { echo "usage: packaging/deb.sh --binary UDPD --to DIRECTORY" >&2 && exit 2; }

# UDPD_DEB_VERSION is for tests of upgrades: the same program as another version of the package.
run=${run:-$binary}
version=${UDPD_DEB_VERSION:-$("$run" --version | cut -d' ' -f2)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
install -d -m 755 "$root"
packaging/install.sh --binary "$binary" --run "$run" --root "$root"
documentation=$root/usr/share/doc/udpd
# The symbols stay in the build directory. Where there is no strip, the package is larger and works as well.
if readelf --sections --wide "$binary" 2>/dev/null | grep -q ' \.symtab '; then
    strip --strip-unneeded "$root/usr/bin/udpd" 2>/dev/null || true
fi
# Compress long texts, as Debian requires.
gzip -9n "$documentation/CHANGELOG.md"
sed "s,^Source: .*,Source: $(said repository)," packaging/debian/copyright >"$documentation/copyright"
seconds=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
printf 'udpd (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$(said authors)" "$(date -uR -d "@$seconds")" |
    gzip -9n >"$documentation/changelog.gz"
chmod 644 "$documentation/copyright" "$documentation/changelog.gz" "$documentation/CHANGELOG.md.gz"

# Which libraries of which versions the binary needs; none where it is static.
depends=
if ldd "$binary" >/dev/null 2>&1 && ! ldd "$binary" | grep -q 'statically linked'; then
    mkdir -p "$work/shlibs/debian" && touch "$work/shlibs/debian/control"
    command -v dpkg-shlibdeps >/dev/null ||
        { echo "$0: needs dpkg-shlibdeps for a binary that is not static: apt install dpkg-dev" >&2; exit 1; }
    depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O "$root/usr/bin/udpd" | sed -n 's/^shlibs:Depends=//p')
fi
# Not what `du` says, which depends on the file system.
size=$(find "$root" -type f -printf '%s\n' | awk '{ size += int($1 / 1024) + 1 } END { print size }')
install -d "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: udpd
Version: $version
Architecture: $architecture
Maintainer: $(said authors)
Section: net
Priority: optional
Installed-Size: $size
Depends: ${depends:+$depends, }systemd | systemd-standalone-sysusers | systemd-sysusers
Homepage: $(said repository)
Description: receives UDP and accounts for every datagram
 udpd hands every datagram to files, other hosts, Unix sockets or a pipe. It
 counts every datagram that is lost on the way, says in which layer and why,
 and names the setting to change.
 .
 Installing starts and enables nothing. An upgrade restarts what is running,
 and leaves the old process running where the new version would not start
 with the configuration and the rights of its unit.
CONTROL
echo /etc/udpd/udpd.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/debian/$script" "$root/DEBIAN/$script"; done
(cd "$root" && find . -path ./DEBIAN -prune -o -type f ! -path ./etc/udpd/udpd.toml -printf '%P\0' | sort -z |
    xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root/DEBIAN/control" "$root/DEBIAN/conffiles" "$root/DEBIAN/md5sums"
package=$to/udpd_${version}_${architecture}.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
