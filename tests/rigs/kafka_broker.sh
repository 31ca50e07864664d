#!/usr/bin/env bash
# The Kafka sink against a real broker, which is fetched by Maven, run on free ports of loopback and ended again:
# restarted twice in mid-stream (once in order, once by kill -9), down at the start, and a flush at the end. What the
# topic holds is compared with the ledger, record by record. UDPD_KAFKA_DATAGRAMS=1000000 makes the stream longer than
# its 200,000; KAFKA_RIG_PROFILE=dev takes a debug build; with --prepare the broker is only fetched.
set -euo pipefail
profile=${KAFKA_RIG_PROFILE:-release}
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED kafka_broker.sh: $1"
    exit 0
}

command -v java >/dev/null || skip "needs java, to run a broker"
command -v mvn >/dev/null || skip "needs mvn, to fetch a broker"
command -v make >/dev/null && command -v c++ >/dev/null || skip "needs make and a C++ compiler, to build librdkafka"

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
KAFKA_JARS=$(cd "$target" && pwd)/kafka-broker
if ! ls "$KAFKA_JARS"/kafka_*.jar >/dev/null 2>&1; then
    # Into a directory of its own first, so that a fetch that breaks off leaves nothing that looks whole.
    rm -rf "$KAFKA_JARS.part"
    plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.0
    mvn -B -q -f tests/rigs/kafka/pom.xml "$plugin:copy-dependencies" -DincludeScope=runtime \
        -DoutputDirectory="$KAFKA_JARS.part" </dev/null ||
            skip "Maven cannot fetch the broker, see above; is there a network?"
    rm -rf "$KAFKA_JARS"
    mv "$KAFKA_JARS.part" "$KAFKA_JARS"
fi
[ "${1:-}" != --prepare ] || exit 0

cargo test --profile "$profile" --features kafka --test kafka --no-run

KAFKA_RIG=$(mktemp -d)
# A port on loopback that nobody holds, below those that the kernel gives away.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}
KAFKA_PORT=$(free_port)
controller_port=$(free_port)
export KAFKA_RIG KAFKA_JARS KAFKA_PORT
control=$PWD/tests/rigs/kafka/control.sh
trap '"$control" kill || true; rm -rf "$KAFKA_RIG"' EXIT

cat >"$KAFKA_RIG/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT
controller.listener.names=CONTROLLER
log.dirs=$KAFKA_RIG/log
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
EOF
cluster=$(java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool random-uuid 2>/dev/null)
java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool format -t "$cluster" -c "$KAFKA_RIG/server.properties" \
    >"$KAFKA_RIG/format.log" 2>&1 || { cat "$KAFKA_RIG/format.log"; exit 1; }

UDPD_KAFKA_BROKER=127.0.0.1:$KAFKA_PORT UDPD_KAFKA_CONTROL=$control \
    cargo test --profile "$profile" --features kafka --test kafka -- --nocapture --test-threads=1
