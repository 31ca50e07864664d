"""The cases of denied_calls.sh: which calls fail from now on, and what the ledger then has to say.

Each case starts a daemon, lets strace attach to it, sends numbered datagrams, and ends it by SIGTERM. What was sent is counted
here and what was delivered is read from the file: the ledger is what is judged, not what is believed.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

UDPD, WORK = sys.argv[1], pathlib.Path(sys.argv[2])
COUNT = 4000
# Not a measurement: what the end may take in all, five seconds for sinks and some for giving up, on a busy machine.
END_LIMIT_SECONDS = 20

RECEIVE = ["recvmmsg"]
# Every call that the end makes and that somebody may deny.
EVERYTHING = ["shutdown", "setsockopt", "getsockopt", "membarrier", "recvmsg", "recvmmsg", "bpf"]

# Name, calls, error, whether every datagram must be known, engines.
CASES = [
    ("a receive call that runs out of memory", RECEIVE, "ENOMEM", True, ["recvmmsg"]),
    ("a receive call that finds no buffers", RECEIVE, "ENOBUFS", True, ["recvmmsg"]),
    ("a receive call that a filter denies", RECEIVE, "EPERM", True, ["recvmmsg"]),
    ("no receive call at all", ["recvmmsg", "recvmsg"], "EPERM", False, ["recvmmsg"]),
    ("no way to wake a receiver", ["shutdown"], "EPERM", True, ["recvmmsg", "io_uring"]),
    ("no way to refuse arrivals", ["setsockopt"], "EPERM", True, ["recvmmsg", "io_uring"]),
    ("neither", ["shutdown", "setsockopt", "membarrier"], "EPERM", True, ["recvmmsg", "io_uring"]),
    ("a kernel that does not tell its drops", ["getsockopt"], "EPERM", False, ["recvmmsg"]),
    ("a ring that cannot be entered", ["io_uring_enter"], "ENOMEM", True, ["io_uring"]),
    ("everything at once", EVERYTHING, "EPERM", False, ["recvmmsg", "io_uring"]),
]


class Daemon:
    """A daemon with its notify socket, its file and its ledger in a directory of its own."""

    def __init__(self, directory, engine, lanes):
        self.directory = directory
        directory.mkdir()
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(directory / "notify"))
        notify.settimeout(30)
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.bind(("127.0.0.1", 0))
        self.address = probe.getsockname()
        probe.close()
        (directory / "udpd.toml").write_text(
            f"""
            [daemon]
            control_socket = "{directory}/control.sock"
            metrics_address = ""
            stats_on_exit = "{directory}/ledger.json"
            [[listener]]
            name = "in"
            address = "127.0.0.1:{self.address[1]}"
            engine = "{engine}"
            lanes = {lanes}
            sinks = ["archive"]
            [sink.archive]
            type = "file"
            path = "{directory}/in.log"
            """
        )
        self.stderr = open(directory / "stderr", "wb")
        environment = dict(os.environ, NOTIFY_SOCKET=str(directory / "notify"))
        command = [UDPD, "run", "-c", str(directory / "udpd.toml")]
        self.process = subprocess.Popen(command, stderr=self.stderr, env=environment)
        while b"READY=1" not in notify.recv(4096):
            pass
        # Still held: a status that nobody takes would be an error of its own.
        self.notify = notify

    def said(self):
        return (self.directory / "stderr").read_text()


def deny(daemon, calls, error):
    """Attaches strace, which has every one of these calls fail from now on, in every thread."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(daemon.process.pid), "-e", "trace=" + ",".join(calls)]
    for call in calls:
        command += ["-e", f"inject={call}:error={error}:when=1+"]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    status = pathlib.Path(f"/proc/{daemon.process.pid}/task")
    deadline = time.monotonic() + 30
    # The event to wait for is that every thread has its tracer.
    while not all(f"TracerPid:\t{tracer.pid}" in (task / "status").read_text() for task in status.iterdir()):
        if time.monotonic() > deadline or tracer.poll() is not None:
            raise SystemExit("strace did not attach")
    return tracer


def send(address):
    """Sends numbered datagrams from two ports, with room for the receiver in between."""
    senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for number in range(COUNT):
        senders[number % 2].sendto(b"number %d" % number, address)
        if number % 200 == 199:
            time.sleep(0.01)


def run(name, calls, error, is_known, engine, lanes, directory):
    daemon = Daemon(directory, engine, lanes)
    tracer = deny(daemon, calls, error)
    send(daemon.address)
    daemon.process.send_signal(signal.SIGTERM)
    try:
        status = daemon.process.wait(END_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.process.kill()
        daemon.process.wait()
        return [f"did not end within {END_LIMIT_SECONDS} s after SIGTERM"]
    finally:
        tracer.wait()
    wrong = []
    if status != 0:
        wrong.append(f"ended with {status}")
    listener = json.loads((directory / "ledger.json").read_text())["listeners"][0]
    lines = (directory / "in.log").read_text().splitlines()
    sink = listener["sinks"][0]
    if len(lines) != sink["delivered"] or len(set(lines)) != len(lines):
        wrong.append(f"{len(lines)} lines ({len(set(lines))} different), delivered {sink['delivered']}")
    dropped = sum(listener["dropped"].values())
    if listener["received"] != sink["offered"] + dropped or sink["in_flight"] != 0:
        wrong.append("received is not offered + dropped")
    if sink["offered"] != sink["delivered"] + sum(sink["dropped"].values()):
        wrong.append("offered is not delivered + dropped")
    if listener["arrived"] is None:
        if is_known:
            wrong.append("arrived is null although it could be known")
        if listener["residual"] is not None:
            wrong.append(f"arrived is null and residual is {listener['residual']}")
    elif listener["arrived"] != COUNT or listener["residual"] != 0:
        wrong.append(f"sent {COUNT}, arrived {listener['arrived']}, residual {listener['residual']}")
    if wrong:
        wrong.append(json.dumps(listener))
        wrong.append(daemon.said())
    return wrong


def main():
    failed = 0
    number = 0
    for name, calls, error, is_known, engines in CASES:
        for engine in engines:
            for lanes in (1, 2):
                number += 1
                title = f"{name} ({error}), {engine}, {lanes} lanes"
                try:
                    wrong = run(name, calls, error, is_known, engine, lanes, WORK / str(number))
                except (OSError, ValueError, KeyError) as problem:
                    wrong = [repr(problem)]
                print(f"{'FAILED' if wrong else 'passed'}: {title}", flush=True)
                for line in wrong:
                    print(f"    {line}")
                failed += bool(wrong)
    print(f"denied_calls: {number - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
