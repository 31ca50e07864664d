"""What became of every datagram of a run, found without believing the daemon, and the verdict on it.

The sender numbers its datagrams. What is on disk is read from the files, record by record; what was counted is read
from the final ledger or, where that could not be written, from the last lines of the log. Both together must be what
was sent.
"""
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from lib.daemon import dropped_at
from lib.records import HEADERS_BYTES, Unreadable, lines, packets

PAYLOAD_BYTES = 100
PAYLOAD = re.compile(rb"^([0-9]) ([0-9]{7}) x+$")
LAST_LINE = re.compile(
    r"listener in: arrived (not known|\d+), dropped by the kernel (not known|\d+), received (?:not known|\d+)"
    r".*?; sink archive: delivered (not known|\d+), dropped (not known|\d+).*?; residual (not known|-?\d+)")
# How the log says that there is something that cannot be known.
SAYS_UNKNOWN = re.compile(r"^(warn|error): .*(null|unknown|last look)", re.M)
# Rust's own preparation of a thread, before it does anything of ours, panics where it cannot unwind.
THREAD_WITHOUT_MEMORY = re.compile(r"failed to (?:allocate an alternative stack|set up alternative stack guard page).*")


def payload(flow, number):
    return (b"%d %07d " % (flow, number)).ljust(PAYLOAD_BYTES, b"x")


@dataclass
class OnDisk:
    """The numbers found in all files of a run."""
    numbers: set = field(default_factory=set)
    twice: int = 0
    foreign: int = 0
    torn: list = field(default_factory=list)

    def take(self, bytes_):
        found = PAYLOAD.match(bytes_)
        if not found or len(bytes_) != PAYLOAD_BYTES:
            self.foreign += 1
            return
        number = (int(found[1]), int(found[2]))
        self.twice += number in self.numbers
        self.numbers.add(number)

    def read(self, path, form):
        try:
            records, is_cut = (lines if form == "lines" else packets)(path.read_bytes())
        except Unreadable:
            records, is_cut = [], True
        if is_cut:
            self.torn.append(path.name)
        for record in records:
            self.take(record if form == "lines" else record[HEADERS_BYTES:])


def read_disk(directory, form, planted):
    """All records under `directory`, but for the files in `planted`, which were there before, and what the sink writes
    for itself."""
    disk = OnDisk()
    for path in sorted(Path(directory).rglob("*")):
        is_own = path.name.startswith(".") or path.name.endswith(".torn")
        if path.is_file() and path.name not in planted and not is_own:
            disk.read(path, form)
    return disk


@dataclass
class Ledger:
    """The terms of the final ledger; None is what the daemon says it does not know."""
    arrived: int
    kernel_dropped: int
    delivered: int
    dropped: int
    residual: int


def read_ledger(path, log):
    """From the file, or else from the log; None when it is in neither."""
    try:
        listener = json.loads(Path(path).read_text())["listeners"][0]
    except (OSError, ValueError):
        found = LAST_LINE.search(log)
        if not found:
            return None
        return Ledger(*(None if term == "not known" else int(term) for term in found.groups()))
    sink = listener["sinks"][0]
    dropped = dropped_at(sink) + dropped_at(listener)
    return Ledger(listener["arrived"], listener["kernel_dropped"], sink["delivered"], dropped, listener["residual"])


@dataclass
class Run:
    """What one run left."""
    sent: int
    ready: bool
    terminated: bool        # by us, and not before it ended by itself
    ended: str              # exit | signal | hang
    code: int
    log: str
    ledger: Ledger
    disk: OnDisk
    where: str = ""         # what a thread that hangs waits for
    kept: int = 0           # of the files that were there before
    left: bool = False      # a program at the interface


def verdict(run):
    """`(good, name, detail)`. Good is: sent = on disk + counted, or an end that says so."""
    if run.ended == "hang":
        return False, "hangs", run.where
    if run.left:
        return False, "leaves a program at the interface", last_line(run.log)
    said = THREAD_WITHOUT_MEMORY.search(run.log)
    if said and run.ended == "signal" and not run.ready:
        return True, "no memory, said", said[0]
    if "panicked" in run.log and "thread '" in run.log:
        return False, "panics", re.search(r"thread '.*?panicked at .*", run.log)[0]
    if run.ended == "signal":
        said = re.search(r"memory allocation of \d+ bytes failed", run.log)
        if said:
            return True, "no memory, said", said[0]
        return False, f"killed by signal {run.code}", last_line(run.log)
    if run.code != 0 and not re.search(r"^udpd: \S", run.log, re.M):
        if run.code == 127 and "error while loading shared libraries" in run.log:
            return True, "not loaded, said", last_line(run.log)
        return False, f"exit {run.code} without a reason", last_line(run.log)
    wrong = against_disk(run)
    if wrong:
        return False, "the account is wrong", wrong
    how = f"exit {run.code}: {last_line(run.log)}"
    if not run.ready and run.code != 0:
        return True, "start refused, said", how
    if run.code != 0:
        return True, "ended early, said" if not run.terminated else "failed at the end, said", how
    if not run.ready:
        return False, "ended with 0 before it was ready", last_line(run.log)
    if run.ledger.residual is None:
        return True, "partly unknown, said", ""
    return True, "closed", ""


def against_disk(run):
    """What is wrong with the account of a run, or nothing."""
    disk, ledger = run.disk, run.ledger
    if disk.torn or disk.foreign or disk.twice:
        return f"files: torn {disk.torn}, foreign records {disk.foreign}, twice {disk.twice}"
    found = len(disk.numbers)
    if ledger is None:
        # One that never got ready has nothing to account for.
        return f"no ledger, {found} on disk, {run.sent} sent" if run.ready or found else ""
    if ledger.delivered is not None and found != ledger.delivered:
        return f"delivered {ledger.delivered}, on disk {found}, sent {run.sent}, {ledger}"
    if None in vars(ledger).values():
        if ledger.residual is not None:
            return f"a term is unknown and the residual is not: {ledger}"
        if not SAYS_UNKNOWN.search(run.log):
            return f"unknown, and the log does not say why: {ledger}"
        return ""
    if ledger.residual != 0:
        return f"residual {ledger.residual}: {ledger}"
    counted = ledger.delivered + ledger.dropped + ledger.kernel_dropped
    # A daemon that ends before the sender does owes nothing for what came afterwards.
    if counted > run.sent or (run.terminated and counted != run.sent):
        return f"sent {run.sent}, on disk and counted {counted}: {ledger}"
    return ""


def last_line(log):
    lines = [line for line in log.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("udpd: ")]
    return (said or lines or [""])[-1]
