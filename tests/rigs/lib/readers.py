"""The far ends of sinks: how fast a reader takes what udpd delivers, and what it has read.

A reader knows nothing of the ledger. It checks each record as it comes: a datagram that was sent, whole, and of each
source a higher number than the one before. So no number is there twice and none has overtaken another.
"""
import os
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from lib.host import read_bytes
from lib.net import SO_RCVBUFFORCE

HEADER = re.compile(rb"^([0-9]) ([0-9]{9}) (x*)$")
SO_MEMINFO, MEMINFO_DROPS = 55, 8
SLOW_BYTES, SLOW_SECONDS = 4096, 0.004
BUFFER_BYTES = 32 << 20


def payload(source, number, length):
    return (b"%d %09d " % (source, number)).ljust(length, b"x")


@dataclass
class Account:
    """What came out of one sink."""
    length: int
    records: int = 0
    last: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)

    def take(self, record):
        found = HEADER.match(record)
        if not found or len(record) != self.length:
            return self.blame(f"a record that was not sent: {record[:40]!r}, {len(record)} bytes")
        self.records += 1
        source, number = int(found[1]), int(found[2])
        if number <= self.last.get(source, -1):
            self.blame(f"source {source}: {number} comes after {self.last[source]}")
        self.last[source] = number

    def blame(self, what):
        if len(self.wrong) < 3:
            self.wrong.append(what)


class Reader:
    """Reads on a thread of its own. `manner` is steady | slow | late | dead; a late one begins when it is released, a
    dead one reads what is there when the daemon has ended."""

    def __init__(self, manner, length):
        self.manner, self.account, self.is_released = manner, Account(length), False
        self.may_read, self.has_ended = threading.Event(), threading.Event()
        if manner in ("steady", "slow"):
            self.may_read.set()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def start(self):
        self.thread.start()

    def run(self):
        self.may_read.wait()
        self.read_all()

    def pause(self):
        # Once the load is over there is nothing left to be slow for.
        if self.manner == "slow" and not self.is_released:
            time.sleep(SLOW_SECONDS)

    def release(self):
        self.is_released = True
        if self.manner != "dead":
            self.may_read.set()

    def finish(self):
        """The daemon has ended: what is left is read, and that is all there will ever be."""
        self.is_released = True
        self.has_ended.set()
        self.may_read.set()
        self.thread.join(30)
        if self.thread.is_alive():
            self.account.blame("the reader does not come to an end")
        return self.account


class Stream(Reader):
    """Lines from a pipe."""

    def __init__(self, manner, length):
        super().__init__(manner, length)
        self.descriptor, self.daemons_end = os.pipe()

    def read_all(self):
        rest = b""
        while True:
            piece = os.read(self.descriptor, SLOW_BYTES if self.manner == "slow" else 1 << 20)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self.account.take(line)
            self.pause()
        # A record that its reader never takes may be left in the middle; it counts as failed.
        if rest and self.manner != "dead":
            self.account.blame(f"the stream ends within a record: {rest[:40]!r}")
        os.close(self.descriptor)


class Messages(Reader):
    """One datagram each, from a socket on which udpd sends."""

    def __init__(self, manner, length, socket_):
        super().__init__(manner, length)
        self.socket = socket_
        self.socket.settimeout(0.05)

    def read_all(self):
        while True:
            try:
                self.account.take(self.socket.recv(1 << 16))
            except TimeoutError:
                if self.has_ended.is_set():
                    break
                continue
            self.pause()

    def lost_in_socket(self):
        """What the kernel dropped because this socket was full. Only UDP does that."""
        words = self.socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
        return struct.unpack("9I", words)[MEMINFO_DROPS]


def unix_reader(manner, length, path):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(path)
    return Messages(manner, length, listening)


def udp_reader(manner, length):
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, SO_RCVBUFFORCE):     # the second one for root
        try:
            bound.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        except OSError:
            pass
    bound.bind(("127.0.0.1", 0))
    return Messages(manner, length, bound)


class File:
    """A file is read at the end. Its disk takes everything."""

    def __init__(self, length, path):
        self.account, self.path, self.manner = Account(length), path, "steady"

    def start(self):
        pass

    def release(self):
        pass

    def finish(self):
        *lines, rest = read_bytes(self.path).split(b"\n")
        for line in lines:
            self.account.take(line)
        if rest:
            self.account.blame(f"the file ends within a record: {rest[:40]!r}")
        return self.account
