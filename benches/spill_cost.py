#!/usr/bin/env python3
"""What spilling costs: CPU a datagram of a sink whose peer is away and that spills, against one that writes a file.

    benches/spill_cost.py UDPD [--quick]

The file is a capture, because that has payloads as they are, as a spill has: as lines, most bytes of what the bench
sends are written as four. Lines of text, which need no escapes, cost less than either; the lines are there to see.

Each round runs all once and the capture twice, beginning with another one each time: what the capture differs from
itself is the noise of the machine. The receiver sits on core 0 and the sender on core 1. DIRECTORY (the directory for
temporary files) should be on a disk; all write there. What the kernel writes later is no CPU of the daemon.

ROUNDS (10), SECONDS (2), RATE (100000), LENGTH (200) and FLOWS (4) are set by the environment. `--quick` only shows
that it runs: one round of a second at 20,000/s.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

QUICK = "--quick" in sys.argv[2:]
ROUNDS = int(os.environ.get("ROUNDS", "1" if QUICK else "10"))
SECONDS = os.environ.get("SECONDS", "1" if QUICK else "2")
RATE = os.environ.get("RATE", "20000" if QUICK else "100000")
LENGTH = os.environ.get("LENGTH", "200")
FLOWS = os.environ.get("FLOWS", "4")
ADDRESS = "127.0.0.1:5198"
SINKS = {
    "capture": 'type = "file"\nformat = "pcapng"\npath = "{directory}/out.pcapng"\n',
    "lines": 'type = "file"\npath = "{directory}/out.log"\n',
    "spill": 'type = "unix"\nsocket = "stream"\npath = "{directory}/nobody"\n'
    'spill = {{ path = "{directory}/spill", bytes = "4GiB" }}\n',
}


def process_ns(pid):
    """CPU time of every thread of a process, to the nanosecond."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as schedstat:
            total += int(schedstat.read().split()[0])
    return total


def measure(udpd, sink, directory):
    control, path, log = (f"{directory}/{name}" for name in ("control", "udpd.toml", "log"))
    with open(path, "w", encoding="ascii") as file:
        file.write(
            f'[daemon]\ncontrol_socket = "{control}"\nmetrics_address = ""\n[steer]\ncpus = "0"\n'
            f'[[listener]]\nname = "in"\naddress = "{ADDRESS}"\nreceive_buffer = "16MiB"\nlanes = 1\nsinks = ["out"]\n'
            f"[sink.out]\n{SINKS[sink].format(directory=directory)}"
        )
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([udpd, "run", "-c", path], stderr=file)
    while "ready" not in open(log, encoding="utf-8").read():
        if process.poll() is not None:
            sys.exit(f"udpd did not start:\n{open(log, encoding='utf-8').read()}")
        time.sleep(0.02)
    before = process_ns(process.pid)
    command = [udpd, "bench", "send", "--to", ADDRESS, "--rate", RATE, "--flows", FLOWS, "--size", LENGTH]
    subprocess.run([*command, "--seconds", SECONDS, "--cpu", "1"], capture_output=True, check=True)
    time.sleep(0.1)
    own = process_ns(process.pid) - before
    stats = subprocess.run([udpd, "stats", "--json", "--socket", control], capture_output=True, check=True).stdout
    listener = json.loads(stats)["listeners"][0]
    process.terminate()
    process.wait()
    done = listener["sinks"][0]["delivered"] + listener["sinks"][0]["spilled"]
    return own / max(1, done), listener["received"] - done + (listener["kernel_dropped"] or 0)


def main():
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--quick"]):
        sys.exit(__doc__)
    udpd = os.path.realpath(sys.argv[1])
    kinds = {"a capture": "capture", "a capture, again": "capture", "lines": "lines", "a spill": "spill"}
    results = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        order = list(kinds)
        order = order[number % len(order):] + order[:number % len(order)]
        for kind in order:
            with tempfile.TemporaryDirectory(dir=os.environ.get("DIRECTORY")) as directory:
                results[kind].append(measure(udpd, kinds[kind], directory))
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
    print(f"{RATE}/s of {LENGTH} bytes from {FLOWS} flows, {ROUNDS} rounds\n")
    print("| | process, ns a datagram | ratio | not in the sink |\n|---|---|---|---|")
    for kind, rows in results.items():
        ratio = statistics.median(row[0] / of[0] for row, of in zip(rows, results["a capture"]))
        own, lost = statistics.median(row[0] for row in rows), sum(row[1] for row in rows)
        print(f"| {kind} | {own:.0f} | {ratio:.3f} | {lost} |")
    print("\nMedians; the ratio is the median of the ratios within a round.")


if __name__ == "__main__":
    main()
