#!/usr/bin/env bash
# Starts and stops the broker of kafka_broker.sh, which says in the environment where everything is.
# Usage: control.sh start|stop|kill. Each returns when it is done; a broker that is in that state already is left alone.
#        control.sh configs|acls ARGUMENTS: what kafka-configs and kafka-acls do with them.
set -euo pipefail
: "${KAFKA_RIG:?the directory of the rig}" "${KAFKA_JARS:?the directory with the broker}" "${KAFKA_PORT:?its port}"

pid_file=$KAFKA_RIG/broker.pid

# Our broker, by its id and its directory: an id alone may have gone to another process.
running() {
    [ -s "$pid_file" ] &&
        tr '\0' '\n' <"/proc/$(cat "$pid_file")/cmdline" 2>/dev/null | grep -qxF "$KAFKA_RIG/server.properties"
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$KAFKA_PORT") 2>/dev/null; }

# Waits, at most a minute, until the command says yes.
until_it() {
    for _ in $(seq 600); do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    echo "control.sh: $* did not come true within a minute; the end of the broker's log:" >&2
    tail -n 20 "$KAFKA_RIG/broker.log" >&2 || true
    return 1
}

ended() { ! running; }
started() {
    running || { echo "control.sh: the broker has ended:" >&2; tail -n 20 "$KAFKA_RIG/broker.log" >&2; exit 1; }
    answers
}

case ${1:-} in
start)
    running && exit 0
    java -Xmx512m -cp "$KAFKA_JARS/*" kafka.Kafka "$KAFKA_RIG/server.properties" \
        >>"$KAFKA_RIG/broker.log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    sleep 0.1
    until_it started
    ;;
stop | kill)
    if running; then
        signal=TERM
        [ "$1" = stop ] || signal=KILL
        kill -s "$signal" "$(cat "$pid_file")"
        until_it ended
    fi
    ;;
configs | acls)
    class=kafka.admin.ConfigCommand
    [ "$1" = configs ] || class=kafka.admin.AclCommand
    # What it takes to start is most of what such a command takes.
    java -XX:TieredStopAtLevel=1 -Xshare:auto -cp "$KAFKA_JARS/*" "$class" --bootstrap-server "127.0.0.1:$KAFKA_PORT" \
        "${@:2}" >>"$KAFKA_RIG/admin.log" 2>&1 || { tail -n 20 "$KAFKA_RIG/admin.log" >&2; exit 1; }
    ;;
*)
    echo "usage: control.sh start|stop|kill|configs|acls" >&2
    exit 2
    ;;
esac
