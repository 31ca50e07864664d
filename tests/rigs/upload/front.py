"""Stands between udpd and a server of the rig, so that it can be killed while the server keeps what it has: passes on
what comes, as fast as the file `rate` says (bytes a second), or nothing at all where that says `hold`."""
import socket
import sys
import threading
import time

PORT, SERVER, RATE_FILE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def rate():
    with open(RATE_FILE, encoding="ascii") as file:
        return file.read().strip()


def pump(source, target, is_limited):
    """Until one of the two ends."""
    try:
        while data := source.recv(1 << 15):
            while is_limited and rate() == "hold":
                time.sleep(0.05)
            target.sendall(data)
            if is_limited and int(rate()):
                time.sleep(len(data) / int(rate()))
    except OSError:
        pass
    for own in (source, target):
        try:
            own.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    listener = socket.create_server(("127.0.0.1", PORT), backlog=16)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", SERVER))
        for ends in (client, server, True), (server, client, False):
            threading.Thread(target=pump, args=ends, daemon=True).start()


main()
