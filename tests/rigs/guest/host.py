"""Starts the guests of the table, some at once, has them checked, and says what came of it."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

import causes
import journal
import lasting
import mixes
import rivals
import shapes
import verdicts
from machine import Guest, unpacked
from placement import Stage
from report import Report

# What is done on a machine beside its cases. Each takes the stage, and whether it shall take its time.
EXTRAS = {
    "privileges": verdicts.privileges,
    "verdicts": verdicts.verdicts,
    "rivals": rivals.rivals,
    "lasting": lasting.lasting,
    "races": journal.races,
    "kills": journal.kills,
    "causes": causes.causes,
    "mixes": mixes.mixes,
}

# Records of single shapes: their files, and what stands above them.
RECORDS = {"mixes": ("mixes", "Random overloads that mix the layers")}


def main():
    parser = argparse.ArgumentParser()
    for option in ("--image", "--initramfs", "--folder"):
        parser.add_argument(option, required=True)
    parser.add_argument("--shapes", default="short", help="short, all, or names of shapes.py")
    parser.add_argument("--only", type=lambda names: names.split(","), default=[], help="names of EXTRAS, no cases")
    parser.add_argument("--bless", action="store_true", help="write the reviewed plans anew, and no more")
    parser.add_argument("--at-once", type=int, default=2, help="guests; they compute at times and wait at others")
    parser.add_argument("--record", help="a folder for the page and the table of this run")
    parser.add_argument("--whole", action="store_true", help="take the minutes that the long form takes")
    parser.add_argument("--result", help="be the host of one shape, and write here what came of it")
    chosen = parser.parse_args()
    if chosen.result:
        one(chosen)
        return
    names = {"short": shapes.SHORT, "all": list(shapes.SHAPES)}.get(chosen.shapes, chosen.shapes.split(","))
    report = Report()
    version = chosen.image.rpartition("vmlinuz-")[2]
    chosen.image = unpacked(chosen.image, chosen.folder)
    with concurrent.futures.ThreadPoolExecutor(chosen.at_once) as pool:
        for part in pool.map(lambda name: apart(name, chosen), names):
            report.take(part)
    if chosen.record:
        seed = f"SEED={os.environ['SEED']} " if "SEED" in os.environ else ""
        whole = " --whole" if chosen.whole else ""
        command = f"{seed}SHAPES={chosen.shapes} tests/rigs/steering_in_guest.sh{whole}"
        name, title = RECORDS.get(chosen.shapes, ("steering", "Steering on machines of other shapes"))
        report.record(chosen.record, command, version, name, title)
    failed = report.failed()
    print(f"{len(failed)} of {len(report.checks)} checks failed")
    for shape, name, _ in failed:
        print(f"    {shape}: {name}")
    sys.exit(1 if failed or not report.checks else 0)


def apart(name, chosen):
    """The host of one shape, in a process and a network namespace of its own: every guest has the same addresses."""
    folder = pathlib.Path(chosen.folder) / name
    folder.mkdir()
    result = folder / "result.json"
    # In a process namespace of its own, so that no machine computes on when its host is killed.
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-B", *sys.argv, f"--result={result}"]
    command += ["--whole"] if chosen.shapes == "all" else []
    ended = subprocess.run([*command, f"--shapes={name}", f"--folder={folder}", f"--image={chosen.image}"], check=False)
    if not result.exists():
        return {"checks": [[name, "its host comes to an end", [f"exit {ended.returncode}"]]], "facts": []}
    return json.loads(result.read_text())


def one(chosen):
    """A shape with all its checks."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    shape = shapes.SHAPES[chosen.shapes]
    report = Report(chosen.shapes)
    try:
        with Guest(shape.machine, (chosen.image, chosen.initramfs), chosen.folder) as guest:
            report.fact("seconds to boot", round(guest.boot_seconds))
            stage = Stage(guest, report, chosen.bless, 10 if chosen.whole else 60)
            report.check("the machine is of this shape", is_of_shape(stage.topology, shape.topology))
            for case in [] if chosen.only else shape.cases:
                stage.case(case)
            for extra in shape.extra:
                if extra in chosen.only or not (chosen.only or chosen.bless):
                    EXTRAS[extra](stage, chosen.whole)
    except Exception:
        report.check("its host comes to an end", traceback.format_exc())
    report.fact("seconds", round(time.monotonic() - report.started))
    report.save(chosen.result)


def is_of_shape(topology, wanted):
    found = {
        "nodes": topology.nodes,
        "memory": topology.memory,
        "threads": max(len(siblings) for siblings in topology.siblings.values()),
    }
    return [f"{key}: {found[key]}, wanted {value}" for key, value in wanted.items() if found[key] != value]


if __name__ == "__main__":
    main()
