"""The files by source of one daemon, which runs in the other namespace; see files_by_source.sh."""
import os
import re
import time

from lib import net
from lib.check import LONG, check, main, passed, same
from lib.daemon import WORK, Daemon, check_configuration, listening
from lib.host import whole_lines
from lib.load import Bench, bench
from lib.net import OTHER, ip, set_proc

RATE, SECONDS = (200_000, 60) if LONG else (10_000, 4)
SOURCES = 10_000
TO, LOG = "10.8.0.2:5140", f"{WORK}/log"
CONFIGURATION = listening(
    f'address = "{TO}"\nreceive_buffer = "64MiB"\nabsorb = {{ rate = 200000, stall = "1s", size = 128 }}',
    hosts=f'type = "file"\npath = "{LOG}/{{source}}.log"\nprefix = "source"\nopen_files = 1000\nsources_max = 12000')


def lay():
    net.lay(["10.8.0.1/24"], ["10.8.0.2/24"])
    ip("link set lo up", OTHER)
    # No host has the addresses of the senders, and no route but this leads back to them.
    for key in ("all", "default", "card1"):
        set_proc(f"ipv4/conf/{key}/rp_filter", 0, OTHER)
    ip("route add 198.18.0.0/15 dev card1", OTHER)
    net.introduce("10.8.0.2", "card0", None, "card1", OTHER)


def run():
    return Daemon(CONFIGURATION, before=net.at(OTHER))


def arguments(network, flows):
    return ["--engine", "packet", "--interface", "card0", "--sources", network, "--flows", flows, "--mix",
            "round-robin"]


def send(network, flows, rate, seconds):
    bench(TO, *arguments(network, flows), "--rate", rate, "--seconds", seconds)


def settled(daemon):
    """The ledger when everything that came is decided."""
    before = None
    while True:
        now = daemon.listener()
        if now["sinks"][0]["in_flight"] == 0 and before == now["arrived"]:
            return now, now["sinks"][0]
        before = now["arrived"]
        time.sleep(0.3)


def read_files():
    """How many files and lines there are; every whole line is of the sender that names its file."""
    count, names = 0, os.listdir(LOG)
    for name in (name for name in names if name.endswith(".log")):
        own = b"" if name == "overflow.log" else name.removesuffix(".log").encode() + b":"
        lines = whole_lines(f"{LOG}/{name}")
        check(all(line.startswith(own) for line in lines), f"lines of another sender are in {name}")
        count += len(lines)
    return len(names), count


def senders():
    os.mkdir(LOG)
    lay()
    bound = float(re.search(r"up to ([\d.]+) MiB in sinks", check_configuration(CONFIGURATION).stdout)[1])
    daemon = run()
    before = daemon.status("VmRSS") / 1024
    send("198.18.0.0/16", SOURCES, RATE, SECONDS)
    one, sink = settled(daemon)
    files, lines = read_files()
    same((files, lines, one["residual"]), (sink["files"]["sources"], sink["delivered"], 0), "files, lines, residual")
    check(files >= SOURCES * 0.9, f"only {files} sources")
    lost = one["kernel_dropped"] + sink["offered"] - sink["delivered"]
    check(not LONG or not lost, f"{lost} lost of {one['arrived']}")
    passed(f"{files} files, {lines} lines, each in its own; {lost} lost of {one['arrived']} at {RATE}/s for "
           f"{SECONDS} s")
    # Senders that do not exist.
    send("198.19.0.0/16", 60_000, 20_000, 4)
    two, sink = settled(daemon)
    same((*read_files(), sink["files"]["sources"], two["residual"]), (12_001, sink["delivered"], 12_000, 0),
         "files, lines, sources, residual")
    after = daemon.status("VmRSS") / 1024
    passed(f"60,000 invented: 12,000 files and one for {sink['files']['overflow']} datagrams; resident {before:.1f} "
           f"MiB, then {after:.1f}; check says up to {bound:.1f} MiB in sinks")
    check(after - before <= bound + 8, "it has grown by more than check printed")
    # Killed while it writes.
    sender = Bench(TO, "20k", *arguments("198.18.0.0/16", SOURCES), seconds=3)
    daemon.await_listener("more is delivered", lambda now: now["sinks"][0]["delivered"] > sink["delivered"])
    daemon.kill()
    sender.end(is_told=False)
    daemon = run()
    send("198.18.0.0/16", SOURCES, 10_000, 2)
    settled(daemon)
    daemon.end()
    files, lines = read_files()
    passed(f"after a kill: {files} files, {lines} lines, none torn")


main(senders)
