#!/usr/bin/env bash
# Makes a release: packaging/release.sh --to DIRECTORY [--only x86_64]. For each architecture the directory then has the
# static binary, the Debian package and the image of the container, and for all of them the list of what they are made
# of (CycloneDX) and SHA256SUMS.
#
# The same commit gives the same bytes in any folder, at any time, for any user: tests/rigs/release.sh builds twice. The
# toolchain is part of that: publish what `rustc -V` says with the sums. Needs rustup, dpkg-deb and python3;
# cargo-auditable is installed where it is missing. Neither docker nor a cross-compiler is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

to= architectures="x86_64 aarch64"
while [ $# -gt 0 ]; do
    case $1 in
    --to) mkdir -p "${2:?}" && to=$(realpath "$2") && shift 2 ;;
    --only) architectures=${2:?} && shift 2 ;;
    *) break ;;
    esac
done
say() { echo "packaging/release.sh: $1" >&2; }
[ $# -eq 0 ] && [ -n "$to" ] || { say "usage: --to DIRECTORY [--only ARCHITECTURE]" && exit 2; }
[ -z "$(ls -A "$to")" ] || { say "$to is not empty" && exit 1; }
[ -z "$(git status --porcelain 2>/dev/null)" ] || say "files are changed: this is no commit"

umask 022
export TZ=UTC LC_ALL=C SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export UDPD_STATIC_CARGO="cargo auditable" CARGO_INCREMENTAL=0
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_SPLIT_DEBUGINFO=off
command -v cargo-auditable >/dev/null || cargo install --locked cargo-auditable >&2
# A program of this machine writes the manual and the completions of every package.
own=$(packaging/static.sh)
version=$("$own" --version | cut -d' ' -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

declare -A debian=([x86_64]=amd64 [aarch64]=arm64)
for architecture in $architectures; do
    binary=$(packaging/static.sh "$architecture")
    readelf --sections --wide "$binary" | grep -q '\.dep-v0' ||
        { say "$binary has no list of its dependencies" && exit 1; }
    name=udpd-$version-$architecture
    install -D -m 755 "$binary" "$work/$name/udpd"
    install -m 644 LICENSE-MIT LICENSE-APACHE "$work/$name"
    tar --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        -C "$work" -c "$name" | gzip -9n >"$to/$name.tar.gz"
    packaging/deb.sh --binary "$binary" --run "$own" --architecture "${debian[$architecture]}" --to "$to" >&2
    packaging/container.sh --binary "$binary" --to "$work/$architecture"
    packaging/oci.py "$work/$architecture" "${debian[$architecture]}" "udpd:$version" "$to/$name.oci.tar"
done
packaging/cyclonedx.py >"$to/udpd-$version.cdx.json"
(cd "$to" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
cat "$to/SHA256SUMS"
