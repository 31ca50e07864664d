"""The sending end of the cable, started inside its namespace; prints how many frames or datagrams it has sent.

frames FILE          raw frames from a file, each behind its length, from card1
plain COUNT BYTES PORT ADDRESS
                     datagrams of so many bytes, as fast as they go
load BYTES PORT ADDRESS
                     the same until the standard input has a line or ends, and 1000 more; says `begun` after the first 1000
numbered COUNT BYTES PORT ADDRESS FIRST
                     datagrams that each begin with a number of ten digits, from FIRST on
trains COUNT BYTES PORT ADDRESS FIRST
                     the same in trains of ten (UDP_SEGMENT)
tagged COUNT BYTES PORT ADDRESS FIRST
                     the same as `numbered`, each with the tag of VLAN 42 beside its frame
stream BYTES PORT ADDRESS
                     the same from 0 until the standard input has a line or ends, and 1000 more; says `begun` after 1000
gaps COUNT PORT ADDRESS EVERY PAUSE
                     datagrams that each begin with a number of four bytes, every so-manieth of which is left out, with a
                     pause of so many seconds after 32; prints how many were left out
payloads PORT ADDRESS SIZE...
                     one datagram of each size, whose bytes tell its size
beside PORT ADDRESS COUNT
                     echo requests and questions to a server, one after another; prints how many were answered
gro CARD             switches GRO on, as `ethtool -K` does
queues CARD COUNT    gives a card so many queues, as `ethtool -L` does; prints how many it has
"""
import ctypes
import errno
import fcntl
import select
import socket
import struct
import sys
import time


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def send(call):
    """A full queue of the device is no loss: the sender waits."""
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.001)


def frames(path):
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.bind(("card1", 0))
    data = open(path, "rb").read()
    at = sent = 0
    while at < len(data):
        (length,) = struct.unpack_from("!H", data, at)
        frame = data[at + 2 : at + 2 + length]
        send(lambda: out.send(frame))
        at += 2 + length
        sent += 1
        # The cable holds 256 frames that nobody has taken yet.
        if sent % 32 == 0:
            time.sleep(0.001)
    return sent


def plain(count, size, port, address):
    out = socket.socket(family(address), socket.SOCK_DGRAM)
    payload = b"x" * size
    for _ in range(count):
        send(lambda: out.sendto(payload, (address, port)))
    return count


def load(size, port, address):
    sent = plain(1000, size, port, address)
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        sent += plain(100, size, port, address)
    return sent + plain(1000, size, port, address)


def numbered(count, size, port, address, first, mark=0):
    out = socket.socket(family(address), socket.SOCK_DGRAM)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    rest = b"x" * (size - 10)
    for number in range(first, first + count):
        send(lambda: out.sendto(b"%010d" % number + rest, (address, port)))
    return count


def trains(count, size, port, address, first):
    out = socket.socket(family(address), socket.SOCK_DGRAM)
    out.setsockopt(socket.SOL_UDP, 103, size)
    rest = b"x" * (size - 10)
    for number in range(first, first + count, 10):
        payload = b"".join(b"%010d" % (number + place) + rest for place in range(10))
        send(lambda: out.sendto(payload, (address, port)))
    return count


def tagged(*arguments):
    from tags import tag_what_is_marked
    link = tag_what_is_marked("card1")
    return numbered(*arguments, mark=42) if link else 0


def stream(size, port, address):
    sent = numbered(1000, size, port, address, 0)
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        sent += numbered(100, size, port, address, sent)
    return sent + numbered(1000, size, port, address, sent)


def gaps(count, port, address, every, pause):
    out = socket.socket(family(address), socket.SOCK_DGRAM)
    left_out = 0
    for number in range(count):
        # What is lost before the first or after the last nobody can know.
        if number % every == every // 2 and number + every < count:
            left_out += 1
            continue
        send(lambda: out.sendto(struct.pack("!I", number) + b"x" * 60, (address, port)))
        if number % 32 == 31:
            time.sleep(pause)
    return left_out


def payloads(port, address, sizes):
    out = socket.socket(family(address), socket.SOCK_DGRAM)
    for number, size in enumerate(sizes):
        payload = bytes((size + byte * 7) % 256 for byte in range(size))
        send(lambda: out.sendto(payload, (address, port)))
        if number % 16 == 15:
            time.sleep(0.001)
    return len(sizes)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def beside(port, address, count):
    ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ping.settimeout(10)
    ask.settimeout(10)
    answered = 0
    for number in range(count):
        body = struct.pack("!HH", 0x4D4D, number)
        sum_of_it = checksum(struct.pack("!BBH", 8, 0, 0) + body)
        ping.sendto(struct.pack("!BBH", 8, 0, sum_of_it) + body, (address, 0))
        while True:
            packet = ping.recv(2000)
            if packet[20] == 0 and packet[24:28] == body:
                break
        ask.sendto(body, (address, port))
        answered += ask.recv(100) == body
        time.sleep(0.005)
    return answered


def queues(card, count):
    # ETHTOOL_GCHANNELS and ETHTOOL_SCHANNELS of struct ethtool_channels, by SIOCETHTOOL.
    channels = (ctypes.c_uint32 * 9)(0x3C)
    request = struct.pack("16sQ16x", card.encode(), ctypes.addressof(channels))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        fcntl.ioctl(asker, 0x8946, request)
        channels[0], channels[5], channels[6] = 0x3D, count, count
        fcntl.ioctl(asker, 0x8946, request)
    return channels[5]


def gro(card):
    # ETHTOOL_SGRO of struct ethtool_value.
    value = (ctypes.c_uint32 * 2)(0x2C, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        fcntl.ioctl(asker, 0x8946, struct.pack("16sQ16x", card.encode(), ctypes.addressof(value)))


what, *rest = sys.argv[1:]
if what == "frames":
    print(frames(rest[0]))
elif what == "plain":
    print(plain(int(rest[0]), int(rest[1]), int(rest[2]), rest[3]))
elif what == "load":
    print(load(int(rest[0]), int(rest[1]), rest[2]))
elif what in ("numbered", "trains", "tagged"):
    print(globals()[what](int(rest[0]), int(rest[1]), int(rest[2]), rest[3], int(rest[4])))
elif what == "stream":
    print(stream(int(rest[0]), int(rest[1]), rest[2]))
elif what == "gaps":
    print(gaps(int(rest[0]), int(rest[1]), rest[2], int(rest[3]), float(rest[4])))
elif what == "payloads":
    print(payloads(int(rest[0]), rest[1], [int(size) for size in rest[2:]]))
elif what == "gro":
    gro(rest[0])
elif what == "queues":
    print(queues(rest[0], int(rest[1])))
elif what == "beside":
    print(beside(int(rest[0]), rest[1], int(rest[2])))
