"""One run: a daemon, a sender that is no part of it, readers at the far ends, and what each knows at the end."""
import multiprocessing
import os
import socket
import time
from dataclasses import dataclass, field

from lib import readers
from lib.check import Failed
from lib.daemon import Daemon, file_sink, kill_all, listening
from lib.net import UDP_SEGMENT

SEND_SECONDS, SETTLE_SECONDS = 60, 20
SOURCES = 3
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
    sent: int = 0
    ledger: dict = field(default_factory=dict)
    read: list = field(default_factory=list)
    lost_in_sockets: list = field(default_factory=list)     # behind a relay
    log: str = ""
    wrong: str = ""


class Trial:
    def __init__(self, mix):
        self.mix = mix
        # An address of this run's own: nothing else is on it, and no port needs to be found.
        self.address = f"127.67.{mix.number >> 8}.{(mix.number & 0xFF) or 255}"
        self.directory = f"{os.environ['WORK']}/run{mix.number}"
        os.mkdir(self.directory)
        self.readers = [self.reader(at, sink) for at, sink in enumerate(mix.sinks)]

    def reader(self, at, sink):
        length = self.mix.length
        if sink.kind == "stdout":
            return readers.Stream(sink.manner, length)
        if sink.kind == "unix":
            return readers.unix_reader(sink.manner, length, f"{self.directory}/unix{at}")
        if sink.kind == "udp":
            return readers.udp_reader(sink.manner, length)
        return readers.File(length, f"{self.directory}/out{at}.log")

    def configuration(self):
        mix, sinks = self.mix, {}
        for at, (sink, reader) in enumerate(zip(mix.sinks, self.readers)):
            keys = {"stdout": lambda: 'type = "stdout"', "file": lambda: file_sink(reader.path),
                    "unix": lambda: f'type = "unix"\npath = "{self.directory}/unix{at}"',
                    "udp": lambda: 'type = "udp"\ndestinations = ["127.0.0.1:%d"]' % reader.socket.getsockname()[1]}
            sinks[f"s{at}"] = f'{keys[sink.kind]()}\nwhen_full = "{sink.when_full}"\nqueue_bytes = "{mix.queue_bytes}"'
        return listening(f'address = "{self.address}:5179"\nengine = "{mix.engine}"\nlanes = {mix.lanes}\n'
                         f'max_length = "{"16KiB" if mix.length > 2048 else "2KiB"}"\nreceive_buffer = "1MiB"\n'
                         f'gro = "{"on" if mix.is_train else "off"}"', **sinks)

    def run(self):
        streams = [reader.daemons_end for reader in self.readers if isinstance(reader, readers.Stream)]
        daemon = Daemon(self.configuration(), directory=self.directory, **{"stdout": end for end in streams})
        for end in streams:
            os.close(end)
        for reader in self.readers:
            reader.start()
        sent = self.send()
        for reader in self.readers:
            reader.release()
        self.wait_until_settled(daemon)
        ledger = daemon.end()
        lost = [reader.lost_in_socket() if sink.kind == "udp" else 0
                for sink, reader in zip(self.mix.sinks, self.readers)]
        return Outcome(self.mix, sent, ledger, [reader.finish() for reader in self.readers], lost, daemon.log())

    def send(self):
        """From a process of its own, so that readers do not slow it down."""
        ours, theirs = multiprocessing.Pipe()
        sender = multiprocessing.Process(target=send, args=(self.mix, self.address, theirs))
        sender.start()
        # The other end is the sender's alone, so that its death is the end of the file.
        theirs.close()
        if not ours.poll(SEND_SECONDS):
            sender.kill()
            raise Failed(f"the sender has not ended within {SEND_SECONDS} s")
        sent = ours.recv()
        sender.join()
        return sent

    def wait_until_settled(self, daemon):
        """Until the daemon's own word is that nothing is under way to a reader that reads; it is checked afterwards."""
        living = [at for at, sink in enumerate(self.mix.sinks) if sink.manner != "dead"]
        # A receiver that waits for a dead sink lets no other sink have anything.
        if any(sink.manner == "dead" and sink.when_full == "block" for sink in self.mix.sinks):
            return time.sleep(0.2)
        return daemon.await_listener("what was sent is settled", lambda listener: all(
            lane["receive_buffer_used_bytes"] == 0 for lane in listener["lanes"]) and all(
            listener["sinks"][at]["in_flight"] == 0 for at in living), SETTLE_SECONDS)


def run(mix):
    try:
        return Trial(mix).run()
    except Failed as why:
        # A worker's process ends without what is done at an exit.
        kill_all()
        return Outcome(mix, wrong=str(why))


def send(mix, address, report):
    """Numbered datagrams of some sources by turns. What the kernel has taken was sent."""
    sources = []
    for _ in range(SOURCES):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.connect((address, 5179))
        if mix.is_train:
            source.setsockopt(socket.SOL_UDP, UDP_SEGMENT, mix.length)
        sources.append(source)
    at_once = {"lone": 1, "bursts": 16, "flood": 64}[mix.traffic]
    numbers, sent, turn = [0] * SOURCES, 0, 0
    while sent < mix.datagrams:
        source = turn % SOURCES
        turn += 1
        datagrams = [readers.payload(source, numbers[source] + at, mix.length)
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
