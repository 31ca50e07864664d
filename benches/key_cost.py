#!/usr/bin/env python3
"""What a key costs: the same daemon with it and without, in turns, under the same load on loopback.

    benches/key_cost.py UDPD listener 'sequence = { offset = 8, bytes = 4, order = "little" }'
    benches/key_cost.py UDPD daemon 'sandbox = "require"' 'sandbox = "off"'

The first lines are measured against the second, or against nothing. Each round runs them once each and the base twice,
beginning with another one each time: what the base differs from itself is the noise of the machine. The receiver sits
on core 0 and the sender on core 1; what is received goes nowhere. A run in which the kernel dropped something is said
and still counted: CPU is per datagram received.

ROUNDS (30), SECONDS (1.2), RATE (300000) and FLOWS (4) are set by the environment.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("ROUNDS", "30"))
SECONDS = os.environ.get("SECONDS", "1.2")
RATE = os.environ.get("RATE", "300000")
FLOWS = os.environ.get("FLOWS", "4")
ADDRESS = "127.0.0.1:5196"


def machine_ns():
    """CPU time of the whole machine that was not idle, in steps of 10 ms."""
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) * 10_000_000


def process_ns(pid):
    """CPU time of every thread of a process, to the nanosecond."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as schedstat:
            total += int(schedstat.read().split()[0])
    return total


class Daemon:
    def __init__(self, udpd, directory, listener, daemon):
        self.udpd, self.control = udpd, f"{directory}/control"
        path, log = f"{directory}/udpd.toml", f"{directory}/log"
        with open(path, "w") as file:
            file.write(
                f'[daemon]\ncontrol_socket = "{self.control}"\nmetrics_address = ""\n{daemon}\n[steer]\ncpus = "0"\n'
                f'[[listener]]\nname = "in"\naddress = "{ADDRESS}"\nreceive_buffer = "4MiB"\n{listener}\n'
                'sinks = ["n"]\n[sink.n]\ntype = "null"\n'
            )
        with open(log, "w") as file:
            self.process = subprocess.Popen([udpd, "run", "-c", path], stderr=file)
        while "ready" not in open(log).read():
            if self.process.poll() is not None:
                sys.exit(f"udpd did not start:\n{open(log).read()}")
            time.sleep(0.02)

    def listener(self):
        command = [self.udpd, "stats", "--json", "--socket", self.control]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["listeners"][0]

    def measure(self):
        before, own, machine = self.listener(), process_ns(self.process.pid), machine_ns()
        command = [self.udpd, "bench", "send", "--to", ADDRESS, "--rate", RATE, "--flows", FLOWS]
        subprocess.run([*command, "--seconds", SECONDS, "--cpu", "1"], capture_output=True, check=True)
        machine = machine_ns() - machine
        after = self.listener()
        own = process_ns(self.process.pid) - own
        received = after["received"] - before["received"]
        lost = after["kernel_dropped"] - before["kernel_dropped"]
        return own / received, machine / received, received / (after["calls"] - before["calls"]), lost

    def end(self):
        self.process.terminate()
        self.process.wait()


def main():
    if len(sys.argv) not in (4, 5) or sys.argv[2] not in ("listener", "daemon"):
        sys.exit(__doc__)
    udpd, table, wished = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]
    base = sys.argv[4] if len(sys.argv) == 5 else ""
    kinds = {"without": base, "without, again": base, "with": wished}
    results = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        order = list(kinds)
        order = order[number % 3:] + order[:number % 3]
        for kind in order:
            with tempfile.TemporaryDirectory() as directory:
                lines = {"listener": "", "daemon": "", table: kinds[kind]}
                daemon = Daemon(udpd, directory, **lines)
                results[kind].append(daemon.measure())
                daemon.end()
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
    print(f"`{wished}` against `{base or 'nothing'}`, {RATE}/s of 64 bytes from {FLOWS} flows, {ROUNDS} rounds\n")
    print("| | process, ns a datagram | ratio | machine, ns a datagram | ratio | datagrams a call | dropped |")
    print("|---|---|---|---|---|---|---|")
    for kind, rows in results.items():
        ratios = [[row[at] / of[at] for row, of in zip(rows, results["without"])] for at in (0, 1)]
        median = [statistics.median(row[at] for row in rows) for at in range(3)]
        ratio = [statistics.median(ratios[at]) for at in (0, 1)]
        dropped = sum(row[3] for row in rows)
        print(
            f"| {kind} | {median[0]:.0f} | {ratio[0]:.3f} | {median[1]:.0f} | {ratio[1]:.3f} "
            f"| {median[2]:.1f} | {dropped} |"
        )
    print("\nMedians; the ratios are the medians of the ratios within a round.")


if __name__ == "__main__":
    main()
