#!/usr/bin/env bash
# Installs udpd with everything that belongs to it into a directory tree: of a package, of an image, or of this host.
# The list below is the only place that says what is installed where; deb.sh packs what this script installs.
#
#   packaging/install.sh --binary target/release/udpd --root DIRECTORY [--run UDPD]
#
# --run names the program that writes the manual and the completions, where the binary is for another architecture.
# It starts, enables and creates nothing else: no user, no unit that runs, no setting of the kernel. docs/install.md
# says what to do then.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "usage: packaging/install.sh --binary UDPD --root DIRECTORY" >&2
    exit 2
}
binary= root= run=
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=${2:?} && shift 2 ;;
    --root) root=${2:?} && shift 2 ;;
    --run) run=$(realpath "${2:?}") && shift 2 ;;
    *) usage ;;
    esac
done
[ -n "$binary" ] && [ -n "$root" ] || usage
binary=$(realpath "$binary")
run=${run:-$binary}

put() { # mode, file of the repository, place
    install -D -m "$1" "$2" "$root/$3"
}

put 755 "$binary" usr/bin/udpd
for unit in udpd.service udpd@.service udpd-steer.service udpd-steer-watch.service; do
    put 644 "config/$unit" "usr/lib/systemd/system/$unit"
done
put 644 config/udpd.sysusers usr/lib/sysusers.d/udpd.conf
# The service reads a short configuration that is safe on every host. The one that explains every key is an example.
put 644 packaging/udpd.toml etc/udpd/udpd.toml

documentation=usr/share/doc/udpd
for file in README.md CHANGELOG.md docs/*.md docs/*.png; do put 644 "$file" "$documentation/${file##*/}"; done
# The installed pages lie side by side, and the files of config/ are in examples/, so their links are changed.
sed -i -E -e 's#\]\(docs/#](#g' -e 's#\]\(config/examples\)#](examples)#g' -e 's#\]\((\.\./)?config/#](examples/#g' \
    "$root/$documentation"/*.md
# Examples, because each of them changes the host beyond udpd: the kernel's limits, or who rotates which files.
put 644 config/udpd.toml "$documentation/examples/udpd.toml"
put 644 config/90-udpd.conf "$documentation/examples/90-udpd.conf"
put 644 config/logrotate "$documentation/examples/logrotate"
put 644 config/notify-reload.conf "$documentation/examples/notify-reload.conf"
for file in config/examples/*.toml; do put 644 "$file" "$documentation/examples/${file##*/}"; done
put 644 config/grafana/udpd.json "$documentation/examples/grafana/udpd.json"
put 644 config/prometheus/udpd.rules.yml "$documentation/examples/prometheus/udpd.rules.yml"

# The program writes its own manual and completions.
"$run" man --to "$root/usr/share/man"
gzip -9nf "$root"/usr/share/man/man?/udpd*.?
complete() { # shell, place
    install -d "$root/${2%/*}"
    "$run" completions "$1" >"$root/$2"
}
complete bash usr/share/bash-completion/completions/udpd
complete zsh usr/share/zsh/vendor-completions/_udpd
complete fish usr/share/fish/vendor_completions.d/udpd.fish
# Modes that do not depend on the umask.
find "$root/usr/share" -type d -exec chmod 755 {} +
find "$root/usr/share" -type f -exec chmod 644 {} +
