"""Takes what an exporter sends, does to it what a bad network would, and compares what udpd says with what it did.

What is missing is computed here from the datagrams that were left out, and not from sequence numbers: by the count in a
NetFlow 5 header, by datagrams, or by the records in the sets of an IPFIX message."""
import random
import struct
import subprocess
import time

from lib import net, packets
from lib.check import main, passed, same
from lib.daemon import NULL, WORK, Daemon, listening, start
from lib.load import send

FLOWS = 6000


def capture(path, start):
    """A capture of many flows, a packet each."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for flow in range(FLOWS):
            source, destination = f"10.0.0.{flow // 1000}", "10.1.0.1"
            body = packets.udp(source, destination, 53, b"x" * 20, 0, 1024 + flow % 50000)
            frame = packets.frame(b"\2" * 6, packets.ip(source, destination, body, number=flow))
            # Ten seconds of traffic.
            file.write(struct.pack("<IIII", start + flow // 600, flow % 600 * 1000, len(frame), len(frame)) + frame)


def exported(version, start):
    """The datagrams that softflowd makes of a capture."""
    capture(f"{WORK}/flows.pcap", start)
    relay = net.udp_socket("127.0.0.1", buffer=64 << 20)
    to = f"127.0.0.1:{relay.getsockname()[1]}"
    command = ["softflowd", "-r", f"{WORK}/flows.pcap", "-n", to, "-v", str(version), "-d",
               "-p", f"{WORK}/pid", "-c", "none"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    relay.setblocking(False)
    datagrams = []
    try:
        while True:
            datagrams.append(relay.recv(65535))
    except BlockingIOError:
        return datagrams


def records(message, templates):
    """The data records of an IPFIX message; those of options count apart."""
    at, data, options = 16, 0, 0
    while at + 4 <= len(message):
        number, length = struct.unpack_from(">HH", message, at)
        content = message[at + 4:at + length]
        if number in (2, 3):
            place = 0
            while place + 4 <= len(content):
                template, fields = struct.unpack_from(">HH", content, place)
                place += 6 if number == 3 else 4
                size = 0
                for _ in range(fields):
                    element, width = struct.unpack_from(">HH", content, place)
                    place += 8 if element & 0x8000 else 4
                    size += width
                if template >= 256:
                    templates[template] = (size, number == 3)
        elif number >= 256:
            size, is_options = templates[number]
            count = len(content) // size
            data, options = (data, options + count) if is_options else (data + count, options)
        at += length
    return data, options


def units(kind, datagrams):
    """How much of the protocol's unit each datagram has."""
    if kind == "netflow5":
        return [struct.unpack_from(">H", datagram, 2)[0] for datagram in datagrams]
    if kind == "ipfix":
        templates = {}
        return [records(datagram, templates)[0] for datagram in datagrams]
    return [1] * len(datagrams)


def made(kind, count):
    """Datagrams of protocols that no exporter here speaks."""
    if kind == "sflow":
        header = struct.pack(">III", 5, 1, 0x0A000001)
        return [header + struct.pack(">IIII", 3, number, 5000 + 10 * number, 0) for number in range(count)]
    return [struct.pack(">BBHII", 0x80, 96, (65000 + number) & 0xFFFF, 160 * number, 77) for number in range(count)]


def carried(datagrams, sizes, lost_percent, seed):
    """What arrives, in which order, and how much of it is lost and repeated. The first and the last three arrive as
    they were sent, so that nothing is lost where no number after it could tell."""
    choice = random.Random(seed)
    places, lost, repeated = [], 0, 0
    for place, size in enumerate(sizes):
        is_end = place < 3 or place >= len(sizes) - 3
        if not is_end and choice.random() * 100 < lost_percent:
            lost += size
            continue
        places.append((place + (0 if is_end else choice.randrange(8)), place))
        if not is_end and choice.random() < 0.02:
            places.append((place + 4, place))
            repeated += size
    ends = {0, 1, 2, len(sizes) - 3, len(sizes) - 2, len(sizes) - 1}
    first = [place for _, place in places if place < 3]
    last = [place for _, place in places if place >= len(sizes) - 3]
    middle = [place for _, place in sorted(places) if place not in ends]
    return [datagrams[place] for place in first + middle + last], lost, repeated


def told(kind, datagrams):
    """What udpd says of these datagrams."""
    daemon = Daemon(listening(f'address = "127.0.0.1:9995"\nsequence = "{kind}"\nreceive_buffer = "64MiB"', out=NULL))
    daemon.await_arrived(send(9995, datagrams))
    return daemon.end()["upstream"]


def all_protocols():
    versions = {"netflow5": 5, "netflow9": 9, "ipfix": 10}
    for kind in ["netflow5", "netflow9", "ipfix", "sflow", "rtp"]:
        if kind in versions:
            lives = [exported(versions[kind], 1_700_000_000)]
            # The exporter starts anew. Its headers have whole seconds of the clock on the wall.
            time.sleep(2.5)
            lives.append(exported(versions[kind], 1_700_000_900))
        else:
            lives = [made(kind, 3000)]
        sizes = [units(kind, life) for life in lives]
        for lost_percent in [0, 5, 20]:
            each = [carried(life, size, lost_percent, 7) for life, size in zip(lives, sizes)]
            lost, repeated = sum(one[1] for one in each), sum(one[2] for one in each)
            upstream = told(kind, [datagram for one in each for datagram in one[0]])
            said = tuple(upstream[key] for key in ["missing", "duplicate", "restarts", "late", "unnumbered"])
            same(said, (lost, repeated, len(lives) - 1, 0, 0), f"{kind}, {lost_percent} % lost: missing, duplicate, "
                 f"restarts, late, unnumbered: {upstream}")
            passed(f"{kind}, {lost_percent} % lost: {sum(map(sum, sizes))} {upstream['unit']} sent, "
                   f"{lost} missing, {repeated} repeated, {len(lives) - 1} restarts")


def two_behind_one_address():
    """Six exporters at once behind one address, two of each version with the same domain, on one port: nothing is lost,
    and each is a stream of its own."""
    capture(f"{WORK}/flows.pcap", 1_700_000_000)
    daemon = Daemon(listening('address = "0.0.0.0:9995"\nsequence = "netflow"\nreceive_buffer = "64MiB"', out=NULL))
    exporters = [start(["softflowd", "-r", f"{WORK}/flows.pcap", "-n", "127.0.0.1:9995", "-v", version, "-d",
                        "-p", f"{WORK}/pid{place}", "-c", "none"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
                 for place, version in enumerate([5, 5, 9, 9, 10, 10])]
    for exporter in exporters:
        same(exporter.wait(timeout=60), 0, "the end of softflowd")
    upstream = daemon.end()["upstream"]
    said = tuple(upstream[key] for key in ["missing", "streams", "restarts", "unnumbered", "worst"])
    same(said, (0, 6, 0, 0, []), f"missing, streams, restarts, unnumbered, worst: {upstream}")
    passed("six exporters behind one address lose nothing and nothing is invented")


main(all_protocols, two_behind_one_address)
