#!/usr/bin/env python3
"""A file system that stands still for longer than any queue: the log names the sink and says when it goes on, and
reloads go on meanwhile. Each is answered within seconds and is in force, whether the sink that hangs stays as it is,
gets other settings or goes; what it cannot take is counted, and what it takes is written once and in order.

    frozen.py --program UDPD --directory DIR --disk MOUNT
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--directory", required=True)
parser.add_argument("--disk", required=True)
options = parser.parse_args()
directory = os.path.join(options.directory, "frozen")
os.makedirs(directory, exist_ok=True)
on_disk = f"{options.disk}/frozen.log"

with socket.socket(type=socket.SOCK_DGRAM) as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
sender = socket.socket(type=socket.SOCK_DGRAM)
sent = 0


def write(lanes, frozen, guest):
    sinks = ["frozen"] * (frozen is not None) + ["guest"]
    text = f"""
[daemon]
control_socket = "{directory}/control.sock"
metrics_address = ""
stats_on_exit = "{directory}/ledger.json"
pool_bytes = "64MiB"
[[listener]]
name = "in"
address = "127.0.0.1:{port}"
lanes = {lanes}
sinks = {json.dumps(sinks)}
[sink.guest]
type = "file"
path = "{directory}/guest{guest}.log"
"""
    if frozen is not None:
        text += f'[sink.frozen]\ntype = "file"\npath = "{on_disk}"\nsync = "{frozen}"\n'
    with open(f"{directory}/udpd.toml", "w") as file:
        file.write(text)


def send(count):
    global sent
    for _ in range(count):
        sender.sendto(b"%09d" % sent + b"x" * 400, ("127.0.0.1", port))
        sent += 1
        if sent % 100 == 0:
            time.sleep(0.005)


def log():
    return open(f"{directory}/log").read()


def until(what, enough, limit=40):
    deadline = time.monotonic() + limit
    while not enough():
        if time.monotonic() > deadline:
            print(f"{what} did not come\n{log()[-3000:]}")
            sys.exit(1)
        time.sleep(0.05)


def lines(path):
    return open(path).read().split("\n")[:-1] if os.path.exists(path) else []


def reload():
    begun = time.monotonic()
    done = subprocess.run([options.program, "reload", "--socket", f"{directory}/control.sock"], capture_output=True,
                          text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return time.monotonic() - begun, said


write(1, "1s", 0)
daemon = subprocess.Popen([options.program, "run", "-c", f"{directory}/udpd.toml"],
                          stderr=open(f"{directory}/log", "w"))
until("its start", lambda: "ready:" in log())
send(100)
until("what was sent before", lambda: len(lines(on_disk)) == 100)
subprocess.run(["fsfreeze", "-f", options.disk], check=True)
slowest = 0.0
try:
    send(5000)
    until("the line about a sink that takes nothing", lambda: "sink frozen: has handed on nothing for" in log())
    for number in range(1, 13):
        # As it is, with other settings, and gone.
        write(1 + number % 2, [None, "1s", "2s", "2s"][number % 4], number)
        took, said = reload()
        slowest = max(slowest, took)
        assert "sinks frozen" in said, f"{number}: {said}"
        send(50)
        until(f"reload {number}", lambda: len(lines(f"{directory}/guest{number}.log")) == 50)
    with open(f"/proc/{daemon.pid}/status") as status:
        threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    assert threads < 30, f"{threads} threads"
finally:
    subprocess.run(["fsfreeze", "-u", options.disk], check=True)
until("the line that it is over", lambda: "sink frozen: hands on again" in log())
write(1, "1s", 13)
reload()
send(10)
until("what was sent in the end", lambda: lines(on_disk)[-1:] and int(lines(on_disk)[-1][:9]) == sent - 1)
daemon.send_signal(signal.SIGTERM)
daemon.wait(30)
own = json.load(open(f"{directory}/ledger.json"))["listeners"][0]
assert own["residual"] == 0 and own["arrived"] == sent and own["kernel_dropped"] == 0, own
frozen = next(sink for sink in own["sinks"] if sink["name"] == "frozen")
written = [int(line[:9]) for line in lines(on_disk)]
assert written == sorted(set(written)), "out of order, or twice"
assert frozen["in_flight"] == 0 and frozen["delivered"] == len(written), (frozen, len(written))
assert frozen["offered"] == frozen["delivered"] + sum(frozen["dropped"].values()), frozen
print(f"a frozen disk through 12 reloads: {sent} sent, {len(written)} written once and in order, "
      f"{sum(frozen['dropped'].values())} counted as dropped, {threads} threads at most; "
      f"an answer took {slowest:.2f} s at most; the log named the sink once it stood for some seconds")
