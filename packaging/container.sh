#!/usr/bin/env bash
# Makes the directory that the Containerfile is built from: packaging/container.sh --binary UDPD --to DIRECTORY, where
# UDPD is the file of packaging/static.sh. Then: docker build -t udpd DIRECTORY (or podman).
#
# The image has no shell that could make directories or change owners, so this script makes them: `system` belongs to
# root, `own` to the user that udpd runs as.
set -euo pipefail
cd "$(dirname "$0")/.."

binary= to=
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=${2:?} && shift 2 ;;
    --to) to=${2:?} && shift 2 ;;
    *) break ;;
    esac
done
[ $# -eq 0 ] && [ -n "$binary" ] && [ -n "$to" ] ||
    { echo "usage: packaging/container.sh --binary UDPD --to DIRECTORY" >&2 && exit 2; }

install -D -m 755 "$binary" "$to/system/usr/bin/udpd"
install -D -m 644 packaging/container.toml "$to/system/etc/udpd/udpd.toml"
install -d -m 755 "$to/own/run/udpd" "$to/own/var/log/udpd"
install -m 644 packaging/Containerfile "$to/Containerfile"
ln -sf Containerfile "$to/Dockerfile"
