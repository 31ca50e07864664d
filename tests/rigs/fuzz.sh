#!/usr/bin/env bash
# The long form of the fuzz targets: libFuzzer with coverage and the address sanitizer, on the nightly compiler.
#
#   tests/rigs/fuzz.sh [--target NAME]... [--seconds N | --runs N] [--minimize] [--list]
#
# Without --target all of them run, for 10 seconds each. What is found anew is kept in target/fuzz/corpus/NAME; with
# --minimize what covers more goes, by its hash, to tests/corpus/fuzz/NAME. A crash ends it with the input that crashes.
set -euo pipefail
cd "$(dirname "$0")/../.."

targets=() limit=(-max_total_time=10) minimize="" list=""
while [ $# -gt 0 ]; do
    case $1 in
        --target) targets+=("$2"); shift ;;
        --seconds) limit=(-max_total_time="$2"); shift ;;
        --runs) limit=(-runs="$2"); shift ;;
        --minimize) minimize=1 ;;
        --list) list=1 ;;
        *) echo "unknown argument $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift
done

cargo +nightly --version >/dev/null 2>&1 && command -v c++ >/dev/null || {
    echo "SKIPPED fuzz targets with coverage: no nightly compiler, or no C++ compiler for libFuzzer"
    exit 0
}
host=$(rustc -vV | sed -n 's/^host: //p')
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
passes="-Cpasses=sancov-module"
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    passes+=" -Cllvm-args=-sanitizer-coverage-$argument"
done
# The versions of the dependencies that are shipped; libFuzzer alone comes beside them.
cp Cargo.lock crates/testing/fuzz/long/Cargo.lock
# Link-time optimization of `.ci/lib.sh` and its flags for C are for other builds.
RUSTFLAGS="-Zsanitizer=address $passes" CFLAGS="-O1" CXXFLAGS="-O1" CARGO_TARGET_DIR=$out \
    cargo +nightly build --quiet --release --target "$host" --manifest-path crates/testing/fuzz/long/Cargo.toml
program=$out/$host/release/fuzz-long

mapfile -t known < <(ls -d tests/corpus/fuzz/*/ | xargs -n 1 basename)
[ -z "$list" ] || { printf '%s\n' "${known[@]}"; exit 0; }
[ "${#targets[@]}" -gt 0 ] || targets=("${known[@]}")

# A run that takes 10 seconds hangs. What one allocates at once, and all together, is bounded.
bounds=(-timeout=10 -malloc_limit_mb=64 -rss_limit_mb=2048 -max_len=4096)
export ASAN_OPTIONS=detect_leaks=0 RUST_BACKTRACE=0

# Replaces the inputs that are named by their hash by as few as reach the same code. Those with other names once failed.
keep_least() {
    local least
    least=$(mktemp -d)
    UDPD_FUZZ=$1 "$program" "${bounds[@]}" -merge=1 -use_counters=0 "$least" "$2" "$3" >>"$log" 2>&1
    find "$3" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
    mv -t "$3" "$least"/*
    rmdir "$least"
}

failed=()
for target in "${targets[@]}"; do
    found=$out/corpus/$target
    kept=tests/corpus/fuzz/$target
    mkdir -p "$found" "$out/crashes"
    words=() others=()
    [ "$target" != toml ] || others=(tests/corpus/good tests/corpus/bad)
    [ ! -e "$kept.dict" ] || words=(-dict="$kept.dict")
    log=$out/$target.log
    if UDPD_FUZZ=$target "$program" "${bounds[@]}" "${limit[@]}" "${words[@]}" -print_final_stats=1 \
        -artifact_prefix="$out/crashes/$target-" "$found" "$kept" "${others[@]}" >"$log" 2>&1; then
        awk -v target="$target" '
            /^#[0-9]+[ \t]+(DONE|INITED)/ { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1)
                if ($i == "ft:") ft = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
            /stat::number_of_executed_units/ { runs = $2 } /stat::average_exec_per_sec/ { rate = $2 }
            /stat::peak_rss_mb/ { rss = $2 } /^Done / { seconds = $(NF - 1) }
            END { printf "| %s | %d | %d | %d ", target, runs, seconds, rate
                printf "| %d | %d | %s | %d |\n", cov, ft, corpus, rss }
        ' "$log"
    else
        failed+=("$target")
        grep -aE "panicked|^ERROR|^SUMMARY|ERROR: |artifact_prefix|Test unit written" -A 2 "$log" | head -n 20
        echo "$target fails; the whole log is $log"
        continue
    fi
    [ -z "$minimize" ] || keep_least "$target" "$found" "$kept"
done
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
