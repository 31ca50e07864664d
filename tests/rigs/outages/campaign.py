"""Outages of an interface and of an address under load. The kernel's own counts of this network namespace, in which
udpd is the only one that receives, say what could be delivered: what reached UDP is what udpd has received, what found
its socket full, and what found no socket at all. The numbers in the file say which datagrams those are: between two
outages none may be missing.
"""

import collections
import json
import os
import signal
import subprocess
import sys
import time

import datagrams

WORK, OTHER = sys.argv[1:]
UDPD = f"{WORK}/udpd"
RATE = int(os.environ.get("RATE", "50000"))
FLOWS = 8
ADDRESS, PORT = "10.8.0.1", 5140
TURNS = 3
BACK_S = 2


class Failed(Exception):
    pass


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def there(*command):
    run("nsenter", "--target", OTHER, "--net", *command)


def lay():
    run("ip", "link", "add", "card0", "type", "veth", "peer", "name", "card1", "netns", OTHER)
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "card0")
    run("ip", "link", "set", "card0", "up")
    there("ip", "address", "add", "10.8.0.2/24", "dev", "card1")
    there("ip", "link", "set", "card1", "up")
    # Nothing that waits for ARP is lost, and no answer is waited for.
    with open("/sys/class/net/card0/address") as address:
        mac = address.read().strip()
    there("ip", "neighbour", "replace", ADDRESS, "lladdr", mac, "dev", "card1", "nud", "permanent")


def cut():
    run("ip", "link", "del", "card0")


def take_address():
    run("ip", "address", "del", f"{ADDRESS}/24", "dev", "card0")


def give_address():
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "card0")


def kernel():
    """What happened to datagrams at UDP, in this namespace."""
    with open("/proc/net/snmp") as file:
        lines = [line.split() for line in file if line.startswith("Udp: ")]
    counts = dict(zip(lines[0], lines[1]))
    return {name: int(counts[name]) for name in ("InDatagrams", "InErrors", "NoPorts", "RcvbufErrors")}


class Daemon:
    def __init__(self, what, keys):
        self.directory = f"{WORK}/{what.replace(' ', '-')}"
        os.mkdir(self.directory)
        self.path = f"{self.directory}/out.log"
        with open(f"{self.directory}/udpd.toml", "w") as file:
            file.write(f'''
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
absorb = {{ rate = {RATE}, stall = "5s", size = 64 }}
{keys}
sinks = ["out"]
[sink.out]
type = "file"
path = "{self.path}"
rotate = {{ bytes = 0, every = "0s" }}
''')
        self.log = open(f"{self.directory}/log", "w+")
        self.child = subprocess.Popen([UDPD, "run", "-c", f"{self.directory}/udpd.toml"], stderr=self.log)
        self.wait_for("it is not ready", lambda: "ready:" in self.said())

    def said(self):
        with open(f"{self.directory}/log") as file:
            return file.read()

    def wait_for(self, why, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or self.child.poll() is not None:
                raise Failed(f"{why}\n{self.said()}")
            time.sleep(0.01)

    def arrived(self):
        command = [UDPD, "stats", "--json", "--socket", f"{self.directory}/control.sock"]
        return json.loads(subprocess.check_output(command))["listeners"][0]["arrived"]

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        if self.child.wait(60) != 0:
            raise Failed(f"it did not end well\n{self.said()}")
        with open(f"{self.directory}/ledger.json") as file:
            return json.load(file)["listeners"][0]

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def holes(path):
    """How often the numbers of a flow do not go on, for the flow in which that happens most often, how many datagrams
    there are, and of how many flows."""
    with open(path, "rb") as file:
        numbers, is_cut = datagrams.of_lines(file.read())
    if is_cut:
        raise Failed("the file ends within a line")
    flows = collections.defaultdict(list)
    for flow, sequence in numbers:
        flows[flow].append(sequence)
    most = 0
    for sequences in flows.values():
        sequences.sort()
        if len(set(sequences)) != len(sequences):
            raise Failed("a datagram is there twice")
        most = max(most, sum(after != before + 1 for before, after in zip(sequences, sequences[1:])))
    return most, len(numbers), len(flows)


def outages(what, keys, away, back):
    lay()
    before = kernel()
    daemon = Daemon(what, keys)
    sender = subprocess.Popen(
        ["nsenter", "--target", OTHER, "--net", UDPD, "bench", "send", "--to", f"{ADDRESS}:{PORT}", "--rate", str(RATE),
         "--seconds", "600", "--flows", str(FLOWS), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        daemon.wait_for("nothing arrives", lambda: daemon.arrived() > RATE // 2)
        longest = 0
        for _ in range(TURNS):
            away()
            time.sleep(0.3)
            heard = daemon.arrived()
            back()
            began = time.monotonic()
            daemon.wait_for(f"it does not receive again within {BACK_S} s", lambda: daemon.arrived() > heard, BACK_S)
            longest = max(longest, time.monotonic() - began)
            daemon.wait_for("nothing more arrives", lambda: daemon.arrived() > heard + RATE // 2)
        sender.send_signal(signal.SIGINT)
        report = json.loads(sender.communicate(timeout=60)[0])["report"]
        listener = daemon.end()
    finally:
        sender.kill()
        sender.wait()
        daemon.close()
    counted = {name: value - before[name] for name, value in kernel().items()}
    judge(what, report, listener, counted, holes(daemon.path), longest)
    cut()


def judge(what, report, listener, counted, found, longest):
    most, in_file, flows = found
    sink = listener["sinks"][0]
    sums = (listener["received"], listener["residual"], sink["delivered"], in_file)
    if sums != (in_file, 0, in_file, in_file) or listener["kernel_dropped"] != counted["RcvbufErrors"]:
        raise Failed(f"{what}: {in_file} are in the file, the kernel says {counted}, the ledger {json.dumps(listener)}")
    if counted["InDatagrams"] != in_file or counted["InErrors"] != counted["RcvbufErrors"]:
        raise Failed(f"{what}: {in_file} are in the file, and the kernel says {counted}")
    # One hole an outage; a machine that is too slow for its receive buffers makes more, and the kernel counts those.
    if most > TURNS and counted["RcvbufErrors"] == 0:
        raise Failed(f"{what}: the numbers of a flow have {most} holes, {TURNS} outages made them")
    if flows != FLOWS or report["sent"] < in_file:
        raise Failed(f"{what}: {flows} of {FLOWS} flows, {in_file} of {report['sent']} sent")
    print(
        f"passed: {what}, {TURNS} times: receives again after {1000 * longest:.0f} ms at the most; {in_file} in the "
        f"file are what the kernel delivered; {counted['RcvbufErrors']} found the socket full, {counted['NoPorts']} none; "
        f"the other {report['sent'] - in_file - counted['RcvbufErrors'] - counted['NoPorts']} of {report['sent']} "
        "were sent while there was no way")
    sys.stdout.flush()


def main():
    engines = ["recvmmsg"]
    with open(f"{WORK}/probe.toml", "w") as file:
        file.write('[[listener]]\nname = "in"\naddress = "127.0.0.1:1"\nengine = "io_uring"\nsinks = ["s"]\n'
                   '[sink.s]\ntype = "null"\n')
    refused = subprocess.run([UDPD, "check", "-c", f"{WORK}/probe.toml"], capture_output=True, text=True)
    if refused.returncode == 0:
        engines.append("io_uring")
    else:
        print(f"SKIPPED outages.sh: the part with io_uring: {refused.stderr.strip()}")
    for engine in engines:
        keys = f'engine = "{engine}"\nlanes = 2\n'
        outages(f"an interface, {engine}", f'address = "0.0.0.0:{PORT}"\ninterface = "card0"\n{keys}', cut, lay)
        outages(f"an address, {engine}", f'address = "{ADDRESS}:{PORT}"\n{keys}', take_address, give_address)


try:
    main()
except Failed as why:
    sys.exit(f"FAILED: {why}")
