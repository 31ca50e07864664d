"""What code could do that has taken over a thread: every attempt of inject.c, in every thread of a daemon that runs.

    injections.py UDPD INJECT WORK USER ENGINE

A second daemon, with sandbox = "off", is the control: there each attempt has the answer of the kernel, for the same user. An
attempt in the sandbox has to have another one: ENOSYS, which no right and no lack of one gives, or EPERM or EACCES where the
kernel without the sandbox gives neither. What a thread needs for its work stands in GRANTED; everything else has to fail, and
what is granted has to pass, or the list is out of date. Afterwards both daemons deliver and end with closed books.
"""

import collections
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

UDPD, INJECT, WORK, USER, ENGINE = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
ENOSYS, RIGHTS = -38, (-1, -13)
COUNT = 200
PLACE = WORK / f"place-{USER}-{ENGINE}"
PORTS = {"require": 21620, "off": 21640}

UDP, UNIX = ["socket: UDP"], ["socket: Unix"]
TCP = ["socket: TCP", "socket: TCP over IPv6"]
TABLES = ["socket: netlink route", "socket: netlink generic"]
LIBRARIES = ["memory: mmap executable", "memory: mprotect executable"]
NAMES = [*TCP, *UDP, *UNIX, "socket: netlink route", *LIBRARIES]

# By name of thread. docs/sandbox.md says the same in its table of calls.
GRANTED = [
    ("udpd", [*UDP, *UNIX, *TABLES]),
    ("udpd-reload", [*NAMES, *TABLES] + (["io_uring: a ring"] if ENGINE == "io_uring" else [])),
    ("lookup", NAMES),
    ("sink.-relay", UDP),
    ("sink.-named", UDP),
    ("sink.-messages", UNIX),
    ("sink.-spilling", UNIX),
    ("udpd-warden", ["socket: xdp"]),
]


STARTED = []


def fail(text):
    for one in STARTED:
        one.kill()
    raise SystemExit(f"FAILED: user {USER}, {ENGINE}: {text}")


def configuration(directory, mode):
    port = PORTS[mode]
    af_xdp = ENGINE == "af_xdp"
    address = f"10.9.0.1:{port}" if af_xdp else f"127.0.0.1:{port}"
    interface = 'interface = "card0"' if af_xdp else ""
    engine = ENGINE if mode == "require" or not af_xdp else "recvmmsg"
    return f"""
[daemon]
sandbox = "{mode}"
{'user = "root"' if USER == 0 else ""}
control_socket = "{directory}/control.sock"
metrics_address = "127.0.0.1:{port + 9}"
stats_on_exit = "{directory}/ledger.json"
[[listener]]
name = "in"
address = "127.0.0.1:{port + 1}"
sequence = "rtp"
engine = "{"recvmmsg" if af_xdp else ENGINE}"
sinks = ["file", "relay", "named", "messages", "spilling", "sources", "nothing"]
[[listener]]
name = "engine"
address = "{address}"
engine = "{engine}"
{interface}
sinks = ["nothing"]
[sink.file]
type = "file"
path = "{directory}/in.log"
compress = "gzip"
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:{port + 2}"]
[sink.named]
type = "udp"
destinations = ["localhost:{port + 3}"]
[sink.messages]
type = "unix"
path = "{directory}/messages"
[sink.spilling]
type = "unix"
path = "{directory}/absent"
spill = {{ path = "{directory}/spill", bytes = "64MiB" }}
[sink.sources]
type = "file"
path = "{directory}/by/{{source}}.log"
[sink.nothing]
type = "null"
"""


def as_user(command):
    return command if USER == 0 else ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]


class Daemon:
    def __init__(self, mode):
        self.directory = WORK / f"inject-{USER}-{ENGINE}-{mode}"
        self.directory.mkdir()
        os.chown(self.directory, USER, USER)
        (self.directory / "udpd.toml").write_text(configuration(self.directory, mode))
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # In the abstract namespace, which is out of reach inside but for this.
        self.notify.bind(f"\0{self.directory}-notify")
        self.notify.settimeout(60)
        environment = dict(os.environ, NOTIFY_SOCKET=f"@{self.directory}-notify")
        command = as_user([UDPD, "run", "-c", str(self.directory / "udpd.toml")])
        self.log = open(self.directory / "log", "w+b")
        self.process = subprocess.Popen(command, stderr=self.log, env=environment)
        STARTED.append(self.process)
        self.wait_for(b"READY=1")
        self.port = PORTS[mode] + 1

    def wait_for(self, word):
        while True:
            try:
                if word in self.notify.recv(4096):
                    return
            except TimeoutError:
                fail(f"{self.directory} does not say {word}: {self.said()}")

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()

    def warden(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def deliver_and_end(self):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(COUNT):
            sender.sendto(b"\x80\0" + number.to_bytes(2, "big") + bytes(20), ("127.0.0.1", self.port))
        deadline = time.monotonic() + 60
        while self.received() != COUNT:
            if time.monotonic() > deadline:
                fail(f"received {self.received()} of {COUNT}: {self.said()}")
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)
        self.wait_for(b"STOPPING=1")
        if self.process.wait(60) != 0:
            fail(f"the end is no success: {self.said()}")
        ledger = json.loads((self.directory / "ledger.json").read_text())["listeners"][0]
        if ledger["arrived"] != COUNT or ledger["residual"] != 0 or ledger["sinks"][0]["delivered"] != COUNT:
            fail(f"the books: {json.dumps(ledger)}")

    def received(self):
        command = [UDPD, "stats", "--json", "--socket", str(self.directory / "control.sock")]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["listeners"][0]["received"]


def inject(process, victim, thread=None):
    """(thread, attempt) -> result"""
    command = [INJECT, str(process), str(victim), str(PLACE), *([str(thread)] if thread else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"inject: {done.stderr}")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(name, what, int(result)) for _, name, what, result in rows]


def granted(thread):
    of = [what for pattern, what in GRANTED if re.fullmatch(pattern, thread)]
    return of[0] if of else []


def main():
    # Files that the rights of the user would let it do everything with, and a name in the abstract namespace.
    PLACE.mkdir()
    for name in ("secret", "open"):
        (PLACE / name).write_text("x")
        os.chown(PLACE / name, USER, USER)
    os.chown(PLACE, USER, USER)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{PLACE}")
    listening.listen(1000)
    victim = subprocess.Popen(as_user(["sleep", "600"]))
    relayed = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in PORTS]
    for one, port in zip(relayed, PORTS.values()):
        one.bind(("127.0.0.1", port + 2))
    STARTED.append(victim)
    daemon, control = Daemon("require"), Daemon("off")
    open_answers = {}
    for _, what, result in inject(control.process.pid, victim.pid, control.process.pid):
        open_answers[what] = result
    closed = inject(daemon.process.pid, victim.pid)
    if warden := daemon.warden():
        closed += inject(warden, victim.pid)
    wrong, kinds, refused = [], collections.Counter(), 0
    for thread, what, result in closed:
        kinds[thread] += 1
        before = open_answers[what]
        by_wall = before != ENOSYS and (result == ENOSYS or (result in RIGHTS and before not in RIGHTS))
        refused += by_wall
        if by_wall == (what in granted(thread)):
            says = "refused although granted" if by_wall else "not refused by the wall"
            wrong.append(f"{thread}: {what}: {result}, without the sandbox {before}: {says}")
    if wrong:
        fail("\n  ".join([f"{len(wrong)} of {len(closed)}", *wrong]))
    if victim.poll() is not None:
        fail("the victim is gone")
    for one in (daemon, control):
        one.deliver_and_end()
    victim.kill()
    victim.wait()
    print(f"injected as user {USER}, {ENGINE}: {refused} of {len(closed)} attempts by {len(kinds)} threads refused by the wall, "
          f"the rest granted: {', '.join(sorted(kinds))}")


main()
