#!/usr/bin/env bash
# The Debian package in a real Debian, booted in a container of its own: what it holds and asks for; that installing
# starts and enables nothing; that an upgrade restarts what runs and nothing else, leaves the old process where the new
# version refuses the configuration, may not have what it names, or does not run at all, and says so; that a removal
# keeps what is the operator's and a purge leaves nothing but what is mounted.
. "$(dirname "$0")/lib/rig.sh"
. tests/rigs/systemd/container.sh
need_container dpkg-deb:dpkg python3
show_evidence() {
    [ ! -s "$directory/said" ] || tail -n 20 "$directory/said"
    [ -z "$leader" ] || inside journalctl --no-pager -n 20 -u 'udpd*.service' -o short-monotonic
}

begin
udpd=$UDPD directory=$WORK
at_end end_container
make_image

# 1. What is in it.
mkdir "$directory/debs"
build() { # version, program
    local built
    UDPD_DEB_VERSION=$1 packaging/deb.sh --binary "$2" --to "$directory/debs" >"$directory/built" || return
    built=$(cat "$directory/built")
    echo "/debs/${built##*/}"
}
first=$(build 1.0 "$udpd") || fail "the package cannot be built"
second=$(build 2.0 "$udpd")
package=$directory$first
dpkg-deb --contents "$package" >"$directory/contents"
for file in usr/bin/udpd etc/udpd/udpd.toml usr/lib/sysusers.d/udpd.conf usr/share/man/man8/udpd.8.gz \
    usr/lib/systemd/system/udpd.service usr/lib/systemd/system/udpd@.service \
    usr/lib/systemd/system/udpd-steer.service usr/lib/systemd/system/udpd-steer-watch.service \
    usr/share/man/man5/udpd.toml.5.gz usr/share/man/man8/udpd-bench.8.gz usr/share/man/man8/udpd-steer.8.gz \
    usr/share/bash-completion/completions/udpd usr/share/zsh/vendor-completions/_udpd \
    usr/share/fish/vendor_completions.d/udpd.fish usr/share/doc/udpd/running.md usr/share/doc/udpd/copyright \
    usr/share/doc/udpd/examples/grafana/udpd.json usr/share/doc/udpd/examples/90-udpd.conf; do
    grep -q " \./$file\$" "$directory/contents" || fail "the package lacks $file"
done
# Whatever user builds it: everything is root's, and only programs and directories may be executed.
! grep -Ev ' root/root ' "$directory/contents" || fail "another user owns that"
! grep -E '^-..[xs]|^-.{5}[xsw]|^-.{8}[xw]' "$directory/contents" | grep -v ' \./usr/bin/udpd$' || fail "modes"
! grep -E ' \./(usr/lib/sysctl.d|etc/logrotate.d|etc/sysctl.d)' "$directory/contents" ||
    fail "it would change the host by being installed"
[ "$(dpkg-deb --ctrl-tarfile "$package" | tar -xO ./conffiles)" = /etc/udpd/udpd.toml ] || fail "the conffiles"
"$udpd" check -c packaging/udpd.toml >/dev/null || fail "the configuration that is installed is wrong"
if command -v lintian >/dev/null; then
    # No name of a person, no release of Debian and no bug of its own stands behind this package.
    lintian --fail-on error --suppress-tags \
        bogus-mail-host,initial-upload-closes-no-bugs,unstripped-binary-or-object,bad-distribution-in-changes-file \
        "$package" >"$directory/said" 2>&1 || fail "lintian finds errors"
    echo "passed: lintian finds no error; $(grep -c '^W:' "$directory/said" || true) warnings"
fi
echo "passed: what the package holds, with which rights: $(wc -l <"$directory/contents") entries"

boot_container --bind="$directory/debs:/debs"
property() { inside systemctl show --value --property="$1" "${2:-udpd.service}"; }
install_package() { # package; what it says is kept
    inside env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --install "$1" >"$directory/said" 2>&1
}

# 2. Installing.
install_package "$first" || fail "it does not install"
grep -q 'installed and not started' "$directory/said" || fail "it does not say what to do next"
inside /usr/bin/udpd --version >/dev/null || skip "a udpd that was built here does not run in the container"
for unit in udpd udpd-steer udpd-steer-watch; do
    [ "$(property ActiveState "$unit")" = inactive ] || fail "$unit was started by being installed"
    [ "$(inside systemctl is-enabled "$unit" || true)" = disabled ] || fail "$unit was enabled by being installed"
done
[ "$(inside stat -c '%U:%G %a' /etc/udpd/udpd.toml)" = "root:udpd 640" ] || fail "the configuration is readable by all"
[ "$(inside cat /proc/sys/net/core/rmem_max)" = "$(cat /proc/sys/net/core/rmem_max)" ] || fail "it changed the kernel"
inside udpd check >/dev/null || fail "udpd check with the file as installed"
echo "passed: installed: nothing runs, nothing is enabled, and the file is a right one"

# 3. It starts, as an instance too, beside the first.
inside systemctl enable --quiet --now udpd.service || fail "it does not start"
inside sh -c 'sed -e s/5140/5141/ -e s/udpd.{listener}/udpd@flows\\/{listener}/ \
    -e "s/^stats_on_exit.*/metrics_address = \"\"/" /etc/udpd/udpd.toml >/etc/udpd/flows.toml &&
    chgrp udpd /etc/udpd/flows.toml && sed -i "s,/var/log/udpd/,/var/log/udpd@flows/," /etc/udpd/flows.toml'
inside systemctl start udpd@flows.service || fail "an instance does not start"
[ "$(property User)" = udpd ] && [ "$(property ActiveState udpd@flows)" = active ] || fail "an instance"
inside udpd stats --socket /run/udpd@flows/control.sock | grep -q 5141 || fail "the instance does not answer"
inside sh -c 'grep -H Cap /proc/$(systemctl show --value -p MainPID udpd)/status' | grep -E 'Cap(Prm|Eff|Amb)' \
    >"$directory/said"
! grep -v 0000000000000000 "$directory/said" || fail "it has capabilities"
echo "passed: started with no capability, and an instance of its own beside it"

# 4. An upgrade restarts what runs, once, and starts nothing that was stopped.
send() { inside udpd bench send --to 127.0.0.1:5140 --rate 1k --count "$1" --size 100 --json >/dev/null 2>&1; }
send 500
before=$(property MainPID)
before_instance=$(property MainPID udpd@flows)
install_package "$second" || fail "the upgrade"
[ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$before" ] || fail "udpd was not restarted"
[ "$(property MainPID udpd@flows)" != "$before_instance" ] || fail "the instance was not restarted"
[ "$(property NRestarts)" -eq 0 ] || fail "the restart was a failure"
inside cat /var/lib/udpd/ledger.json >"$directory/ledger.json"
check_last_ledger "$directory/ledger.json" 500 || fail "the old process did not close its ledger"
inside systemctl stop udpd.service udpd@flows.service
install_package "$first" || fail "a version from before"
[ "$(property ActiveState)" = inactive ] || fail "an upgrade started what was stopped, although it is enabled"
echo "passed: an upgrade restarts what runs, closes its ledger, and starts nothing that was stopped"

# 5. A new version that refuses the configuration, and one that does not run at all: the old process goes on.
inside systemctl start udpd.service
before=$(property MainPID)
inside sh -c 'cp -p /etc/udpd/udpd.toml /tmp/good && sed -i "1i no_such_key = 1" /etc/udpd/udpd.toml'
install_package "$second" || fail "an upgrade with a bad file"
[ "$(property MainPID)" = "$before" ] || fail "a bad file has cost the running process"
grep -q 'udpd.service was NOT restarted' "$directory/said" && grep -q no_such_key "$directory/said" ||
    fail "the upgrade does not say what is wrong with the file"
inside cp -p /tmp/good /etc/udpd/udpd.toml

# What root may do and the unit may not: the new version would end the old process and not start.
as_before() { # what, words of the upgrade
    install_package "$second" || fail "an upgrade with $1"
    [ "$(property MainPID)" = "$before" ] || fail "$1 has cost the running process"
    grep -q 'udpd.service was NOT restarted' "$directory/said" && grep -q "$2" "$directory/said" ||
        fail "the upgrade does not say what is wrong with $1"
    [ "$(inside udpd check --unit udpd >/dev/null 2>&1; echo $?)" -gt 1 ] || fail "udpd check --unit passes with $1"
    inside udpd stats >/dev/null || fail "the check has cost the control socket"
}
inside chmod 600 /etc/udpd/udpd.toml
inside chgrp root /etc/udpd/udpd.toml
inside udpd check >/dev/null || fail "root cannot read its own file"
as_before "a file that its user cannot read" "cannot be read: Permission denied"
inside cp -p /tmp/good /etc/udpd/udpd.toml
inside install -d -o udpd -g udpd /srv/udp
inside sed -i 's,^path = .*,path = "/srv/udp/{listener}.log",' /etc/udpd/udpd.toml
inside udpd check --as udpd >/dev/null || fail "the user cannot write to its own directory"
as_before "a path that ProtectSystem makes read-only" "/srv/udp.*Read-only file system.*ReadWritePaths="
inside cp -p /tmp/good /etc/udpd/udpd.toml
inside sed -i 's/^address = .*/address = "127.0.0.1:514"/' /etc/udpd/udpd.toml
inside udpd check >/dev/null || fail "root cannot have a port below 1024"
as_before "a port for which the unit grants nothing" "CAP_NET_BIND_SERVICE"
inside cp -p /tmp/good /etc/udpd/udpd.toml
# A drop-in that names another file: that one counts, and no other.
drop_in=/etc/systemd/system/udpd.service.d/other.conf
inside mkdir -p "${drop_in%/*}" /tmp/units
printf '[Service]\nExecStart=\nExecStart=/usr/bin/udpd run \\\n  -c /etc/udpd/other.toml\nReadWritePaths=/srv/udp\n' |
    inside tee "$drop_in" >/dev/null
inside cp -p /etc/udpd/udpd.toml /etc/udpd/other.toml
inside systemctl daemon-reload
printf '%s\n' AmbientCapabilities=CAP_NET_BIND_SERVICE CapabilityBoundingSet=CAP_NET_BIND_SERVICE \
    SystemCallFilter=capset | inside tee -a "$drop_in" >/dev/null
inside udpd check --unit udpd >"$directory/said" 2>&1 && fail "it checks what systemd has not read" || true
grep -q 'systemctl daemon-reload' "$directory/said" || fail "it does not say that systemd has yet to read the drop-in"
inside systemctl daemon-reload
inside sed -i -e 's,^path = .*,path = "/srv/udp/{listener}.log",' \
    -e 's/^address = .*/address = "127.0.0.1:514"/' /etc/udpd/other.toml
inside sed -i '1i no_such_key = 1' /etc/udpd/udpd.toml
inside udpd check --unit udpd >"$directory/said" 2>&1 || fail "what the drop-in grants does not count"
grep -q 'user udpd: may read' "$directory/said" || fail "the check does not say with whose rights"
install_package "$second" || fail "an upgrade with a drop-in"
[ "$(property MainPID)" != "$before" ] || fail "a file that no unit names has kept the upgrade from restarting"
[ "$(property ActiveState)" = active ] || fail "it does not start with the drop-in"
before=$(property MainPID)
inside sed -i '1i no_such_key = 1' /etc/udpd/other.toml
inside cp -p /tmp/good /etc/udpd/udpd.toml
as_before "a bad file that only a drop-in names" "other.toml.*no_such_key"
inside sed -i 1d /etc/udpd/other.toml
# Nothing of all these checks is left.
[ -z "$(inside find /run -name '*udpd-check*')" ] || fail "a check leaves $(inside find /run -name '*udpd-check*')"
[ -z "$(inside systemctl --failed --plain --no-legend)" ] || fail "failed: $(inside systemctl --failed --plain)"
inside rm -r "${drop_in%/*}" /etc/udpd/other.toml
inside systemctl daemon-reload
inside udpd check --unit udpd >/dev/null || fail "without the drop-in the check fails"
inside systemctl restart udpd || fail "it does not start without the drop-in"
before=$(property MainPID)
echo "passed: what its unit may not read, write or bind, in the file that it reads, leaves the old process"

# A program that can be packed, and ends with $2 otherwise; $3 are commands that it pretends to do.
pretend() {
    printf '#!/bin/sh\ncase $1 in\n%s) ;;\nman) mkdir -p "$3/man8" && echo >"$3/man8/udpd.8" ;;\n' "$3" >"$1"
    printf '*) exit %s ;;\nesac\n' "$2" >>"$1"
    chmod 755 "$1"
}
pretend "$directory/broken" 127 completions
install_package "$(build 3.0 "$directory/broken")" || fail "an upgrade to a version that does not run"
[ "$(property MainPID)" = "$before" ] || fail "a version that does not run has cost the running process"
grep -q 'udpd.service was NOT restarted' "$directory/said" || fail "the upgrade does not say that"
# One that takes the file, and fails when it starts.
pretend "$directory/failing" 78 "completions | check"
install_package "$(build 4.0 "$directory/failing")" || fail "an upgrade to a version that ends at once"
grep -q 'udpd.service did NOT start again' "$directory/said" || fail "the upgrade does not say that it did not start"
install_package "$second" || fail "back to a version that works"
inside systemctl start udpd.service || fail "it does not start after a version that failed"
echo "passed: a version that refuses the file, or does not run, leaves the old process, and each is said"

# 6. Removed, the operator's files stay; purged, nothing does.
inside dpkg --remove udpd >"$directory/said" 2>&1 || fail "it cannot be removed"
inside pgrep udpd >/dev/null 2>&1 && fail "it still runs" || true
inside test -e /etc/udpd/udpd.toml -a -d /var/log/udpd || fail "a removal took the operator's files"
inside rm /etc/udpd/flows.toml
# A file system of the administrator's own below what is purged.
inside mount -t tmpfs rig /var/log/udpd || fail "the container mounts nothing"
inside sh -c 'echo mine >/var/log/udpd/mine'
inside dpkg --purge udpd >"$directory/said" 2>&1 || fail "it cannot be purged"
grep -q '/var/log/udpd is left as it is' "$directory/said" || fail "the purge does not say what it leaves"
[ "$(inside cat /var/log/udpd/mine)" = mine ] || fail "a purge has deleted what is on another file system"
! inside test -e /var/lib/udpd || fail "a purge leaves the data"
inside umount /var/log/udpd
inside rm -r /var/log/udpd
inside rm -r /srv/udp
skipped="-path /proc -o -path /sys -o -path /debs -o -path /tmp -o -path /var/log/journal -o -path /var/cache"
left=$(inside find / -xdev \( $skipped -o -path /run/log -o -path /run/systemd \) -prune -o -name '*udpd*' -print)
[ -z "$left" ] || fail "a purge leaves: $left"
echo "passed: a removal keeps configuration and data, and a purge leaves nothing but the user"
