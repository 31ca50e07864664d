# Shared by `run` and `nightly`, which source it: how a step is announced, run beside others, repeated and summed up,
# and what is installed for it.

# Link-time optimization, debug information and incremental builds double the time of building from nothing. They change
# no result that is checked here. Figures are never taken in CI; those on record come from the profiles of Cargo.toml.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_INCREMENTAL=0
# The library under the Kafka sink is not what is measured either, and optimizing it takes longer than all of the lints.
export CFLAGS="-O0 -g0" CXXFLAGS="-O0 -g0"
# The rig with a broker takes the build that the mock of a cluster was tested with.
export KAFKA_RIG_PROFILE=dev

current="before the first step"
not_checked=()
took=()
record=""
began=$SECONDS

# Announces a step, runs its command, says how long it took.
step() {
    current=$1
    shift
    local started=$SECONDS
    printf '\n==== %s\n     %s\n' "$current" "$*"
    "$@" </dev/null || return
    printf -- '---- %s: %d s\n' "$current" "$((SECONDS - started))"
    took+=("$current: $((SECONDS - started)) s")
}

# Starts a step beside those that follow, up to `join` of the same name, which waits for it and shows all that it said.
# Two cores are idle while something waits for a disk, a guest, a broker or a clock.
declare -A besides
beside() {
    local name=$1 log
    shift
    log=$(mktemp)
    printf '\n==== started beside what follows: %s\n     %s\n' "$name" "$*"
    # In a process group of its own, which the end takes with it.
    set -m
    (
        status=0
        "$@" || status=$?
        echo "$status $((SECONDS - began))" >"$log.ended"
    ) </dev/null >"$log" 2>&1 &
    set +m
    besides[$name]="$! $log $((SECONDS - began))"
}
# The status comes from a file: bash forgets that of a process whose number another one got meanwhile, and so many are
# started here that the numbers begin anew.
join() {
    local process log started ended=$SECONDS status=1
    current=$1
    read -r process log started <<<"${besides[$1]}"
    wait "$process" 2>/dev/null || true
    printf '\n==== ended beside the others: %s\n' "$1"
    cat "$log"
    collect_said "$log"
    [ ! -e "$log.ended" ] || read -r status ended <"$log.ended"
    printf -- '---- %s: %d s beside others\n' "$1" "$((ended - started))"
    took+=("$1: $((ended - started)) s beside others")
    rm -f "$log" "$log.ended"
    unset "besides[$1]"
    return "$status"
}

# Says loudly that something was not checked; a silent gap would look like a pass.
skip() {
    printf '\n!!!! NOT CHECKED: %s\n' "$1"
    not_checked+=("$1")
}

# Runs tests. The machine is shared, and one test in some thousands meets a moment in which it stands still. Those that
# fail, if they are few, are run once more, each alone, and the summary names them. What fails alone fails.
unsteady=()
run_tests() {
    local log status=0 names name leave_out=()
    [ "$1" != --skip ] || { leave_out=(--skip "$2"); shift 2; }
    log=$(mktemp)
    "$@" --no-fail-fast -- "${leave_out[@]}" 2>&1 | tee "$log" || status=$?
    # The last list of each program of tests; the one before it has what each of them said.
    mapfile -t names < <(awk '/^failures:$/ { count = 0 } /^    [^ ]/ { listed[count++] = substr($0, 5) }
        /^test result: FAILED/ { for (i = 0; i < count; i++) print listed[i] } /^test result/ { count = 0 }' "$log" |
        sort -u)
    rm -f "$log"
    [ "$status" -ne 0 ] || return 0
    [ "${#names[@]}" -gt 0 ] && [ "${#names[@]}" -le 3 ] || return "$status"
    for name in "${names[@]}"; do
        printf '\n!!!! FAILED beside the others, once more alone: %s\n' "$name"
        "$@" -- --exact "$name" 2>&1 | tee "$log" || { rm -f "$log"; return "$status"; }
        # A name that no program knows passes by running nothing.
        grep -Eq '^test result: ok. [1-9]' "$log" || { rm -f "$log"; return "$status"; }
        rm -f "$log"
        unsteady+=("$name")
    done
}

# What needs root, a guest, systemd or a broker says so itself and ends with 0 when it cannot run; the summary repeats
# it.
collect_said() {
    local said
    while read -r said; do not_checked+=("$said"); done < <(grep '^SKIPPED' "$1" || true)
    while read -r said; do unsteady+=("${said#UNSTEADY }"); done < <(grep '^UNSTEADY ' "$1" || true)
}

summary() {
    local status=$? name process log
    for name in "${!besides[@]}"; do
        read -r process log _ <<<"${besides[$name]}"
        # The number of one that has ended may belong to another process by now.
        [ -e "$log.ended" ] || kill -- "-$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
        printf '\n==== what was running beside: %s\n' "$name"
        cat "$log"
        rm -f "$log" "$log.ended"
    done
    printf '\n'
    tell_summary "$status"
    [ -z "$record" ] || write_record "$status"
}

tell_summary() {
    local what
    for what in "${not_checked[@]}"; do printf 'NOT CHECKED: %s\n' "$what"; done
    for what in "${unsteady[@]}"; do printf 'UNSTEADY: %s failed once and passed alone\n' "$what"; done
    if [ "$1" -eq 0 ]; then
        printf '%s passed in %d s\n' "$0" "$((SECONDS - began))"
    else
        printf '%s FAILED at: %s (exit %d, after %d s)\n' "$0" "$current" "$1" "$((SECONDS - began))"
    fi
}

# What was run, where and how it ended, as a page in the folder `record`.
write_record() {
    local page what
    page="$record/$(basename "$0")-$(date +%F).md"
    mkdir -p "$record"
    {
        printf '# %s of %s\n\n' "$(basename "$0")" "$(date +%F)"
        printf 'Commit %s; %s, %d cores, Linux %s.\n\n' "$(git rev-parse --short HEAD)" \
            "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(uname -r)"
        tell_summary "$1" | sed 's/^/    /'
        printf '\n'
        for what in "${took[@]}"; do printf -- '- %s\n' "$what"; done
    } >"$page"
    printf 'the record is %s\n' "$page"
}
trap summary EXIT
# A run that is ended from outside does not say that it has passed.
trap 'exit 130' INT
trap 'exit 143' TERM

# Command and Debian package of what steps, rigs and benches run beside Rust. Whatever is unavailable is named where it
# is missed.
# For the C loop of the benches, and zstd and librdkafka, which the features `zstd` and `kafka` compile.
compilers=(cc:gcc c++:g++ make:make pkg-config:pkg-config)
tools=(
    ip:iproute2 python3:python3 sysctl:procps  # rigs on cables
    tshark:tshark                # captures read by others
    tmux:tmux                    # a terminal
    logrotate:logrotate faketime:faketime  # files that others rotate, a clock that others set
    rsyslogd:rsyslog             # the peer beside it
    dnsdist:dnsdist              # a proxy with headers
    softflowd:softflowd          # exporters of NetFlow and IPFIX
    nfcapd:nfdump                # a collector of both
    nft:nftables                 # a firewall
    java:default-jre-headless mvn:maven  # a Kafka broker, OpenSearch
    pip3:python3-pip             # the engine of ClickHouse
    chromium:chromium chromedriver:chromium-driver curl:curl  # the page in a browser
    promtool:prometheus          # metrics, rules and the dashboard
    strace:strace                # calls made to fail, and what the bench touches
    valgrind:valgrind            # instructions
    debootstrap:debootstrap systemd-nspawn:systemd-container  # a real systemd
    mandoc:mandoc groff:groff zsh:zsh fish:fish lintian:lintian  # the manual, completions, the package
    qemu-system-x86_64:qemu-system-x86 cpio:cpio  # a guest
)

install_tools() {
    local sudo=() packages=() tool
    [ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
    for tool; do
        command -v "${tool%%:*}" >/dev/null || packages+=("${tool##*:}")
    done
    [ "${#packages[@]}" -gt 0 ] || return 0
    "${sudo[@]}" apt-get update -q || return
    # One by one, so that a package that is missing takes no other with it. None may start anything. In a session of its
    # own, because an installation that is broken off leaves the machine half installed.
    for tool in "${packages[@]}"; do
        setsid --wait "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
            apt-get install -qy --no-install-recommends "$tool" || true
    done
}

# What takes minutes to fetch on a new machine. A rig that cannot be prepared says why when it is run.
prepare_rigs() {
    local rig
    for rig in systemd kafka_broker steering_in_guest http; do "tests/rigs/$rig.sh" --prepare >/dev/null || true; done
}

# Miri knows no sockets: it runs the unit tests of the memory layout, and the tests that make calls leave themselves
# out. Of the hand-over it runs what needs none: it sees orders of memory that this machine does not have.
under_miri() {
    local miri=(env "MIRIFLAGS=-Zmiri-disable-isolation" cargo +nightly miri test --lib)
    renice -n 19 "$BASHPID" >/dev/null
    "${miri[@]}" -p udpd-bpf -p mmsg && "${miri[@]}" -p udpd-hostloss -- drops &&
        "${miri[@]}" -p udpd-base -- handover::channel handover::blocks handover::marks handover::pool
}

has_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 ||
        { rustup component add --toolchain nightly miri rust-src && cargo +nightly miri --version; } </dev/null
}

# The oldest Rust that Cargo.toml promises compiles it. The files lie beside those of the toolchain of every day.
check_oldest_rust() { # arguments of cargo check
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    if cargo "+$oldest" --version >/dev/null 2>&1 ||
        rustup toolchain install "$oldest" --profile minimal --no-self-update </dev/null >/dev/null 2>&1; then
        step "Rust $oldest" cargo "+$oldest" check --locked "$@"
    else
        skip "Rust $oldest, the oldest that Cargo.toml promises: rustup cannot install it here"
    fi
}

# A rig that fails is run once more, for the reason that a test is.
twice() {
    "$1" && return
    printf '\n!!!! FAILED, once more: %s\n' "$1"
    "$1" || return
    printf 'UNSTEADY %s\n' "$1"
}
run_rig() {
    local log status=0
    log=$(mktemp)
    twice "$1" 2>&1 | tee "$log" || status=$?
    collect_said "$log"
    rm -f "$log"
    return "$status"
}

# Advisories need a database from the network. Not to reach it is no fault of the change; what it says is.
check_advisories() {
    export GIT_TERMINAL_PROMPT=0
    if ! timeout 30 git ls-remote -q https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1 </dev/null; then
        skip "advisories: the database at github.com/RustSec/advisory-db cannot be reached"
    elif cargo deny --version >/dev/null 2>&1; then
        step "advisories" cargo deny check advisories
    elif cargo audit --version >/dev/null 2>&1; then
        step "advisories" cargo audit
    else
        skip "advisories: neither cargo-deny nor cargo-audit is installed"
    fi
}
