"""Rounds of deeds by chance, each with a daemon of its own.

After each round every file is read, wherever it was moved to. Each record must be what was sent, byte for byte, and lie
in a file of its sender; none may be there twice, none may be torn, and of what a daemon that ended in good order calls
delivered all must be there, unless `keep` removes files or a kill took the files' buffers. Files of others stay as they
were.
"""

import os
import random
import shutil
import time

from deeds import NAMES, Deeds, is_plain
from lib.check import LONG, Failed, check, check_the_judge, main, passed, same, setting
from lib.host import read
from lib.records import Unreadable
from reading import READERS, Record
from reading import content as content_of
from scene import KEPT_BYTES, Scene

ROUNDS = 400 if LONG else 12
FIRST_SEED = setting("SEED", time.time_ns() % 1_000_000_000)
LINES_MAX = 300


class Found:
    """What the files hold, held against what was sent."""

    def __init__(self, payloads, has_lines):
        self.payloads, self.has_lines, self.where = payloads, has_lines, {}

    def take(self, record, path, is_in_place):
        number = int(record.payload[1:9])
        source, sent = self.payloads[number]
        expected = sent[:KEPT_BYTES]
        if len(sent) > KEPT_BYTES:
            check(not self.has_lines or record.whole_bytes == len(sent),
                  f"{path}: {number} had {len(sent)} bytes, and its mark says {record.whole_bytes}")
        elif self.has_lines:
            # A line has its own end.
            expected = sent.removesuffix(b"\n")
        check(record.payload == expected,
              lambda: f"{path}: {number} is {record.payload[:200]}, and was {expected[:200]}")
        check(record.source in (None, source), f"{path}: {number} is said to be from {record.source}, not {source}")
        names = (source, source.rsplit(".", 1)[0] + ".0_24", "overflow")
        check(not is_in_place or any(name in path for name in names), f"{path}: {number} is from {source}")
        check(number not in self.where, lambda: f"{number} is in {self.where[number]} and in {path}")
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


def judge(scene, deeds, found):
    check(deeds.is_untouched(), "a file of others was written to")
    same(scene.received, scene.delivered + scene.dropped, "received, and delivered or dropped")
    count = len(found.where)
    if not scene.kills:
        same(scene.received + scene.kernel_dropped, len(scene.payloads), "received of what was sent")
    if not scene.removes:
        check(count == scene.delivered or (scene.kills and count > scene.delivered),
              f"{count} are there, {scene.delivered} were delivered; missing: {found.missing()[:10]}")
    log = scene.log_text()
    check("panicked" not in log, "a panic")
    check(log.count("\n") <= LINES_MAX, f"{log.count(chr(10))} lines in the log")


def judge_records(*records):
    found = Found([("127.0.0.1", b"S00000000 a"), ("127.0.0.2", b"S00000001 b")], True)
    for record in records:
        found.take(record, "/127.0.0.1.log", True)


def wrong_records():
    check_the_judge(judge_records, {
        "another byte": [Record(b"S00000000 b")],
        "a repeat": [Record(b"S00000000 a")] * 2,
        "another source": [Record(b"S00000000 a", "127.0.0.2")],
        "another file": [Record(b"S00000001 b")],
    })


def play(seed):
    chance = random.Random(seed)
    scene = Scene(chance)
    deeds = Deeds(scene)
    try:
        scene.start()
        scene.send(chance.choice((1, 50, 300)))
        for _ in range(chance.choice((5, 10, 20))):
            deeds.any_of(NAMES)
            scene.send(chance.choice((1, 50, 300)))
        scene.end()
        found = read_all(scene, deeds)
        judge(scene, deeds, found)
    except Exception:
        print(f"seed {seed}, after {deeds.done}\n{read(scene.daemon.config)}")
        raise
    scene.close()
    shutil.rmtree(scene.root)
    print(f"seed {seed}: {len(scene.payloads)} sent, {len(found.where)} read back as {scene.format}, "
          f"{scene.dropped} dropped, {scene.kills} kills; {', '.join(deeds.done)}")
    return len(found.where)


def campaign():
    rounds = 1 if "SEED" in os.environ else ROUNDS
    total = sum(play(FIRST_SEED + number) for number in range(rounds))
    passed(f"{rounds} rounds, {total} records read back, each once and in a file of its sender")


main(wrong_records, campaign)
