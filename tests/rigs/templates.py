"""Exporters that send a template once, a relay, and nfcapd behind it; see templates.sh."""
import glob
import os
import re
import signal
import socket
import struct
import subprocess

from lib.check import check, main, passed, same, until
from lib.daemon import WORK, Daemon, listening, start
from lib.host import execute
from lib.net import udp_socket

AT, EXPORTERS = ("127.0.0.1", 2055), 60
# Number and length of each field: addresses, ports, protocol, packets, bytes, first and last.
FIELDS = [(8, 4), (12, 4), (7, 2), (11, 2), (4, 1), (2, 4), (1, 4), (22, 4), (21, 4)]
TEMPLATE = struct.pack(">HH", 256, len(FIELDS)) + b"".join(struct.pack(">HH", *field) for field in FIELDS)
# Of IPFIX first and last have times of their own: milliseconds since the epoch.
IPFIX_TEMPLATE = TEMPLATE[:-8] + struct.pack(">HHHH", 152, 8, 153, 8)
UPTIME, NOW = 600_000, 1_700_000_000


class Exporter:
    """Of one version, behind an address of its own, with a domain that all of them have."""

    def __init__(self, number):
        self.version, self.number, self.host = (9, 10)[number % 2], 0, f"127.0.2.{number + 1}"
        self.socket = udp_socket(self.host)

    def send(self, with_template):
        template, number = (TEMPLATE, 0) if self.version == 9 else (IPFIX_TEMPLATE, 2)
        record = socket.inet_aton(self.host) + socket.inet_aton("10.1.0.1") + struct.pack(">HHBII", 1024, 53, 17, 3, 99)
        times = struct.pack(">II", UPTIME - 2000, UPTIME - 1000)
        if self.version == 10:
            times = struct.pack(">QQ", (NOW - 2) * 1000, (NOW - 1) * 1000)
        sets = [(256, record + times + b"\0" * (-len(record + times) % 4))]
        if with_template:
            sets.insert(0, (number, template))
        body = b"".join(struct.pack(">HH", name, 4 + len(content)) + content for name, content in sets)
        if self.version == 9:
            header = struct.pack(">HHIIII", 9, len(sets), UPTIME, NOW, self.number, 7)
        else:
            header = struct.pack(">HHIII", 10, 16 + len(body), NOW, self.number, 7)
        self.number += 1
        self.socket.sendto(header + body, AT)


class Collector:
    """An nfcapd, and what it could read."""

    def __init__(self, name, port):
        self.directory = f"{WORK}/{name}"
        os.makedirs(self.directory)
        command = ["nfcapd", "-w", self.directory, "-b", "127.0.0.1", "-p", port, "-t", "3600", "-B", str(1 << 22)]
        self.child = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        bound = f"0100007F:{port:04X}"
        until("nfcapd listens", lambda: bound in open("/proc/net/udp", encoding="ascii").read())

    def flows(self):
        """How many flows of each exporter, and the failures of sequence numbers, once it has ended."""
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(timeout=30)
        [path] = glob.glob(f"{self.directory}/nfcapd.*")
        flows = execute("nfdump", "-r", path, "-q", "-N", "-o", "fmt:%sa").stdout.split()
        facts = execute("nfdump", "-I", "-r", path).stdout
        failures = int(re.search(r"[Ss]equence failures: *(\d+)", facts)[1])
        return {host: flows.count(host) for host in set(flows) if host.startswith("127.")}, failures


def round_of(name, keys, first_port):
    """What three collectors could read: two at first, the third after a reload, before any further template."""
    collectors = [Collector(f"{name}{place}", first_port + place) for place in range(3)]

    def text(count):
        to = ", ".join(f'"127.0.0.1:{first_port + place}"' for place in range(count))
        return listening(f'address = "{AT[0]}:{AT[1]}"\nreceive_buffer = "8MiB"', relay=(
            f'type = "udp"\ndestinations = [{to}]\ndistribute = "by_source"\nkeep_source = true\n{keys}'))

    # A sandbox leaves a reload no right to make raw sockets.
    daemon = Daemon(text(2), daemon='sandbox = "off"')
    exporters = [Exporter(number) for number in range(EXPORTERS)]
    for exporter in exporters:
        exporter.send(True)
        exporter.send(False)
    daemon.await_listener("all are delivered", lambda found: found["sinks"][0]["delivered"] == 2 * EXPORTERS)
    daemon.reload(text(3))
    for _ in range(3):
        for exporter in exporters:
            exporter.send(False)
    listener = daemon.await_listener("all are delivered", lambda found: sum(
        sink["delivered"] for sink in found["sinks"]) == 5 * EXPORTERS)
    daemon.end()
    made = sum(one.get("templates", 0) for sink in listener["sinks"] for one in sink["destinations"])
    return [collector.flows() for collector in collectors], made


def moved_exporters_are_read_at_once():
    (first, second, third), made = round_of("with", "templates = 100", 9001)
    moved = third[0]
    check(0 < len(moved) < EXPORTERS, f"{len(moved)} of {EXPORTERS} exporters moved")
    same(set(moved.values()), {3}, "flows that the third has read of each exporter that moved")
    stayed = first[0] | second[0]
    same(sum(stayed.values()) + sum(moved.values()), 5 * EXPORTERS, "flows that all have read")
    same([one[1] for one in (first, second, third)], [0, 0, 0], "failures of sequence numbers")
    same(made, len(moved), "datagrams of templates, one for each exporter that moved")
    passed(f"{len(moved)} of {EXPORTERS} exporters moved, and nfcapd read each of their {3 * len(moved)} flows")


def without_templates_they_are_lost():
    (first, second, third), made = round_of("without", "", 9011)
    same((third[0], made), ({}, 0), "flows that the third has read, and templates")
    lost = 5 * EXPORTERS - sum((first[0] | second[0]).values())
    check(lost > 0, "nothing was lost")
    passed(f"without templates nfcapd lost the {lost} flows of those that moved")


main(moved_exporters_are_read_at_once, without_templates_they_are_lost)
