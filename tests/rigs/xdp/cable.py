"""The cable of the AF_XDP rigs: card0 here, card1 in the other namespace, a server beside the port under test, and the
senders of the far end, which return how many frames or datagrams they have sent."""
import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
import threading
import time

from lib import net, packets
from lib.check import until
from lib.net import OTHER, UDP_SEGMENT, ip

PORT = 5140
ADDRESSES = ["10.8.0.1", "fd00::1"]
server = net.udp_socket("0.0.0.0")
libc = ctypes.CDLL(None, use_errno=True)


def echo():
    while True:
        data, asker = server.recvfrom(2000)
        server.sendto(data, asker)


threading.Thread(target=echo, daemon=True).start()


def lay(queues=1):
    """The cable anew; the Ethernet address of this end."""
    if "card0" in ip("link"):
        ip("link del card0")
    net.lay(["10.8.0.1/24", "fd00::1/64"], ["10.8.0.2/24", "fd00::2/64"], queues=queues)
    # So that the first datagram finds its way, and the cable knows its neighbours, of both families: an address that
    # was just given may not be used yet.
    await_answer()
    until("IPv6", lambda: payloads("fd00::1", 1, port=PORT + 1) and "fd00::1" in ip("-6 neigh", OTHER), 10, 0.05)
    return bytes.fromhex(net.link("card0")["address"].replace(":", ""))


def await_answer():
    """Waits until the server is asked and answers over the cable."""
    while not beside(1):
        pass


def set_queues(count):
    """The end here first: it must be able to take what the other one sends."""
    net.set_queues("card0", count)
    with net.inside(OTHER):
        net.set_queues("card1", count)


def know_address(address="10.8.0.1"):
    """The sender goes on while there is no carrier or no answer, and does not ask who has an address."""
    net.introduce(address, "card1", OTHER, "card0", None)


def dropped():
    """What the cable had no room for."""
    return net.link("card1", OTHER)["stats64"]["tx"]["dropped"]


def has_program():
    return "xdp" in net.link("card0")


def await_no_program():
    """The kernel takes it away when the last descriptor is closed, which it does by itself."""
    until("the program of a killed process is gone", lambda: not has_program())


def is_not_possible(why):
    """Whether this is why there is no AF_XDP on a cable of this host."""
    return any(words in why for words in ("Linux 5.10", "native mode", "does not count"))


def far_socket(address):
    return net.udp_socket("::" if ":" in address else "0.0.0.0", place=OTHER)


def push(call):
    """A full queue of the device is no loss: the sender waits."""
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.001)


def frames(some):
    """Raw frames from card1."""
    with net.inside(OTHER):
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        out.bind(("card1", 0))
    for number, frame in enumerate(some, 1):
        push(lambda one=frame: out.send(one))
        # The cable holds 256 frames that are not taken yet.
        if number % 32 == 0:
            time.sleep(0.001)
    return len(some)


def plain(count, size, address):
    """Datagrams of so many bytes, as fast as they go."""
    out = far_socket(address)
    payload = b"x" * size
    for _ in range(count):
        push(lambda: out.sendto(payload, (address, PORT)))
    return count


def numbered(count, size, address, first=0, mark=0):
    """Datagrams that each begin with a number of ten digits, from `first` on."""
    out = far_socket(address)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    rest = b"x" * (size - 10)
    for number in range(first, first + count):
        push(lambda: out.sendto(b"%010d" % number + rest, (address, PORT)))
    return count


def trains(count, size, address, first=0):
    """The same in trains of ten."""
    out = far_socket(address)
    out.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
    rest = b"x" * (size - 10)
    for number in range(first, first + count, 10):
        payload = b"".join(b"%010d" % (number + place) + rest for place in range(10))
        push(lambda: out.sendto(payload, (address, PORT)))
    return count


def bpf(command, attributes):
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(number, command, buffer, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def tag_what_is_marked(card):
    """Has what leaves with a mark get a tag of that VLAN beside the frame, as an interface of a VLAN would give it. A
    kernel may have no such interfaces."""
    def instruction(code, destination, source, offset, immediate):
        return struct.pack("<BBhi", code, source << 4 | destination, offset, immediate)

    program = b"".join([
        instruction(0xBF, 6, 1, 0, 0),
        instruction(0x61, 3, 6, 8, 0),  # the mark
        instruction(0x15, 3, 0, 4, 0),
        instruction(0x57, 3, 0, 0, 0xFFF),
        instruction(0xB7, 2, 0, 0, socket.htons(0x8100)),
        instruction(0xBF, 1, 6, 0, 0),
        instruction(0x85, 0, 0, 0, 18),  # bpf_skb_vlan_push
        instruction(0xB7, 0, 0, 0, -1),  # TCX_NEXT
        instruction(0x95, 0, 0, 0, 0),
    ])
    code, license = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    at_egress = 47  # BPF_TCX_EGRESS
    loaded = bpf(5, struct.pack("<IIQQIIQII16sII", 3, len(program) // 8, ctypes.addressof(code),
                                ctypes.addressof(license), 0, 0, 0, 0, 0, b"rig_tags", 0, at_egress))
    return bpf(28, struct.pack("<IIII", loaded, socket.if_nametoindex(card), at_egress, 0) + bytes(32))


@contextlib.contextmanager
def tags_of_marks():
    """What leaves card1 with a mark in this block has a tag; the end of the descriptor is the end of that."""
    with net.inside(OTHER):
        link = tag_what_is_marked("card1")
    try:
        yield
    finally:
        os.close(link)


def tagged(*arguments):
    """The same as `numbered`, each with the tag of VLAN 42 beside its frame."""
    with tags_of_marks():
        return numbered(*arguments, mark=42)


class Stream(threading.Thread):
    """`plain` or `numbered` datagrams that are under way when this is made; a thousand follow after it is told to
    end."""

    def __init__(self, size, address, is_numbered=True):
        super().__init__(daemon=True)
        self.size, self.address, self.is_numbered = size, address, is_numbered
        self.has_begun, self.is_told, self.sent = threading.Event(), threading.Event(), 0
        self.start()
        self.has_begun.wait()

    def more(self, count):
        if self.is_numbered:
            self.sent += numbered(count, self.size, self.address, self.sent)
        else:
            self.sent += plain(count, self.size, self.address)

    def run(self):
        self.more(1000)
        self.has_begun.set()
        while not self.is_told.is_set():
            self.more(100)
        self.more(1000)

    def end(self):
        """How many it has sent in all."""
        self.is_told.set()
        self.join()
        return self.sent


def gaps(count, address, every, pause):
    """Datagrams that each begin with a number of four bytes, of which some are left out, with a pause after 32; how
    many were left out."""
    out = far_socket(address)
    left_out = 0
    for number in range(count):
        # What is lost before the first or after the last cannot be known.
        if number % every == every // 2 and number + every < count:
            left_out += 1
            continue
        push(lambda: out.sendto(struct.pack("!I", number) + b"x" * 60, (address, PORT)))
        if number % 32 == 31:
            time.sleep(pause)
    return left_out


def payloads(address, *sizes, port=PORT):
    """One datagram of each size, whose bytes tell its size."""
    out = far_socket(address)
    for number, size in enumerate(sizes):
        payload = bytes((size + byte * 7) % 256 for byte in range(size))
        push(lambda: out.sendto(payload, (address, port)))
        if number % 16 == 15:
            time.sleep(0.001)
    return len(sizes)


def beside(count, address="10.8.0.1"):
    """Echo requests and questions to the server, one after another; how many were answered."""
    with net.inside(OTHER):
        ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    ask, port = net.udp_socket(place=OTHER), server.getsockname()[1]
    ping.settimeout(10)
    ask.settimeout(10)
    answered = 0
    for number in range(count):
        body = struct.pack("!HH", 0x4D4D, number)
        sum_of_it = packets.checksum(struct.pack("!BBH", 8, 0, 0) + body)
        ping.sendto(struct.pack("!BBH", 8, 0, sum_of_it) + body, (address, 0))
        while True:
            packet = ping.recv(2000)
            if packet[20] == 0 and packet[24:28] == body:
                break
        ask.sendto(body, (address, port))
        answered += ask.recv(100) == body
        time.sleep(0.005)
    return answered
