"""One run: a daemon, a sender that is no part of it, readers at the far ends, and what each knows at the end."""
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import sinks

START_SECONDS, SEND_SECONDS, SETTLE_SECONDS, END_SECONDS = 15, 60, 20, 20
SOURCES = 3
UDP_SEGMENT = 103
SOL_UDP = 17
TRAIN = 16


@dataclass(frozen=True)
class SinkChoice:
    kind: str               # file | stdout | unix | udp
    manner: str             # steady | slow | late | dead
    when_full: str


@dataclass(frozen=True)
class Mix:
    """What one run is."""
    number: int
    engine: str
    lanes: int
    sinks: tuple
    traffic: str            # lone | bursts | flood
    length: int
    is_train: bool
    datagrams: int
    queue_bytes: str


@dataclass
class Outcome:
    mix: Mix
    sent: int
    ledger: dict
    books: list
    lost_in_sockets: list   # behind a relay
    exit_code: int
    log: str
    wrong: str = ""


class Trial:
    def __init__(self, program, directory, mix):
        self.program, self.mix = program, mix
        self.directory = Path(tempfile.mkdtemp(dir=directory))
        # An address of this run's own: nobody else is on it, and no port needs to be found.
        self.address = f"127.67.{mix.number >> 8}.{(mix.number & 0xFF) or 255}"
        self.readers, self.stdout = [], None

    def run(self):
        try:
            self.make_readers()
            self.write_configuration()
            return self.supervise()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def make_readers(self):
        for at, sink in enumerate(self.mix.sinks):
            length = self.mix.length
            if sink.kind == "stdout":
                reader = sinks.Stream(sink.manner, length)
                self.stdout = reader.daemons_end
            elif sink.kind == "unix":
                reader = sinks.unix_reader(sink.manner, length, str(self.directory / f"unix{at}"))
            elif sink.kind == "udp":
                reader = sinks.udp_reader(sink.manner, length)
            else:
                reader = sinks.File(length, self.directory / f"out{at}.log")
            self.readers.append(reader)

    def write_configuration(self):
        mix = self.mix
        names = ", ".join(f'"s{at}"' for at in range(len(mix.sinks)))
        text = f"""
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
address = "{self.address}:5179"
engine = "{mix.engine}"
lanes = {mix.lanes}
max_length = "{'16KiB' if mix.length > 2048 else '2KiB'}"
gro = "{'on' if mix.is_train else 'off'}"
receive_buffer = "1MiB"
sinks = [{names}]
"""
        for at, (sink, reader) in enumerate(zip(mix.sinks, self.readers)):
            target = {"stdout": lambda: "",
                      "file": lambda: f'path = "{self.directory}/out{at}.log"\nrotate = {{ bytes = 0, every = "0s" }}',
                      "unix": lambda: f'path = "{self.directory}/unix{at}"',
                      "udp": lambda: 'destinations = ["127.0.0.1:%d"]' % reader.socket.getsockname()[1]}[sink.kind]()
            text += f'[sink.s{at}]\ntype = "{sink.kind}"\n{target}\n'
            text += f'when_full = "{sink.when_full}"\nqueue_bytes = "{mix.queue_bytes}"\n'
        (self.directory / "udpd.toml").write_text(text)

    def supervise(self):
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(self.directory / "notify"))
        notify.settimeout(START_SECONDS)
        daemon = subprocess.Popen(
            [self.program, "run", "-c", str(self.directory / "udpd.toml")], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if self.stdout is None else self.stdout, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify")})
        if self.stdout is not None:
            os.close(self.stdout)
        log = []
        listening = threading.Thread(target=lambda: log.extend(daemon.stderr), daemon=True)
        listening.start()
        for reader in self.readers:
            reader.start()
        try:
            while b"READY=1" not in notify.recv(4096):
                pass
            sent = self.send()
            for reader in self.readers:
                reader.release()
            self.wait_until_settled(sent)
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(END_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            daemon.kill()
            daemon.wait()
            return Outcome(self.mix, 0, {}, [], [], -1, "".join(log), f"hangs: {error}")
        listening.join(5)
        lost = [reader.lost_in_socket() if sink.kind == "udp" else 0
                for sink, reader in zip(self.mix.sinks, self.readers)]
        books = [reader.finish() for reader in self.readers]
        try:
            ledger = json.loads((self.directory / "ledger.json").read_text())["listeners"][0]
        except (OSError, ValueError) as error:
            return Outcome(self.mix, sent, {}, books, lost, code, "".join(log), f"no ledger: {error}")
        return Outcome(self.mix, sent, ledger, books, lost, code, "".join(log))

    def send(self):
        """From a process of its own, so that readers do not slow it down."""
        ours, theirs = multiprocessing.Pipe()
        sender = multiprocessing.Process(target=send, args=(self.mix, self.address, theirs))
        sender.start()
        # The other end is the sender's alone, so that its death is the end of the file.
        theirs.close()
        if not ours.poll(SEND_SECONDS):
            sender.kill()
            raise TimeoutError(f"the sender has not ended within {SEND_SECONDS} s")
        sent = ours.recv()
        sender.join()
        return sent

    def wait_until_settled(self, sent):
        """Until the daemon's own word is that nothing is under way, where somebody reads; it is checked afterwards."""
        living = [at for at, sink in enumerate(self.mix.sinks) if sink.manner != "dead"]
        # A receiver that waits for a dead sink lets nobody else have anything.
        if any(sink.manner == "dead" and sink.when_full == "block" for sink in self.mix.sinks):
            return time.sleep(0.2)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            said = subprocess.run([self.program, "stats", "--json", "--socket", str(self.directory / "control.sock")],
                                  capture_output=True, text=True)
            if said.returncode == 0:
                listener = json.loads(said.stdout)["listeners"][0]
                is_read = all(lane["receive_buffer_used_bytes"] == 0 for lane in listener["lanes"])
                if is_read and all(listener["sinks"][at]["in_flight"] == 0 for at in living):
                    return None
            time.sleep(0.02)
        raise TimeoutError(f"what was sent was not settled within {SETTLE_SECONDS} s")


def send(mix, address, report):
    """Numbered datagrams of some sources by turns. What the kernel has taken was sent."""
    sources = []
    for _ in range(SOURCES):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.connect((address, 5179))
        if mix.is_train:
            source.setsockopt(SOL_UDP, UDP_SEGMENT, mix.length)
        sources.append(source)
    at_once = {"lone": 1, "bursts": 16, "flood": 64}[mix.traffic]
    numbers, sent, turn = [0] * SOURCES, 0, 0
    while sent < mix.datagrams:
        source = turn % SOURCES
        turn += 1
        datagrams = [sinks.payload(source, numbers[source] + at, mix.length)
                     for at in range(max(at_once, TRAIN if mix.is_train else 1))]
        pieces = TRAIN if mix.is_train else 1
        for at in range(0, len(datagrams), pieces):
            whole = b"".join(datagrams[at:at + pieces])
            while True:
                try:
                    sources[source].send(whole)
                    break
                except (ConnectionRefusedError, BlockingIOError, OSError) as error:
                    if error.errno not in (11, 105, 111):
                        raise
        numbers[source] += len(datagrams)
        sent += len(datagrams)
        if mix.traffic != "flood":
            time.sleep(0.0001)
    report.send(sent)
