#!/usr/bin/env bash
# The files of config/fleet/kubernetes: they are what the chart beside them makes (where helm is installed), each is
# valid against the schemas of Kubernetes, which a package of PyPI brings along, and the limit of memory is above what
# `udpd check` plans for the configuration in them. What is fetched stays in target/fleet-rigs. No cluster is started.
. "$(dirname "$0")/lib/rig.sh"
need python3
begin
folder=config/fleet/kubernetes
validator=$(realpath -m "${CARGO_TARGET_DIR:-target}/fleet-rigs")/kubernetes-validate-1.37.0

if command -v helm >/dev/null; then
    for kind in DaemonSet Deployment; do
        helm template udpd $folder/chart --set kind=$kind | diff - "$folder/${kind,,}.yaml" >"$WORK/diff" ||
            fail "$folder/${kind,,}.yaml is not what the chart makes" "$(cat "$WORK/diff")"
    done
    echo "passed: both files are what the chart makes"
else
    echo "SKIPPED $RIG: the part with the chart: needs helm (go install helm.sh/helm/v3/cmd/helm)"
fi

if [ ! -d "$validator" ]; then
    rm -rf "$validator.part"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --disable-pip-version-check --target "$validator.part" \
        kubernetes-validate==1.37.0 && mv "$validator.part" "$validator" ||
        skip "kubernetes-validate cannot be fetched; is there a network, and pip (Debian package python3-pip)?"
fi
export PYTHONPATH=$PYTHONPATH:$validator
python_part
