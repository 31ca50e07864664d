#!/usr/bin/env bash
# Finished files go to a server that speaks S3 (moto, from PyPI), which goes away under load, is slow, refuses, and
# never answers, and udpd is killed in the middle of a file in parts. A judge reads the bucket and believes no ledger.
#
# What is fetched stays in target/upload-rigs; with --prepare that is all. See upload/run.py.
. "$(dirname "$0")/lib/rig.sh"
need python3
fetched=$(realpath -m "${CARGO_TARGET_DIR:-target}/upload-rigs")
moto=$fetched/moto-5.2

if [ -z "${RIG_IS_INSIDE:-}" ]; then
    if [ ! -d "$moto" ]; then
        python3 -m pip --version >/dev/null || skip "no pip (Debian package python3-pip)"
        rm -rf "$moto.part"
        PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --disable-pip-version-check --target "$moto.part" \
            'moto[server]==5.2.*' 2>/dev/null && mv "$moto.part" "$moto" ||
            skip "moto cannot be fetched from PyPI; is there a network?"
    fi
    export UPLOAD_MOTO=$moto
    [ "${1:-}" != --prepare ] || exit 0
fi

enter_namespaces "$@"
python_part
