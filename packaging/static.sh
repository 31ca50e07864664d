#!/usr/bin/env bash
# Builds udpd as one file that needs no library, and prints its path: packaging/static.sh [x86_64|aarch64], by default
# for this machine. UDPD_STATIC_PROFILE=dev builds the quick way, for tests; UDPD_STATIC_CARGO="cargo auditable" writes
# the list of dependencies into the file. Without the features `kafka` and `zstd`, whose libraries are C and take a
# compiler for musl.
#
# The linker is Rust's own for either architecture, so that no other toolchain is needed, and none leaves a trace. No
# path of this machine gets into the file, so that another folder gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-$(uname -m)}-unknown-linux-musl
profile=${UDPD_STATIC_PROFILE:-release}
rustup target list --installed | grep -qx "$target" || rustup target add "$target" >&2
linker=CARGO_TARGET_${target^^}_LINKER
sources=$(rustc --print sysroot)/lib/rustlib/src/rust
# Between the flags stands a character that no path has.
CARGO_ENCODED_RUSTFLAGS=--remap-path-prefix=$PWD=/udpd$'\x1f'--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo
CARGO_ENCODED_RUSTFLAGS+=$'\x1f'--remap-path-prefix=$sources=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')
export CARGO_ENCODED_RUSTFLAGS "${linker//-/_}=rust-lld"
read -ra cargo <<<"${UDPD_STATIC_CARGO:-cargo}"
"${cargo[@]}" build --locked --profile "$profile" --target "$target" --bin udpd >&2
folder=$profile
[ "$profile" != dev ] || folder=debug
binary=${CARGO_TARGET_DIR:-target}/$target/$folder/udpd
# A binary that needs a library would not run in a container that holds nothing else.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "packaging/static.sh: $binary asks for a dynamic linker" >&2
    exit 1
fi
echo "$binary"
