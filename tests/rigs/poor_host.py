"""Hosts without /sys and without memory; see poor_host.sh."""
import re
import shutil

from lib.check import check, main, passed, same
from lib.daemon import NULL, UDPD, WORK, Daemon, all_delivered, listening
from lib.groups import memory_group
from lib.host import ends, write
from lib.load import free_port, send

PORT = free_port()


def configuration(listener="", sink=""):
    return listening(f'address = "127.0.0.1:{PORT}"\n{listener}', out=f"{NULL}\n{sink}")


def receives_a_thousand(before, listener=""):
    daemon = Daemon(configuration(listener), before=before)
    daemon.await_arrived(send(PORT, [b"hello"] * 1000))
    all_delivered(daemon.end(), 1000)
    return daemon


def said(code, command, text, before):
    """What a command of udpd says, which must end with this code."""
    path = f"{WORK}/udpd.toml"
    write(path, f'[daemon]\ncontrol_socket = ""\nmetrics_address = ""\n{text}')
    return ends(code, *before, UDPD, command, "-c", path)


def without_sys():
    """A directory that is not /sys in its place; then one that may not be read."""
    # Root may read everything, unless it gives that right away.
    rights = "setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-all" if shutil.which("setpriv") else ""
    for mode in ("755", "000"):
        script = f'mount -t tmpfs -o mode={mode} none /sys && exec {rights} "$@"'
        hidden = ["unshare", "--mount", "sh", "-c", script, "sh"]
        words = said(0, "check", configuration("lanes = 2"), hidden)
        assumed = "^warning: cannot read the cores of this machine below /sys: .* one memory node"
        check(re.search(assumed, words, re.M), f"check does not say what it assumes: {words}")
        log = receives_a_thousand(hidden, "lanes = 2").log()
        same(len(re.findall("^warn: cannot read the cores of this machine", log, re.M)), 1, "how often it is said")
        check(re.search("listener in, lane 1: .* core [0-9]*, node 0", log), f"the lanes have no core: {log}")
    passed("without /sys it receives on the cores that it may use, and says so once")


def without_memory():
    with memory_group(16 << 20) as (group, limit):
        inside = ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
        for command in ("check", "run"):
            words = said(78, command, configuration(sink='queue_bytes = "16MiB"'), inside)
            for word in ("in batches", "allows 16.0 MiB", limit, "lower queue_bytes (16MiB of sink out)"):
                check(word in words, f"{command} does not say: {word}: {words}")
        receives_a_thousand(inside)
    passed("16 MiB are too little for a queue of 16 MiB, which is said, and enough for the defaults")


main(without_sys, without_memory)
