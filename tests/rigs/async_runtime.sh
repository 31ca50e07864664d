#!/usr/bin/env bash
# What the README of mmsg shows for an async runtime compiles and works: its text is built in a folder of its own,
# outside of the workspace, whose Cargo.lock stays without a runtime. Needs the registry.
. "$(dirname "$0")/lib/rig.sh"
need cargo python3
work_folder
mkdir "$WORK/src"
cat >"$WORK/Cargo.toml" <<TOML
[package]
name = "runtime"
edition = "2024"
[dependencies]
mmsg = { path = "$PWD/crates/mmsg" }
tokio = { version = "1", features = ["net", "rt-multi-thread"] }
[workspace]
TOML
{
    sed -n '/^```rust,ignore$/,/^```$/{/^```/d;p}' crates/mmsg/README.md
    cat <<'RUST'
fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).expect("an address").parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    // Spawned, so that it has to be able to change its thread.
    runtime.block_on(runtime.spawn(echo(address))).expect("no panic")
}
RUST
} >"$WORK/src/main.rs"
cd "$WORK"
cargo fetch >"$WORK/log" 2>&1 || { cat "$WORK/log"; skip "the registry cannot be reached"; }
CARGO_TARGET_DIR=$WORK/target cargo build >"$WORK/log" 2>&1 || fail "it does not compile" "$(cat "$WORK/log")"
"$WORK/target/debug/runtime" 127.0.0.1:7917 &
at_end "kill $!"
python3 - <<'PY' || fail "it does not answer"
import socket, time
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.connect(("127.0.0.1", 7917))
asker.settimeout(1)
for number in range(1000):
    for _ in range(30):
        try:
            asker.send(b"%d" % number)
            if asker.recv(100) == b"%d" % number:
                break
        except (ConnectionRefusedError, TimeoutError):
            time.sleep(0.1)
    else:
        raise SystemExit("no answer to datagram %d" % number)
PY
echo "passed: the README's echo under tokio answers 1,000 of 1,000"
