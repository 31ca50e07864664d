#!/usr/bin/env bash
# Puts bugs that were mended back into a copy of the tree, one at a time, and asks whether a simulation, a fuzz target
# or a model of threads finds them, and how soon. What no layer finds shows where a layer looks too little.
#
#   tests/rigs/old_bugs.sh              two of them, others each day
#   tests/rigs/old_bugs.sh --all        all of them, up to an hour on two cores; RECORD=FILE also writes a table
#   tests/rigs/old_bugs.sh NAME...      these
#
# A bug is a file old_bugs/NAME.patch. In front of the patch it says what the bug was, which commit mended it, and how
# to find it: `Run: CRATE --lib TEST` or `Run: CRATE --test PROGRAM TEST`, and `Set: UDPD_SEEDS=N` and the like.
# `Without: FILE` leaves out an input that was kept when the bug was found; corpora of seeds are left out always.
#
# A patch that does not apply any more, or does not build, fails the rig, and so does a bug that is not found within ten
# minutes. A seed that finds a bug must pass in the tree as it is.
. "$(dirname "$0")/lib/rig.sh"
need cargo patch python3

limit=${SECONDS_MAX:-600}
here=$PWD
target=${CARGO_TARGET_DIR:-$here/target}
tree=$target/old_bugs/tree
# What the dependencies come to is shared with other builds.
export CARGO_TARGET_DIR=$target CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
export UDPD_CORPUS=none UDPD_SHRINK=0 RUST_BACKTRACE=0
mkdir -p "$target/old_bugs"

all=()
for patch in tests/rigs/old_bugs/*.patch; do all+=("$(basename "$patch" .patch)"); done
case ${1:-} in
    --all) names=("${all[@]}") ;;
    "")
        # Neighbours by name are bugs of one part, so the two lie apart.
        day=$(($(date +%s) / 86400))
        names=("${all[day % ${#all[@]}]}" "${all[(day + ${#all[@]} / 2) % ${#all[@]}]}")
        ;;
    *) names=("$@") ;;
esac

# The tree as it is here, with what is not committed. Only files that differ are written, and get the time of now: so
# what cargo has compiled is used again, and never what it has compiled of a file with a bug in it.
copy_tree() {
    git ls-files -z --cached --others --exclude-standard | python3 -c '
import os, shutil, sys
tree, wanted = sys.argv[1], {name for name in sys.stdin.read().split("\0") if os.path.isfile(name)}
for folder, _, names in os.walk(tree):
    for path in (os.path.join(folder, name) for name in names):
        if os.path.relpath(path, tree) not in wanted:
            os.remove(path)
for name in wanted:
    own, copy = open(name, "rb").read(), os.path.join(tree, name)
    if not os.path.exists(copy) or open(copy, "rb").read() != own:
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy(name, copy)' "$tree"
}

header() { sed -n "/^diff /q; s/^$2: //p" "tests/rigs/old_bugs/$1.patch"; }

# Builds the tests of a bug in the tree, and prints the path of their program.
build() {
    local crate=$1 kind=$2 program=$3 log=$target/old_bugs/build.log
    local what=(-p "$crate" "$kind")
    [ "$kind" != --test ] || what+=("$program")
    (cd "$tree" && cargo test --no-run "${what[@]}" >"$log" 2>&1) || {
        tail -30 "$log" >&2
        return 1
    }
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$log" | tail -1
}

# The folder of a crate, where cargo runs its tests.
folder_of() {
    (cd "$tree" && cargo metadata --no-deps --offline --format-version 1) | python3 -c '
import json, os, sys
found = [one for one in json.load(sys.stdin)["packages"] if one["name"] == sys.argv[1]]
print(os.path.dirname(found[0]["manifest_path"]))' "$1"
}

copy_tree
declare -A built
# Seconds, and of them those on a core: on a machine that does much else the second tells more.
TIMEFORMAT='%R (%U + %S)'
rows=() wrong=()
for name in "${names[@]}"; do
    patch=$here/tests/rigs/old_bugs/$name.patch
    [ -e "$patch" ] || fail "no bug is called $name" "there are: ${all[*]}"
    read -r crate kind program test <<<"$(header "$name" Run)"
    [ "$kind" = --test ] || { test=$program; program=""; }
    read -ra settings <<<"$(header "$name" Set)"
    folder=$(folder_of "$crate")
    whole=$target/old_bugs/whole-$crate$program
    if [ ! -e "$whole" ] || [ -z "${built[$crate$program]:-}" ]; then
        path=$(build "$crate" "$kind" "$program") || fail "the tests of $crate do not build"
        cp "$path" "$whole"
        built[$crate$program]=yes
    fi
    if ! (cd "$tree" && patch --batch --forward -p1 --silent <"$patch" >"$target/old_bugs/patch.log"); then
        cat "$target/old_bugs/patch.log"
        wrong+=("$name: its patch does not apply any more")
        rows+=("| \`$name\` | $(header "$name" Layer) | its patch does not apply | | |")
        copy_tree
        continue
    fi
    for input in $(header "$name" Without); do rm "$tree/$input"; done
    status=0 said=$target/old_bugs/$name.log found=""
    if path=$(build "$crate" "$kind" "$program"); then
        {
            time (cd "$folder" && env "${settings[@]}" timeout "$limit" "$path" "$test" --nocapture >"$said" 2>&1)
        } 2>"$target/old_bugs/took" || status=$?
        took=$(cat "$target/old_bugs/took")
        seed=$(sed -n 's/.*UDPD_SEED="\([^"]*\)".*/\1/p' "$said" | head -1)
        why=$(sed -n '/ panicked at /{n;s/^[^ ]* fails: //;p;q}' "$said" | cut -c 1-150)
        if [ "$status" = 0 ]; then
            wrong+=("$name: not found")
            found="not found"
        elif [ "$status" = 124 ]; then
            wrong+=("$name: not found in $limit s")
            found="not found in $limit s"
        elif [ -n "$seed" ]; then
            found="after $((${seed%% *} + 1)) seeds"
            (cd "$folder" && UDPD_SEED=$seed timeout 60 "$whole" "$test" --nocapture >"$said.whole" 2>&1) ||
                wrong+=("$name: seed $seed fails without the bug too")
        else
            found="found"
        fi
    else
        wrong+=("$name: it does not build any more")
        found="does not build" took="" why=""
    fi
    copy_tree
    printf '%-36s %-20s %16s s   %s\n' "$name" "$found" "$took" "$why"
    rows+=("| \`$name\` | $(header "$name" Layer) | $found | $took | $(header "$name" Bug) |")
done

if [ -n "${RECORD:-}" ]; then
    {
        printf '| bug | layer | found | seconds (on a core) | what was wrong |\n|---|---|---|---|---|\n'
        printf '%s\n' "${rows[@]}"
    } >"$RECORD"
fi
[ "${#wrong[@]}" = 0 ] || fail "of ${#names[@]} bugs ${#wrong[@]} are wrong" "$(printf '%s\n' "${wrong[@]}")"
echo "${#names[@]} bugs that were put back are found"
