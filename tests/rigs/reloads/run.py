"""Reloads under load, with good files and bad ones; see reloads.sh."""
import os
import socket
import threading
import time

from lib.check import check, main, passed, same, setting
from lib.daemon import NULL, Daemon, listening
from lib.load import free_port

RELOADS, RATE, ENGINE = setting("RELOADS", 10), setting("RATE", 20_000), os.environ.get("ENGINE", "recvmmsg")
PORT = free_port()


class Sender(threading.Thread):
    """Numbered datagrams from eight sources until it is told to end."""

    def __init__(self):
        super().__init__()
        self.sent, self.goes_on = 0, True
        self.sockets = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(8)]
        for own in self.sockets:
            own.connect(("127.0.0.1", PORT))
        self.start()

    def run(self):
        begun = time.monotonic()
        while self.goes_on:
            due = min(int((time.monotonic() - begun) * RATE), self.sent + 1000)
            for number in range(self.sent, due):
                self.sockets[number % 8].send(b"%09d" % number)
            self.sent = max(self.sent, due)
            time.sleep(0.001)

    def end(self):
        self.goes_on = False
        self.join()
        return self.sent


def configuration(lanes, sync="1s", **others):
    return listening(f'address = "127.0.0.1:{PORT}"\nlanes = {lanes}\nengine = "{ENGINE}"', **others,
                     stays=f'type = "file"\npath = "DIR/stays.log"\nsync = "{sync}"')


def reloads():
    daemon = Daemon(configuration(2))
    sender = Sender()
    for number in range(1, RELOADS + 1):
        lanes = 1 + number % 4
        if number % 2 == 0:
            daemon.reload(configuration(lanes) + "this is = no toml\n", 78)
        elif number % 4 == 1:
            daemon.reload(configuration(lanes, guest=f'type = "file"\npath = "DIR/guest{number}.log"'))
        else:
            daemon.reload(configuration(lanes, f"{1 + number}s", nowhere=NULL))
        time.sleep(0.2)
    sent = sender.end()
    time.sleep(0.5)
    listener = daemon.end()
    with open(f"{daemon.directory}/stays.log", encoding="ascii") as file:
        numbers = [int(line) for line in file]
    dropped = listener["kernel_dropped"]
    same(len(set(numbers)), len(numbers), "there twice")
    same((listener["arrived"], len(numbers) + dropped), (sent, sent), "arrived, and in the file or dropped")
    check(not dropped, "the receive buffer was full: a reload took too long, or the machine is too slow for this rate")
    passed(f"{RELOADS} reloads, {ENGINE}: {sent} sent, each of them once in the file")


main(reloads)
