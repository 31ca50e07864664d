"""The files by source of one daemon, read by somebody who does not believe its ledger. See ../files_by_source.sh."""

import json
import os
import re
import signal
import subprocess
import sys
import time

PROGRAM, WORK, OTHER, LONG = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1"
RATE, SECONDS = (200_000, 60) if LONG else (10_000, 4)
SOURCES = 10_000
THERE = ["nsenter", "--target", OTHER, "--net"]
CONFIG = f"""
[daemon]
control_socket = "{WORK}/control"
metrics_address = ""
[[listener]]
name = "in"
address = "10.8.0.2:5140"
receive_buffer = "64MiB"
absorb = {{ rate = 200000, stall = "1s", size = 128 }}
sinks = ["hosts"]
[sink.hosts]
type = "file"
path = "{WORK}/log/{{source}}.log"
prefix = "source"
open_files = 1000
sources_max = 12000
"""


def fail(why):
    print("FAILED:", why)
    print(open(f"{WORK}/errors").read()[-3000:])
    sys.exit(1)


def start():
    with open(f"{WORK}/errors", "a") as errors:
        daemon = subprocess.Popen(THERE + [PROGRAM, "run", "-c", f"{WORK}/udpd.toml"], stderr=errors)
    until("it answers", lambda: ledger() is not None)
    return daemon


def ledger():
    asked = subprocess.run([PROGRAM, "stats", "--json", "--socket", f"{WORK}/control"], capture_output=True)
    return json.loads(asked.stdout)["listeners"][0] if asked.returncode == 0 else None


def until(what, holds):
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > 60:
            fail(f"in vain: {what}")
        time.sleep(0.05)


def send(network, flows, rate, seconds):
    command = [PROGRAM, "bench", "send", "--to", "10.8.0.2:5140", "--engine", "packet", "--interface", "card0"]
    command += ["--sources", network, "--flows", str(flows), "--mix", "round-robin", "--rate", str(rate)]
    sent = subprocess.run(command + ["--seconds", str(seconds)], capture_output=True, text=True)
    if sent.returncode != 0:
        fail(sent.stderr)


def settled():
    """The sums when everything that came is decided."""
    before = None
    while True:
        now = ledger()
        sink = now["sinks"][0]
        if sink["in_flight"] == 0 and before == now["arrived"]:
            return now, sink
        before = now["arrived"]
        time.sleep(0.3)


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def read_files():
    """How many files and lines there are; every whole line is of the sender that names its file."""
    lines, names, foreign = 0, os.listdir(f"{WORK}/log"), 0
    for name in (name for name in names if name.endswith(".log")):
        own = None if name == "overflow.log" else name.removesuffix(".log").encode() + b":"
        content = open(f"{WORK}/log/{name}", "rb").read()
        if content and not content.endswith(b"\n"):
            fail(f"{name} ends with a torn line")
        for line in content.split(b"\n")[:-1]:
            lines += 1
            foreign += own is not None and not line.startswith(own)
    if foreign:
        fail(f"{foreign} lines are in a file of another sender")
    return len(names), lines


def main():
    os.mkdir(f"{WORK}/log")
    open(f"{WORK}/udpd.toml", "w").write(CONFIG)
    check = subprocess.run([PROGRAM, "check", "-c", f"{WORK}/udpd.toml"], capture_output=True, text=True).stdout
    bound = float(re.search(r"up to ([\d.]+) MiB in sinks", check).group(1))
    daemon = start()
    before = resident(daemon.pid)
    send("198.18.0.0/16", SOURCES, RATE, SECONDS)
    one, sink = settled()
    files, lines = read_files()
    if (files, lines) != (sink["files"]["sources"], sink["delivered"]) or one["residual"] != 0:
        fail(f"{files} files with {lines} lines, and the ledger says {sink}")
    if files < SOURCES * 0.9:
        fail(f"only {files} sources")
    lost = one["kernel_dropped"] + sink["offered"] - sink["delivered"]
    if LONG and lost:
        fail(f"{lost} lost of {one['arrived']}")
    print(f"{files} files, {lines} lines, each in its own; {lost} lost of {one['arrived']} at {RATE}/s for {SECONDS} s")
    # Somebody invents senders.
    send("198.19.0.0/16", 60_000, 20_000, 4)
    two, sink = settled()
    files, lines = read_files()
    if (files, lines, sink["files"]["sources"]) != (12_001, sink["delivered"], 12_000) or two["residual"] != 0:
        fail(f"{files} files with {lines} lines, and the ledger says {sink}")
    after = resident(daemon.pid)
    print(f"60,000 invented: 12,000 files and one for {sink['files']['overflow']} datagrams")
    print(f"resident {before:.1f} MiB, then {after:.1f}; check says up to {bound:.1f} MiB in sinks")
    if after - before > bound + 8:
        fail("it has grown by more than check printed")
    # Killed while it writes.
    sender = subprocess.Popen([PROGRAM, "bench", "send", "--to", "10.8.0.2:5140", "--engine", "packet", "--interface",
                               "card0", "--sources", "198.18.0.0/16", "--flows", str(SOURCES), "--rate", "20k",
                               "--seconds", "3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until("some have come", lambda: ledger()["sinks"][0]["delivered"] > sink["delivered"])
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    sender.wait()
    daemon = start()
    send("198.18.0.0/16", SOURCES, 10_000, 2)
    settled()
    daemon.send_signal(signal.SIGTERM)
    if daemon.wait() != 0:
        fail("it did not end well")
    files, lines = read_files()
    print(f"after a kill: {files} files, {lines} lines, none torn")


main()
