"""Loses datagrams in every layer, and compares what udpd says with what is missing.

Each round sends a random number of each kind in random order. What was read by udpd and by the idle socket of this
process has arrived; the rest is missing, and the ledger of the host must have it: as a sum, and each kind in the layer
where it was lost.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

UDPD, CONTROL, DAEMON, OTHER, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
SENDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "send.py")
KINDS = ["udpd", "idle", "closed", "damaged", "spoofed", "astray", "torn", "long"]


def send(counts):
    """Has the other end of the cable send these, and returns when they are sent."""
    order = [kind for kind, count in counts.items() for _ in range(count)]
    random.shuffle(order)
    command = ["nsenter", "--target", OTHER, "--net", sys.executable, SENDER]
    subprocess.run(command, input=json.dumps(order), text=True, check=True)


def ledger():
    command = [UDPD, "stats", "--json", "--socket", CONTROL]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def drained(idle):
    count = 0
    while True:
        try:
            idle.recv(2048)
            count += 1
        except BlockingIOError:
            return count


def terms(host):
    return {f"{loss['layer']}.{loss['counter']} {loss['place']}": loss["count"] for loss in host["lost"]["lost"]}


def main():
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    random.seed(seed)
    idle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    idle.setblocking(False)
    idle.bind(("10.8.0.1", 5141))
    sent, read_here = dict.fromkeys(KINDS, 0), 0
    for number in range(1, ROUNDS + 1):
        overload = {kind: random.choice([0, 1, random.randint(2, 400)]) for kind in KINDS}
        stall = {"udpd": random.choice([0, random.randint(1, 500)]), "idle": random.randint(0, 50)}
        send(overload)
        os.kill(DAEMON, signal.SIGSTOP)
        send(stall)
        os.kill(DAEMON, signal.SIGCONT)
        for counts in (overload, stall):
            for kind, count in counts.items():
                sent[kind] += count
        # Fragments are given up after a second, and udpd looks once a second.
        deadline = time.monotonic() + 15
        while True:
            read_here += drained(idle)
            told = ledger()
            host, received = told["host"], told["listeners"][0]["received"]
            missing = sum(sent.values()) - received - read_here
            if host["lost"]["total"] == missing or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        found = terms(host)
        not_in_sockets = sent["udpd"] + sent["idle"] - received - read_here + sent["damaged"]
        expected = {
            "nic.rx_dropped card0": sent["long"],
            "ip.reverse_path_filter ipv4": sent["spoofed"],
            "ip.in_addr_errors ipv4": sent["astray"],
            "ip.reasm_fails ipv4": sent["torn"],
            "udp.no_ports ipv4": sent["closed"],
            "udp.in_errors ipv4": not_in_sockets,
        }
        expected = {term: count for term, count in expected.items() if count}
        if host["lost"]["total"] != missing or found != expected or host["lost"]["unseen"]:
            print(f"FAILED: round {number}, SEED={seed}: {missing} are missing, {host['lost']['total']} were told")
            print(f"  sent      {sent}\n  expected  {expected}\n  told      {found}")
            print(f"  unseen    {host['lost']['unseen']}")
            return 1
        csum, at_idle = host["udp"]["in_csum_errors"], [one for one in host["sockets"] if not one["own"]]
        if csum != sent["damaged"] or at_idle:
            print(f"FAILED: round {number}, SEED={seed}: {csum} bad checksums of {sent['damaged']}, {at_idle}")
            return 1
    if not all(sent.values()) and ROUNDS >= 20:
        print(f"FAILED: not every kind was sent: {sent}, SEED={seed}")
        return 1
    print(f"passed: {ROUNDS} random overloads, {missing} of {sum(sent.values())} datagrams lost in {len(found)} "
          "places, the sum of the layers is what is missing")
    return 0


sys.exit(main())
