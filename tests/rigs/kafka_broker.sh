#!/usr/bin/env bash
# The Kafka sink against a real broker, which is fetched by Maven, run on free ports of loopback and ended again:
# restarted twice in mid-stream (once in order, once by kill -9), down at the start, and a flush at the end; and over
# TLS with a certificate, by password (PLAIN, SCRAM) and by token (OAUTHBEARER), with what has expired, is wrong, and
# is renewed; and with a spill a topic that is absent, deleted, closed to udpd, or has its limit lowered. What the
# topics hold is compared with the ledger, record by record. LONG=1 sends 1,000,000 datagrams through each pair of
# restarts, and 100,000 through an absent topic, five restarts and a lowered limit; KAFKA_RIG_PROFILE=dev takes a
# debug build; with --prepare the broker is only fetched.
. "$(dirname "$0")/lib/rig.sh"
profile=${KAFKA_RIG_PROFILE:-release}
need java:default-jre-headless mvn:maven openssl make c++:g++ pkg-config
pkg-config --exists libssl || skip "needs libssl-dev, to build the sink with TLS"

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

[ -z "${LONG:-}" ] || export UDPD_KAFKA_DATAGRAMS=1000000
cargo test --profile "$profile" --all-features --test kafka --no-run

work_folder
KAFKA_RIG=$WORK
# A free port on loopback, below those that the kernel gives away.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}
KAFKA_PORT=$(free_port)
controller_port=$(free_port)
mutual_port=$(free_port)
secret_port=$(free_port)
renewable_port=$(free_port)
export KAFKA_RIG KAFKA_JARS KAFKA_PORT
control=$PWD/tests/rigs/kafka/control.sh
at_end '"$control" kill'

mkdir "$KAFKA_RIG/files"
tests/rigs/kafka/certificates.sh "$KAFKA_RIG/files" >"$KAFKA_RIG/certificates.log" 2>&1 ||
    { cat "$KAFKA_RIG/certificates.log"; exit 1; }
password=$(openssl rand -hex 12)
(umask 077 && printf '%s\n' "$password" >"$KAFKA_RIG/files/password")

# MUTUAL wants a certificate, SECRET a password or a token, RENEWABLE shows a certificate that has expired at first.
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,MUTUAL://127.0.0.1:$mutual_port,SECRET://127.0.0.1:$secret_port
listeners+=,RENEWABLE://127.0.0.1:$renewable_port
protocols=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MUTUAL:SSL,SECRET:SASL_SSL,RENEWABLE:SSL
login=org.apache.kafka.common.security
cat >"$KAFKA_RIG/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=$listeners,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=$listeners
listener.security.protocol.map=$protocols
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.truststore.type=PEM
listener.name.mutual.ssl.keystore.location=$KAFKA_RIG/files/broker-keystore.pem
listener.name.mutual.ssl.truststore.location=$KAFKA_RIG/files/ca.pem
listener.name.mutual.ssl.client.auth=required
listener.name.secret.ssl.keystore.location=$KAFKA_RIG/files/broker-keystore.pem
listener.name.renewable.ssl.keystore.location=$KAFKA_RIG/files/renewable-keystore.pem
listener.name.secret.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.secret.plain.sasl.jaas.config=$login.plain.PlainLoginModule required user_udpd="$password";
listener.name.secret.scram-sha-256.sasl.jaas.config=$login.scram.ScramLoginModule required;
listener.name.secret.scram-sha-512.sasl.jaas.config=$login.scram.ScramLoginModule required;
listener.name.secret.oauthbearer.sasl.jaas.config=$login.oauthbearer.OAuthBearerLoginModule required \
    unsecuredLoginStringClaim_sub="broker";
controller.listener.names=CONTROLLER
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
log.dirs=$KAFKA_RIG/log
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
EOF
cluster=$(java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool random-uuid 2>/dev/null)
java -cp "$KAFKA_JARS/*" kafka.tools.StorageTool format -t "$cluster" -c "$KAFKA_RIG/server.properties" \
    --add-scram "SCRAM-SHA-256=[name=udpd,password=$password]" \
    --add-scram "SCRAM-SHA-512=[name=udpd,password=$password]" \
    >"$KAFKA_RIG/format.log" 2>&1 || { cat "$KAFKA_RIG/format.log"; exit 1; }

export UDPD_KAFKA_BROKER=127.0.0.1:$KAFKA_PORT UDPD_KAFKA_CONTROL=$control UDPD_KAFKA_FILES=$KAFKA_RIG/files
export UDPD_KAFKA_MUTUAL=127.0.0.1:$mutual_port UDPD_KAFKA_SECRET=127.0.0.1:$secret_port
export UDPD_KAFKA_RENEWABLE=127.0.0.1:$renewable_port
cargo test --profile "$profile" --all-features --test kafka -- --nocapture --test-threads=1
