"""The two ends of a daemon that is not believed: senders of numbered datagrams, and the peer that takes them.

A payload is as `udpd bench send` writes it: two bytes of magic, and from the eighth on the flow and the number in it.
In the stream each stands behind its length, so nothing needs to be unescaped and a million of them can be checked as
they come.
"""

import os
import socket
import struct
import threading
import time

from lib.load import Paced

MAGIC = 0x01B5
SEQUENCE_BITS = 48
RECEIVE_BYTES = 1 << 18


class Taken:
    """What has come, in all and by flow: each number once, in order, and how many came again."""

    def __init__(self):
        self.seen, self.last, self.count, self.repeats, self.wrong = {}, {}, 0, 0, None

    def take(self, flow, number):
        seen = self.seen.setdefault(flow, bytearray())
        if number >= len(seen):
            seen.extend(bytes(number + 1 - len(seen)))
        elif seen[number]:
            self.repeats += 1
            return
        if number < self.last.get(flow, -1) and not self.wrong:
            self.wrong = f"flow {flow}: {number} came after {self.last[flow]}"
        seen[number] = 1
        self.last[flow] = number
        self.count += 1


def number_of(payload):
    return struct.unpack_from("<H6xQ", payload)[1]


def senders(port, flows, length, per_second, count=None):
    """Numbered datagrams of so many flows, until they are told to end or have sent `count`."""
    def payload(number):
        header = struct.pack("<H6xQ", MAGIC, number % flows << SEQUENCE_BITS | number // flows)
        return header.ljust(length, b"\n")

    return Paced(port, per_second, payload, flows, count)


class Peer:
    """Takes every connection to its socket, of payloads that are all as long. What is cut off at the end of one never
    came. With `bytes_per_second` it is slow."""

    def __init__(self, path, length, taken, bytes_per_second=None):
        self.path, self.taken, self.bytes_per_second = path, taken, bytes_per_second
        self.record = struct.Struct(f"<IH6xQ{length - 16}x")
        self.prefix = int.from_bytes(length.to_bytes(4, "big"), "little")
        self.listener, self.threads, self.connections = None, [], []

    def come(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()
        return self

    def accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            reader = threading.Thread(target=self.read, args=(connection,), daemon=True)
            self.threads.append(reader)
            reader.start()

    def read(self, connection):
        rest = b""
        while True:
            data = connection.recv(RECEIVE_BYTES if self.bytes_per_second is None else 1 << 14)
            if not data:
                return
            if self.bytes_per_second:
                time.sleep(len(data) / self.bytes_per_second)
            data = rest + data
            whole = len(data) - len(data) % self.record.size
            rest = data[whole:]
            for prefix, magic, number in self.record.iter_unpack(memoryview(data)[:whole]):
                if (prefix, magic) != (self.prefix, MAGIC) and not self.taken.wrong:
                    self.taken.wrong = f"a record that was not sent: {prefix:x} {magic:x}"
                self.taken.take(number >> SEQUENCE_BITS, number & (1 << SEQUENCE_BITS) - 1)

    def go(self):
        """Goes away, and loses nothing of what the kernel has taken for it by then."""
        os.unlink(self.path)
        # A thread that waits in accept does not hear of a close.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            try:
                # A writer is refused from now on; what is there can be read.
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                pass
        self.drain()

    def drain(self):
        """Waits for the end of every connection."""
        for reader in self.threads:
            reader.join()
        self.threads, self.connections = [], []
