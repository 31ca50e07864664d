#!/usr/bin/env python3
"""AF_XDP against sockets, and against the least that a program can do, on a cable between two network namespaces.

    benches/past_the_socket.py UDPD [--rows cpu,full,loop,highest,file,generator] [--pairs 5] [--record FILE]

The rows: `cpu` is the daemon against a recvmmsg loop in C at 300,000/s and 800,000/s; `full` is the CPU of the whole
machine at the generator's full rate, against the sockets of the same daemon; `loop` is the daemon against an AF_XDP
loop in C at 1,000,000/s, with batches of 64, of 256, and with the sink inline; `highest` and `file` are the highest
rate without a loss, to no sink and to lines in a file; `generator` is how fast the generator is by itself. Contenders
take turns, and the first of a row runs twice in each round: what it differs from itself is the noise of the machine.

The receiver sits on core 0 and the sender on core 1, which also pays what the cable's softirq does: the program, and on
the way of AF_XDP the copy into the chunk. Datagrams have 64 bytes and gather for a millisecond. Needs root and cc, and
ends whatever it has started.
"""

import argparse
import ctypes
import fcntl
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from key_cost import machine_ns, process_ns  # noqa: E402  its place is known only now

HERE = os.path.dirname(os.path.realpath(__file__))
TO, OURS, THEIRS = "10.8.0.1", "card0", "card1"
PORT = 5140
SECONDS = 2
FLAT_OUT = 20_000_000
SIOCETHTOOL, ETHTOOL_SGRO = 0x8946, 0x2C
children = []


def run(*command, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")
    return done.stdout


def start(*command, **options):
    children.append(subprocess.Popen(command, **options))
    return children[-1]


def end(child):
    child.terminate()
    try:
        return child.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        sys.exit(f"{child.args[0]} does not end")


def switch_gro_on(interface):
    """It gives a veth a poll routine, without which each datagram is an interrupt of its own."""
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_SGRO, 1))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


class Cable:
    """We at one end, and the generator in a namespace of its own at the other."""

    def __init__(self, udpd):
        self.udpd = udpd
        run("mount", "-t", "sysfs", "sys", "/sys")
        other = start("unshare", "--net", "sleep", "3600", stdout=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{other.pid}/ns/net") == own:
            time.sleep(0.01)
        self.there = ("nsenter", "--target", str(other.pid), "--net")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", OURS, "type", "veth", "peer", "name", THEIRS, "netns", str(other.pid))
        for key in ("all", "default", OURS):
            with open(f"/proc/sys/net/ipv4/conf/{key}/rp_filter", "w") as file:
                file.write("0")
        run("ip", "address", "add", f"{TO}/24", "dev", OURS)
        run("ip", "link", "set", OURS, "up")
        for command in (("address", "add", "10.8.0.2/24", "dev", THEIRS), ("link", "set", THEIRS, "up")):
            run(*self.there, "ip", *command)
        switch_gro_on(OURS)
        # The generator asks the kernel for the hardware address, which knows it after the first packet there.
        send_one = f"import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('{TO}', 9))"
        run(*self.there, sys.executable, "-c", send_one)
        time.sleep(0.2)

    def send(self, rate, flows=1000, mix="uniform", seconds=SECONDS):
        command = [self.udpd, "bench", "send", "--json", "--engine", "xdp", "--interface", THEIRS, "--cpu", "1"]
        command += ["--to", f"{TO}:{PORT}", "--rate", str(rate), "--seconds", str(seconds), "--flows", str(flows)]
        report = json.loads(run(*self.there, *command, "--size", "64", "--mix", mix))["report"]
        if report["interface"]["dropped"] or report["interface"]["errors"]:
            print(f"the cable has dropped some: {report['interface']}", file=sys.stderr)
        return report


class Loop:
    """One of the loops in C."""

    def __init__(self, program, *arguments):
        self.process = start(program, *arguments, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{program} did not start")

    def end(self):
        return json.loads(end(self.process))["received"]


class Daemon:
    """udpd with an engine and a sink."""

    def __init__(self, udpd, engine, rate, sink, listener=""):
        self.directory = tempfile.TemporaryDirectory()
        self.udpd, self.control = udpd, f"{self.directory.name}/control"
        path, log = f"{self.directory.name}/udpd.toml", f"{self.directory.name}/log"
        if engine != "af_xdp":
            # The kernel charges a socket 4 KiB and more for each of these frames, which `absorb` does not know: it
            # would hold a few milliseconds, and a sender that is paced by the millisecond comes in bursts.
            listener += '\nreceive_buffer = "64MiB"'
        if sink == "file":
            sink = f'file"\nformat = "lines"\npath = "{self.directory.name}/lines'
        with open(path, "w") as file:
            file.write(
                f'[daemon]\ncontrol_socket = "{self.control}"\nmetrics_address = ""\n[steer]\ncpus = "0"\n'
                f'[[listener]]\nname = "in"\naddress = "{TO}:{PORT}"\ninterface = "{OURS}"\n'
                f'engine = "{engine}"\ngather = "1ms"\n{listener}\n'
                f'absorb = {{ rate = {rate}, stall = "20ms", size = 64 }}\n'
                f'sinks = ["n"]\n[sink.n]\ntype = "{sink}"\n'
            )
        with open(log, "w") as file:
            self.process = start(udpd, "run", "-c", path, stderr=file, stdout=subprocess.DEVNULL)
        while "ready" not in open(log).read():
            if self.process.poll() is not None:
                sys.exit(f"udpd did not start:\n{open(log).read()}")
            time.sleep(0.02)

    def end(self):
        """How many datagrams its sink was given in all."""
        until = time.monotonic() + 20
        while True:
            command = [self.udpd, "stats", "--json", "--socket", self.control]
            listener = json.loads(run(*command))["listeners"][0]
            sink = listener["sinks"][0]
            if sink["in_flight"] == 0 or time.monotonic() > until:
                break
            time.sleep(0.05)
        end(self.process)
        self.directory.cleanup()
        return sink["delivered"]


def compile_loops(directory):
    for name in ("recvmmsg_loop", "xdp_loop"):
        run("cc", "-O2", "-o", f"{directory}/{name}", f"{HERE}/baseline/{name}.c")


class Bench:
    def __init__(self, udpd, pairs, loops):
        self.udpd, self.pairs, self.loops = udpd, pairs, loops
        self.cable = Cable(udpd)
        self.lines = []

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def contender(self, name, rate, sink="null"):
        # A listener without a rate is made for a high one.
        rate = min(rate, 3_000_000)
        if name == "recvmmsg loop":
            return Loop(f"{self.loops}/recvmmsg_loop", str(PORT), "60", str(32 << 20), "0", "64", TO)
        if name == "AF_XDP loop":
            return Loop(f"{self.loops}/xdp_loop", OURS, str(PORT), "60", "0")
        engine, _, how = name.partition(", ")
        if how == "inline":
            sink += '"\ninline = true\n#'
        listener = "batch_size = 256" if how == "256 a batch" else ""
        if sink == "file" and engine != "af_xdp":
            listener = 'gro = "off"'
        return Daemon(self.udpd, engine, rate, sink, listener)

    def once(self, name, rate, flows=1000, sink="null", mix="uniform"):
        """CPU of the process and of the machine, in ns, what was sent, and what came out."""
        contender = self.contender(name, rate, sink)
        own, machine = process_ns(contender.process.pid), machine_ns()
        sent = self.cable.send(rate, flows, mix)["sent"]
        machine, own = machine_ns() - machine, process_ns(contender.process.pid) - own
        return own, machine, sent, contender.end()

    def turns(self, title, rate, names):
        """CPU a datagram, the first name twice a round."""
        kinds = {names[0]: names[0], f"{names[0]}, again": names[0], **{name: name for name in names[1:]}}
        rows = {kind: [] for kind in kinds}
        for number in range(self.pairs):
            order = list(kinds)
            order = order[number % len(order):] + order[:number % len(order)]
            for kind in order:
                rows[kind].append(self.once(kinds[kind], rate))
        self.say(f"\n## {title}\n")
        self.say("| | process, ns | ratio | machine, ns | ratio | machine, ns a datagram sent | ratio | sent | lost |")
        self.say("|---|---|---|---|---|---|---|---|---|")
        for kind in kinds:
            figures = []
            for what, of in ((0, 3), (1, 3), (1, 2)):
                each = [[row[what] / row[of] for row in rows[name]] for name in (kind, names[0])]
                ratio = statistics.median(one / base for one, base in zip(*each))
                figures.append(f"{statistics.median(each[0]):.0f} | {ratio:.3f}")
            sent, got = (sum(row[at] for row in rows[kind]) for at in (2, 3))
            self.say(f"| {kind} | {' | '.join(figures)} | {sent} | {sent - got} |")

    def highest(self, title, names, sink, step, flows):
        """Up in steps until a rate loses something three times. Flows in turn, which the generator does fastest."""
        self.say(f"\n## {title}\n")
        self.say("| | highest rate without a loss | the next |")
        self.say("|---|---|---|")
        for name in names:
            best, rate, why = 0, step, "the generator gives no more"
            while rate <= FLAT_OUT:
                runs = []
                while len(runs) < 3 and not any(sent == got for _, _, sent, got in runs):
                    runs.append(self.once(name, rate, flows, sink, "round-robin"))
                kept = [sent for _, _, sent, got in runs if sent == got]
                if not kept:
                    why = "loses " + ", ".join(f"{sent - got} of {sent}" for _, _, sent, got in runs)
                    break
                best = max(best, kept[0] / SECONDS)
                if kept[0] / SECONDS < 0.97 * rate and rate < FLAT_OUT:
                    rate = FLAT_OUT
                    continue
                rate += step
            self.say(f"| {name} | {best:,.0f}/s | {why} |")

    def generator(self):
        self.say("\n## The generator by itself\n")
        self.say("| flows | mix | asked | rate | pacing error | sent | counted by the interface |")
        self.say("|---|---|---|---|---|---|---|")
        drain = self.contender("af_xdp", FLAT_OUT)
        for flows, mix, rate in (
            (1000, "uniform", FLAT_OUT),
            (65_536, "uniform", FLAT_OUT),
            (1_000_000, "uniform", FLAT_OUT),
            (1_000_000, "round-robin", FLAT_OUT),
            (1_000_000, "uniform", 1_000_000),
        ):
            reports = [self.cable.send(rate, flows, mix) for _ in range(self.pairs)]
            report = sorted(reports, key=lambda one: one["rate"])[len(reports) // 2]
            asked = "flat out" if rate == FLAT_OUT else f"{rate:,}/s"
            error = "" if rate == FLAT_OUT else f"{report['pacing_error_percent']:.4f} %"
            counted = report["interface"]["packets"]
            cells = (f"{flows:,}", mix, asked, f"{report['rate']:,.0f}/s", error, report["sent"], counted)
            self.say(f"| {' | '.join(map(str, cells))} |")
        drain.end()

    def row(self, name):
        if name == "cpu":
            for rate in (300_000, 800_000):
                self.turns(f"CPU a datagram at {rate:,}/s", rate, ["recvmmsg loop", "af_xdp"])
        elif name == "full":
            self.turns("CPU a datagram at the generator's full rate", FLAT_OUT, ["recvmmsg", "af_xdp"])
        elif name == "loop":
            names = ["AF_XDP loop", "af_xdp", "af_xdp, 256 a batch", "af_xdp, inline"]
            self.turns("CPU a datagram beside the bare loop at 1,000,000/s", 1_000_000, names)
        elif name == "highest":
            names = ["recvmmsg", "io_uring", "af_xdp"]
            self.highest("Highest rate without a loss, a million flows", names, "null", 250_000, 1_000_000)
        elif name == "file":
            self.highest("Highest rate without a loss, lines in a file", ["recvmmsg", "af_xdp"], "file", 100_000, 1000)
        elif name == "generator":
            self.generator()
        else:
            sys.exit(f"--rows {name}: not one of cpu, full, loop, highest, file, generator")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("udpd")
    parser.add_argument("--rows", default="cpu,full,loop,highest,file,generator")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--record", help="a file that the tables are written to as well")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("past_the_socket.py: needs root, for network namespaces of its own")
    if "PAST_THE_SOCKET_INSIDE" not in os.environ:
        os.environ["PAST_THE_SOCKET_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, "-B", *sys.argv])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory() as loops:
            compile_loops(loops)
            bench = Bench(os.path.realpath(options.udpd), options.pairs, loops)
            for name in options.rows.split(","):
                bench.row(name)
            if options.record:
                with open(options.record, "w") as file:
                    file.write("\n".join(bench.lines) + "\n")
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


if __name__ == "__main__":
    main()
