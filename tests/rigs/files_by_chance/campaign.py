"""Rounds of deeds by chance, each with a daemon of its own.

After each round every file is read, wherever it was moved to. Each record must be what was sent, byte for byte, and lie
in a file of its sender; none may be there twice, none may be torn, and of what a daemon that ended in good order calls
delivered all must be there, unless `keep` removes files or a kill took the files' buffers. Other people's files stay as
they were.
"""

import os
import random
import shutil
import sys
import time
import traceback

from deeds import NAMES, Deeds, is_plain
from reading import READERS, Record, Unreadable
from reading import content as content_of
from scene import KEPT_BYTES, Failed, Scene

WORK = sys.argv[1]
ROUNDS = 400 if os.environ.get("LONG") else 12
FIRST_SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000_000))
LINES_MAX = 300


class Found:
    """What the files hold, held against what was sent."""

    def __init__(self, payloads, has_lines):
        self.payloads, self.has_lines, self.where = payloads, has_lines, {}

    def take(self, record, path, is_in_place):
        number = int(record.payload[1:9])
        source, sent = self.payloads[number]
        if len(sent) > KEPT_BYTES:
            expected = sent[:KEPT_BYTES]
            if self.has_lines and record.whole_bytes != len(sent):
                raise Failed(f"{path}: {number} had {len(sent)} bytes, and its mark says {record.whole_bytes}")
        else:
            # A line has its own end.
            expected = sent.removesuffix(b"\n") if self.has_lines else sent
        if record.payload != expected:
            raise Failed(f"{path}: {number} is {record.payload[:200]}, and was {expected[:200]}")
        if record.source not in (None, source):
            raise Failed(f"{path}: {number} is said to be from {record.source}, and was from {source}")
        names = (source, source.rsplit(".", 1)[0] + ".0_24", "overflow")
        if is_in_place and not any(name in path for name in names):
            raise Failed(f"{path}: {number} is from {source}")
        if number in self.where:
            raise Failed(f"{number} is in {self.where[number]} and in {path}")
        self.where[number] = path

    def missing(self):
        return [number for number in range(len(self.payloads)) if number not in self.where]


def read_all(scene, deeds):
    found, read = Found(scene.payloads, scene.format == "lines"), READERS[scene.format]
    for directory, _, names in os.walk(scene.root):
        for path in (os.path.join(directory, name) for name in names):
            is_own = not os.path.basename(path).startswith(".") and not path.endswith((".torn", ".linked", "ballast"))
            if not is_own or not is_plain(path) or deeds.is_foreign(path):
                continue
            try:
                data = content_of(path)
                for record in read(data) if data else ():
                    found.take(record, path, not path.startswith(scene.moved))
            except (Unreadable, ValueError) as error:
                raise Failed(f"{path}: {error}") from error
    return found


def check(scene, deeds, found):
    if not deeds.is_untouched():
        raise Failed("somebody else's file was written to")
    if scene.received != scene.delivered + scene.dropped:
        raise Failed(f"{scene.received} received, {scene.delivered} delivered, {scene.dropped} dropped")
    count = len(found.where)
    if not scene.kills:
        if scene.received + scene.kernel_dropped != len(scene.payloads):
            raise Failed(f"{scene.received} received of {len(scene.payloads)}")
        if not scene.removes and count != scene.delivered:
            raise Failed(f"{count} are there, {scene.delivered} were delivered; missing: {found.missing()[:10]}")
    elif not scene.removes and count < scene.delivered:
        raise Failed(f"{count} are there, and {scene.delivered} at least were delivered")
    with open(f"{WORK}/said", encoding="utf-8") as said:
        text = said.read()
    if "panicked" in text:
        raise Failed("a panic")
    if text.count("\n") > LINES_MAX:
        raise Failed(f"{text.count(chr(10))} lines in the log")


def check_the_checker():
    """One that finds nothing wrong with these is none."""
    sent = [("127.0.0.1", b"S00000000 a"), ("127.0.0.2", b"S00000001 b")]
    wrong = {
        "another byte": [Record(b"S00000000 b")],
        "a repeat": [Record(b"S00000000 a")] * 2,
        "another source": [Record(b"S00000000 a", "127.0.0.2")],
        "another file": [Record(b"S00000001 b")],
    }
    for what, records in wrong.items():
        try:
            found = Found(sent, True)
            for record in records:
                found.take(record, "/127.0.0.1.log", True)
        except Failed:
            continue
        raise Failed(f"{what} is not found")


def play(seed):
    chance = random.Random(seed)
    for name in ("said", "ledger"):
        if os.path.exists(f"{WORK}/{name}"):
            os.remove(f"{WORK}/{name}")
    scene = Scene(chance, WORK)
    deeds = Deeds(scene)
    try:
        scene.start()
        scene.send(chance.choice((1, 50, 300)))
        for _ in range(chance.choice((5, 10, 20))):
            deeds.any_of(NAMES)
            scene.send(chance.choice((1, 50, 300)))
        scene.end()
        found = read_all(scene, deeds)
        check(scene, deeds, found)
    except Exception:
        print(f"seed {seed}, after {deeds.done}\n{open(f'{WORK}/udpd.toml').read()}")
        print(open(f"{WORK}/said", errors="replace").read()[-4000:])
        raise
    finally:
        scene.close()
        shutil.rmtree(scene.root)
    print(f"seed {seed}: {len(scene.payloads)} sent, {len(found.where)} read back as {scene.format}, "
          f"{scene.dropped} dropped, {scene.kills} kills; {', '.join(deeds.done)}")
    return len(found.where)


def main():
    check_the_checker()
    rounds = 1 if "SEED" in os.environ else ROUNDS
    total = sum(play(FIRST_SEED + round) for round in range(rounds))
    print(f"{rounds} rounds, {total} records read back, each once and in a file of its sender")


try:
    main()
except Failed as failure:
    traceback.print_exc()
    sys.exit(f"FAILED: {failure}")
