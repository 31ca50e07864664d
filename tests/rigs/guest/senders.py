"""Datagrams for a guest, from the other end of a card."""
import socket
import time

FIRST_PORT = 20000


def send(port, flows, total, per_second, to=5140):
    """So many datagrams of 32 bytes in so many flows; returns when all of them are sent."""
    senders = []
    for flow in range(flows):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((f"10.9.{port}.1", FIRST_PORT + flow))
        sender.connect((f"10.9.{port}.2", to))
        senders.append(sender)
    begun, sent = time.monotonic(), 0
    while sent < total:
        due = min(total, int((time.monotonic() - begun) * per_second) + 1)
        while sent < due:
            try:
                senders[sent % flows].send(b"%032d" % sent)
                sent += 1
            except ConnectionRefusedError:
                pass
        time.sleep(0.001)
    for sender in senders:
        sender.close()
