"""One daemon with files by source, configured by chance; its senders; and what it says of itself, which is held
against the files."""
import os
import socket

from lib.daemon import WORK, Daemon, dropped_at, listening

PORT = 5198
# `max_length` as it comes: what is longer is cut.
KEPT_BYTES = 2048
LENGTHS = (0, 1, 5, 40, 200, 1400, 3000)
# Characters that a line must escape, that look like them, and that belong to no character at all.
CHARACTERS = "Aä€\U0001f600\x85\x9b\u061c\u2028\u202e\ufffd\U0010ffff"
PIECES = b"\xc2\x80\x9f\xe2\xa8\xd8\x9c\xf0\xff\xc0\xed\xa0A"
CONTROLS = b"\n\r\t\\~x\0\x7f\x9b "


class Scene:
    """The daemon of one round, and the sums over all its processes."""

    def __init__(self, chance):
        self.chance = chance
        self.is_small = chance.random() < 0.3
        # Where the files are, and where they are moved away to: on the same file system.
        self.root = f"{WORK}/disk/round" if self.is_small else f"{WORK}/round"
        self.log, self.moved = f"{self.root}/log", f"{self.root}/moved"
        os.makedirs(self.log)
        os.makedirs(self.moved)
        self.consumers = chance.choice((1, 1, 2, 3))
        self.lanes = chance.choice((1, 2, 3))
        self.engine = chance.choice(("recvmmsg", "io_uring"))
        self.format = chance.choice(("lines", "lines", "lines", "jsonl", "pcapng"))
        self.is_dated = chance.random() < 0.3
        self.pattern = self.draw_pattern()
        self.removes, self.kills, self.daemons, self.sent_before = False, 0, [], 0
        self.received = self.delivered = self.dropped = self.kernel_dropped = 0
        self.payloads, self.sockets = [], {}
        networks = [f"127.{chance.randrange(1, 5)}.{chance.randrange(256)}" for _ in range(chance.choice((2, 10, 60)))]
        self.sources = [f"{network}.{chance.randrange(1, 255)}" for network in networks]
        self.configuration = self.draw_configuration()

    def draw_pattern(self):
        source = self.chance.choice(("{source}", "{source}", "{source/24}", "{destination}/{source}"))
        path = f"{self.log}/" + self.chance.choice(("", "below/", "{listener}/")) + source
        path += self.chance.choice(("", "/log"))
        path += "-{consumer}" if self.consumers > 1 else ""
        return path + ("-%Y%m%dT%H%M%S" if self.is_dated else "") + ".log"

    def draw_configuration(self):
        """Everything that a reload may change is drawn anew."""
        choice = self.chance.choice
        every = "0s" if self.is_dated else choice(("0s", "1s", "5s"))
        size = choice(("64KiB", "1MiB"))
        lines = [f"open_files = {choice((1, 2, 5, 100))}", f"sources_max = {choice((3, 20, 16384))}"]
        lines += [f'buffer_bytes = "{choice(("1MiB", "16MiB"))}"', f'sync = "{choice(("never", "1s", "50ms"))}"']
        lines.append(f'rotate = {{ bytes = "{size}", every = "{every}" }}')
        if self.format == "lines" and choice((True, False)):
            lines.append(f'prefix = "{choice(("time", "source", "time source", "source time"))}"')
        if self.chance.random() < 0.4:
            lines.append('compress = "gzip"')
        if self.chance.random() < 0.2:
            lines.append(f"keep = {{ files = {choice((1, 3))} }}")
            self.removes = True
        self.configuration = listening(
            f'address = "0.0.0.0:{PORT}"\nlanes = {self.lanes}\nengine = "{self.engine}"\nreceive_buffer = "16MiB"',
            out="\n".join([f'type = "file"\npath = "{self.pattern}"\nformat = "{self.format}"',
                           f"consumers = {self.consumers}", *lines]))
        return self.configuration

    @property
    def daemon(self):
        return self.daemons[-1]

    def log_text(self):
        return "".join(daemon.log() for daemon in self.daemons)

    def start(self):
        self.sent_before = len(self.payloads)
        self.daemons.append(Daemon(self.configuration))

    def kill(self):
        self.daemon.kill()
        self.kills += 1

    def end(self):
        """Ends it in good order and takes over its sums."""
        self.daemon.end()
        for listener in self.daemon.last()["listeners"]:
            self.received += listener["received"]
            self.kernel_dropped += listener["kernel_dropped"]
            self.dropped += dropped_at(listener)
            for sink in listener["sinks"]:
                self.delivered += sink["delivered"]
                self.dropped += dropped_at(sink)

    def payload(self, number):
        length, pick = self.chance.choice(LENGTHS), self.chance.choices
        kind = self.chance.randrange(5)
        if kind == 0:
            rest = self.chance.randbytes(length)
        elif kind == 1:
            rest = bytes(pick(CONTROLS, k=length))
        elif kind == 2:
            # Sometimes cut within its last character.
            rest = "".join(pick(CHARACTERS, k=length // 3 + 1)).encode()[: -self.chance.randrange(1, 3)]
        elif kind == 3:
            rest = bytes(pick(PIECES, k=length))
        else:
            rest = bytes(pick(b'abcdefgh {}"\\', k=length))
        return b"S%08d " % number + rest

    def send(self, count):
        """Never more than fit, and until all of it is received: what is missing later is missing in a file."""
        for _ in range(count):
            key = (self.chance.choice(self.sources), self.chance.randrange(3))
            if key not in self.sockets:
                self.sockets[key] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self.sockets[key].bind((key[0], 0))
            payload = self.payload(len(self.payloads))
            self.sockets[key].sendto(payload, ("127.0.0.1", PORT))
            self.payloads.append((key[0], payload))
        due = len(self.payloads) - self.sent_before

        self.daemon.await_listener(f"{due} are received", lambda listener:
                                   listener["received"] + listener["kernel_dropped"] >= due)

    def close(self):
        for sender in self.sockets.values():
            sender.close()
