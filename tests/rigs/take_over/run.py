"""Take-overs under load, and those that come to nothing, judged by the numbers in the file that all processes write:
sent = in the file + dropped by the kernel + dropped at the sink's queue, and none twice. See take_over.sh."""
import json
import os
import re
import signal
import socket
import subprocess
import sys

from lib.check import LONG, check, main, passed, same, setting
from lib.daemon import PATIENCE, UDPD, engines
from lib.service import GAP_BAR_MS, STRICT, Terms
from successive import Successive

UPGRADES, FAILURES = setting("UPGRADES", 50 if LONG else 4), setting("FAILURES", 20 if LONG else 7)


class Challenger:
    """A process that takes over, as far as it is told to."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(PATIENCE)
        self.connection.connect(path)
        self.connection.sendall(b"take-over\n")
        self.bytes, self.descriptors = b"", []
        self.hear()
        self.say("send")
        self.names = self.hear()["sockets"]

    def say(self, word):
        self.connection.sendall(json.dumps(word).encode() + b"\n")

    def hear(self):
        while b"\n" not in self.bytes:
            more, control, _, _ = self.connection.recvmsg(4096, socket.CMSG_SPACE(4 * 253))
            for _, _, data in control:
                self.descriptors += [int.from_bytes(data[at:at + 4], sys.byteorder) for at in range(0, len(data), 4)]
            check(more, f"udpd has hung up after {self.bytes!r}")
            self.bytes += more
        line, self.bytes = self.bytes.split(b"\n", 1)
        return json.loads(line)

    def close(self):
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


def upgrade(service, program, lanes):
    new, old = service.next(program, lanes=lanes), service.running
    service.goes_on_with(new)
    old.wait()
    gap = re.search(r"took over (\d+) sockets from process (\d+); ([0-9.]+) ms", new.log())
    check(gap and int(gap[2]) == old.child.pid, "nothing is said of the take-over")
    service.gaps.append(float(gap[3]))
    service.pause()


def judge(service, times):
    service.end_sending()
    service.end_running()
    terms = Terms()
    for process in service.served:
        terms.take_last(process.last())
    sent, in_file, cut = service.count()
    lost = sent - in_file - terms.by_kernel - terms.own
    told = f"dropped {terms.by_kernel} and {terms.own}"
    check(not cut and not lost,
          f"{service.what}: of {sent} sent {in_file} are in the file, {told}, {lost} are gone, {cut}")
    middle, longest = service.middle_and_longest_gap()
    if terms.by_kernel or terms.own:
        service.tell_slow(f"the kernel dropped {terms.by_kernel} at full sockets, and a full queue before the disk "
                          f"{terms.own}")
    check(not STRICT or longest <= GAP_BAR_MS, f"{service.what}: the gap is {longest} ms, above {GAP_BAR_MS}")
    passed(f"{service.what}, {times} times at {service.report['rate']:.0f}/s: {in_file} of {sent} in the file, none "
           f"twice, dropped by the kernel {terms.by_kernel}; no process received for {middle:.1f} ms, the longest "
           f"{longest:.1f} ms")


def upgrades(engine):
    service = Successive(f"upgrades, {engine}, 2 to 4 lanes", engine)
    service.begin()
    for place in range(UPGRADES):
        upgrade(service, (os.environ["UDPD_OTHER"], UDPD)[place % 2], (4, 3, 2)[place % 3])
    judge(service, UPGRADES)


def says_once_more(service, words, action):
    """The process that runs says so, as a result of this."""
    times = service.running.said(words)
    action()
    service.running.await_log(words, times + 1)


RECEIVES_AGAIN = "receives again, in force"


def bad_file(service):
    service.next(more="nonsense = 1").wait(78)


def bad_program(service):
    service.next(service.broken_program()).wait(1)


def bad_address(service):
    more = '[[listener]]\nname = "more"\naddress = "192.0.2.1:5190"\nsinks = ["archive"]'
    says_once_more(service, "wanted to take over and does not", lambda: service.next(more=more).wait(69))


def killed_before(service):
    """The old one is held, so that the new one waits for it when it is killed."""
    os.kill(service.running.child.pid, signal.SIGSTOP)
    try:
        new = service.next(lanes=4).await_log("for its sockets")
        new.kill()
    finally:
        os.kill(service.running.child.pid, signal.SIGCONT)


def bad_sink(service):
    """Found out only when the old one has closed its files: it receives again."""
    link = f"{service.directory}/link"
    if not os.path.lexists(link):
        os.symlink("/nonexistent", link)
    says_once_more(service, RECEIVES_AGAIN, lambda: service.next(lanes=3, path=link).wait(74))


def dies_when_ready(service):
    def die():
        challenger = Challenger(service.running.socket)
        challenger.say({"ready": challenger.names})
        check(not challenger.hear()["stopped"]["ends"], "it ends although all of its sockets are wanted")
        challenger.close()

    says_once_more(service, RECEIVES_AGAIN, die)


def dies_at_the_last(service):
    """It has the word of the old one, and dies before it receives: a process of its own, whose end is seen."""
    command = [sys.executable, __file__, "--challenge", service.running.socket]
    says_once_more(service, RECEIVES_AGAIN, lambda: subprocess.run(command, timeout=PATIENCE, check=True))


def challenge(path):
    challenger = Challenger(path)
    challenger.say({"ready": challenger.names})
    challenger.hear()
    challenger.say("open")
    os._exit(0 if challenger.hear() == "gone" else 1)


def failures():
    service = Successive("failures")
    kinds = [bad_file, dies_when_ready, bad_address, bad_sink, dies_at_the_last, killed_before, bad_program]
    service.begin()
    process = service.running.child.pid
    for place in range(FAILURES):
        kinds[place % len(kinds)](service)
        service.pause()
    same((service.running.child.poll(), service.running.child.pid), (None, process), "the process that runs")
    judge(service, FAILURES)


def campaign():
    for engine in engines():
        upgrades(engine)
    failures()


if sys.argv[1:2] == ["--challenge"]:
    challenge(sys.argv[2])
main(campaign)
