#!/usr/bin/env python3
"""Random reloads while a sink hangs: a stream whose peer never reads, in most of the files, now and then with other
settings, another peer, or gone. Listeners and sinks come, change and go beside it. Every reload is to be in force
within a second, and what that means is judged by the files, by the socket behind a relay and by who may bind a port:
never by what udpd says of itself. Its ledger is compared in the end with what was sent.

    hanging.py --program UDPD [--reloads 40] [--seed N]
"""

import argparse
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

LISTENERS = ["alpha", "beta", "gamma"]
FILES = ["log0", "log1", "log2"]
PAYLOAD = 1000
PER_ROUND = 40
PATIENCE = 20.0
# What may be resident at the end beyond what was at the start.
SLACK_MIB = 16


def free_port():
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def without_stuck(listeners):
    rest = {name: (lanes, [sink for sink in fed if sink != "stuck"]) for name, (lanes, fed) in listeners.items()}
    return {name: (lanes, fed) for name, (lanes, fed) in rest.items() if fed}


class Campaign:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.directory = tempfile.mkdtemp(prefix="hanging-")
        self.ports = {name: free_port() for name in LISTENERS}
        self.sent = {name: 0 for name in LISTENERS}
        self.number = 0
        # By file, the numbers that have to be in it.
        self.expected = {}
        self.at_relay = set()
        self.expected_at_relay = set()
        self.sender = socket.socket(type=socket.SOCK_DGRAM)
        self.behind = socket.socket(type=socket.SOCK_DGRAM)
        self.behind.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.behind.bind(("127.0.0.1", 0))
        self.peers = []
        for place in range(2):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.bind(f"{self.directory}/peer{place}")
            peer.listen(512)
            self.peers.append(peer)
        self.answers = []
        self.most_threads = 0
        self.named = 0

    def draw(self):
        """A configuration: which sinks there are, and which of them each listener feeds."""
        draw = self.random
        sinks = {name: f"{name}-{draw.randrange(2)}.log" for name in FILES if draw.random() < 0.6}
        has_relay = draw.random() < 0.6
        has_stuck = not self.options.healthy and draw.random() < 0.9
        stuck = (draw.randrange(2) if draw.random() < 0.2 else 0, draw.choice(["1MiB", "1MiB", "1MiB", "2MiB"]))
        names = list(sinks) + ["relay"] * has_relay + ["stuck"] * has_stuck
        if not names:
            return self.draw()
        listeners = {}
        for name in LISTENERS:
            if draw.random() < 0.7 or (name == LISTENERS[-1] and not listeners):
                fed = [sink for sink in names if draw.random() < 0.6] or [draw.choice(names)]
                if has_stuck and "stuck" not in fed and draw.random() < 0.7:
                    fed.append("stuck")
                listeners[name] = (draw.randrange(1, 4), fed)
        used = {sink for _, fed in listeners.values() for sink in fed}
        return {
            "listeners": listeners,
            "files": {sink: file for sink, file in sinks.items() if sink in used},
            "relay": has_relay and "relay" in used,
            "stuck": stuck if has_stuck and "stuck" in used else None,
            "sync": draw.choice(["1s", "never"]),
        }

    def write(self, drawn):
        text = [f'[daemon]\ncontrol_socket = "{self.directory}/control.sock"\nmetrics_address = ""',
                f'stats_on_exit = "{self.directory}/ledger.json"\npool_bytes = "96MiB"']
        for name, (lanes, fed) in drawn["listeners"].items():
            sinks = ", ".join(f'"{sink}"' for sink in fed)
            text.append(f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:{self.ports[name]}"\nlanes = {lanes}\n'
                        f'max_length = 1200\nsinks = [{sinks}]')
        for sink, file in drawn["files"].items():
            text.append(f'[sink.{sink}]\ntype = "file"\npath = "{self.directory}/{file}"\nsync = "{drawn["sync"]}"')
        if drawn["relay"]:
            port = self.behind.getsockname()[1]
            text.append(f'[sink.relay]\ntype = "udp"\ndestinations = ["127.0.0.1:{port}"]')
        if drawn["stuck"]:
            place, queue = drawn["stuck"]
            text.append(f'[sink.stuck]\ntype = "unix"\nsocket = "stream"\npath = "{self.directory}/peer{place}"\n'
                        f'queue_bytes = "{queue}"')
        with open(f"{self.directory}/udpd.toml", "w") as file:
            file.write("\n".join(text) + "\n")

    def reload(self):
        begun = time.monotonic()
        done = subprocess.run([self.options.program, "reload", "--socket", f"{self.directory}/control.sock"],
                              capture_output=True, text=True, timeout=60)
        took = time.monotonic() - begun
        self.answers.append(took)
        said = done.stdout + done.stderr
        if done.returncode != 0:
            self.fail(f"refused with {done.returncode}: {said}")
        if took > self.options.limit:
            self.fail(f"answered after {took:.2f} s: {said}")
        return said

    def send(self, drawn):
        for name, (_, fed) in drawn["listeners"].items():
            for _ in range(PER_ROUND):
                self.sender.sendto(b"%09d" % self.number + b"x" * (PAYLOAD - 9), ("127.0.0.1", self.ports[name]))
                for sink in fed:
                    if sink in drawn["files"]:
                        self.expected.setdefault(drawn["files"][sink], set()).add(self.number)
                    elif sink == "relay":
                        self.expected_at_relay.add(self.number)
                self.number += 1
            self.sent[name] += PER_ROUND

    def hear(self, wait):
        while select.select([self.behind], [], [], wait)[0]:
            number = int(self.behind.recv(2000)[:9])
            if number in self.at_relay:
                self.fail(f"{number} came twice out of the relay")
            self.at_relay.add(number)
            wait = 0

    def in_file(self, file):
        with open(f"{self.directory}/{file}") as written:
            lines = written.read().split("\n")[:-1]
        numbers = [int(line[:9]) for line in lines]
        if len(set(numbers)) != len(numbers):
            self.fail(f"{file} has {len(numbers) - len(set(numbers))} datagrams twice")
        return set(numbers)

    def await_delivery(self, drawn):
        """Every file and the relay of this configuration have what was sent to them, and nothing else."""
        deadline = time.monotonic() + PATIENCE
        files = set(drawn["files"].values())
        while True:
            self.hear(0.002)
            missing = {file: self.expected.get(file, set()) - self.in_file(file) for file in files}
            if self.expected_at_relay <= self.at_relay and not any(missing.values()):
                break
            if time.monotonic() > deadline:
                lacks = {file: len(numbers) for file, numbers in missing.items()}
                self.fail(f"not in force: {lacks} missing in files, "
                          f"{len(self.expected_at_relay - self.at_relay)} at the relay")
        for file in files:
            if beyond := self.in_file(file) - self.expected.get(file, set()):
                self.fail(f"{file} has {len(beyond)} datagrams of listeners that do not feed it")
        if beyond := self.at_relay - self.expected_at_relay:
            self.fail(f"the relay sent {len(beyond)} datagrams of listeners that do not feed it")

    def bind_what_is_free(self, drawn):
        for name in set(LISTENERS) - set(drawn["listeners"]):
            with socket.socket(type=socket.SOCK_DGRAM) as other:
                try:
                    other.bind(("127.0.0.1", self.ports[name]))
                except OSError as error:
                    self.fail(f"the port of the removed listener {name} is not free: {error}")

    def status(self, key):
        with open(f"/proc/{self.daemon.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

    def fail(self, why):
        print(f"round {self.round}, seed {self.options.seed}: {why}")
        print("".join(open(f"{self.directory}/log").readlines()[-15:]))
        self.daemon.kill()
        sys.exit(1)

    def run(self):
        first = self.draw()
        while not without_stuck(first["listeners"]):
            first = self.draw()
        drawn = first
        self.write(drawn)
        log = open(f"{self.directory}/log", "w")
        self.daemon = subprocess.Popen([self.options.program, "run", "-c", f"{self.directory}/udpd.toml"], stderr=log)
        self.round = 0
        while "ready:" not in open(f"{self.directory}/log").read():
            if self.daemon.poll() is not None:
                self.fail("it does not start")
            time.sleep(0.02)
        begun_with = self.status("VmRSS")
        for self.round in range(1, self.options.reloads + 1):
            self.send(drawn)
            self.await_delivery(drawn)
            hangs = self.hangs()
            drawn = self.draw()
            self.write(drawn)
            said = self.reload()
            if hangs and "stuck" not in said:
                self.fail(f"the answer does not name the sink that hangs: {said}")
            self.named += hangs
            self.bind_what_is_free(drawn)
            self.most_threads = max(self.most_threads, self.status("Threads"))
            if self.options.memory and self.round % self.options.memory == 0:
                print(f"round {self.round}: {self.status('VmRSS')} kB, {self.status('Threads')} threads", flush=True)
        self.send(drawn)
        self.await_delivery(drawn)
        # Two pipelines may keep their memory for what hangs, and are given up by those that come then.
        listeners = without_stuck(first["listeners"])
        for more in [1, 0, 1, 0]:
            of_this = {name: (lanes + more, fed) for name, (lanes, fed) in listeners.items()}
            self.write({**first, "stuck": None, "listeners": of_this})
            self.reload()
        ended_with = self.await_memory(begun_with)
        if self.options.hold:
            print(f"pid {self.daemon.pid}", flush=True)
            time.sleep(self.options.hold)
        begun = time.monotonic()
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(60)
        took = time.monotonic() - begun
        self.judge(begun_with, ended_with, took)

    def await_memory(self, begun_with):
        """Back at the first file, it has little more than at its start."""
        deadline = time.monotonic() + PATIENCE
        while (now := self.status("VmRSS")) > begun_with + (SLACK_MIB << 10):
            if time.monotonic() > deadline:
                self.fail(f"{begun_with >> 10} MiB were resident at the start, and {now >> 10} are now")
            time.sleep(0.1)
        return now

    def hangs(self):
        """Whether a consumer waits in a call for a peer that does not read, as the kernel sees it."""
        threads = f"/proc/{self.daemon.pid}/task"
        for thread in os.listdir(threads):
            try:
                name = open(f"{threads}/{thread}/comm").read().strip()
                waits_in = open(f"{threads}/{thread}/wchan").read()
            except OSError:
                continue
            if name.endswith("-stuck") and waits_in.startswith("sock_alloc_send"):
                return True
        return False

    def judge(self, begun_with, ended_with, took):
        ledger = json.load(open(f"{self.directory}/ledger.json"))
        self.hear(0.2)
        arrived = {listener["name"]: listener for listener in ledger["listeners"]}
        given_up = 0
        answers = sorted(self.answers)
        for name, sent in self.sent.items():
            own = arrived.get(name)
            if own is None:
                assert sent == 0, f"{name} is not in the ledger"
                continue
            assert own["residual"] == 0, f"{name}: residual {own['residual']}"
            assert own["arrived"] == sent, f"{name}: {sent} sent, {own['arrived']} arrived"
            assert own["kernel_dropped"] == 0, own["kernel_dropped"]
            for sink in own["sinks"]:
                dropped = sink["dropped"]
                assert sink["in_flight"] == 0, sink
                assert sink["offered"] == sink["delivered"] + sum(dropped.values()), sink
                if sink["name"] == "stuck":
                    given_up += sum(dropped.values())
                else:
                    assert sum(dropped.values()) == 0, sink
        for file, numbers in self.expected.items():
            assert self.in_file(file) == numbers, file
        assert self.at_relay == self.expected_at_relay
        assert self.most_threads < 60, f"{self.most_threads} threads"
        what = "no sink that hangs" if self.options.healthy else "a sink that hangs"
        print(f"{self.options.reloads} random reloads with {what}, seed {self.options.seed}: "
              f"{sum(self.sent.values())} datagrams sent, all in their files and at the relay, {given_up} dropped by "
              f"the sink that hangs and counted; named in {self.named} answers; an answer took "
              f"{answers[len(answers) // 2]:.2f} s in the middle and {answers[-1]:.2f} s at most; "
              f"at most {self.most_threads} threads; resident {begun_with >> 10} MiB at the start, "
              f"{ended_with >> 10} at the end; ended within {took:.1f} s")


parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--reloads", type=int, default=40)
parser.add_argument("--seed", type=int, default=None)
parser.add_argument("--limit", type=float, default=1.0, help="seconds that an answer may take")
parser.add_argument("--memory", type=int, default=0, help="print the resident memory after so many rounds")
parser.add_argument("--healthy", action="store_true", help="no sink hangs")
parser.add_argument("--hold", type=float, default=0, help="wait so many seconds before the end")
options = parser.parse_args()
if options.seed is None:
    options.seed = random.randrange(1 << 32)
Campaign(options).run()
