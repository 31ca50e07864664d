"""A frozen file system under a file sink, cell by cell: rate, length, alone or by 16. RUNS=all takes all cells.

    run.py [--record DIRECTORY]

Each cell asks by `absorb` for the stall that it then makes, and nothing may be lost. The sender is no part of udpd; it
numbers its datagrams, and the file is read at the end. What counts is their number, which is the rate times the time
that `absorb` names; a cell that would send too much stalls for a shorter time.
"""
import json
import os
import socket
import sys
import time
from dataclasses import dataclass

from lib import readers
from lib.check import Failed, check, main, passed
from lib.daemon import UDPD, WORK, Daemon, check_configuration, dropped_at, file_sink, listening
from lib.disks import LoopDisk
from lib.report import host, markdown_table, record

IS_WHOLE = os.environ.get("RUNS") == "all"
RATES, LENGTHS, BURSTS = (100, 1_000, 10_000, 100_000), (20, 200, 1400, 9000), (1, 16)
SHORT = ((100, 200, 1), (10_000, 20, 1), (10_000, 1400, 16), (100_000, 200, 16), (1_000, 9000, 1))
STALL_SECONDS_MAX, BYTES_MAX, DATAGRAMS_MAX = 5.0 if IS_WHOLE else 1.0, 96 << 20, 200_000
ADDRESS, PORT = "127.68.0.1", 5180
FIELDS = "rate length burst stall_ms promised_ms sent took_ms delivered lost good detail".split()
HEAD = "| a second | bytes | at once | stall, ms | `check` says, ms | sent | sent in, ms | delivered | lost |"


@dataclass(frozen=True)
class Cell:
    rate: int
    length: int
    burst: int

    def stall_seconds(self):
        most = min(DATAGRAMS_MAX, BYTES_MAX // self.length)
        return max(0.02, round(min(STALL_SECONDS_MAX, most / self.rate), 3))

    def configuration(self, path):
        return listening(
            f'address = "{ADDRESS}:{PORT}"\nlanes = 1\nmax_length = {max(2048, self.length)}\nabsorb = {{ rate = '
            f'{self.rate}, stall = "{int(self.stall_seconds() * 1000)}ms", size = {self.length} }}',
            archive=file_sink(path))


class Sender:
    """One source that keeps to a schedule: what comes late is sent at once, so the number is always right."""

    def __init__(self, cell):
        self.cell, self.number = cell, 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((ADDRESS, PORT))

    def send(self, count):
        began, first = time.monotonic(), self.number
        while self.number - first < count:
            wait = began + (self.number - first) / self.cell.rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            for _ in range(min(self.cell.burst, count - (self.number - first))):
                self.socket.send(readers.payload(0, self.number, self.cell.length))
                self.number += 1
        return time.monotonic() - began


def settle(daemon):
    daemon.await_listener("what was sent is settled", lambda listener: listener["sinks"][0]["in_flight"] == 0 and all(
        lane["receive_buffer_used_bytes"] == 0 for lane in listener["lanes"]))


def promised_ms(text):
    said = check_configuration(text, "--json")
    check(said.returncode == 0, f"check ends with {said.returncode}: {said.stderr}")
    return round(json.loads(said.stdout)["stalls"][0]["own_stall_ms"])


def run(disk, cell):
    path, seconds = f"{disk.place}/in.log", cell.stall_seconds()
    if os.path.exists(path):
        os.unlink(path)
    row = {"rate": cell.rate, "length": cell.length, "burst": cell.burst, "stall_ms": int(seconds * 1000),
           "promised_ms": promised_ms(cell.configuration(path))}
    daemon, sender = Daemon(cell.configuration(path)), Sender(cell)
    # One datagram first, so that the file is there: a frozen directory takes no new one.
    sender.send(1)
    settle(daemon)
    disk.freeze()
    try:
        took = sender.send(int(cell.rate * seconds))
    finally:
        disk.thaw()
    settle(daemon)
    ledger = daemon.end()
    read, sink = readers.File(cell.length, path).finish(), ledger["sinks"][0]
    lost = ledger["kernel_dropped"] + dropped_at(sink) + dropped_at(ledger)
    row |= {"sent": sender.number, "took_ms": int(took * 1000), "delivered": sink["delivered"], "lost": lost}
    wrong = ""
    if read.wrong or read.records != sink["delivered"]:
        wrong = f"delivered {sink['delivered']}, in the file {read.records}, {read.wrong}"
    elif sink["delivered"] + lost != sender.number:
        wrong = f"sent {sender.number}, delivered {sink['delivered']}, lost {lost}"
    elif lost:
        wrong = f"lost {lost}: by the kernel {ledger['kernel_dropped']}, {sink['dropped']}"
    elif row["promised_ms"] < row["stall_ms"]:
        wrong = f"absorb asks for {row['stall_ms']} ms, and check promises {row['promised_ms']} ms"
    return row | {"good": not wrong, "detail": wrong}


def page(rows, seconds):
    return ["# A file system that stands still", "",
            f"{host(UDPD)} `RUNS=all tests/rigs/stalls.sh`: {len(rows)} cells in {seconds:.0f} s, "
            f"{sum(not row['good'] for row in rows)} wrong.", "",
            "`fsfreeze` stops ext4 under a file sink while datagrams come; `absorb` names the rate, the length and",
            "the stall. What `check` promises is what no other listener can take.", "",
            *markdown_table(HEAD, [[f"{row[name]:,}" for name in FIELDS[:9]] for row in rows])]


def stalls():
    cells = [Cell(rate, length, burst) for length in LENGTHS for burst in BURSTS for rate in RATES]
    began, rows = time.monotonic(), []
    with LoopDisk(f"{WORK}/image", f"{WORK}/disk", "512M") as disk:
        for cell in cells if IS_WHOLE else [Cell(*cell) for cell in SHORT]:
            rows.append(run(disk, cell))
            if not rows[-1]["good"]:
                print("FAILED: {rate} a second of {length} bytes, {burst} at once: {detail}".format(**rows[-1]),
                      flush=True)
    seconds = time.monotonic() - began
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], "stalls", FIELDS, rows, page(rows, seconds))
    bad = sum(not row["good"] for row in rows)
    told = (f"{len(rows)} stalls in {seconds:.0f} s, {bad} wrong, {sum(row['sent'] for row in rows):,} datagrams sent, "
            f"{sum(row['lost'] for row in rows):,} lost")
    if bad:
        raise Failed(told)
    passed(told)


main(stalls)
