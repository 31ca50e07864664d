#!/usr/bin/env bash
# Makes what kafka_broker.sh needs for TLS, in the directory that is its argument: an authority, and certificates for
# the broker (127.0.0.1 and localhost) and for udpd, each good for two days and besides one that expired years ago.
set -euo pipefail
cd "${1:?the directory}"

request() { # NAME
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
}

cat >ca.cnf <<EOF
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
policy = names
x509_extensions = ends
[names]
commonName = supplied
[ends]
subjectAltName = IP:127.0.0.1, DNS:localhost
EOF
touch index.txt
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=authority of the rig" -days 2 \
    -keyout ca.key -out ca.pem
sign() { # NAME FILE FROM UNTIL
    openssl ca -batch -notext -config ca.cnf -cert ca.pem -keyfile ca.key -in "$1.csr" -out "$2.pem" \
        -startdate "$3" -enddate "$4"
}
from=$(date -u -d '-1 day' +%Y%m%d%H%M%SZ)
until=$(date -u -d '+1 day' +%Y%m%d%H%M%SZ)
for name in broker udpd; do
    request "$name"
    sign "$name" "$name" "$from" "$until"
    sign "$name" "$name-expired" 20200101000000Z 20200201000000Z
done
# A keystore of the broker is a key and its certificate in one file.
cat broker.key broker.pem >broker-keystore.pem
cat broker.key broker-expired.pem >renewable-keystore.pem
