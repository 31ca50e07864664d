"""A file system that stands still for longer than any queue: the log names the sink and says when it goes on, and
reloads go on meanwhile. Each is answered within seconds and is in force, whether the sink that hangs stays as it is,
gets other settings or goes; what it cannot take is counted, and what it takes is written once and in order."""
import os
import time

from lib.check import check, main, passed, same, until
from lib.daemon import WORK, Daemon, all_delivered, dropped_at, file_sink, listening
from lib.disks import LoopDisk
from lib.host import read
from lib.load import free_port, send

PORT = free_port()


def numbers(path):
    if not os.path.exists(path):
        return []
    return [int(line[:9]) for line in read(path).split("\n")[:-1]]


class Frozen:
    def __init__(self, disk):
        self.on_disk, self.sent = f"{disk.place}/frozen.log", 0
        self.daemon = Daemon(self.text(1, "1s", 0), daemon='pool_bytes = "64MiB"')

    def text(self, lanes, frozen, guest):
        """`frozen` is how the sink on the disk is synced; None is without it."""
        sinks = {} if frozen is None else {"frozen": file_sink(self.on_disk, f'sync = "{frozen}"')}
        return listening(f'address = "127.0.0.1:{PORT}"\nlanes = {lanes}', **sinks,
                         guest=file_sink(f"DIR/guest{guest}.log"))

    def send(self, count):
        send(PORT, (b"%09d" % number + b"x" * 400 for number in range(self.sent, self.sent + count)), pause=0.005,
             at_once=100)
        self.sent += count

    def reload(self, *configuration):
        begun = time.monotonic()
        return self.daemon.reload(self.text(*configuration)), time.monotonic() - begun


def frozen(disk):
    it, slowest = Frozen(disk), 0.0
    it.send(100)
    until("what was sent before", lambda: len(numbers(it.on_disk)) == 100)
    disk.freeze()
    try:
        it.send(5000)
        it.daemon.await_log("sink frozen: has handed on nothing for")
        for number in range(1, 13):
            # As it is, with other settings, and gone.
            said, took = it.reload(1 + number % 2, [None, "1s", "2s", "2s"][number % 4], number)
            slowest = max(slowest, took)
            check("sinks frozen" in said, f"{number}: {said}")
            it.send(50)
            path = f"{it.daemon.directory}/guest{number}.log"
            until(f"reload {number} is in force", lambda where=path: len(numbers(where)) == 50)
        threads = it.daemon.status("Threads")
        check(threads < 30, f"{threads} threads")
    finally:
        disk.thaw()
    it.daemon.await_log("sink frozen: hands on again")
    it.reload(1, "1s", 13)
    it.send(10)
    until("what was sent in the end", lambda: numbers(it.on_disk)[-1:] == [it.sent - 1])
    own = it.daemon.end()
    all_delivered(own | {"sinks": []}, it.sent)
    sink = next(sink for sink in own["sinks"] if sink["name"] == "frozen")
    written = numbers(it.on_disk)
    check(written == sorted(set(written)), "out of order, or twice")
    same((sink["in_flight"], sink["delivered"]), (0, len(written)), "under way and delivered")
    passed(f"a frozen disk through 12 reloads: {it.sent} sent, {len(written)} written once and in order, "
           f"{dropped_at(sink)} counted as dropped, {threads} threads at most; an answer took {slowest:.2f} s at most; "
           "the log named the sink once it stood for some seconds")


def on_a_disk():
    with LoopDisk(f"{WORK}/frozen-image", f"{WORK}/frozen-disk", "512M") as disk:
        frozen(disk)


main(on_a_disk)
