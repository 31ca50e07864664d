"""One run of the daemon under fail_nth: starts it, sends to it, asks it, ends it, and collects what it left."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import verdict
from lib import net
from lib.daemon import WORK, UDPD, listening
from lib.net import OTHER, ip, udp_socket

# An end may take five seconds, where a sink takes nothing.
START_SECONDS, END_SECONDS, QUESTION_SECONDS = 15, 12, 0.5
KEPT_FILES = 12
BURSTS_A_SECOND = 200
UDP_PORT, METRICS_PORT = 5170, 9817


@dataclass(frozen=True)
class Variant:
    """A configuration and the load on it."""
    name: str
    form: str = "lines"
    engine: str = "recvmmsg"
    lanes: int = 1
    rate: int = 20_000
    seconds: float = 0.4
    is_moved: bool = False  # the file is moved away in the middle


VARIANTS = {variant.name: variant for variant in (
    Variant("lines"),
    Variant("pcapng", form="pcapng"),
    # Long enough for what is done once a second, and for another file to be noticed missing.
    Variant("lanes", lanes=2, rate=4_000, seconds=1.3, is_moved=True),
    Variant("ring", engine="io_uring"),
    # On a cable of its own, which takes root. Long enough for a look at the addresses, which is once a second.
    Variant("queue", engine="af_xdp", rate=4_000, seconds=1.3),
)}


@dataclass(frozen=True)
class Fault:
    """Which call fails, when, and how."""
    options: tuple          # of fail_nth
    after_ready: bool = False


class Cable:
    """For one trial of the engine past the kernel's stack: the daemon's end is here, the sender's in the other network
    namespace."""

    def __init__(self, number):
        self.card, self.far = f"c{number:x}", f"d{number:x}"
        network = f"10.66.{number >> 8}"
        self.address, peer = (f"{network}.{(number & 0xFC) + end}" for end in (1, 2))
        net.lay([f"{self.address}/30"], [f"{peer}/30"], self.card, self.far)
        for card, place, neighbour, far, far_place in ((self.card, None, peer, self.far, OTHER),
                                                       (self.far, OTHER, self.address, self.card, None)):
            # No host asks for anything over this cable: what it carries and drops is what the trial sends.
            net.set_proc(f"ipv6/conf/{card}/disable_ipv6", 1, place)
            net.introduce(neighbour, card, place, far, far_place)

    def dropped(self):
        return net.link(self.far, OTHER)["stats64"]["tx"]["dropped"]

    def has_program(self):
        return "xdp" in net.link(self.card)

    def remove(self):
        ip(f"link del {self.card}")


class Trial:
    """Makes its own directory and address; `run` may be called once."""

    def __init__(self, variant, fault):
        self.variant, self.fault = variant, fault
        self.directory = Path(tempfile.mkdtemp(dir=WORK))
        number = os.getpid() & 0xFFFF
        # An address of this worker's own: nothing else is on it, and no port needs to be found.
        self.address = f"127.66.{number >> 8}.{number & 0xFF}"
        self.cable = Cable(os.getpid() * 4 & 0xFFFC) if variant.engine == "af_xdp" else None
        if self.cable:
            self.address = self.cable.address
        self.sent, self.ready, self.log = 0, threading.Event(), []
        self.planted = set()

    def run(self):
        try:
            self.write_configuration()
            self.plant_old_files()
            return self.supervise()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
            if self.cable:
                self.cable.remove()

    def write_configuration(self):
        variant, here = self.variant, self.directory
        (here / "out").mkdir()
        consumers = '"per_lane"' if variant.lanes > 1 else "1"
        lanes = f"lanes = {variant.lanes}"
        if self.cable:
            lanes = f'interface = "{self.cable.card}"\nabsorb = {{ rate = 50000, stall = "20ms", size = 100 }}'
        (here / "udpd.toml").write_text(f"""
[daemon]
control_socket = "{here}/control.sock"
metrics_address = "{self.address}:{METRICS_PORT}"
stats_on_exit = "{here}/ledger.json"
""" + listening(f'address = "{self.address}:{UDP_PORT}"\n{lanes}\nengine = "{variant.engine}"\n'
                'receive_buffer = "8MiB"\nbatch_size = 32', archive=f"""type = "file"
format = "{variant.form}"
path = "{here}/out/{{listener}}-{{consumer}}.log"
rotate = {{ bytes = "128KiB", every = "0s" }}
keep = {{ files = {KEPT_FILES}, bytes = 0 }}
sync = "100ms"
consumers = {consumers}"""))

    def plant_old_files(self):
        """So many finished files of an earlier run that `keep` has to remove some, and never one of this run's."""
        index = ["udpd index 1"]
        for number in range(KEPT_FILES):
            path = self.directory / "out" / f"in-0.log.202001{number + 1:02}T000000Z"
            path.write_bytes(b"")
            os.utime(path, (1_577_836_800 + 86_400 * number,) * 2)
            self.planted.add(path.name)
            index.append(f"{path.stat().st_ino} {path.name}")
        (self.directory / "out/.in-0.log.udpd-index").write_text("\n".join(index) + "\n")

    def supervise(self):
        here = self.directory
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(here / "notify"))
        configuration = str(here / "udpd.toml")
        start = ["--arm-by-signal"] if self.fault.after_ready else ["--arm-at", configuration]
        command = [f"{WORK}/fail_nth", "--report", here / "report", *start, *self.fault.options, "--",
                   UDPD, "run", "-c", configuration]
        environment = dict(os.environ, NOTIFY_SOCKET=str(here / "notify"), RUST_BACKTRACE="0")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env=environment)
        reader = threading.Thread(target=self.read_log, args=(process.stderr,))
        reader.start()
        threading.Thread(target=self.hear_manager, args=(manager,), daemon=True).start()
        ended, where = "", ""
        try:
            is_up = self.wait_until_ready(process)
            if is_up and self.fault.after_ready:
                process.send_signal(signal.SIGUSR1)
                self.wait_for("armed", process)
            if is_up:
                self.send_and_ask(process)
            terminated = process.poll() is None and not self.has_ended()
            if terminated:
                process.send_signal(signal.SIGTERM)
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            ended, where = "hang", self.describe_threads()
            terminated = True
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            reader.join()
            manager.close()
        return self.collect(ended, where, terminated)

    def read_log(self, pipe):
        for line in pipe:
            self.log.append(line.decode(errors="replace"))
            if self.log[-1].startswith("info: ready"):
                self.ready.set()

    def hear_manager(self, manager):
        try:
            while b"READY=1" not in manager.recv(4096):
                pass
            self.ready.set()
        except OSError:
            pass

    def wait_until_ready(self, process):
        """A daemon that can neither log nor notify is up when it has been for a while."""
        deadline = time.monotonic() + START_SECONDS
        while not self.ready.wait(0.01):
            if process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                return True
        return True

    def report(self):
        try:
            lines = (self.directory / "report").read_text().splitlines()
        except OSError:
            return []
        return [line.split(" ", 1) for line in lines if " " in line]

    def value(self, name):
        return next((rest for key, rest in self.report() if key == name), None)

    def wait_for(self, name, process):
        while self.value(name) is None and process.poll() is None:
            time.sleep(0.002)

    def has_ended(self):
        """Whether the daemon has, though fail_nth may not have noticed yet."""
        try:
            state = Path(f"/proc/{self.value('pid')}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return True
        return state in "ZX"

    def send_and_ask(self, process):
        variant = self.variant
        # Not connected: a refusal that a daemon's end causes is not reported, so every datagram that is taken was sent.
        senders = [udp_socket(place=OTHER if self.cable else None) for _ in range(2)]
        numbers = [0, 0]
        burst = variant.rate // BURSTS_A_SECOND // 2
        bursts = int(variant.seconds * BURSTS_A_SECOND)
        asking = threading.Thread(target=self.ask)
        begun = time.monotonic()
        for turn in range(bursts):
            if turn == bursts // 2:
                asking.start()
                self.move_away()
            for flow, sender in enumerate(senders):
                for _ in range(burst):
                    sender.sendto(verdict.payload(flow, numbers[flow]), (self.address, UDP_PORT))
                    numbers[flow] += 1
            if process.poll() is not None:
                break
            time.sleep(max(0, begun + (turn + 1) / BURSTS_A_SECOND - time.monotonic()))
        self.sent = sum(numbers)
        if asking.ident:
            asking.join()
        for sender in senders:
            sender.close()

    def move_away(self):
        """What takes the file keeps it, with what is still written to it; it stays among those that are read."""
        if self.variant.is_moved:
            try:
                (self.directory / "out/in-0.log").rename(self.directory / "out/taken.log")
            except FileNotFoundError:
                pass

    def ask(self):
        """One question to the control socket and one to the metrics, so that their calls are made, too."""
        questions = ((socket.AF_UNIX, str(self.directory / "control.sock"), b"stats\n"),
                     (socket.AF_INET, (self.address, METRICS_PORT),
                      b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"))
        for family, address, question in questions:
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(QUESTION_SECONDS)
                try:
                    client.connect(address)
                    client.sendall(question)
                    while client.recv(65536):
                        pass
                except OSError:
                    pass

    def describe_threads(self):
        """Where each thread of a daemon that does not end is."""
        found = []
        for task in sorted(Path(f"/proc/{self.value('pid')}/task").glob("*")):
            try:
                found.append(f"{(task / 'comm').read_text().strip()}:{(task / 'wchan').read_text().strip()}")
            except OSError:
                pass
        return " ".join(found)

    def collect(self, ended, where, terminated):
        kind, _, code = (self.value("ended") or "signal 9").partition(" ")
        log = "".join(self.log)
        # `fail_nth` notices an end before it hands on a signal, or the daemon ended by itself at that moment: the log
        # knows.
        by_us = terminated and not re.search(r"^info: stopping: (?!SIGTERM)", log, re.M)
        cable = self.cable
        result = verdict.Run(
            sent=self.sent - (cable.dropped() if cable else 0), left=bool(cable and cable.has_program()),
            ready=self.ready.is_set(), terminated=by_us, ended=ended or kind, code=int(code), log=log,
            ledger=verdict.read_ledger(self.directory / "ledger.json", log),
            disk=verdict.read_disk(self.directory / "out", self.variant.form, self.planted), where=where,
            kept=sum((self.directory / "out" / name).exists() for name in self.planted))
        counts = {name: int(self.value(name) or 0) for name in ("seen", "failed")}
        return result, counts, self.value("failed_on") or "", [rest for key, rest in self.report() if key == "call"]
