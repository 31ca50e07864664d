"""A frozen file system under a file sink, cell by cell: rate, length, alone or by 16.

    campaign.py --program UDPD --directory SCRATCH --disk MOUNTED [--all] [--record DIRECTORY]

Each cell asks by `absorb` for the stall that it then makes, and nothing may be lost. The sender is no part of udpd; it
numbers its datagrams, and the file is read at the end. What counts is their number, which is the rate times the time
that `absorb` names; a cell that would send too much stalls for a shorter time.
"""
import argparse
import csv
import datetime
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "overload"))
import sinks

RATES, LENGTHS, BURSTS = (100, 1_000, 10_000, 100_000), (20, 200, 1400, 9000), (1, 16)
SHORT = ((100, 200, 1), (10_000, 20, 1), (10_000, 1400, 16), (100_000, 200, 16), (1_000, 9000, 1))
STALL_SECONDS_MAX, BYTES_MAX, DATAGRAMS_MAX = 5.0, 96 << 20, 200_000
SETTLE_SECONDS = 60
FIELDS = "rate length burst stall_ms promised_ms sent took_ms delivered lost good detail".split()


@dataclass(frozen=True)
class Cell:
    rate: int
    length: int
    burst: int

    def stall_seconds(self, longest):
        most = min(DATAGRAMS_MAX, BYTES_MAX // self.length)
        return max(0.02, round(min(longest, most / self.rate), 3))


class Freeze:
    """The file system stands still."""

    def __init__(self, disk):
        self.disk = disk

    def __enter__(self):
        subprocess.run(["fsfreeze", "-f", self.disk], check=True)

    def __exit__(self, *_):
        subprocess.run(["fsfreeze", "-u", self.disk], check=True)


class Daemon:
    def __init__(self, settings, cell, seconds):
        self.program, self.directory = settings.program, Path(settings.directory)
        self.log, self.ledger_file = self.directory / "stall.log", self.directory / "ledger.json"
        self.file = Path(settings.disk) / "in.log"
        for old in (self.log, self.ledger_file, self.file):
            old.unlink(missing_ok=True)
        self.configuration = self.directory / "udpd.toml"
        self.configuration.write_text(f"""
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.ledger_file}"
[[listener]]
name = "in"
address = "127.68.0.1:5180"
lanes = 1
max_length = {max(2048, cell.length)}
absorb = {{ rate = {cell.rate}, stall = "{int(seconds * 1000)}ms", size = {cell.length} }}
sinks = ["archive"]
[sink.archive]
type = "file"
path = "{self.file}"
rotate = {{ bytes = 0, every = "0s" }}
""")

    def promised_ms(self):
        said = subprocess.run([self.program, "check", "--json", "-c", self.configuration], capture_output=True,
                              text=True)
        if said.returncode != 0:
            sys.exit(f"FAILED: check ends with {said.returncode}: {said.stderr}")
        return json.loads(said.stdout)["stalls"][0]["own_stall_ms"]

    def __enter__(self):
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = self.directory / "notify"
        path.unlink(missing_ok=True)
        notify.bind(str(path))
        notify.settimeout(30)
        self.process = subprocess.Popen([self.program, "run", "-c", self.configuration], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log.open("w"),
                                        env={**os.environ, "NOTIFY_SOCKET": str(path)})
        while b"READY=1" not in notify.recv(4096):
            pass
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def listener(self):
        said = subprocess.run([self.program, "stats", "--json", "--socket", self.directory / "control.sock"],
                              capture_output=True, text=True)
        return json.loads(said.stdout)["listeners"][0] if said.returncode == 0 else None

    def wait_until_settled(self):
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            listener = self.listener()
            if listener and listener["sinks"][0]["in_flight"] == 0 and \
                    all(lane["receive_buffer_used_bytes"] == 0 for lane in listener["lanes"]):
                return
            time.sleep(0.02)
        raise TimeoutError(f"what was sent was not settled within {SETTLE_SECONDS} s")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        return code, json.loads(self.ledger_file.read_text())["listeners"][0]


class Sender:
    """One source that keeps to a schedule: what comes late is sent at once, so the number is always right."""

    def __init__(self, cell):
        self.cell, self.number = cell, 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.68.0.1", 5180))

    def send(self, count):
        began, first = time.monotonic(), self.number
        while self.number - first < count:
            wait = began + (self.number - first) / self.cell.rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            for _ in range(min(self.cell.burst, count - (self.number - first))):
                self.socket.send(sinks.payload(0, self.number, self.cell.length))
                self.number += 1
        return time.monotonic() - began


def run(settings, cell):
    seconds = cell.stall_seconds(settings.seconds)
    daemon, sender = Daemon(settings, cell, seconds), Sender(cell)
    row = dict(rate=cell.rate, length=cell.length, burst=cell.burst, stall_ms=int(seconds * 1000),
               promised_ms=round(daemon.promised_ms()))
    with daemon:
        # One datagram first, so that the file is there: a frozen directory takes no new one.
        sender.send(1)
        daemon.wait_until_settled()
        with Freeze(settings.disk):
            took = sender.send(int(cell.rate * seconds))
        daemon.wait_until_settled()
        code, ledger = daemon.end()
    file = sinks.File(cell.length, daemon.file)
    books, sink = file.finish(), ledger["sinks"][0]
    lost = ledger["kernel_dropped"] + sum(sink["dropped"].values()) + sum(ledger["dropped"].values())
    row.update(sent=sender.number, took_ms=int(took * 1000), delivered=sink["delivered"], lost=lost)
    wrong = ""
    if code != 0:
        wrong = f"exit {code}: {daemon.log.read_text()[-300:]!r}"
    elif books.wrong or books.records != sink["delivered"] or ledger["residual"] != 0:
        wrong = f"delivered {sink['delivered']}, in the file {books.records}, {books.wrong}, {ledger['residual']}"
    elif sink["delivered"] + lost != sender.number:
        wrong = f"sent {sender.number}, delivered {sink['delivered']}, lost {lost}"
    elif lost:
        wrong = f"lost {lost}: by the kernel {ledger['kernel_dropped']}, {sink['dropped']}"
    elif row["promised_ms"] < row["stall_ms"]:
        wrong = f"absorb asks for {row['stall_ms']} ms, and check promises {row['promised_ms']} ms"
    row.update(good=not wrong, detail=wrong)
    return row


def table(rows, settings, seconds):
    version = subprocess.run([settings.program, "--version"], capture_output=True, text=True).stdout.strip()
    lines = ["# A file system that stands still", "",
             f"{datetime.date.today()}, {platform.machine()}, Linux {platform.release()}, {version}. "
             f"`RUNS=all tests/rigs/stalls.sh`: {len(rows)} cells in {seconds:.0f} s, "
             f"{sum(not row['good'] for row in rows)} wrong.", "",
             "`fsfreeze` stops ext4 under a file sink while datagrams come; `absorb` names the rate, the length and",
             "the stall. What `check` promises is what nobody else can take.", "",
             "| a second | bytes | at once | stall, ms | `check` says, ms | sent | sent in, ms | delivered | lost |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append("| {rate:,} | {length} | {burst} | {stall_ms:,} | {promised_ms:,} | {sent:,} | {took_ms:,} | "
                     "{delivered:,} | {lost:,} |".format(**row))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--program", "--directory", "--disk", "--record"):
        parser.add_argument(name)
    parser.add_argument("--all", action="store_true")
    settings = parser.parse_args()
    settings.seconds = STALL_SECONDS_MAX if settings.all else 1.0
    cells = [Cell(rate, length, burst) for length in LENGTHS for burst in BURSTS for rate in RATES]
    began, rows = time.monotonic(), []
    for cell in cells if settings.all else [Cell(*cell) for cell in SHORT]:
        rows.append(run(settings, cell))
        if not rows[-1]["good"]:
            print("FAILED: {rate} a second of {length} bytes, {burst} at once: {detail}".format(**rows[-1]),
                  flush=True)
    seconds = time.monotonic() - began
    if settings.record:
        folder = Path(settings.record)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "stalls.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
        (folder / "stalls.md").write_text(table(rows, settings, seconds))
    bad = sum(not row["good"] for row in rows)
    print(f"{'FAILED' if bad else 'passed'}: {len(rows)} stalls in {seconds:.0f} s, {bad} wrong, "
          f"{sum(row['sent'] for row in rows):,} datagrams sent, {sum(row['lost'] for row in rows):,} lost")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
