#!/usr/bin/env bash
# Builds udpd as one file that needs no library, and prints its path: packaging/static.sh. UDPD_STATIC_PROFILE=dev
# builds the quick way, for tests. Without the features `kafka` and `zstd`, whose libraries are C and take a compiler
# for musl.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(uname -m)-unknown-linux-musl
profile=${UDPD_STATIC_PROFILE:-release}
rustup target list --installed | grep -qx "$target" || rustup target add "$target" >&2
cargo build --locked --profile "$profile" --target "$target" --bin udpd >&2
folder=$profile
[ "$profile" != dev ] || folder=debug
binary=${CARGO_TARGET_DIR:-target}/$target/$folder/udpd
# A binary that needs a library would not run in a container that holds nothing else.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "packaging/static.sh: $binary asks for a dynamic linker" >&2
    exit 1
fi
echo "$binary"
