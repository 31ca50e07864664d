#!/usr/bin/env python3
"""What sending over HTTP costs: CPU a datagram of each profile, against one that writes JSON lines to a file.

    benches/http_cost.py UDPD [--quick]

The server reads bodies and throws them away, so what is measured is udpd: encoding, the spill where there is one, and
writing to a socket of loopback. The datagrams are lines of text. A capture whose times make the rate is replayed.

Each round runs all once and the file twice, beginning with another one each time: what the file differs from itself is
the noise of the machine. DIRECTORY (the directory for temporary files) should be on a disk.

ROUNDS (5), SECONDS (2), RATE (100000) and LENGTH (200) are set by the environment. `--quick` only shows that it runs:
one round of a second at 20,000/s.
"""

import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

QUICK = "--quick" in sys.argv[2:]
ROUNDS = int(os.environ.get("ROUNDS", "1" if QUICK else "5"))
SECONDS = int(os.environ.get("SECONDS", "1" if QUICK else "2"))
RATE = int(os.environ.get("RATE", "20000" if QUICK else "100000"))
LENGTH = int(os.environ.get("LENGTH", "200"))
ADDRESS = "127.0.0.1:5197"
FILE = 'type = "file"\nformat = "jsonl"\npath = "{directory}/out.jsonl"\n'
HTTP = 'type = "http"\nurl = "http://127.0.0.1:{port}/x"\nbatch = {{ bytes = "4MiB", datagrams = 50000 }}\n'
SPILL = 'spill = {{ path = "{directory}/spill", bytes = "4GiB" }}\n'
KINDS = {
    "jsonl to a file": FILE,
    "jsonl to a file, again": FILE,
    "ndjson": HTTP,
    "clickhouse": HTTP + 'profile = "clickhouse"\n',
    "clickhouse, gzip": HTTP + 'profile = "clickhouse"\ncompress = "gzip"\n',
    "clickhouse, spill": HTTP + 'profile = "clickhouse"\n' + SPILL,
    "otlp": HTTP + 'profile = "otlp"\n',
    "otlp, spill": HTTP + 'profile = "otlp"\n' + SPILL,
}


def capture(path):
    """Lines of text from four senders, as far apart as the rate says."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 101))
        for number in range(RATE * SECONDS):
            text = f"<134>Nov 28 03:00:00 host{number % 4} app[{number % 997}]: request {number} took 12 ms, code 200, "
            payload = (text * (1 + LENGTH // len(text)))[:LENGTH].encode()
            at = number * 1_000_000_000 // RATE
            total = 28 + len(payload)
            packet = struct.pack(">BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            packet += struct.pack(">HHHH", 40000 + number % 4, 5197, 8 + len(payload), 0) + payload
            file.write(struct.pack("<IIII", at // 1_000_000_000, at % 1_000_000_000, total, total) + packet)


def serve(listener):
    """Throws bodies away, and says that they are taken."""

    def connection(stream):
        buffer, have = memoryview(bytearray(1 << 20)), 0
        while True:
            end = -1
            while end < 0:
                got = stream.recv_into(buffer[have:])
                if got == 0:
                    return
                have += got
                end = bytes(buffer[:have]).find(b"\r\n\r\n")
            head = bytes(buffer[:end]).lower()
            left = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) - (have - end - 4)
            while left > 0:
                left -= stream.recv_into(buffer[: min(left, len(buffer))])
            have = 0
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    while True:
        stream, _ = listener.accept()
        threading.Thread(target=connection, args=(stream,), daemon=True).start()


def process_ns(pid):
    """CPU time of every thread of a process, to the nanosecond."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as schedstat:
            total += int(schedstat.read().split()[0])
    return total


def stats(udpd, control):
    command = [udpd, "stats", "--json", "--socket", control]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["listeners"][0]


def measure(udpd, sink, directory, lines, port):
    control, path, log = (f"{directory}/{name}" for name in ("control", "udpd.toml", "log"))
    with open(path, "w", encoding="ascii") as file:
        file.write(
            f'[daemon]\ncontrol_socket = "{control}"\nmetrics_address = ""\n[steer]\ncpus = "0"\n'
            f'[[listener]]\nname = "in"\naddress = "{ADDRESS}"\nreceive_buffer = "64MiB"\nlanes = 1\nsinks = ["out"]\n'
            f"[sink.out]\n{sink.format(directory=directory, port=port)}"
        )
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([udpd, "run", "-c", path], stderr=file)
    while "ready" not in open(log, encoding="utf-8").read():
        if process.poll() is not None:
            sys.exit(f"udpd did not start:\n{open(log, encoding='utf-8').read()}")
        time.sleep(0.02)
    before = process_ns(process.pid)
    subprocess.run([udpd, "replay", lines, "--to", ADDRESS], capture_output=True, check=True)
    limit = time.monotonic() + 60
    while (listener := stats(udpd, control))["sinks"][0]["delivered"] < listener["received"]:
        if time.monotonic() > limit:
            break
        time.sleep(0.05)
    own = process_ns(process.pid) - before
    process.terminate()
    process.wait()
    done = listener["sinks"][0]["delivered"]
    return own / max(1, done), RATE * SECONDS - done


def main():
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--quick"]):
        sys.exit(__doc__)
    udpd = os.path.realpath(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    results = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(dir=os.environ.get("DIRECTORY")) as own:
        lines = f"{own}/lines.pcap"
        capture(lines)
        for number in range(ROUNDS):
            order = list(KINDS)
            order = order[number % len(order):] + order[:number % len(order)]
            for kind in order:
                with tempfile.TemporaryDirectory(dir=os.environ.get("DIRECTORY")) as directory:
                    results[kind].append(measure(udpd, KINDS[kind], directory, lines, port))
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
    print(f"{RATE}/s of {LENGTH} bytes, {ROUNDS} rounds of {SECONDS} s\n")
    print("| | process, ns a datagram | ratio | not in the sink |\n|---|---|---|---|")
    for kind, rows in results.items():
        ratio = statistics.median(row[0] / of[0] for row, of in zip(rows, results["jsonl to a file"]))
        cpu, lost = statistics.median(row[0] for row in rows), sum(row[1] for row in rows)
        print(f"| {kind} | {cpu:.0f} | {ratio:.3f} | {lost} |")
    print("\nMedians; the ratio is the median of the ratios within a round.")


if __name__ == "__main__":
    main()
