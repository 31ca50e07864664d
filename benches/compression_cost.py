#!/usr/bin/env python3
"""What compression of finished files costs the receivers: the same daemon with `compress` and without, in turns, while
datagrams arrive.

    benches/compression_cost.py UDPD [gzip|zstd [LEVEL]]

In each run a file of SIZE bytes (1 GiB) is finished when the load begins, so that it is compressed from the first
datagram on; the same daemon writes what arrives to other files. Without compression the file lies there just so. Each
round runs both once and the base twice, beginning with another one each time: what the base differs from itself is the
noise of the machine. The receiver has a core; the sender, the consumer and the thread that compresses share the other,
where the last has the lowest priority and takes what they leave.

The table has the CPU time of the receiver alone and of receiver and consumer, per datagram received, what the kernel
and the sink dropped, and how much of the file was compressed meanwhile. It exits with 1 where anything was lost while
compressing, or where the receiver's ratio is above 1.05.

ROUNDS (10), SECONDS (10), RATE (300000), FLOWS (4), SIZE (1073741824) and DIRECTORY (a temporary one; it takes three
times SIZE) are set by the environment.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("ROUNDS", "10"))
SECONDS = os.environ.get("SECONDS", "10")
RATE = os.environ.get("RATE", "300000")
FLOWS = os.environ.get("FLOWS", "4")
SIZE = int(os.environ.get("SIZE", str(1 << 30)))
ADDRESS = "127.0.0.1:5196"
# A path without codes is finished under this name.
FINISHED = "old.log.20260101T000000Z"


def make_lines(path):
    """Lines like those of syslog: no two alike, and compressible."""
    with open(path, "w") as file:
        written, number = 0, 0
        while written < SIZE:
            lines = "".join(
                f"<13>Nov 23 {number % 24:02}:{at % 60:02}:{at % 59:02} host{at % 97} app[{number * 7919 % 65536}]: "
                f"request {number:08x}{at:04x} took {number * at % 9973} us\n"
                for at in range(10000)
            )
            file.write(lines)
            written, number = written + len(lines), number + 1


def thread_ns(pid):
    """CPU time of each thread of a process, by its name."""
    times = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as comm:
            name = comm.read().strip()
        with open(f"/proc/{pid}/task/{thread}/schedstat") as schedstat:
            times[name] = times.get(name, 0) + int(schedstat.read().split()[0])
    return times


class Daemon:
    def __init__(self, udpd, directory, lines, compress):
        self.udpd, self.control = udpd, f"{directory}/control"
        path, log = f"{directory}/udpd.toml", f"{directory}/log"
        finished = f"{directory}/{FINISHED}"
        shutil.copyfile(lines, finished)
        os.sync()
        with open(f"{directory}/.old.log.udpd-index", "w") as index:
            index.write(f"udpd index 1\n{os.stat(finished).st_ino} {FINISHED}\n")
        sink = 'type = "file"\nsync = "1s"\nqueue_bytes = "64MiB"\n'
        with open(path, "w") as file:
            file.write(
                f'[daemon]\ncontrol_socket = "{self.control}"\nmetrics_address = ""\n'
                f'[[listener]]\nname = "in"\naddress = "{ADDRESS}"\nreceive_buffer = "16MiB"\nsinks = ["new"]\n'
                f'[[listener]]\nname = "idle"\naddress = "127.0.0.1:5197"\nsinks = ["old"]\n'
                f'[sink.new]\n{sink}path = "{directory}/new.log"\nrotate = {{ bytes = 0, every = "0s" }}\n'
                f'[sink.old]\n{sink}path = "{directory}/old.log"\n{compress}\n'
            )
        with open(log, "w") as file:
            self.process = subprocess.Popen([udpd, "run", "-c", path], stderr=file)
        while "ready" not in open(log).read():
            if self.process.poll() is not None:
                sys.exit(f"udpd did not start:\n{open(log).read()}")
            time.sleep(0.02)
        self.sender_core = "1" if ", core 0," in open(log).read() else "0"

    def listener(self, name):
        command = [self.udpd, "stats", "--json", "--socket", self.control]
        stats = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return next(listener for listener in stats["listeners"] if listener["name"] == name)

    def measure(self):
        before, own = self.listener("in"), thread_ns(self.process.pid)
        command = [self.udpd, "bench", "send", "--to", ADDRESS, "--rate", RATE, "--flows", FLOWS, "--size", "200"]
        subprocess.run([*command, "--seconds", SECONDS, "--cpu", self.sender_core], capture_output=True, check=True)
        after, own_after = self.listener("in"), thread_ns(self.process.pid)
        received = after["received"] - before["received"]
        lost = after["kernel_dropped"] + sum(sum(sink["dropped"].values()) for sink in after["sinks"])
        spent = {name: own_after[name] - own.get(name, 0) for name in own_after}
        receiver = sum(time for name, time in spent.items() if name.startswith("rx"))
        consumer = sum(time for name, time in spent.items() if name.startswith("sink"))
        files = self.listener("idle")["sinks"][0]["files"]
        return {
            "receiver": receiver / received,
            "both": (receiver + consumer) / received,
            "lost": lost,
            "packing_ms": spent.get("udpd-compress", 0) / 1e6,
            "compressed": files["compressed"],
        }

    def end(self):
        self.process.terminate()
        self.process.wait()


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    udpd, method = os.path.realpath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "gzip"
    wished = f'compress = "{method}"\n' + (f"compress_level = {sys.argv[3]}\n" if len(sys.argv) > 3 else "")
    kinds = {"without": "", "without, again": "", "with": wished}
    results = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(dir=os.environ.get("DIRECTORY")) as above:
        make_lines(f"{above}/lines")
        for number in range(ROUNDS):
            order = list(kinds)
            order = order[number % 3:] + order[:number % 3]
            for kind in order:
                with tempfile.TemporaryDirectory(dir=above) as directory:
                    daemon = Daemon(udpd, directory, f"{above}/lines", kinds[kind])
                    results[kind].append(daemon.measure())
                    daemon.end()
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
    said = " ".join(sys.argv[2:]) or method
    print(f"`{said}` of {SIZE >> 20} MiB against nothing, {RATE}/s of 200 bytes from {FLOWS} flows, {ROUNDS} rounds\n")
    print("| | receiver, ns a datagram | ratio | with consumer | ratio | lost | compressing, ms | files done |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for kind, rows in results.items():
        line = f"| {kind} "
        for key in ("receiver", "both"):
            ratio = statistics.median(row[key] / base[key] for row, base in zip(rows, results["without"]))
            line += f"| {statistics.median(row[key] for row in rows):.0f} | {ratio:.3f} "
            worst = max(worst, ratio) if key == "receiver" and kind == "with" else worst
        lost, done = sum(row["lost"] for row in rows), sum(row["compressed"] for row in rows)
        print(f"{line}| {lost} | {statistics.median(row['packing_ms'] for row in rows):.0f} | {done} |")
    print("\nMedians; the ratios are the medians of the ratios within a round.")
    if worst > 1.05 or sum(row["lost"] for row in results["with"]) > 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
