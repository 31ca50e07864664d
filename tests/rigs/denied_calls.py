"""The cases of denied_calls.sh: which calls fail from now on, and what the ledger then has to say.

Each case starts a daemon, lets strace attach to it, sends numbered datagrams, and ends it by SIGTERM. What was sent is
counted here and what was delivered is read from the file: the ledger is what is judged, not what is believed.
"""
import json
import os
import signal
import subprocess
import time

from lib import net
from lib.check import Failed, Skipped, check, main, passed, until
from lib.daemon import Daemon, dropped_at, listening, start
from lib.host import read
from lib.load import free_port

COUNT = 4000
# Not a measurement: what the end may take in all, five seconds for sinks and some for giving up, on a busy machine.
END_LIMIT_SECONDS = 20

RECEIVE = ["recvmmsg"]
# Every call that the end makes and that may be denied.
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


def deny(process, calls, error):
    """Attaches strace, which has every one of these calls fail from now on, in every thread."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", process.pid, "-e", "trace=" + ",".join(calls)]
    for call in calls:
        command += ["-e", f"inject={call}:error={error}:when=1+"]
    tracer = start(command, stderr=subprocess.DEVNULL)

    def is_attached():
        check(tracer.poll() is None, "strace did not attach")
        tasks = os.listdir(f"/proc/{process.pid}/task")
        return all(f"TracerPid:\t{tracer.pid}" in read(f"/proc/{process.pid}/task/{task}/status") for task in tasks)

    until("strace has every thread", is_attached, 30)
    return tracer


def may_trace():
    sleeper = start(["sleep", "60"])
    try:
        tracer = deny(sleeper, ["poll"], "EINTR")
    except Failed as why:
        raise Skipped("needs the right to trace another process") from why
    sleeper.kill()
    tracer.wait()


def send(port):
    """Sends numbered datagrams from two ports, with room for the receiver in between."""
    senders = [net.udp_socket() for _ in range(2)]
    for number in range(COUNT):
        senders[number % 2].sendto(b"number %d" % number, ("127.0.0.1", port))
        if number % 200 == 199:
            time.sleep(0.01)


def wrong_with(calls, error, is_known, engine, lanes):
    """What the ledger says otherwise than it is."""
    port = free_port()
    daemon = Daemon(listening(f'address = "127.0.0.1:{port}"\nengine = "{engine}"\nlanes = {lanes}',
                              archive='type = "file"\npath = "DIR/in.log"'))
    tracer = deny(daemon.child, calls, error)
    send(port)
    daemon.child.send_signal(signal.SIGTERM)
    try:
        status = daemon.child.wait(END_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        return [f"did not end within {END_LIMIT_SECONDS} s after SIGTERM"]
    finally:
        tracer.wait()
    listener = daemon.last()["listeners"][0]
    lines = read(f"{daemon.directory}/in.log").splitlines()
    sink, arrived, residual = listener["sinks"][0], listener["arrived"], listener["residual"]
    wrong = {
        f"ended with {status}": status != 0,
        f"{len(lines)} lines ({len(set(lines))} different), delivered {sink['delivered']}":
            len(lines) != sink["delivered"] or len(set(lines)) != len(lines),
        "received is not offered + dropped":
            listener["received"] != sink["offered"] + dropped_at(listener) or sink["in_flight"] != 0,
        "offered is not delivered + dropped": sink["offered"] != sink["delivered"] + dropped_at(sink),
        "arrived is null although it could be known": arrived is None and is_known,
        f"arrived is null and residual is {residual}": arrived is None and residual is not None,
        f"sent {COUNT}, arrived {arrived}, residual {residual}":
            arrived is not None and (arrived, residual) != (COUNT, 0),
    }
    found = [what for what, is_so in wrong.items() if is_so]
    return found + ([json.dumps(listener), daemon.log()] if found else [])


def cases():
    failed = 0
    for name, calls, error, is_known, engines in CASES:
        for engine in engines:
            for lanes in (1, 2):
                title = f"{name} ({error}), {engine}, {lanes} lanes"
                if wrong := wrong_with(calls, error, is_known, engine, lanes):
                    failed += 1
                    print(f"FAILED: {title}", *wrong, sep="\n    ", flush=True)
                else:
                    passed(title)
    check(not failed, f"{failed} cases")


main(may_trace, cases)
