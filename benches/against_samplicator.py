#!/usr/bin/env python3
"""A relay to two destinations against samplicator: CPU a datagram, and the highest rate without a loss, on loopback.

    benches/against_samplicator.py UDPD [--samplicate PATH] [--rows cpu,highest] [--pairs 5] [--record FILE]

samplicator takes a datagram by recvfrom and hands it on by one sendto for each destination. Both receive on core 0
with a buffer of 32 MiB, and the sender sits on core 1. Contenders take turns, and samplicator runs twice in each round:
what it differs from itself is the noise of the machine. udpd runs as it comes, with the sink `inline`, and with
datagrams that gather for a millisecond into batches of 256.

No program reads at the destinations, so that no reader takes a core. What came is what waits there and what the kernel
dropped there for want of room, which it counts for each socket: so every datagram is accounted for. The ledger of udpd
is held against these counts and does not take part in them.

It says SKIPPED where there is no samplicate. It needs root, for a network namespace in which no stranger sends, and to
give samplicator its buffer. Whatever it has started, it ends.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from key_cost import machine_ns, process_ns  # noqa: E402  its place is known only now

HOST, PORT = "127.0.0.1", 5197
SIZE, FLOWS = 200, 4
RATES = (100_000, 300_000)
STEP, MOST = 50_000, 2_000_000
BUFFER = 32 << 20
SO_RCVBUFFORCE, SYS_PIDFD_GETFD = 33, 438
SAMPLICATOR = "samplicator"
GATHER = 'gather = "1ms"\nbatch_size = 256\n'
# The keys of the listener and those of the sink.
SETTINGS = {
    "udpd": ("", ""),
    "udpd, inline": ("", "inline = true\n"),
    "udpd, gather": (GATHER, ""),
    "udpd, gather, inline": (GATHER, "inline = true\n"),
}
children = []


def sockets():
    """The UDP sockets of IPv4: what waits in bytes, and what the kernel has dropped, by inode with the port."""
    with open("/proc/net/udp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {int(row[9]): (int(row[1][-4:], 16), int(row[4][9:], 16), int(row[12])) for row in rows}


def at_the_door():
    """What waits in bytes and what was dropped at the relay's own socket; None until there is one."""
    own = [(waits, dropped) for port, waits, dropped in sockets().values() if port == PORT]
    return tuple(map(sum, zip(*own))) if own else None


def inode(fd):
    return os.fstat(fd).st_ino


def socket_of(process):
    """A copy of the socket on which another process receives."""
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        link = os.readlink(f"/proc/{process.pid}/fd/{name}")
        found = sockets().get(int(link[8:-1])) if link.startswith("socket:[") else None
        if found and found[0] == PORT:
            pidfd = os.pidfd_open(process.pid)
            copy = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, pidfd, int(name), 0)
            os.close(pidfd)
            if copy < 0:
                sys.exit(f"pidfd_getfd of process {process.pid}: {os.strerror(ctypes.get_errno())}")
            return socket.socket(fileno=copy)
    sys.exit(f"process {process.pid} has no socket at port {PORT}")


class Destination:
    """A socket without a reader, with next to no buffer."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((HOST, 0))
        self.port = self.socket.getsockname()[1]
        self.taken = 0

    def came(self):
        """How many have come so far. Takes out what waits, so call it only when the sender has ended."""
        while True:
            try:
                payload, sender = self.socket.recvfrom(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self.taken + sockets()[inode(self.socket.fileno())][2]
            if len(payload) != SIZE:
                sys.exit(f"{len(payload)} bytes came out where {SIZE} went in, from {sender}: {payload[:64].hex()}")
            self.taken += 1


def settled(destinations, sent):
    """What came to each, and what was lost at the door: when all has come, or when nothing moves for a second."""
    before, until = None, time.monotonic()
    while True:
        waits, dropped = at_the_door()
        came = [destination.came() for destination in destinations]
        if all(count == sent - dropped for count in came):
            return came, dropped
        now = (waits, dropped, came)
        if now != before:
            before, until = now, time.monotonic() + 1
        elif waits == 0 and time.monotonic() > until:
            return came, dropped
        time.sleep(0.02)


class Relay:
    """A relay under test: started, pinned and ended."""

    def __init__(self, command, log, ready):
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        children.append(self.process)
        while not ready():
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(command)} did not start:\n{open(log).read()}")
            time.sleep(0.02)

    def check(self, _sent, _dropped, _came):
        """What it says of itself that is not so."""
        return []

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            sys.exit(f"{self.process.args[0]} does not end")


class Samplicator(Relay):
    def __init__(self, program, directory, destinations):
        command = ["taskset", "-c", "0", program, "-4", "-s", HOST, "-p", str(PORT), "-b", str(BUFFER)]
        command += [f"{HOST}/{destination.port}" for destination in destinations]
        super().__init__(command, f"{directory}/log", at_the_door)
        # It asks without force, and the kernel gives it no more than net.core.rmem_max.
        with socket_of(self.process) as receiving:
            receiving.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)


class Daemon(Relay):
    def __init__(self, udpd, directory, destinations, settings):
        of_listener, of_sink = settings
        self.udpd, self.control, self.destinations = udpd, f"{directory}/control", destinations
        path, log = f"{directory}/udpd.toml", f"{directory}/log"
        each = ", ".join(f'"{HOST}:{destination.port}"' for destination in destinations)
        with open(path, "w") as file:
            file.write(
                f'[daemon]\ncontrol_socket = "{self.control}"\nmetrics_address = ""\n[steer]\ncpus = "0"\n'
                f'[[listener]]\nname = "in"\naddress = "{HOST}:{PORT}"\nreceive_buffer = {BUFFER}\n'
                f'{of_listener}sinks = ["relay"]\n[sink.relay]\ntype = "udp"\ndestinations = [{each}]\n{of_sink}'
            )
        super().__init__([udpd, "run", "-c", path], log, lambda: "ready" in open(log).read())

    def check(self, sent, dropped, came):
        command = [self.udpd, "stats", "--json", "--socket", self.control]
        until = time.monotonic() + 20
        while True:
            done = subprocess.run(command, capture_output=True, check=True, timeout=20)
            listener = json.loads(done.stdout)["listeners"][0]
            sinks = {sink["name"].rpartition(":")[2]: sink for sink in listener["sinks"]}
            if all(sink["in_flight"] == 0 for sink in sinks.values()) or time.monotonic() > until:
                break
            time.sleep(0.05)
        pairs = [("received", listener["received"], sent - dropped)]
        pairs += [("kernel_dropped", listener["kernel_dropped"], dropped)]
        for destination, count in zip(self.destinations, came):
            pairs.append((f"delivered to {destination.port}", sinks[str(destination.port)]["delivered"], count))
        return [f"the ledger says {what} {says}, counted were {was}" for what, says, was in pairs if says != was]


class Bench:
    def __init__(self, options):
        self.udpd, self.program = os.path.realpath(options.udpd), options.samplicate
        self.pairs, self.seconds = options.pairs, options.seconds
        self.lines = []
        self.wrong = 0

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def send(self, rate):
        command = [self.udpd, "bench", "send", "--json", "--to", f"{HOST}:{PORT}", "--rate", str(rate)]
        command += ["--seconds", str(self.seconds), "--size", str(SIZE), "--flows", str(FLOWS), "--cpu", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.seconds + 60)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")
        return json.loads(done.stdout)["report"]["sent"]

    def once(self, name, rate):
        """CPU of the process and of the machine in ns, what was sent, what came to each, what was lost at the door."""
        destinations = [Destination(), Destination()]
        with tempfile.TemporaryDirectory() as directory:
            if name == SAMPLICATOR:
                relay = Samplicator(self.program, directory, destinations)
            else:
                relay = Daemon(self.udpd, directory, destinations, SETTINGS[name])
            own, machine = process_ns(relay.process.pid), machine_ns()
            sent = self.send(rate)
            came, dropped = settled(destinations, sent)
            machine, own = machine_ns() - machine, process_ns(relay.process.pid) - own
            for line in relay.check(sent, dropped, came):
                self.say(f"WRONG: {name} at {rate:,}/s: {line}")
                self.wrong += 1
            relay.end()
        for destination in destinations:
            destination.socket.close()
        return own, machine, sent, came, dropped

    def cpu(self, rate):
        self.say(f"\n## CPU a datagram at {rate:,}/s of {SIZE} bytes, two destinations\n")
        kinds = {SAMPLICATOR: SAMPLICATOR, f"{SAMPLICATOR}, again": SAMPLICATOR}
        kinds.update({name: name for name in SETTINGS})
        rows = {kind: [] for kind in kinds}
        for number in range(self.pairs):
            order = list(kinds)
            order = order[number % len(order):] + order[:number % len(order)]
            for kind in order:
                rows[kind].append(self.once(kinds[kind], rate))
        self.say("| | process, ns | ratio | machine, ns | ratio | sent | relayed to each | lost | lost at the door |")
        self.say("|---|---|---|---|---|---|---|---|---|")
        for kind in kinds:
            figures = []
            for what in (0, 1):
                # For each datagram that went to both: a relay must not gain by what it loses.
                each = [[2 * row[what] / max(1, sum(row[3])) for row in rows[name]] for name in (kind, SAMPLICATOR)]
                ratio = statistics.median(one / base for one, base in zip(*each))
                figures.append(f"{statistics.median(each[0]):.0f} | {ratio:.3f}")
            sent, dropped = (sum(row[at] for row in rows[kind]) for at in (2, 4))
            came = [sum(row[3][at] for row in rows[kind]) for at in (0, 1)]
            lost = ", ".join(str(sent - one) for one in came)
            relayed = ", ".join(map(str, came))
            self.say(f"| {kind} | {' | '.join(figures)} | {sent} | {relayed} | {lost} | {dropped} |")

    def highest(self):
        """Up in steps until a rate loses something twice."""
        self.say(f"\n## Highest rate without a loss, {SIZE} bytes, two destinations\n")
        self.say("| | highest rate without a loss | of samplicator's | the next |")
        self.say("|---|---|---|---|")
        base = None
        for name in (SAMPLICATOR, *SETTINGS):
            best, why = self.climb(name)
            base = base or best
            times = f"{best / base:.2f}" if base else "-"
            self.say(f"| {name} | {best:,.0f}/s | {times} | {why} |")

    def climb(self, name):
        best = 0
        for rate in range(STEP, MOST + 1, STEP):
            tries = []
            while len(tries) < 2 and not any(lost == 0 for _, lost in tries):
                _, _, sent, came, _ = self.once(name, rate)
                tries.append((sent, 2 * sent - sum(came)))
            kept = [sent for sent, lost in tries if lost == 0]
            if not kept:
                return best, f"{rate:,}/s loses " + ", ".join(f"{lost} of {2 * sent}" for sent, lost in tries)
            best = max(best, kept[0] / self.seconds)
            if kept[0] / self.seconds < 0.97 * rate:
                return best, "the sender gives no more"
        return best, "not tried"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("udpd")
    parser.add_argument("--samplicate", default=shutil.which("samplicate"), help="the program, where it is not in PATH")
    parser.add_argument("--rows", default="cpu,highest")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--record", help="a file that the tables are written to as well")
    options = parser.parse_args()
    if not options.samplicate or not os.access(options.samplicate, os.X_OK):
        missing = f"{options.samplicate} is no program" if options.samplicate else "no samplicate in PATH"
        print(f"SKIPPED against_samplicator.py: {missing}; --samplicate PATH names it")
        return
    if not {0, 1} <= os.sched_getaffinity(0):
        print("SKIPPED against_samplicator.py: needs cores 0 and 1, one to relay and one to send")
        return
    if unknown := set(options.rows.split(",")) - {"cpu", "highest"}:
        sys.exit(f"--rows {','.join(unknown)}: not one of cpu, highest")
    if os.geteuid():
        print("SKIPPED against_samplicator.py: needs root, for a network namespace of its own")
        return
    if "AGAINST_SAMPLICATOR_INSIDE" not in os.environ:
        os.environ["AGAINST_SAMPLICATOR_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-B", *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # samplicator takes no IPv4 destination on a machine whose only IPv4 addresses are 127.0.0.0/8.
    subprocess.run(["ip", "address", "add", "198.18.0.1/32", "dev", "lo"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        bench = Bench(options)
        bench.say(f"{options.pairs} rounds of {options.seconds:g} s, {FLOWS} flows of {SIZE} bytes.")
        for name in options.rows.split(","):
            for rate in RATES if name == "cpu" else ():
                bench.cpu(rate)
            if name == "highest":
                bench.highest()
        if options.record:
            with open(options.record, "w") as file:
                file.write("\n".join(bench.lines) + "\n")
        if bench.wrong:
            sys.exit(f"the ledger was wrong {bench.wrong} times")
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


if __name__ == "__main__":
    main()
