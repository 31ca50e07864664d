#!/usr/bin/env bash
# How many datagrams a second the Kafka sink brings to a broker, beside what librdkafka's own rdkafka_performance brings
# to the same broker with the same settings: same length, same headers, no keys, idempotent, all replicas. They take
# turns, and the medians are compared. The broker is that of tests/rigs/kafka_broker.sh, on this machine, so all of them
# share its cores. rdkafka_performance makes its records in memory and has all that is left of the cores. udpd shares
# them with the sender of datagrams, which therefore sends trains: that is the cheapest a sender on the machine can be.
#
# Usage: benches/kafka_throughput.sh [--quick]   (ROUNDS=5, SECONDS_EACH=20, SIZE=200, COMPRESSION=none)
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-20} size=${SIZE:-200} compression=${COMPRESSION:-none}
[ "${1:-}" != --quick ] || rounds=1 seconds=5

profile=${KAFKA_BENCH_PROFILE:-release}
cargo build --profile "$profile" --features "${KAFKA_BENCH_FEATURES:-kafka}"
tests/rigs/kafka_broker.sh --prepare
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
built=$target/$profile
[ "$profile" != dev ] || built=$target/debug
udpd=$built/udpd

# The library as udpd has it: the same sources, options and compiler.
library=$(ls -dt "$built"/build/rdkafka-sys-*/out | head -n 1)
[ -e "$library/src/librdkafka.a" ] || { echo "there is no librdkafka in $library"; exit 1; }
make -s -C "$library/examples" rdkafka_performance >/dev/null
performance=$library/examples/rdkafka_performance

KAFKA_RIG=$(mktemp -d)
KAFKA_JARS=$target/kafka-broker
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}
KAFKA_PORT=$(free_port)
controller_port=$(free_port)
udp_port=$(free_port)
export KAFKA_RIG KAFKA_JARS KAFKA_PORT
control=$PWD/tests/rigs/kafka/control.sh
daemon=
end() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    "$control" kill || true
    rm -rf "$KAFKA_RIG"
}
trap end EXIT
cat >"$KAFKA_RIG/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT
controller.listener.names=CONTROLLER
log.dirs=$KAFKA_RIG/log
log.retention.bytes=200000000
log.segment.bytes=50000000
log.retention.check.interval.ms=5000
num.partitions=4
offsets.topic.replication.factor=1
EOF
cluster=$(java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool random-uuid 2>/dev/null)
java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool format -t "$cluster" -c "$KAFKA_RIG/server.properties" >/dev/null 2>&1
"$control" start

# What both tell the library.
properties=(enable.idempotence=true queue.buffering.max.messages=100000 queue.buffering.max.kbytes=65536 linger.ms=5)

# Messages a second of rdkafka_performance: the first run says how many it sends in the time.
messages=200000
of_library() {
    local arguments=() property said
    for property in "${properties[@]}"; do arguments+=(-X "$property"); done
    # As many bytes of headers as udpd writes.
    said=$("$performance" -P -t library -b "127.0.0.1:$KAFKA_PORT" -s "$size" -c "$messages" -a -1 -z "$compression" \
        -H time=1700000000000000000 -H source=127.0.0.1:50000 -H listener=in "${arguments[@]}" 2>&1)
    said=$(sed -n 's/.*: \([0-9]*\) msgs\/s.*/\1/p' <<<"$said" | tail -n 1)
    echo "${said:?rdkafka_performance says no rate}"
}

cat >"$KAFKA_RIG/udpd.toml" <<EOF
[daemon]
control_socket = "$KAFKA_RIG/control.sock"
metrics_address = ""
[[listener]]
name = "in"
address = "127.0.0.1:$udp_port"
lanes = 1
gro = "on"
sinks = ["stream"]
[sink.stream]
type = "kafka"
brokers = "127.0.0.1:$KAFKA_PORT"
topic = "udpd"
key = "none"
compression = "$compression"
when_full = "block"
[sink.stream.properties]
"linger.ms" = 5
EOF

# What the ledger has as delivered, and its clock.
reading() {
    "$udpd" stats --json --socket "$KAFKA_RIG/control.sock" | python3 -c '
import json, sys
ledger = json.load(sys.stdin)
print(ledger["listeners"][0]["sinks"][0]["delivered"], ledger["uptime_seconds"])'
}

# Datagrams a second that brokers acknowledge while more are sent than they take.
of_udpd() {
    local rate=$1 sender first last
    "$udpd" run -c "$KAFKA_RIG/udpd.toml" 2>"$KAFKA_RIG/udpd.log" &
    daemon=$!
    until reading >/dev/null 2>&1; do
        kill -0 "$daemon" || { cat "$KAFKA_RIG/udpd.log" >&2; return 1; }
        sleep 0.1
    done
    "$udpd" bench send --to "127.0.0.1:$udp_port" --rate "$rate" --seconds "$((seconds + 4))" --size "$size" --gso 20 \
        >/dev/null 2>&1 &
    sender=$!
    sleep 2
    first=$(reading)
    sleep "$seconds"
    last=$(reading)
    wait "$sender" || true
    kill "$daemon" && wait "$daemon" || true
    daemon=
    python3 -c "
first, last = [float(x) for x in '$first'.split()], [float(x) for x in '$last'.split()]
print(round((last[0] - first[0]) / (last[1] - first[1])))"
}

library=() daemons=()
warm=$(of_library)
messages=$((warm * seconds))
for round in $(seq "$rounds"); do
    library+=("$(of_library)")
    # A half more than the library alone takes, so that the sink never waits for a datagram.
    daemons+=("$(of_udpd "$((library[-1] * 3 / 2))")")
    echo "round $round: rdkafka_performance ${library[-1]}/s, udpd ${daemons[-1]}/s"
done
python3 - "${library[*]}" "${daemons[*]}" <<'EOF'
import statistics
import sys

library, udpd = ([int(number) for number in text.split()] for text in sys.argv[1:])
one, other = statistics.median(library), statistics.median(udpd)
print(f"medians of {len(library)}: rdkafka_performance {one:.0f}/s, udpd {other:.0f}/s, ratio {other / one:.2f}")
EOF
