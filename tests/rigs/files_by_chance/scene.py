"""One daemon with files by source, configured by chance; who sends to it; and what it says of itself, which is held
against the files by whoever reads them."""

import json
import os
import signal
import socket
import subprocess
import time

PATIENCE_S = 60
PORT = 5198
# `max_length` as it comes: what is longer is cut.
KEPT_BYTES = 2048
LENGTHS = (0, 1, 5, 40, 200, 1400, 3000)
# Characters that a line must escape, that look like them, and that belong to no character at all.
CHARACTERS = "Aä€\U0001f600\x85\x9b\u061c\u2028\u202e\ufffd\U0010ffff"
PIECES = b"\xc2\x80\x9f\xe2\xa8\xd8\x9c\xf0\xff\xc0\xed\xa0A"
CONTROLS = b"\n\r\t\\~x\0\x7f\x9b "


class Failed(Exception):
    """Something is not as it was promised."""


class Scene:
    """The daemon of one round, and the books of all its processes."""

    def __init__(self, chance, work):
        self.chance, self.work = chance, work
        self.is_small = chance.random() < 0.3
        # Where the files are, and where somebody moves them to: on the same file system.
        self.root = f"{work}/disk/round" if self.is_small else f"{work}/round"
        self.log, self.moved = f"{self.root}/log", f"{self.root}/moved"
        os.makedirs(self.log)
        os.makedirs(self.moved)
        self.consumers = chance.choice((1, 1, 2, 3))
        self.lanes = chance.choice((1, 2, 3))
        self.engine = chance.choice(("recvmmsg", "io_uring"))
        self.format = chance.choice(("lines", "lines", "lines", "jsonl", "pcapng"))
        self.is_dated = chance.random() < 0.3
        self.pattern = self.draw_pattern()
        self.removes, self.kills, self.process, self.sent_before = False, 0, None, 0
        self.received = self.delivered = self.dropped = self.kernel_dropped = 0
        self.payloads, self.sockets = [], {}
        networks = [f"127.{chance.randrange(1, 5)}.{chance.randrange(256)}" for _ in range(chance.choice((2, 10, 60)))]
        self.sources = [f"{network}.{chance.randrange(1, 255)}" for network in networks]
        self.write_configuration()

    def draw_pattern(self):
        source = self.chance.choice(("{source}", "{source}", "{source/24}", "{destination}/{source}"))
        path = f"{self.log}/" + self.chance.choice(("", "below/", "{listener}/")) + source
        path += self.chance.choice(("", "/log"))
        path += "-{consumer}" if self.consumers > 1 else ""
        return path + ("-%Y%m%dT%H%M%S" if self.is_dated else "") + ".log"

    def write_configuration(self):
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
        text = (
            f'[daemon]\ncontrol_socket = "{self.work}/control"\nmetrics_address = ""\n'
            f'stats_on_exit = "{self.work}/ledger"\n'
            f'[[listener]]\nname = "in"\naddress = "0.0.0.0:{PORT}"\nlanes = {self.lanes}\n'
            f'engine = "{self.engine}"\nreceive_buffer = "16MiB"\nsinks = ["out"]\n'
            f'[sink.out]\ntype = "file"\npath = "{self.pattern}"\nformat = "{self.format}"\n'
            f"consumers = {self.consumers}\n"
        )
        with open(f"{self.work}/udpd.toml", "w", encoding="ascii") as file:
            file.write(text + "\n".join(lines) + "\n")

    def ask(self, *words):
        command = [f"{self.work}/udpd", *words, "--socket", f"{self.work}/control"]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S)

    def ledger(self):
        asked = self.ask("stats", "--json")
        return json.loads(asked.stdout)["listeners"][0] if asked.returncode == 0 else None

    def when(self, is_so, what):
        begun = time.monotonic()
        while not is_so():
            if self.process.poll() is not None:
                raise Failed(f"udpd has ended ({self.process.returncode}), and {what} was waited for")
            if time.monotonic() - begun > PATIENCE_S:
                raise Failed(f"{what} was waited for in vain: {self.ledger()}")
            time.sleep(0.01)

    def start(self):
        self.sent_before = len(self.payloads)
        with open(f"{self.work}/said", "ab") as said:
            command = [f"{self.work}/udpd", "run", "-c", f"{self.work}/udpd.toml"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said)
        self.when(lambda: self.ledger() is not None, "that it answers")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.kills += 1

    def end(self):
        """Ends it in good order and takes over its books."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(PATIENCE_S) != 0:
            raise Failed(f"it ended with {self.process.returncode}")
        with open(f"{self.work}/ledger", encoding="utf-8") as file:
            for listener in json.load(file)["listeners"]:
                if listener["residual"] != 0:
                    raise Failed(f"a residual: {listener}")
                self.received += listener["received"]
                self.kernel_dropped += listener["kernel_dropped"]
                self.dropped += sum(listener["dropped"].values())
                for sink in listener["sinks"]:
                    self.delivered += sink["delivered"]
                    self.dropped += sum(sink["dropped"].values())

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

        def has_come():
            ledger = self.ledger()
            return ledger is not None and ledger["received"] + ledger["kernel_dropped"] >= due

        self.when(has_come, f"that {due} are received")

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for sender in self.sockets.values():
            sender.close()
