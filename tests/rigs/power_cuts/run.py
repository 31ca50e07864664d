"""Disks that are played back up to each flush; see power_cuts.sh.

Nothing of udpd is believed about what it had: the observer has read it, and what is said of a state comes
from the files after a start of udpd on it, and from the peer that gets what waits in the spill. The two things taken at
udpd's word are `synced_at`, which is a promise itself, and `spill_repeats_at_most`.
"""
import os
import random
import shutil
import sys
import time

from judge import Judge
from load import run as run_load
from logged_disk import FLUSH, MARK, WRITE, entries
from replay import Disk, State
from lib.check import LONG, main, passed, setting, skipped
from lib.daemon import UDPD, WORK, listening
from lib.host import write
from lib.load import free_port
from lib.report import host, markdown_table

SEED = setting("SEED", time.time_ns() % 1_000_000)
SECONDS = setting("DISK_SECONDS", 60 if LONG else 15)
STATES = setting("STATES", 0 if LONG else 30)
# The third one has files by source as well, whose syncs are of the whole file system.
DISKS = [("ext4", 128 << 20, False), ("xfs", 320 << 20, False), ("ext4", 128 << 20, True)]


def sinks(by_source):
    """The lines of the sinks, by name; `DISK` and `PEER` are written in later."""
    small = 'rotate = { bytes = "64KiB", every = "0s" }'
    found = {
        "plain": 'type = "file"\npath = "DISK/plain.log"\nsync = "1s"\nrotate = { bytes = 0, every = "0s" }',
        "kept": f'type = "file"\npath = "DISK/kept/k.log"\nsync = "1s"\n{small}\nkeep = {{ files = 3 }}\n'
                'compress = "gzip"',
        "rotated": f'type = "file"\npath = "DISK/rotated/r.log"\nsync = "rotate"\n{small}',
        "spill": 'type = "unix"\nsocket = "stream"\nframing = "length"\npath = "PEER"\n'
                 'spill = { path = "DISK/spill", bytes = "4MiB" }',
    }
    if by_source:
        found["sources"] = 'type = "file"\npath = "DISK/sources/{source}.log"\nsync = "1s"\n' \
                           'rotate = { bytes = 0, every = "0s" }'
    return found


def configuration(by_source, peer, port):
    text = listening(f'address = "127.0.0.1:{port}"\nlanes = 1\nreceive_buffer = "8MiB"', **sinks(by_source))
    return text.replace("DISK", f"{WORK}/disk").replace("PEER", peer)


def chosen(count, chance):
    """Which of so many flushes are looked at: all, or a spread of them."""
    if not STATES or count <= STATES:
        return set(range(count))
    return {int((number + chance.random()) * count / STATES) for number in range(STATES)}


def apply(log, write, image):
    """One entry of the log on an open image."""
    log.seek(write[3])
    image.seek(write[1])
    image.write(log.read(write[2]))


def disk(number, kind, disk_bytes, by_source):
    if not shutil.which(f"mkfs.{kind}"):
        skipped(f"the part on {kind}: needs mkfs.{kind}")
        return None
    chance, folder, peer, port = random.Random(f"{SEED} {number}"), f"{WORK}/disk{number}", f"{WORK}/peer", free_port()
    text = configuration(by_source, peer, port)
    log_path, seen = run_load(folder, kind, disk_bytes, SECONDS, SEED + number, text, port, peer)
    judge = Judge(seen)
    with open(log_path, "rb") as log:
        judge_all(log, judge, Disk(folder, disk_bytes, f"{WORK}/disk", kind), chance, text, peer)
    shutil.rmtree(folder)
    what = f"{kind}{', files by source too' if by_source else ''}"
    passed(f"{what}, {SECONDS} s, SEED={SEED}: {judge.summary()}")
    return [what, *judge.row()]


def judge_all(log, judge, trial, chance, text, peer):
    """Plays the log back once; at each chosen flush the disk as it is then, and once more with some of what follows."""
    everything, last = entries(log), str(len(judge.seen) - 2).encode()
    texts = {at: text_at(log, one) for at, one in enumerate(everything) if one[0] == MARK}
    begun, end = (next(at for at, text in texts.items() if text == wanted) for wanted in (b"0", last))
    flushes = [at for at in range(begun, end) if everything[at][0] == FLUSH]
    wanted = {flushes[number] for number in chosen(len(flushes), chance)}
    judge.flushes, mark = len(flushes), -1
    with open(trial.base, "rb+", buffering=0) as base:
        for at, one in enumerate(everything[:end]):
            if one[0] == WRITE:
                apply(log, one, base)
            elif one[0] == MARK:
                mark = int(texts[at])
            elif at in wanted:
                where = f"SEED={SEED}, flush {flushes.index(at) + 1} of {len(flushes)}"
                judge.look(mark, State(trial, text, peer).found(f"{WORK}/start"), where)
                later = next((other for other in flushes if other > at), end)
                behind = [write for write in everything[at + 1:later] if write[0] == WRITE]
                if behind and chance.random() < 0.3:
                    some = [write for write in behind if chance.random() < 0.5]
                    chance.shuffle(some)
                    state = State(trial, text, peer, lambda image, some=some: [apply(log, one, image) for one in some])
                    judge.look(mark, state.found(f"{WORK}/start"), f"{where}, {len(some)} of {len(behind)} writes more")
                    judge.torn += 1


def text_at(log, entry):
    log.seek(entry[3])
    return log.read(entry[2])


def everything():
    Judge.check_itself()
    os.makedirs(f"{WORK}/disk")
    rows = [disk(number, *one) for number, one in enumerate(DISKS if LONG else DISKS[:1])]
    if "--record" in sys.argv:
        head = "| disk | marks | flushes | states mounted | of these with a part of later writes | oldest missing " \
               "record, `sync` 1 s | spill: oldest missing datagram | sent again at most |"
        page = ["# Power cuts", "", f"{host(UDPD)} SEED={SEED}, {SECONDS} s each, LONG={int(LONG)}.", "",
                *markdown_table(head, filter(None, rows))]
        folder = sys.argv[sys.argv.index("--record") + 1]
        write(f"{folder}/power_cuts.md", "\n".join(page) + "\n")


print(f"SEED={SEED}", flush=True)
main(everything)
