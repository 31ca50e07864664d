"""A daemon whose clock is set while it rotates files; see clock_jumps.sh."""
import glob
import json
import os
import sys
import time

from lib.check import Skipped, check, main, passed, same
from lib.daemon import WORK, Daemon, listening
from lib.host import ends, read_bytes, write
from lib.load import Bench, free_port

CLOCK, OF_OTHERS = f"{WORK}/clock", b"of another program"
FAKED = ["env", f"LD_PRELOAD={sys.argv[1]}", f"FAKETIME_TIMESTAMP_FILE={CLOCK}", "FAKETIME_NO_CACHE=1",
         "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"]
DATED, PLAIN = ("%Y%m%d%H%M%S.log", "0s"), ("in.log", "1s")
SINKS = {"all": PLAIN, "dated": DATED, "kept_all": PLAIN, "kept_dated": DATED}
# What others have put there, and what looks like a file of udpd and is none.
FOREIGN = ["kept_all/in.log.20200101T000000Z", "kept_dated/20200101000000.log", "kept_all/in.log.20990101T000000Z",
           "kept_dated/note"]


def set_clock(to):
    write(f"{CLOCK}.new", to + "\n")
    os.rename(f"{CLOCK}.new", CLOCK)


def sink(name):
    pattern, every = SINKS[name]
    keep = "keep = { files = 3, bytes = 0 }" if name.startswith("kept") else ""
    return (f'type = "file"\nformat = "jsonl"\npath = "{WORK}/{name}/{pattern}"\nqueue_bytes = "8MiB"\n{keep}\n'
            f'rotate = {{ bytes = 0, every = "{every}" }}')


def finished(daemon):
    """How many files each sink has finished."""
    return [one["files"]["finished"] for one in daemon.listener()["sinks"]]


def await_finished(daemon, before, count, what):
    """Waits until every sink has finished so many files more than before, three seconds at most for each."""
    def message():
        return f"{what}: finished {before} files before and {finished(daemon)} now"

    daemon.until(message, lambda: all(now >= then + count for now, then in zip(finished(daemon), before)), 3 * count)


def records_of(name):
    """By file, the payloads and when the kernel says they came, which no clock of this daemon has touched."""
    files = {}
    for path in glob.glob(f"{WORK}/{name}/*"):
        lines = read_bytes(path).split(b"\n")[:-1]
        if lines != [OF_OTHERS]:
            records = [json.loads(line) for line in lines]
            files[path] = [(record["time"], record.get("payload_base64") or record["payload"]) for record in records]
    return files


def judge(sinks):
    whole = {}
    for one in sinks:
        name, files = one["name"], records_of(one["name"])
        check(not any(one["dropped"].values()), f"dropped: {one}")
        lines = [record for records in files.values() for record in records]
        same(len(set(lines)), len(lines), f"{name}: a record is there twice")
        if name.startswith("kept"):
            full = [path for path, records in files.items() if records]
            check(one["files"]["removed"] > 0 and 2 <= len(full) <= 4, f"{one}, {full}")
            # The other sink had the same datagrams: none that was removed came after one that was kept.
            removed = whole[name[5:]] - set(lines)
            check(max(removed) < min(lines), f"{max(removed)} was removed and {min(lines)} was not")
        else:
            same(len(lines), one["delivered"], f"{name}: in the files")
            whole[name] = set(lines)
        passed(f"{name}: {one['files']['finished']} finished, {one['files']['removed']} removed, {len(lines)} lines in "
               f"{len(files)} files")


def jumps():
    set_clock("+3y")
    year = int(ends(0, *FAKED, "date", "+%Y"))
    if year != time.gmtime().tm_year + 3:
        raise Skipped("needs a libfaketime that sets the clock here")
    set_clock("+0")
    for name in SINKS:
        os.mkdir(f"{WORK}/{name}")
    for path in FOREIGN:
        write(f"{WORK}/{path}", OF_OTHERS + b"\n")
    port = free_port()
    daemon = Daemon(listening(f'address = "127.0.0.1:{port}"\nreceive_buffer = "16MiB"',
                              **{name: sink(name) for name in SINKS}), before=FAKED)
    sender = Bench(f"127.0.0.1:{port}", "2k")
    await_finished(daemon, [0] * len(SINKS), 3, "before the clock is set")
    for jump in ("-1h", "+0", "+1h", "+0", "-30y", "+0", "+30y", "+0"):
        before = finished(daemon)
        set_clock(jump)
        await_finished(daemon, before, 2, f"set to {jump}")
    sender.end()
    listener = daemon.end()
    for path in FOREIGN:
        same(read_bytes(f"{WORK}/{path}"), OF_OTHERS + b"\n", f"{path}, which is not of udpd")
    judge(listener["sinks"])


main(jumps)
