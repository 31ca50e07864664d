"""Network namespaces and the cables between them. OTHER is a process in the other namespace; a place is such a process,
or None for the namespace of the rig."""
import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct

from lib.host import ends, read

OTHER = os.environ.get("OTHER", "")
# In front of a command: as a user without any right.
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
# As root without the rights by which udpd asks the kernel what a frame is.
BLIND = ["setpriv", "--bounding-set=-perfmon,-sys_admin", "--inh-caps=-perfmon,-sys_admin"]
# What Python does not name.
SO_SNDBUFFORCE, SO_RCVBUFFORCE, UDP_SEGMENT = 32, 33, 103


def at(place, *command):
    """A command as it is run in a place."""
    return [*(["nsenter", "--target", str(place), "--net"] if place else []), *map(str, command)]


def run(*command, place=None):
    """Runs a command that must succeed; what it says."""
    return ends(0, *at(place, *command))


def ip(arguments, place=None):
    return run("ip", *arguments.split(), place=place)


def link(card, place=None):
    """What `ip` shows of an interface, with its counters."""
    return json.loads(ip(f"-s -j link show {card}", place))[0]


def set_proc(path, value, place=None):
    """Writes a value below /proc/sys/net."""
    run("sh", "-c", f"echo {value} >/proc/sys/net/{path}", place=place)


def as_user(user):
    """In front of a command: as this user, without its groups. Root needs nothing."""
    return [] if user == 0 else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def cut(card="card0"):
    """Removes a cable, both ends of it."""
    ip(f"link del {card}")


def lay(here, there, card="card0", far="card1", place=OTHER, queues=1, more=""):
    """A cable from `card` of this namespace to `far` of another place, each with its addresses."""
    size = f"numrxqueues {queues} numtxqueues {queues}"
    ip(f"link add {card} {more} {size} type veth peer name {far} {size} netns {place}")
    for device, addresses, where in ((card, here, None), (far, there, place)):
        for address in addresses:
            ip(f"address add {address} dev {device} {'nodad' if ':' in address else ''}", where)
        ip(f"link set {device} up", where)


def ethtool(card, request, *words):
    """A request of SIOCETHTOOL with its words; what the words are afterwards. Not every host has the program."""
    memory = (ctypes.c_uint32 * (1 + len(words)))(request, *words)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        fcntl.ioctl(asker, 0x8946, struct.pack("16sQ16x", card.encode(), ctypes.addressof(memory)))
    return list(memory)[1:]


def gro(card, is_on):
    """Switches GRO, and with it NAPI: without NAPI a cable takes no XDP frames."""
    ethtool(card, 0x2C, int(is_on))


def set_queues(card, count):
    """Gives a card so many queues, as `ethtool -L` does."""
    words = ethtool(card, 0x3C, *[0] * 8)
    words[4:6] = [count, count]
    ethtool(card, 0x3D, *words)


def introduce(address, card, place, far, far_place):
    """Has `place` know whose Ethernet address an address behind its `card` has, so that nothing waits for an answer."""
    ip(f"neigh replace {address} lladdr {link(far, far_place)['address']} dev {card} nud permanent", place)


@contextlib.contextmanager
def inside(place):
    """What this thread makes in this block, such as a socket, belongs to the namespace of a place."""
    with open("/proc/thread-self/ns/net", "rb") as own, open(f"/proc/{place}/ns/net", "rb") as there:
        enter(there)
        try:
            yield
        finally:
            enter(own)


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def udp_socket(address="", port=0, place=None, buffer=0):
    """A UDP socket of a place, bound where an address is given, with so large a receive buffer."""
    with inside(place) if place else contextlib.nullcontext():
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
        if address:
            made.bind((address, port))
    return made


def udp_counters():
    """What this namespace counts of IPv4 and IPv6, as `Udp:NoPorts` and `Udp6NoPorts`."""
    found = {name: int(value) for name, value in map(str.split, read("/proc/net/snmp6").splitlines())}
    lines = [line.split() for line in read("/proc/net/snmp").splitlines()]
    for names, values in zip(lines[::2], lines[1::2]):
        found |= {names[0] + name: int(value) for name, value in zip(names[1:], values[1:])}
    return found


def bound_sockets():
    """The UDP sockets of IPv4 in this namespace: port, and how many datagrams the kernel dropped there, of each."""
    rows = [line.split() for line in read("/proc/net/udp").splitlines()[1:]]
    return [(int(row[1].split(":")[1], 16), int(row[-1])) for row in rows]


def dropped_at_port(port):
    """What the kernel counts at the sockets of a port itself, whatever udpd says."""
    return sum(dropped for own, dropped in bound_sockets() if own == port)
