#!/usr/bin/env bash
# A release is the same bytes from two builds in two folders, by users with another umask and home, and what is in it
# works where nothing else is: the program in an empty root directory, without Rust, runs, is sent to and shows a closed
# ledger; the image is read by skopeo where that is installed; every sum is right. Nightly builds without link-time
# optimization, as all of CI does; LONG=1 builds as a release is built, and for aarch64 too.
. "$(dirname "$0")/lib/rig.sh"
need root unshare:util-linux readelf:binutils dpkg-deb:dpkg git python3
command -v cargo-auditable >/dev/null || cargo install --locked cargo-auditable >/dev/null 2>&1 ||
    skip "needs cargo-auditable, and it cannot be installed here"
work_folder
only=(--only x86_64)
if [ "${LONG:-}" = 1 ]; then
    unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS
    only=()
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
[ -z "${RIG_PROFILE:-}" ] || export UDPD_STATIC_PROFILE=$RIG_PROFILE

# 1. Twice the same.
for folder in "$WORK/one" "$WORK/a longer name/two"; do
    mkdir -p "$folder/sources"
    git ls-files -z | xargs -0 tar -c | tar -x -C "$folder/sources"
    (
        umask "$([ "$folder" = "$WORK/one" ] && echo 022 || echo 077)"
        unset CARGO_TARGET_DIR
        "$folder/sources/packaging/release.sh" --to "$folder/release" "${only[@]}" >"$WORK/log" 2>&1
    ) || fail "it cannot be built" "$(tail -n 20 "$WORK/log")"
done
cd "$WORK/one/release"
for file in *; do cmp "$file" "$WORK/a longer name/two/release/$file" || fail "$file differs in two folders"; done
sha256sum --check --quiet SHA256SUMS || fail "a sum is wrong"
echo "passed: $(find . -type f | wc -l) files, equal in two folders: $(ls | tr '\n' ' ')"

# 2. The program, where there is nothing else.
tar -xzf udpd-*-x86_64.tar.gz -C "$WORK"
mkdir -p "$WORK/root/tmp" "$WORK/root/proc"
cp "$WORK"/udpd-*-x86_64/udpd "$WORK/root/udpd"
! grep -aqE "$WORK|${CARGO_HOME:-$HOME/.cargo}/registry" "$WORK/root/udpd" || fail "a path of this machine is in it"
alone() { XDG_RUNTIME_DIR=/tmp chroot --userspec=65532:65532 "$WORK/root" /udpd "$@"; }
chown 65532:65532 "$WORK/root/tmp"
chmod 700 "$WORK/root/tmp"
alone run --listen 127.0.0.1:5178 --to file:/tmp/in.log >"$WORK/daemon" 2>&1 &
at_end "kill $!"
wait_for grep -q 'ready: ' "$WORK/daemon" || fail "it is not ready" "$(cat "$WORK/daemon")"
alone bench send --to 127.0.0.1:5178 --rate 1k --count 100 >"$WORK/log" 2>&1 || fail "it sends nothing"
is_all_there() { alone stats >"$WORK/stats" && grep -Eq '^  file +100 +100 ' "$WORK/stats"; }
wait_for grep -c . "$WORK/root/tmp/in.log" >/dev/null || fail "no line is in the file"
wait_for is_all_there || fail "not all is delivered" "$(cat "$WORK/stats")"
grep -q 'the sums agree' "$WORK/stats" || fail "the ledger" "$(cat "$WORK/stats")"
echo "passed: in an empty root directory it takes 100 of 100, and its ledger closes"

# 3. The lists and the image.
python3 - udpd-*.cdx.json <<'PY' || fail "the list of dependencies"
import json, sys
bom = json.load(open(sys.argv[1]))
names = {one["name"] for one in bom["components"]}
assert {"libc", "mmsg", "serde_json"} <= names and bom["metadata"]["component"]["name"] == "udpd", names
assert not names & {"criterion", "tempfile"}, "what only tests use is not in the program"
PY
if command -v skopeo >/dev/null; then
    skopeo inspect --config "oci-archive:$PWD/$(ls udpd-*-x86_64.oci.tar)" >"$WORK/log" 2>&1 ||
        fail "skopeo does not read the image" "$(cat "$WORK/log")"
    grep -q '"User": "65532:65532"' "$WORK/log" || fail "the user of the image" "$(cat "$WORK/log")"
    echo "passed: skopeo reads the image"
else
    echo "SKIPPED $RIG: reading the image: no skopeo here"
fi
