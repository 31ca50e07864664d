"""What the cases stand on: senders in the other namespace, a daemon and foreign readers in this one, `udpd explain`
beside them, and the cures that it prints, applied as they stand."""
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

from lib import net
from lib.check import check
from lib.daemon import UDPD, Daemon
from lib.net import OTHER, UDP_SEGMENT, run

HERE = "10.9.0.1"


class Scene:
    """One case: what was started for it ends with it."""

    def __init__(self):
        self.started, self.undo = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for action in reversed(self.undo):
            action()
        self.stop_all()

    def stop_all(self):
        for process in self.started:
            stop(process)

    def start(self, command, **options):
        process = subprocess.Popen(command, **options)
        self.started.append(process)
        return process

    def reader(self, port, body="pass", options="", before=()):
        """Another program that reads a port, and does `body` for each datagram."""
        text = (f"import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n{options}\n"
                f"s.bind(('', {port}))\nprint('ready', flush=True)\nwhile True:\n    s.recv(65535)\n    {body}\n")
        process = self.start([*before, sys.executable, "-c", text], stdout=subprocess.PIPE)
        process.stdout.readline()
        return process

    def daemon(self, keys, **options):
        """udpd with these keys: {table: {key: value}}, values as TOML has them."""
        text = "".join(f"{table}\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
                       for table, values in keys.items())
        self.config = Daemon(text, **options)
        self.started.append(self.config.child)
        return self.config.child

    def again(self, keys, **options):
        """udpd with other keys instead."""
        self.stop_all()
        return self.daemon(keys, **options)

    def explain(self, provoke, *arguments, seconds=1, before=()):
        """What explain says while something happens."""
        command = [*before, UDPD, "explain", "--json", "--seconds", str(seconds), *arguments]
        # On a terminal it says when it has begun to watch.
        terminal, its_end = os.openpty()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end)
        os.close(its_end)
        told = b""
        while b"watching" not in told:
            try:
                told += os.read(terminal, 4096)
            except OSError:
                check(False, f"{command} ended with {process.wait()}: {told.decode()}")
        thread = threading.Thread(target=provoke, daemon=True)
        thread.start()
        out, _ = process.communicate(timeout=60)
        thread.join()
        os.close(terminal)
        said = json.loads(out)
        check(process.returncode == (3 if said["lost"] else 0),
              f"exit code {process.returncode} and lost {said['lost']}")
        return said

    def load(self, port, rate, seconds, payload=b"x" * 60, source="", watched=1):
        """Sends one by one from the other namespace; each call is what explain says of it."""
        own = sender(source)
        return lambda **options: self.explain(lambda: paced(own, port, rate, seconds, payload), "--port", str(port),
                                              seconds=watched, **options)

    def explain_udpd(self, provoke, **options):
        """The same of the daemon, by its file."""
        return self.explain(provoke, "-c", self.config.config, **options)


def sender(source="", kind=socket.SOCK_DGRAM):
    """A socket of the other namespace."""
    if kind == socket.SOCK_DGRAM:
        return net.udp_socket(source, place=OTHER)
    with net.inside(OTHER):
        return socket.socket(socket.AF_INET, kind, socket.IPPROTO_UDP)


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()


def far_less(said, found):
    """A cure by priority or by a larger program: another program may still take the core for a moment."""
    lost = sum(finding["lost"] for finding in said["findings"] if finding["layer"] == found["layer"])
    check(lost * 10 <= found["lost"],
          lambda: f"the cure does not help, {found['lost']} were lost before: {json.dumps(said, indent=1)}")


def nothing_at(said, layer):
    check(not any(finding["lost"] and finding["layer"] == layer for finding in said["findings"]),
          lambda: f"the cure does not help at {layer}: {json.dumps(said, indent=1)}")


def apply(found):
    """Sets a sysctl, or runs a command, exactly as printed."""
    if found["kind"] == "sysctl":
        run("sysctl", "-qw", f"{found['name']}={found['value']}")
    else:
        run(*(shlex.split(found["command"]) if ">" not in found["command"] else ["sh", "-c", found["command"]]))


def change(keys, found):
    """A configuration with the printed key in it."""
    table = "[[listener]]" if found["table"] == "listener" else f"[{found['table']}.{found['name']}]"
    check(table in keys and re.fullmatch(r"[a-z_]+", found["key"]), f"there is no {table} for {found}")
    return {**keys, table: {**keys[table], found["key"]: found["value"]}}


def listening(port, sink='type = "null"', **keys):
    """A configuration with one listener and one sink."""
    kind, _, value = sink.partition(" = ")
    listener = {"name": '"in"', "address": f'"0.0.0.0:{port}"', "sinks": '["out"]', "lanes": "1", "gro": '"off"'}
    return {"[[listener]]": {**listener, **keys}, "[sink.out]": {kind: value}}


def paced(own, port, rate, seconds, payload=b"x" * 60):
    """One by one. A sender that was held up lets what it missed be, or it would send a burst."""
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic() - began) < seconds:
        sent = max(sent, int(now * rate) - 8)
        while sent < now * rate:
            own.sendto(payload, (HERE, port))
            sent += 1
        time.sleep(0.0005)


def bursts(own, port, datagrams, times, pause, size=60):
    """So many datagrams at once, which the kernel cuts at the receiver's socket."""
    own.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
    for _ in range(times):
        own.sendto(b"x" * (size * datagrams), (HERE, port))
        time.sleep(pause)


def stalled(process, work, seconds):
    """Does `work` while a process is stopped, and for so long after it that a busy kernel has delivered it all."""
    process.send_signal(signal.SIGSTOP)
    try:
        work()
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)
