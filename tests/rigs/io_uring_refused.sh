#!/usr/bin/env bash
# A host that refuses io_uring, as most containers do: `engine = "io_uring"` does not start and says why, "auto"
# receives by recvmmsg and says why. The refusal is a seccomp filter on udpd alone, which needs no root; nothing of the
# host is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v python3 >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo "SKIPPED io_uring_refused.sh: needs python3, to install a filter, and x86_64, for its number of io_uring_setup"
    exit 0
fi

cargo build --release --bin udpd
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Runs a command to which io_uring_setup answers with the given error number.
cat >"$directory/refusing.py" <<'EOF'
import ctypes, os, struct, sys
errno, command = int(sys.argv[1]), sys.argv[2:]
IO_URING_SETUP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 425, 38, 22, 2
LOAD_NUMBER = (0x20, 0, 0, 0)
ELSE_SKIP = (0x15, 0, 1, IO_URING_SETUP)
REFUSE = (0x06, 0, 0, 0x00050000 | errno)
PASS = (0x06, 0, 0, 0x7FFF0000)
program = b"".join(struct.pack("HBBI", *one) for one in (LOAD_NUMBER, ELSE_SKIP, REFUSE, PASS))
instructions = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
description = Program(4, ctypes.addressof(instructions))
libc = ctypes.CDLL(None, use_errno=True)
for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, ctypes.byref(description), 0, 0)):
    if libc.prctl(*call) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(command[0], command)
EOF

fail() {
    echo "FAILED: $1"
    cat "$directory/output" 2>/dev/null || true
    exit 1
}

# Checks a listener with this engine under a kernel that answers with this error; leaves the exit code in $status.
check() {
    cat >"$directory/udpd.toml" <<EOF
[[listener]]
name = "in"
address = "127.0.0.1:45171"
engine = "$1"
gather = "1ms"
sinks = ["nothing"]
[sink.nothing]
type = "null"
EOF
    status=0
    python3 "$directory/refusing.py" "$2" target/release/udpd check --json -c "$directory/udpd.toml" \
        >"$directory/output" 2>&1 || status=$?
}

check io_uring 1
[ "$status" -eq 77 ] || fail "forbidden with EPERM, io_uring ended with $status, not 77"
grep -q 'kernel.io_uring_disabled\|seccomp' "$directory/output" || fail "the cause is missing"
grep -q 'engine = "auto"' "$directory/output" || fail "the cure is missing"
echo "passed: a forbidden io_uring is exit 77 with cause and cure"

check io_uring 38
[ "$status" -eq 69 ] || fail "absent with ENOSYS, io_uring ended with $status, not 69"
grep -q 'CONFIG_IO_URING' "$directory/output" || fail "the cause is missing"
echo "passed: an absent io_uring is exit 69 with its cause"

check auto 1
[ "$status" -eq 0 ] || fail "auto ended with $status where io_uring is forbidden"
grep -q '"engine": "recvmmsg"' "$directory/output" || fail "auto does not receive by recvmmsg"
grep -q 'auto; ' "$directory/output" || fail "auto does not say why"
echo "passed: auto needs no ring and says what it took"
