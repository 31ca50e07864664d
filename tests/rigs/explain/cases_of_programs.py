"""What sockets of other programs lose, because of their readers."""
import os
import socket
import sys
import time

from lib import net
from lib.check import Skipped, check, until
from lib.findings import cure, first, nothing
from lib.host import write
from scene import HERE, apply, far_less, sender

# A buffer of 39 short datagrams.
SMALL = "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)"
# What it does for a datagram takes 50 us.
WORK = "end = time.perf_counter() + 0.00005\n    while time.perf_counter() < end: pass"


def reader_stopped(scene):
    """A debugger has it; the printed command lets it go on."""
    reader = scene.reader(5911)
    explained = scene.load(5911, 2000, 0.6)
    reader.send_signal(19)
    found = first(explained(), "reader_stopped", 100)
    apply(cure(found, "command", "kill -CONT"))
    time.sleep(0.2)
    nothing(explained())


def reader_starved(scene):
    """Others run on its core; the printed command puts it before them."""
    core = min(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(core)]
    for _ in range(10):
        scene.start([*pinned, sys.executable, "-c", "while True: pass"])
    scene.reader(5912, WORK, SMALL, before=pinned)
    explained = scene.load(5912, 6000, 1.6, watched=2)
    found = first(explained(), "reader_starved")
    apply(cure(found, "command", "chrt"))
    far_less(explained(), found)


def reader_at_its_limit(scene):
    """It needs more than a core for what comes; cured by doing less for each datagram, as is printed."""
    first_in_line = ["chrt", "--rr", "10"]
    busy = scene.reader(5914, WORK.replace("0.00005", "0.001"), SMALL, before=first_in_line)
    explained = scene.load(5914, 2000, 2.4, watched=2)
    found = first(explained(), "reader_at_its_limit", 100)
    cure(found, "elsewhere", "do less for each datagram")
    busy.kill()
    busy.wait()
    scene.reader(5914, options=SMALL.replace("16384", "131072"), before=first_in_line)
    far_less(explained(), found)


def container_throttled(scene):
    """Its control group has a twentieth of a core; the printed command lifts that."""
    name = f"udpd-explain-rig-{os.getpid()}"
    group = f"/sys/fs/cgroup/cpu/{name}"
    unified = not os.path.exists("/sys/fs/cgroup/cpu/cgroup.procs")
    if unified:
        group = f"/sys/fs/cgroup/{name}"
    try:
        os.makedirs(group, exist_ok=True)
        limit = ("cpu.max", "5000 100000") if unified else ("cpu.cfs_quota_us", "5000")
        write(f"{group}/{limit[0]}", limit[1])
    except OSError as why:
        if os.path.isdir(group):
            os.rmdir(group)
        raise Skipped(f"a control group with a limit of CPU time ({why})") from why
    reader = scene.reader(5913, WORK, SMALL)
    write(f"{group}/cgroup.procs", str(reader.pid))
    explained = scene.load(5913, 2000, 0.7)
    try:
        found = first(explained(), "container_throttled", 100)
        apply(cure(found, "command", name))
        said = explained()
        check(all(finding["case"] != "container_throttled" for finding in said["findings"]), f"still throttled: {said}")
    finally:
        reader.kill()
        reader.wait()
        os.rmdir(group)


def sockets_gone(scene):
    """A program opens a socket, loses, and closes it: no table has it any more. Nothing that is printed cures that; it
    is cured by a program that reads what it opened."""
    own = sender()

    def provoke(reads=False):
        before = net.udp_counters()["Ip:InDelivers"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as short:
            short.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            short.bind((HERE, 5915))
            for number in range(100):
                own.sendto(b"x" * 60, (HERE, 5915))
                if reads:
                    short.recv(100)
            # What still waits for a core that handles it when the socket closes would come to no listener.
            until("100 come to UDP", lambda: net.udp_counters()["Ip:InDelivers"] - before >= 100, 30, 0.001)

    # In a namespace without any other socket, or it would be taken for one that was not watched.
    found = first(scene.explain(provoke, seconds=2), "sockets_gone", 50)
    cure(found, "elsewhere", "opens one for each task")
    nothing(scene.explain(lambda: provoke(reads=True), seconds=2))


CASES = [reader_stopped, reader_starved, reader_at_its_limit, container_throttled, sockets_gone]
