"""Reloads under load, with good files and bad ones; see reloads.sh."""
import os
import time

from lib.check import check, main, passed, same, setting
from lib.daemon import NULL, Daemon, file_sink, listening
from lib.host import read
from lib.load import Paced, free_port

RELOADS, RATE, ENGINE = setting("RELOADS", 10), setting("RATE", 20_000), os.environ.get("ENGINE", "recvmmsg")
PORT = free_port()


def configuration(lanes, sync="1s", **others):
    return listening(f'address = "127.0.0.1:{PORT}"\nlanes = {lanes}\nengine = "{ENGINE}"', **others,
                     stays=file_sink("DIR/stays.log", f'sync = "{sync}"'))


def reloads():
    daemon = Daemon(configuration(2))
    sender = Paced(PORT, RATE, lambda number: b"%09d" % number, sockets=8)
    for number in range(1, RELOADS + 1):
        lanes = 1 + number % 4
        if number % 2 == 0:
            daemon.reload(configuration(lanes) + "this is = no toml\n", 78)
        elif number % 4 == 1:
            daemon.reload(configuration(lanes, guest=file_sink(f"DIR/guest{number}.log")))
        else:
            daemon.reload(configuration(lanes, f"{1 + number}s", nowhere=NULL))
        time.sleep(0.2)
    sent = sender.end()
    time.sleep(0.5)
    listener = daemon.end()
    numbers = [int(line) for line in read(f"{daemon.directory}/stays.log").splitlines()]
    dropped = listener["kernel_dropped"]
    same(len(set(numbers)), len(numbers), "there twice")
    same((listener["arrived"], len(numbers) + dropped), (sent, sent), "arrived, and in the file or dropped")
    check(not dropped, "the receive buffer was full: a reload took too long, or the machine is too slow for this rate")
    passed(f"{RELOADS} reloads, {ENGINE}: {sent} sent, each of them once in the file")


main(reloads)
