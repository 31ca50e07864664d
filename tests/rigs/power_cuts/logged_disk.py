"""A disk that writes down what is done to it: a file system in user space (/dev/fuse) with one file, `disk`, under a
loop device. Its log has each write and each flush in their order. What was written before a flush has ended lies before
it in the log, so the log up to a flush is a disk whose power went at that moment. A write to the other file, `mark`,
puts its text into the log.

    logged_disk.py FOLDER SIZE IMAGE LOG
"""
import ctypes
import errno
import os
import stat
import struct
import sys

ENTRY = struct.Struct("<cQQ")
WRITE, FLUSH, MARK = b"w", b"f", b"m"
ROOT, DISK, MARKS = 1, 2, 3
NAMES = {b"disk": DISK, b"mark": MARKS}
# What the kernel asks, of include/uapi/linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITTEN, STATFS, RELEASE, FSYNC, FLUSHED, INIT, INTERRUPT, FORGETS = \
    1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26, 36, 42
IN_HEADER, OUT_HEADER, ATTRIBUTES = struct.Struct("<IIQQ16x"), struct.Struct("<IiQ"), struct.Struct("<6Q10I")
MOST_BYTES, BIG_WRITES = 1 << 17, 1 << 5


def entries(log):
    """All of a log, an open file: kind, place on the disk, length, place of the data in the log."""
    found = []
    while len(head := log.read(ENTRY.size)) == ENTRY.size:
        kind, place, length = ENTRY.unpack(head)
        found.append((kind, place, length, log.tell()))
        log.seek(length, os.SEEK_CUR)
    return found


class Server:
    def __init__(self, size, image, log):
        self.size, self.log = size, log
        self.image = os.open(image, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.image, size)

    def attributes(self, node):
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o600
        size = self.size if node == DISK else 0
        return ATTRIBUTES.pack(node, size, size >> 9, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def write_down(self, kind, place=0, data=b""):
        self.log.write(ENTRY.pack(kind, place, len(data)) + data)

    def answer(self, what, node, body):
        if what == INIT:
            return struct.pack("<4IHHIIHHI28x", 7, 31, MOST_BYTES, BIG_WRITES, 12, 9, MOST_BYTES, 1, 0, 0, 0)
        if what == LOOKUP:
            found = NAMES.get(body.rstrip(b"\0"))
            return struct.pack("<4QII", found, 0, 60, 60, 0, 0) + self.attributes(found) if found else errno.ENOENT
        if what in (GETATTR, SETATTR):
            return struct.pack("<QII", 60, 0, 0) + self.attributes(node)
        if what == OPEN:
            return struct.pack("<QIi", node, 1 if node == MARKS else 0, 0)
        if what == READ:
            _, place, length = struct.unpack_from("<QQI", body)
            return os.pread(self.image, length, place)
        if what == WRITTEN:
            _, place, length = struct.unpack_from("<QQI", body)
            data = body[40:40 + length]
            self.write_down(WRITE if node == DISK else MARK, place, data)
            if node == DISK:
                os.pwrite(self.image, data, place)
            return struct.pack("<II", length, 0)
        if what == FSYNC:
            self.write_down(FLUSH)
            return b""
        if what == STATFS:
            return bytes(80)
        return b"" if what in (RELEASE, FLUSHED) else errno.ENOSYS

    def serve(self, device):
        while True:
            try:
                asked = os.read(device, MOST_BYTES + 4096)
            except OSError as why:
                if why.errno == errno.ENOENT:
                    continue
                # It is unmounted.
                return
            _, what, number, node = IN_HEADER.unpack_from(asked)
            if what in (FORGET, FORGETS, INTERRUPT):
                continue
            said = self.answer(what, node, asked[IN_HEADER.size:])
            error, said = (said, b"") if isinstance(said, int) else (0, said)
            os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(said), -error, number) + said)


def main(folder, size, image, log):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"logged_disk", folder.encode(), b"fuse", 0, options) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    with open(log, "wb") as out:
        Server(int(size), image, out).serve(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
