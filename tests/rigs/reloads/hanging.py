"""Random reloads while a sink hangs: a stream whose peer never reads, in most of the files, now and then with other
settings, another peer, or gone. Listeners and sinks come, change and go beside it. Every reload is to be in force
within a second, and what that means is judged by the files, by the socket behind a relay and by which ports can be
bound: never by what udpd says of itself. Its ledger is compared in the end with what was sent.

    hanging.py hanging|healthy    with such a sink, or without
"""
import os
import random
import select
import signal
import socket
import sys
import time

from lib import net
from lib.check import LONG, Failed, check, main, passed, same, setting, until
from lib.daemon import WORK, Daemon, closed, dropped_at, file_sink
from lib.host import read
from lib.load import free_port

IS_HEALTHY = sys.argv[1] == "healthy"
# On a machine that others use as well an answer may take longer.
RELOADS, LIMIT_S = (400, 1) if LONG else (25, 5)
SEED = setting("SEED", random.randrange(1 << 32))
LISTENERS = ["alpha", "beta", "gamma"]
FILES = ["log0", "log1", "log2"]
PAYLOAD, PER_ROUND = 1000, 40
PATIENCE = 20
# What may be resident at the end beyond what was after so many reloads. The C library's allocator keeps about a
# mebibyte for each of its arenas, up to eight a core, and takes them into use one by one: the long form does not
# begin to count before that is over.
SLACK_KIB, UNCOUNTED = (4 << 10, 200) if LONG else (16 << 10, 0)


def without_stuck(listeners):
    rest = {name: (lanes, [sink for sink in fed if sink != "stuck"]) for name, (lanes, fed) in listeners.items()}
    return {name: (lanes, fed) for name, (lanes, fed) in rest.items() if fed}


class Campaign:
    def __init__(self):
        self.random = random.Random(SEED)
        self.directory = f"{WORK}/{sys.argv[1]}"
        os.mkdir(self.directory)
        self.ports = {name: free_port() for name in LISTENERS}
        self.sent = dict.fromkeys(LISTENERS, 0)
        self.number = self.most_threads = self.named = 0
        # By file, the numbers that have to be in it.
        self.expected, self.at_relay, self.expected_at_relay = {}, set(), set()
        self.sender, self.behind = net.udp_socket(), net.udp_socket("127.0.0.1")
        self.behind.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.peers, self.answers = [], []
        for place in range(2):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.bind(f"{self.directory}/peer{place}")
            peer.listen(512)
            self.peers.append(peer)

    def draw(self):
        """A configuration: which sinks there are, and which of them each listener feeds."""
        draw = self.random
        sinks = {name: f"{name}-{draw.randrange(2)}.log" for name in FILES if draw.random() < 0.6}
        has_relay, has_stuck = draw.random() < 0.6, not IS_HEALTHY and draw.random() < 0.9
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

    def text(self, drawn):
        text = []
        for name, (lanes, fed) in drawn["listeners"].items():
            sinks = ", ".join(f'"{sink}"' for sink in fed)
            text.append(f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:{self.ports[name]}"\nlanes = {lanes}\n'
                        f"max_length = 1200\nsinks = [{sinks}]")
        for sink, file in drawn["files"].items():
            text.append(f"[sink.{sink}]\n" + file_sink(f"{self.directory}/{file}", f'sync = "{drawn["sync"]}"'))
        if drawn["relay"]:
            port = self.behind.getsockname()[1]
            text.append(f'[sink.relay]\ntype = "udp"\ndestinations = ["127.0.0.1:{port}"]')
        if drawn["stuck"]:
            place, queue = drawn["stuck"]
            text.append(f'[sink.stuck]\ntype = "unix"\nsocket = "stream"\npath = "{self.directory}/peer{place}"\n'
                        f'queue_bytes = "{queue}"')
        return "\n".join(text)

    def reload(self, drawn):
        begun = time.monotonic()
        said = self.daemon.reload(self.text(drawn))
        self.answers.append(time.monotonic() - begun)
        check(self.answers[-1] <= LIMIT_S, f"answered after {self.answers[-1]:.2f} s: {said}")
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
            check(number not in self.at_relay, f"{number} came twice out of the relay")
            self.at_relay.add(number)
            wait = 0

    def in_file(self, file):
        if not os.path.exists(f"{self.directory}/{file}"):
            return set()
        numbers = [int(line[:9]) for line in read(f"{self.directory}/{file}").split("\n")[:-1]]
        same(len(set(numbers)), len(numbers), f"{file} has datagrams twice")
        return set(numbers)

    def missing(self, files):
        """By file and at the relay, how many have not come yet."""
        self.hear(0.002)
        lacks = {file: len(self.expected.get(file, set()) - self.in_file(file)) for file in files}
        lacks["the relay"] = len(self.expected_at_relay - self.at_relay)
        return {place: count for place, count in lacks.items() if count}

    def await_delivery(self, drawn):
        """Every file and the relay of this configuration have what was sent to them, and nothing else."""
        files = set(drawn["files"].values())
        until(lambda: f"it is in force, missing: {self.missing(files)}", lambda: not self.missing(files), PATIENCE)
        for file in files:
            same(self.in_file(file) - self.expected.get(file, set()), set(), f"of listeners that do not feed {file}")
        same(self.at_relay - self.expected_at_relay, set(), "of listeners that do not feed the relay")

    def bind_what_is_free(self, drawn):
        for name in set(LISTENERS) - set(drawn["listeners"]):
            try:
                net.udp_socket("127.0.0.1", self.ports[name]).close()
            except OSError as error:
                raise Failed(f"the port of the removed listener {name} is not free: {error}") from error

    def run(self):
        first = self.draw()
        # With a file, because the sandbox lets a reload write only below the directories that the start has named.
        while not without_stuck(first["listeners"]) or not first["files"]:
            first = self.draw()
        drawn = first
        self.daemon = Daemon(self.text(drawn), daemon='pool_bytes = "96MiB"')
        begun_with = self.daemon.status("VmRSS")
        for number in range(UNCOUNTED + RELOADS):
            if UNCOUNTED and number == UNCOUNTED:
                self.send(drawn)
                self.await_delivery(drawn)
                drawn = self.return_to(first)
                begun_with = self.daemon.status("VmRSS")
            self.send(drawn)
            self.await_delivery(drawn)
            hangs = self.hangs()
            drawn = self.draw()
            said = self.reload(drawn)
            check(not hangs or "stuck" in said, f"the answer does not name the sink that hangs: {said}")
            self.named += hangs
            self.bind_what_is_free(drawn)
            self.most_threads = max(self.most_threads, self.daemon.status("Threads"))
        self.send(drawn)
        self.await_delivery(drawn)
        self.return_to(first)
        until(lambda: f"{begun_with} KiB were resident at first, and {self.daemon.status('VmRSS')} are now",
              lambda: self.daemon.status("VmRSS") <= begun_with + SLACK_KIB, PATIENCE)
        ended_with, begun = self.daemon.status("VmRSS"), time.monotonic()
        self.daemon.child.send_signal(signal.SIGTERM)
        self.daemon.wait()
        self.judge(begun_with >> 10, ended_with >> 10, time.monotonic() - begun)

    def return_to(self, first):
        """The first file again, without the sink that hangs. Two pipelines may keep their memory for what hangs, and
        are given up by those that come then."""
        listeners = without_stuck(first["listeners"])
        for more in [1, 0, 1, 0]:
            of_this = {name: (lanes + more, fed) for name, (lanes, fed) in listeners.items()}
            drawn = {**first, "stuck": None, "listeners": of_this}
            self.reload(drawn)
        return drawn

    def hangs(self):
        """Whether a consumer waits in a call for a peer that does not read, as the kernel sees it."""
        for thread in self.daemon.threads():
            try:
                name, waits_in = read(f"{thread}/comm").strip(), read(f"{thread}/wchan")
            except OSError:
                continue
            if name.endswith("-stuck") and waits_in.startswith("sock_alloc_send"):
                return True
        return False

    def judge(self, begun_with, ended_with, took):
        ledger = self.daemon.last()
        closed(ledger)
        self.hear(0.2)
        told = {listener["name"]: listener for listener in ledger["listeners"]}
        counts = {name: (own["arrived"], own["kernel_dropped"]) for name, own in told.items()}
        wanted = {name: (sent, 0) for name, sent in self.sent.items() if sent or name in told}
        same(counts, wanted, "arrived and dropped")
        sinks = [sink for own in told.values() for sink in own["sinks"]]
        check(not any(sink["in_flight"] for sink in sinks), f"under way: {sinks}")
        check(not any(dropped_at(sink) for sink in sinks if sink["name"] != "stuck"), f"dropped: {sinks}")
        for file, numbers in self.expected.items():
            same(self.in_file(file), numbers, file)
        same(self.at_relay, self.expected_at_relay, "at the relay")
        check(self.most_threads < 60, f"{self.most_threads} threads")
        answers = sorted(self.answers)
        what = "no sink that hangs" if IS_HEALTHY else "a sink that hangs"
        passed(f"{UNCOUNTED + RELOADS} random reloads with {what}, SEED={SEED}: {sum(self.sent.values())} datagrams "
               f"sent, all in their files and at the relay, {sum(map(dropped_at, sinks))} dropped by the sink that "
               f"hangs and counted; named in {self.named} answers; an answer took {answers[len(answers) // 2]:.2f} s "
               f"in the middle and {answers[-1]:.2f} s at most; at most {self.most_threads} threads; resident "
               f"{begun_with} MiB at first, {ended_with} at the end; ended within {took:.1f} s")


main(Campaign().run)
