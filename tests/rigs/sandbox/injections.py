"""What code could do that has taken over a thread: every attempt of inject.c, in every thread of a daemon that runs.

A second daemon, with sandbox = "off", is the control: there each attempt has the answer of the kernel, for the same
user. An attempt in the sandbox has to have another one: ENOSYS, which no right and no lack of one gives, or EPERM or
EACCES where the kernel without the sandbox gives neither. What a thread needs for its work stands in GRANTED;
everything else has to fail, and what is granted has to pass, or the list is out of date. Afterwards both daemons
deliver and end with closed ledgers.
"""
import collections
import os
import pathlib
import re
import socket

from lib import net
from lib.check import check, passed, same
from lib.daemon import NULL, WORK, Daemon, listening, start
from lib.host import ends, read
from lib.load import send
from lib.net import as_user

ENOSYS, RIGHTS = -38, (-1, -13)
COUNT = 200
PORTS = {"require": 21620, "off": 21640}

UDP, UNIX = ["socket: UDP"], ["socket: Unix"]
TCP = ["socket: TCP", "socket: TCP over IPv6"]
TABLES = ["socket: netlink route", "socket: netlink generic"]
LIBRARIES = ["memory: mmap executable", "memory: mprotect executable"]
NAMES = [*TCP, *UDP, *UNIX, "socket: netlink route", *LIBRARIES]

# By name of thread. docs/sandbox.md says the same in its table of calls.
GRANTED = [
    ("udpd", [*UDP, *UNIX, *TABLES]),
    ("udpd-reload", [*NAMES, *TABLES]),
    ("lookup", NAMES),
    ("sink.-relay", UDP),
    ("sink.-named", UDP),
    ("sink.-messages", UNIX),
    ("sink.-spilling", UNIX),
    ("udpd-warden", ["socket: xdp"]),
]


def configuration(mode, engine):
    port = PORTS[mode]
    af_xdp = engine == "af_xdp"
    address, interface = (f"10.9.0.1:{port}", 'interface = "card0"') if af_xdp else (f"127.0.0.1:{port}", "")
    second = (f'[[listener]]\nname = "engine"\naddress = "{address}"\nsinks = ["nothing"]\n{interface}\n'
              f'engine = "{engine if mode == "require" or not af_xdp else "recvmmsg"}"\n')
    return listening(
        f'address = "127.0.0.1:{port + 1}"\nsequence = "rtp"\nengine = "{"recvmmsg" if af_xdp else engine}"',
        file='type = "file"\npath = "DIR/in.log"\ncompress = "gzip"',
        relay=f'type = "udp"\ndestinations = ["127.0.0.1:{port + 2}"]',
        named=f'type = "udp"\ndestinations = ["localhost:{port + 3}"]',
        messages='type = "unix"\npath = "DIR/messages"',
        spilling='type = "unix"\npath = "DIR/absent"\nspill = { path = "DIR/spill", bytes = "64MiB" }',
        sources='type = "file"\npath = "DIR/by/{source}.log"', nothing=NULL) + second


def run(mode, user, engine):
    """A daemon that a service manager hears, by a name in the abstract namespace, which is out of reach inside but for
    this."""
    directory = f"{WORK}/inject-{user}-{engine}-{mode}"
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(f"\0{directory}-notify")
    keys = f'sandbox = "{mode}"\nmetrics_address = "127.0.0.1:{PORTS[mode] + 9}"'
    daemon = Daemon(configuration(mode, engine), daemon=keys + ('\nuser = "root"' if user == 0 else ""),
                    directory=directory, before=as_user(user), owner=user,
                    env=os.environ | {"NOTIFY_SOCKET": f"@{directory}-notify"})
    return daemon, notify


def deliver_and_end(mode, daemon, notify):
    send(PORTS[mode] + 1, [b"\x80\0" + number.to_bytes(2, "big") + bytes(20) for number in range(COUNT)])
    daemon.await_listener(f"{COUNT} are received", lambda listener: listener["received"] == COUNT)
    listener = daemon.end()
    same((listener["arrived"], listener["sinks"][0]["delivered"]), (COUNT, COUNT), "arrived and delivered")
    notify.setblocking(False)
    heard = b""
    while b"STOPPING=1" not in heard:
        heard = notify.recv(4096)


def inject(process, victim, place, *thread):
    """The name of a thread, an attempt and its result, for each."""
    rows = [line.split("\t") for line in ends(0, f"{WORK}/inject", process, victim, place, *thread).splitlines()]
    return [(name, what, int(result)) for _, name, what, result in rows]


def granted(thread, engine):
    of = [what for pattern, what in GRANTED if re.fullmatch(pattern, thread)]
    ring = ["io_uring: a ring"] if (thread, engine) == ("udpd-reload", "io_uring") else []
    return [*(of[0] if of else []), *ring]


def make_place(user, engine):
    """Files whose rights would let the user do everything with them, and a name in the abstract namespace."""
    place = pathlib.Path(WORK, f"place-{user}-{engine}")
    place.mkdir()
    for name in ("secret", "open"):
        (place / name).write_text("x")
        os.chown(place / name, user, user)
    os.chown(place, user, user)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{place}")
    listening.listen(1000)
    return place, listening


def wardens(daemon):
    process = daemon.child.pid
    return map(int, read(f"/proc/{process}/task/{process}/children").split()[:1])


def attempts(user, engine):
    (place, listening), victim = make_place(user, engine), start([*as_user(user), "sleep", "600"])
    relayed = [net.udp_socket("127.0.0.1", port + 2) for port in PORTS.values()]
    running = {mode: run(mode, user, engine) for mode in PORTS}
    daemon, control = (running[mode][0] for mode in PORTS)
    process = control.child.pid
    open_answers = {what: result for _, what, result in inject(process, victim.pid, place, process)}
    closed = inject(daemon.child.pid, victim.pid, place)
    for warden in wardens(daemon):
        closed += inject(warden, victim.pid, place)
    wrong, kinds, refused = [], collections.Counter(), 0
    for thread, what, result in closed:
        kinds[thread] += 1
        before = open_answers[what]
        by_wall = before != ENOSYS and (result == ENOSYS or (result in RIGHTS and before not in RIGHTS))
        refused += by_wall
        if by_wall == (what in granted(thread, engine)):
            says = "refused although granted" if by_wall else "not refused by the wall"
            wrong.append(f"{thread}: {what}: {result}, without the sandbox {before}: {says}")
    check(not wrong, "\n  ".join([f"user {user}, {engine}: {len(wrong)} of {len(closed)}", *wrong]))
    check(victim.poll() is None, "the victim is gone")
    for mode, (one, notify) in running.items():
        deliver_and_end(mode, one, notify)
    victim.kill()
    for one in (listening, *relayed):
        one.close()
    passed(f"injected as user {user}, {engine}: {refused} of {len(closed)} attempts by {len(kinds)} threads refused by "
           f"the wall, the rest granted: {', '.join(sorted(kinds))}")
