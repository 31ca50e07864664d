"""A udpd with files and a spill on a disk that writes down what is done to it, a sender of numbers, a peer that goes
and comes, and an observer.

The observer reads what is in the files and in the spill as a reader of that moment does, from the page cache, and what
the peer has. Then it puts a mark into the log of the disk. So what it has seen before a mark is known to be older than
every state of the disk behind that mark.
"""
import glob
import gzip
import os
import random
import re
import socket
import sys
import threading
import time
from pathlib import Path

from lib.check import Skipped, until
from lib.daemon import WORK, Daemon, start
from lib.host import ends, execute

RATE, LENGTH = 300, 80
NUMBER = re.compile(rb"N=(\d{9});")
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
        "xfs": ["mkfs.xfs", "-qKf"]}


def numbers_in(data):
    return {int(number) for number in NUMBER.findall(data)}


class Sender(threading.Thread):
    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.sent, self.goes_on = port, 0, True

    def run(self):
        own, begun = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), time.monotonic()
        while self.goes_on:
            due = min(int((time.monotonic() - begun) * RATE), self.sent + 50)
            while self.sent < due:
                own.sendto((b"N=%09d;" % self.sent).ljust(LENGTH, b"."), ("127.0.0.1", self.port))
                self.sent += 1
            time.sleep(0.005)


class Peer(threading.Thread):
    """Takes the stream for a while, and is away for a while."""

    def __init__(self, chance, path):
        super().__init__(daemon=True)
        self.chance, self.path, self.taken, self.goes_on = chance, path, set(), True

    def run(self):
        while self.goes_on:
            # A start on the disk before may have left it.
            if os.path.exists(self.path):
                os.unlink(self.path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.path)
            listener.listen()
            listener.settimeout(0.2)
            end, connection, rest = time.monotonic() + self.chance.uniform(1, 3), None, b""
            while time.monotonic() < end and self.goes_on:
                try:
                    if connection is None:
                        connection, _ = listener.accept()
                        connection.settimeout(0.2)
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    continue
                rest += data
                whole = len(rest) - len(rest) % (LENGTH + 4)
                self.taken |= numbers_in(rest[:whole])
                rest = rest[whole:]
                if not data:
                    connection = None
            # What the kernel has taken for it is read to its end, so that nothing is lost here.
            os.unlink(self.path)
            listener.close()
            if connection:
                connection.shutdown(socket.SHUT_RD)
                connection.settimeout(1)
                while data := connection.recv(1 << 16):
                    rest += data
                self.taken |= numbers_in(rest)
                connection.close()
            time.sleep(self.chance.uniform(2, 6) * self.goes_on)

    def ends(self):
        self.goes_on = False
        self.join()


class Seen:
    """The numbers in files, each file read once where it does not grow."""

    def __init__(self):
        self.known = {}

    def of(self, path):
        try:
            with open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                offset, found = self.known.get((inode, path.endswith(".gz")), (0, set()))
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return set()
        if path.endswith(".gz"):
            found = found or numbers_in(gzip.decompress(data))
            self.known[inode, True] = (offset + len(data), found)
            return found
        whole = data.rfind(b"\n") + 1
        found = found | numbers_in(data[:whole])
        self.known[inode, False] = (offset + whole, found)
        return found


class LoggedDisk:
    """A file system on a disk that writes down what is done to it, from its first byte on."""

    def __init__(self, folder, size, kind, place):
        self.folder, self.size, self.kind, self.place = folder, size, kind, place
        self.image, self.log, self.below, self.device = f"{folder}/image", f"{folder}/log", f"{folder}/below", ""

    def __enter__(self):
        os.makedirs(self.below)
        program = Path(__file__).parent / "logged_disk.py"
        self.server = start([sys.executable, program, self.below, self.size, self.image, self.log])
        until("the disk is there", lambda: os.path.exists(f"{self.below}/disk") or self.server.poll() is not None)
        self.device = execute("losetup", "--find", "--show", f"{self.below}/disk").stdout.strip()
        is_made = self.device and execute(*MAKE[self.kind], self.device).returncode == 0
        if not is_made or execute("mount", "-t", self.kind, self.device, self.place).returncode != 0:
            self.__exit__()
            raise Skipped(f"needs /dev/fuse, a loop device and {self.kind}")
        return self

    def mark(self, text):
        with open(f"{self.below}/mark", "rb+", buffering=0) as marks:
            marks.write(text.encode())

    def __exit__(self, *_):
        execute("umount", self.place)
        if self.device:
            ends(0, "losetup", "-d", self.device)
        execute("umount", self.below)
        self.server.wait(60)


def listed(pattern, without=()):
    """Each file is read anew: the next one may have the inode of one that was removed."""
    return set().union(*(Seen().of(path) for path in glob.glob(pattern) if path not in without))


def observe(daemon, disk, seen, peer):
    """What can be read at this moment. The spill comes before the peer: what leaves it meanwhile, the peer has."""
    sinks = {sink["name"]: sink for sink in daemon.listener()["sinks"]}
    spill = set()
    for path in glob.glob(f"{disk}/spill/0/*.spill"):
        try:
            spill |= numbers_in(Path(path).read_bytes())
        except FileNotFoundError:
            pass
    found = {
        "plain": seen.of(f"{disk}/plain.log"), "kept": listed(f"{disk}/kept/k.log*"),
        "finished": listed(f"{disk}/rotated/r.log*", [f"{disk}/rotated/r.log"]), "spill": spill,
        "sources": listed(f"{disk}/sources/*"), "peer": peer.taken.copy(),
    }
    synced_at = {name: sink["files"]["synced_at"] for name, sink in sinks.items() if sink.get("files")}
    return found | {"synced_at": synced_at,
                    "dropped": sum(sum(sink["dropped"].values()) for sink in sinks.values())}


def run(folder, kind, size, seconds, seed, text, port, peer_path):
    """Loads a udpd for so long: the log of its disk and what was observed."""
    os.makedirs(folder)
    disk, observed = f"{WORK}/disk", []
    with LoggedDisk(folder, size, kind, disk) as logged:
        daemon = Daemon(text)
        seen, sender, peer = Seen(), Sender(port), Peer(random.Random(seed), peer_path)
        sender.start()
        peer.start()
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            observed.append(observe(daemon, disk, seen, peer) | {"ended": time.time(), "sent": sender.sent})
            logged.mark(str(len(observed) - 1))
            time.sleep(0.1)
        sender.goes_on = False
        daemon.kill()
        peer.ends()
    return logged.log, observed
