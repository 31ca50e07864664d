"""What is lost before any socket: no process listens, IP and UDP refuse it."""
import shlex
import shutil
import socket
import subprocess
import time
from collections import Counter

from lib import packets
from lib.check import Skipped, check
from lib.daemon import WORK
from lib.findings import cure, first, nothing
from lib.host import execute, read
from lib.net import OTHER, ip, run
from scene import HERE, apply, paced, sender


def no_listener(scene):
    """No process has the port; the printed command has."""
    explained = scene.load(5901, 150, 0.6)
    found = first(explained(), "no_listener", 50)
    scene.start(shlex.split(cure(found, "command")["command"]), stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    nothing(explained())


def listener_in_another_namespace(scene):
    """The printed command looks where the listener is, and finds nothing wrong there."""
    text = "import socket, time\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('', 5902))\ntime.sleep(60)"
    scene.start(["nsenter", "--target", OTHER, "--net", "python3", "-c", text])
    time.sleep(0.5)
    found = first(scene.load(5902, 150, 0.6)(), "no_listener", 50)
    check("listens in another one" in found["cause"], f"the listener is not found: {found}")
    run(*shlex.split(cure(found, "look", "nsenter")["command"]), "--seconds", "1")


def fragments(scene):
    """No memory for fragments; the printed sysctl gives it."""
    # What is left of them would be counted beneath a later case.
    run("sysctl", "-qw", "net.ipv4.ipfrag_time=1",
        *(f"net.ipv4.ipfrag_{name}_thresh=20000" for name in ("low", "high")))
    scene.reader(5903)
    explained = scene.load(5903, 40, 0.6, b"x" * 50_000)
    found = first(explained(), "fragments")
    apply(cure(found, "sysctl", "ipfrag_high_thresh"))
    time.sleep(1.5)
    nothing(explained())


def reverse_path_filter(scene):
    """A source that this host has no route to, and one that it would answer elsewhere."""
    ip("address replace 172.31.0.5/32 dev card1", OTHER)
    scene.reader(5904)
    explained = scene.load(5904, 150, 0.6, source="172.31.0.5")
    run("sysctl", "-qw", "net.ipv4.conf.card0.rp_filter=1")
    found = first(explained(), "reverse_path_filter", 50)
    apply(cure(found, "command", "card0.rp_filter=0"))
    nothing(explained())
    # A route to anywhere, through another interface: the loose filter is enough.
    for words in ("link add other0 type veth peer name other1", "link set other0 up", "link set other1 up",
                  "route add default dev other0"):
        ip(words)
    scene.undo.append(lambda: ip("link del other0"))
    run("sysctl", "-qw", "net.ipv4.conf.card0.rp_filter=1")
    found = first(explained(), "reverse_path_filter", 50)
    loose = cure(found, "sysctl", "rp_filter")
    check(loose["value"] == "2", f"the filter need not be switched off: {loose}")
    apply(loose)
    nothing(explained())


def bad_checksums(scene):
    """Datagrams with a wrong checksum from a program that writes packets itself; cured at the sender."""
    scene.reader(5905)
    plain, raw = sender(), sender(kind=socket.SOCK_RAW)
    wrong = packets.udp("10.9.0.2", HERE, 5905, b"x" * 100, 0x1234)

    def provoke():
        for _ in range(100):
            raw.sendto(wrong, (HERE, 0))
            time.sleep(0.005)

    found = first(scene.explain(provoke, "--port", "5905"), "bad_checksums", 30)
    check("at the sender" in cure(found, "elsewhere")["note"], f"the cure is not at the sender: {found}")
    nothing(scene.explain(lambda: paced(plain, 5905, 150, 0.6), "--port", "5905"))


def firewall(scene):
    """A rule that drops the port, told with its table, chain and hook; the printed rule before it lets the port in."""
    if not shutil.which("nft"):
        raise Skipped("nft")
    rules = "add table ip rig; add chain ip rig in { type filter hook input priority 0; }; " \
            "add rule ip rig in udp dport 5906 counter drop"
    if execute("nft", rules).returncode:
        raise Skipped("nf_tables in this kernel")
    scene.undo.append(lambda: execute("nft", "delete table ip rig"))
    scene.reader(5906)
    explained = scene.load(5906, 150, 0.6)
    said = explained()
    if any("such as those that a firewall dropped" in words for words in said["unseen"]):
        raise Skipped(f"the kernel's reasons by port: {said['unseen']}")
    found = first(said, "firewall", 50)
    check("table ip rig, chain in, hook input" in found["arithmetic"], f"the rule is not named: {found}")
    apply(cure(found, "command", "nft insert rule"))
    nothing(explained())


def names_refused(scene):
    """The kernel refuses its names for drops, from the first tracepoint or in the middle: that is said, and what has a
    counter is told all the same. How many tracepoints there are is the kernel's and the machine's affair."""
    tracer = ["strace", "-f", "-qq", "-e", "trace=perf_event_open"]
    if not shutil.which("strace") or execute(*tracer, "true").returncode:
        raise Skipped("strace, and the right to trace")
    explained = scene.load(5907, 150, 0.6)
    log = f"{WORK}/calls"
    said = explained(before=[*tracer, "-o", log])
    if any(words.startswith("the kernel's names for drops:") for words in said["unseen"]):
        raise Skipped(f"the kernel's names for drops: {said['unseen']}")
    # strace counts the calls of each thread by itself.
    of_threads = Counter(line.split()[0] for line in read(log).splitlines() if "perf_event_open(" in line)
    calls = max(of_threads.values(), default=0)
    check(calls, f"it has the names without perf_event_open: {said}")
    for number, when in ((1, "1+"), (2, "2"), (3, "3+")):
        if number > calls:
            break
        inject = ["-o", "/dev/null", "-e", f"inject=perf_event_open:error=EACCES:when={when}"]
        said = explained(before=[*tracer, *inject])
        first(said, "no_listener", 30)
        check(any("perf_event_open" in words for words in said["unseen"]),
              f"it does not say what it did not see when call {when} of {calls} fails: {said}")


CASES = [
    no_listener, listener_in_another_namespace, fragments, reverse_path_filter, bad_checksums, firewall, names_refused,
]
