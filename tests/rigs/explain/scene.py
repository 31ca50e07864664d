"""What the cases stand on: senders in the other namespace, a daemon and foreign readers in this one, `udpd explain`
beside them, and the cures that it prints, applied as they stand."""
import ctypes
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

from lib.check import Failed

HERE = "10.9.0.1"
UDP_SEGMENT = 103


class Skipped(Exception):
    """This machine cannot provoke the case."""


def enter(namespace):
    """What this thread makes from now on is of this network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Scene:
    """One case: whatever was started for it ends with it."""

    def __init__(self, work, other):
        self.work, self.other, self.started, self.undo = work, other, [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for action in reversed(self.undo):
            action()
        for process in self.started:
            stop(process)

    def sender(self, source=None, kind=socket.SOCK_DGRAM):
        """A socket of the other namespace."""
        with open("/proc/self/ns/net", "rb") as own, open(f"/proc/{self.other}/ns/net", "rb") as there:
            enter(there)
            try:
                made = socket.socket(socket.AF_INET, kind, socket.IPPROTO_UDP)
                if source:
                    made.bind((source, 0))
            finally:
                enter(own)
        return made

    def over_there(self, command):
        subprocess.run(["nsenter", "--target", str(self.other), "--net", "sh", "-c", command], check=True)

    def start(self, command, **options):
        process = subprocess.Popen(command, **options)
        self.started.append(process)
        return process

    def reader(self, port, body="pass", options="", before=()):
        """A program of somebody else that reads a port, and does `body` for each datagram."""
        text = (f"import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n{options}\n"
                f"s.bind(('', {port}))\nprint('ready', flush=True)\nwhile True:\n    s.recv(65535)\n    {body}\n")
        process = self.start([*before, sys.executable, "-c", text], stdout=subprocess.PIPE)
        process.stdout.readline()
        return process

    def daemon(self, keys, stdout=subprocess.DEVNULL, before=()):
        """udpd with these keys: {table: {key: value}}, values as TOML has them."""
        path = f"{self.work}/udpd.toml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[daemon]\ncontrol_socket = "{self.work}/control.sock"\nmetrics_address = ""\n')
            for table, values in keys.items():
                file.write(f"{table}\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
        log = open(f"{self.work}/log", "w+b")  # pylint: disable=consider-using-with
        process = self.start([*before, f"{self.work}/udpd", "run", "-c", path], stdout=stdout, stderr=log)
        deadline = time.monotonic() + 20
        while b"ready" not in open(f"{self.work}/log", "rb").read():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed("udpd is not ready: " + open(f"{self.work}/log", encoding="utf-8").read())
            time.sleep(0.02)
        return process

    def explain(self, provoke, *arguments, seconds=1, before=()):
        """What explain says while something happens."""
        command = [*before, f"{self.work}/udpd", "explain", "--json", "--seconds", str(seconds), *arguments]
        # On a terminal it says when it has begun to watch.
        terminal, its_end = os.openpty()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end)
        os.close(its_end)
        told = b""
        try:
            while b"watching" not in told:
                told += os.read(terminal, 4096)
        except OSError as gone:
            raise Failed(f"{command} ended with {process.wait()}: {told.decode()}") from gone
        thread = threading.Thread(target=provoke, daemon=True)
        thread.start()
        out, _ = process.communicate(timeout=60)
        thread.join()
        os.close(terminal)
        said = json.loads(out)
        if process.returncode != (3 if said["lost"] else 0):
            raise Failed(f"exit code {process.returncode} and lost {said['lost']}")
        return said


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()


def far_less(said, found):
    """A cure by priority or by a larger program: another program may still take the core for a moment."""
    lost = sum(finding["lost"] for finding in said["findings"] if finding["layer"] == found["layer"])
    if lost * 10 > found["lost"]:
        raise Failed(f"the cure does not help, {found['lost']} were lost before: {json.dumps(said, indent=1)}")


def nothing_at(said, layer):
    if any(finding["lost"] and finding["layer"] == layer for finding in said["findings"]):
        raise Failed(f"the cure does not help at {layer}: {json.dumps(said, indent=1)}")


def apply(found):
    """Sets a sysctl, or runs a command, exactly as printed."""
    if found["kind"] == "sysctl":
        subprocess.run(["sysctl", "-qw", f"{found['name']}={found['value']}"], check=True)
    else:
        subprocess.run(shlex.split(found["command"]) if ">" not in found["command"] else ["sh", "-c", found["command"]],
                       check=True)


def change(keys, found):
    """A configuration with the printed key in it."""
    table = "[[listener]]" if found["table"] == "listener" else f"[{found['table']}.{found['name']}]"
    if table not in keys or not re.fullmatch(r"[a-z_]+", found["key"]):
        raise Failed(f"there is no {table} for {found}")
    return {**keys, table: {**keys[table], found["key"]: found["value"]}}


def listening(port, sink='type = "null"', **keys):
    """A configuration with one listener and one sink."""
    kind, _, value = sink.partition(" = ")
    listener = {"name": '"in"', "address": f'"0.0.0.0:{port}"', "sinks": '["out"]', "lanes": "1", "gro": '"off"'}
    return {"[[listener]]": {**listener, **keys}, "[sink.out]": {kind: value}}


def paced(sender, port, rate, seconds, payload=b"x" * 60):
    """One by one. A sender that was held up lets what it missed be, or it would send a burst."""
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic() - began) < seconds:
        sent = max(sent, int(now * rate) - 8)
        while sent < now * rate:
            sender.sendto(payload, (HERE, port))
            sent += 1
        time.sleep(0.0005)


def bursts(sender, port, datagrams, times, pause, size=60):
    """So many datagrams at once, which the kernel cuts at the receiver's socket."""
    sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
    for _ in range(times):
        sender.sendto(b"x" * (size * datagrams), (HERE, port))
        time.sleep(pause)


def stalled(process, work, seconds):
    """Does `work` while a process is stopped, and for so long after it that a busy kernel has delivered it all."""
    process.send_signal(signal.SIGSTOP)
    try:
        work()
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)
