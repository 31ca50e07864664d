"""A guest: an emulated machine of a shape, with cards whose other ends are taps of this network namespace.

The checks run out here, where there is a language to write them in; the guest only does what it is asked over a serial
line. See agent.sh for its side.
"""
import base64
import dataclasses
import lzma
import os
import pathlib
import socket
import subprocess
import time

# Emulated, instructions that copy byte by byte are slow, and so is every page that is cleared before it is used: the
# processor is said to lack the ones, and the kernel is told to leave out the other, and what guards against neighbours.
KERNEL = "console=ttyS0,115200 quiet panic=-1 net.ifnames=0 mitigations=off init_on_alloc=0 audit=0"
PROCESSOR = "max,-erms,-fsrm,-la57"
# Emulated processors of the other maker have no siblings.
SIBLINGS = ",vendor=GenuineIntel"
# QEMU before 9.1 waits for ever for the guest's word when a ring was full at the wrong moment, which happens on a busy
# host. So the ring is long, and the word is not left out to save exits.
RING = ",rx_queue_size=1024,event_idx=off"
BOOT_SECONDS = 240
# The ports of senders at the other ends of the cards.
FIRST_PORT = 20000


def unpacked(image, folder):
    """The kernel itself, taken out of its image: to have it unpacked in the guest takes longer than all the rest of the
    start. An image that is packed otherwise than Debian's is left to unpack itself."""
    packed = pathlib.Path(image).read_bytes()
    begin = packed.find(b"\xfd7zXZ\0")
    if begin < 0:
        return image
    path = pathlib.Path(folder) / "kernel"
    path.write_bytes(lzma.LZMADecompressor().decompress(packed[begin:]))
    return str(path)


@dataclasses.dataclass
class Card:
    """One network card. It is called port0, port1, ... in the guest, and its datagrams come from 10.9.PORT.1."""

    model: str = "virtio"
    queues: int = 1
    # Of a virtio card: how many interrupts of its own it has; 0 is one shared line. None: one for each queue.
    vectors: int | None = None
    # The memory node whose bus it stands on; None: a bus that belongs to no node.
    node: int | None = None


@dataclasses.dataclass
class Machine:
    """What QEMU is told of the machine."""

    cores: str
    # MiB of each memory node, and which cores are on it.
    nodes: list[tuple[int, str]]
    cards: list[Card]
    # (from, to, distance)
    distances: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)

    def arguments(self):
        """Of QEMU."""
        processor = PROCESSOR + (SIBLINGS if "threads=" in self.cores else "")
        found = ["-cpu", processor, "-machine", "q35", "-smp", self.cores, "-m", str(sum(mib for mib, _ in self.nodes))]
        for number, (mib, cpus) in enumerate(self.nodes):
            node = f"node,nodeid={number}" + "".join(f",cpus={part}" for part in cpus.split(",") if part)
            if mib:
                found += ["-object", f"memory-backend-ram,id=m{number},size={mib}M"]
                node += f",memdev=m{number}"
            found += ["-numa", node]
        for here, there, distance in self.distances:
            found += ["-numa", f"dist,src={here},dst={there},val={distance}"]
        for node in sorted({card.node for card in self.cards if card.node is not None}):
            bus = f"pxb-pcie,id=far{node},bus_nr={48 * (node + 1)},numa_node={node},bus=pcie.0"
            found += ["-device", bus]
        for port, card in enumerate(self.cards):
            found += self.card(port, card)
        return found

    def card(self, port, card):
        queues = f",queues={card.queues}" if card.queues > 1 else ""
        found = ["-netdev", f"tap,id=n{port},ifname=tap{port},script=no,downscript=no{queues}"]
        bus = "pcie.0"
        if card.node is not None:
            bus = f"root{port}"
            found += ["-device", f"pcie-root-port,id={bus},bus=far{card.node},chassis={port + 1}"]
        device = f"netdev=n{port},mac=52:54:00:00:00:0{port},bus={bus}"
        if card.model == "virtio":
            vectors = 2 * card.queues + 2 if card.vectors is None else card.vectors
            several = ",mq=on,rss=on,hash=on" if card.queues > 1 else ""
            return found + ["-device", f"virtio-net-pci,{device},vectors={vectors}{RING}{several}"]
        return found + ["-device", f"{card.model},{device}"]


@dataclasses.dataclass
class Said:
    """The answer of the guest."""

    code: int
    text: str

    def lines(self):
        return self.text.splitlines()


class Guest:
    """A machine that runs. Use it as a context."""

    def __init__(self, machine, files, folder):
        self.machine = machine
        image, initramfs = files
        path = pathlib.Path(folder) / f"asked{os.getpid()}"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(1)
        for port, card in enumerate(machine.cards):
            several = ["multi_queue"] if card.queues > 1 else []
            # What comes while others have the host's cores waits for the guest in the tap's queue; by default that is
            # a third of a second of traffic.
            for command in (
                ["tuntap", "add", "dev", f"tap{port}", "mode", "tap", *several],
                ["address", "add", f"10.9.{port}.1/24", "dev", f"tap{port}"],
                ["link", "set", f"tap{port}", "txqueuelen", "16384", "up"],
            ):
                subprocess.run(["ip", *command], check=True)
        arguments = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", *machine.arguments()]
        arguments += ["-kernel", image, "-initrd", initramfs, "-append", KERNEL, "-display", "none", "-no-reboot"]
        arguments += ["-serial", f"file:{folder}/console", "-chardev", f"socket,id=ask,path={path}"]
        arguments += ["-serial", "chardev:ask", "-nodefaults"]
        self.console = pathlib.Path(folder) / "console"
        self.console.write_text("")
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=self.console.open("a"))
        listener.settimeout(60)
        with listener:
            try:
                self.connection, _ = listener.accept()
            except TimeoutError:
                self.process.kill()
                raise
        self.answers = self.connection.makefile("r", errors="replace")

    def __enter__(self):
        try:
            return self.boot()
        except BaseException:
            self.__exit__()
            raise

    def boot(self):
        began = time.monotonic()
        self.connection.settimeout(BOOT_SECONDS)
        while "READY" not in self.line():
            pass
        self.boot_seconds = time.monotonic() - began
        self.name_cards()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for port in range(len(self.machine.cards)):
            subprocess.run(["ip", "link", "delete", f"tap{port}"], check=False)

    def line(self):
        try:
            line = self.answers.readline()
        except TimeoutError:
            line = ""
        if not line:
            raise RuntimeError("the guest does not answer; its last words:\n" + self.console.read_text()[-3000:])
        return line.strip()

    def run(self, script, seconds=120):
        """Runs a script of the shell and waits for its end."""
        self.connection.settimeout(seconds)
        self.connection.sendall(base64.b64encode(script.encode()) + b"\n")
        while not (line := self.line()).startswith("EXIT "):
            pass
        said = []
        while (part := self.line()) != ".":
            said.append(part)
        return Said(int(line[5:]), base64.b64decode("".join(said)).decode(errors="replace"))

    def write(self, path, text):
        self.run(f"cat >{path} <<'END-OF-FILE'\n{text}\nEND-OF-FILE\n")

    def wait(self, condition, seconds):
        """Until a command of the guest succeeds: after how many seconds by its clock; None when it never does."""
        tenths = int(seconds * 10)
        said = self.run(
            "now() { read -r up rest </proc/uptime; echo ${up%.*}${up#*.}; }\n"
            f"begun=$(now); until {condition}; do\n"
            f"    [ $(($(now) - begun)) -lt {tenths * 10} ] || exit 1; usleep 100000\n"
            "done >/dev/null 2>&1; echo $(($(now) - begun))",
            seconds + 120,
        )
        return int(said.lines()[-1]) / 100 if said.code == 0 else None

    def name_cards(self):
        """Calls the cards by the order in which the table has them, whatever order their drivers came in."""
        self.run(
            "for address in /sys/class/net/eth*/address; do\n"
            "    was=${address%/address}; read -r mac <$address; port=${mac#52:54:00:00:00:0}\n"
            "    ip link set ${was##*/} name port$port\n"
            "    ip link set port$port up; ip address add 10.9.$port.2/24 dev port$port\n"
            "done"
        )
        # A card without a carrier drops what is sent to it.
        self.wait("! grep -q 0 /sys/class/net/port*/carrier", 20)


def send(port, flows, total, per_second, to=5140):
    """So many datagrams of 32 bytes in so many flows, from the other end of a card; returns when all are sent."""
    senders = []
    for flow in range(flows):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((f"10.9.{port}.1", FIRST_PORT + flow))
        sender.connect((f"10.9.{port}.2", to))
        senders.append(sender)
    begun, sent = time.monotonic(), 0
    while sent < total:
        due = min(total, int((time.monotonic() - begun) * per_second) + 1)
        while sent < due:
            try:
                senders[sent % flows].send(b"%032d" % sent)
                sent += 1
            except ConnectionRefusedError:
                pass
        time.sleep(0.001)
    for sender in senders:
        sender.close()
