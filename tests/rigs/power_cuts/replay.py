"""A disk as it was at a moment of its log: mounted on a loop device, a udpd started on it, and what is found then."""
import glob
import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import threading

from lib.check import check, evidence
from lib.daemon import Daemon
from lib.host import execute, read_bytes

LINE = re.compile(rb"N=(\d{9});\.+")
RECORD_BYTES = 80 + 4


class Disk:
    """The image that the log is played into, and the copy of it that is mounted."""

    def __init__(self, folder, size, place, kind):
        self.base, self.trial, self.place, self.kind = f"{folder}/base", f"{folder}/trial", place, kind
        with open(self.base, "wb") as made:
            made.truncate(size)

    def mount(self, also):
        subprocess.run(["cp", "--sparse=always", self.base, self.trial], check=True)
        if also:
            with open(self.trial, "rb+", buffering=0) as image:
                also(image)
        done = execute("mount", "-t", self.kind, "-o", "loop", self.trial, self.place)
        check(done.returncode == 0, lambda: f"the file system cannot be mounted: {done.stderr}")

    def unmount(self):
        execute("umount", self.place)


class Receiver(threading.Thread):
    """The peer of the spill: the numbers that come, in their order."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.taken, self.wrong = path, [], None
        if os.path.exists(path):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen()
        self.start()

    def run(self):
        connection, _ = self.listener.accept()
        rest = b""
        while data := connection.recv(1 << 18):
            rest += data
            whole = len(rest) - len(rest) % RECORD_BYTES
            for at in range(0, whole, RECORD_BYTES):
                payload = rest[at + 4:at + RECORD_BYTES]
                found = LINE.fullmatch(payload)
                if not found or rest[at:at + 4] != b"\0\0\0\x50":
                    self.wrong = self.wrong or f"a record that was not sent: {rest[at:at + RECORD_BYTES]!r}"
                    continue
                self.taken.append(int(found[1]))
            rest = rest[whole:]
        if rest:
            self.wrong = self.wrong or f"the stream ends within a record: {rest!r}"


class State:
    """One moment. `also` changes the image before it is mounted."""

    def __init__(self, disk, text, peer, also=None):
        self.disk, self.text, self.peer, self.also = disk, text, peer, also

    def found(self, directory):
        """What a start finds: the numbers in each sink's files, what the peer gets, and what udpd says of repeats."""
        self.disk.mount(self.also)
        try:
            return self.start(directory)
        finally:
            self.disk.unmount()

    def start(self, directory):
        shutil.rmtree(directory, ignore_errors=True)
        receiver, place = Receiver(self.peer), self.disk.place
        before = execute("ls", "-lai", f"{place}/kept").stdout
        evidence[:] = [lambda: f"before the start:\n{before}"]
        both = plain_beside_compressed(place)
        daemon = Daemon(self.text, directory=directory)
        listener = daemon.await_listener("the end of the spill", is_drained(daemon.log()), 30)
        sinks = {sink["name"]: sink for sink in listener["sinks"]}
        daemon.until(lambda: f"the plain form is gone: {both}", lambda: not any(map(os.path.exists, both)), 30)
        daemon.child.send_signal(signal.SIGTERM)
        daemon.wait()
        receiver.join(10)
        check(not receiver.wrong, lambda: receiver.wrong)
        log = daemon.log()
        check("panicked" not in log, lambda: f"a panic: {log}")
        left = [path for path in glob.glob(f"{place}/**/.*.udpd-new", recursive=True)]
        check(not left, f"left behind: {left}")
        return {
            "plain": whole_numbers([f"{place}/plain.log"]),
            # The end may have come while another was compressed.
            "kept": finished_numbers(f"{place}/kept/k.log", plain_beside_compressed(place)),
            "rotated": finished_numbers(f"{place}/rotated/r.log"),
            "sources": whole_numbers(glob.glob(f"{place}/sources/*.log*")),
            "peer": receiver.taken, "repeats": sinks["spill"]["spill_repeats_at_most"], "log": log,
        }


def plain_beside_compressed(place):
    return [path[:-3] for path in glob.glob(f"{place}/kept/*.gz") if os.path.exists(path[:-3])]


def finished_numbers(current, without=()):
    """The numbers in a file and those that were finished. The sync of the newest of these may not have ended when the
    power went."""
    paths = sorted(set(glob.glob(f"{current}*")) - set(without))
    plain = [path for path in paths if path != current and not path.endswith((".gz", ".torn"))]
    return whole_numbers(paths, plain[-1] if plain else None)


def is_drained(log):
    """Whether all is sent that a start said waits there. The ledger of a start may not know of it yet."""
    waits = sum(map(int, re.findall(r"sends (\d+) datagrams first", log)))

    def holds(listener):
        sink = next(one for one in listener["sinks"] if one["name"] == "spill")
        done = sink["delivered"] + sum(sink["dropped"].values())
        return done >= waits and sink["spilled"] + sink["in_flight"] == 0

    return holds


def whole_numbers(paths, may_be_torn=None):
    """The numbers in files, each of them once, and of which each line has to be whole, but for the end of one."""
    found, where = [], {}
    for path in paths:
        if path.endswith(".torn") or not os.path.exists(path):
            continue
        data = gzip.decompress(read_bytes(path)) if path.endswith(".gz") else read_bytes(path)
        *lines, rest = data.split(b"\n")
        check(not rest or path == may_be_torn, f"{path} ends within a record: {rest[:100]!r}")
        for line in lines:
            number = LINE.fullmatch(line)
            check(number and len(line) == 80, f"{path} has a record that was not sent: {line[:100]!r}")
            number = int(number[1])
            check(number not in where, lambda: f"{number} is in {where[number]} and in {path}: "
                  f"{execute('ls', '-lai', os.path.dirname(path)).stdout}")
            where[number] = path
            found.append(number)
    return found
