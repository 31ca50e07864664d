#!/usr/bin/env bash
# The HTTP sink against servers that are killed and come back, and against those that misbehave: real ones where they
# can be had, which are the engine of ClickHouse (from PyPI), OpenTelemetry's Collector (built by its own builder) and
# OpenSearch (from Maven), and doubles, written from public documentation, of Splunk's collector, Loki and the bulk
# interface. A judge reads what the servers have, and believes the ledger only on how many may be there twice.
#
# The short form sends 50,000 datagrams to each of those that need nothing but Python, LONG=1 sends 1,000,000 to each,
# the Collector and OpenSearch too. What is fetched stays in target/http-rigs; with --prepare that is all. See
# http/run.py.
. "$(dirname "$0")/lib/rig.sh"
need python3
fetched=$(realpath -m "${CARGO_TARGET_DIR:-target}/http-rigs")

# Makes a folder by a command that gets another name for it, so that what breaks off leaves nothing that looks whole.
fetch() { # FOLDER COMMAND
    [ ! -d "$fetched/$1" ] || return 0
    rm -rf "${fetched:?}/$1.part"
    mkdir -p "$fetched/$1.part"
    (renice -n 19 "$BASHPID" >/dev/null && "$2" "$fetched/$1.part") </dev/null && mv "$fetched/$1.part" "$fetched/$1"
}

chdb=chdb-core-26.9.0
fetch_chdb() {
    python3 -m pip --version >/dev/null || { echo "no pip (Debian package python3-pip)"; return 1; }
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --disable-pip-version-check --no-deps --target "$1" \
        chdb-core==26.9.0
}

collector=collector-0.165.0
fetch_collector() {
    command -v go >/dev/null || { echo "no go (of go.dev; Debian's is too old)"; return 1; }
    GOBIN=$1 go install go.opentelemetry.io/collector/cmd/builder@v0.165.0 &&
        (cd "$1" && CGO_ENABLED=0 ./builder --config "$OLDPWD/tests/rigs/http/collector.yaml") &&
        mv "$1/source/collector" "$1/collector" && rm -r "$1/source" "$1/builder"
}

opensearch=opensearch-2.19.1
fetch_opensearch() {
    command -v java >/dev/null && command -v mvn >/dev/null ||
        { echo "no java or no mvn (Debian packages default-jre-headless, maven)"; return 1; }
    mvn -B -q -f tests/rigs/http/pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$1"
}

# What cannot be had is named where it is missed.
if [ -z "${RIG_IS_INSIDE:-}" ]; then
    wanted=(chdb)
    [ "${1:-}" != --prepare ] && [ "${LONG:-0}" = 0 ] || wanted+=(collector opensearch)
    for one in "${wanted[@]}"; do
        name=HTTP_${one^^}
        if fetch "${!one}" "fetch_$one"; then
            export "$name=$fetched/${!one}"
        else
            echo "$RIG: $one cannot be fetched, see above; is there a network?"
        fi
    done
    [ "${1:-}" != --prepare ] || exit 0
fi

enter_namespaces "$@"
python_part
