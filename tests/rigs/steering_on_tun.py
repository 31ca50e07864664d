"""A TUN whose queues and cores are known; see steering_on_tun.sh."""
import fcntl
import os
import struct
import subprocess

from lib import packets
from lib.check import check, main, passed, same, skipped
from lib.daemon import NULL, Daemon, listening
from lib.net import ip

QUEUES, EACH, ADDRESS, SENDER = 4, 1000, "10.77.0.1", "10.77.0.2"
TUNSETIFF, TUN_NO_INFORMATION_MULTI_QUEUE = 0x400454CA, 0x1101


def open_queue():
    queue = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(queue, TUNSETIFF, struct.pack("16sH22x", b"card0", TUN_NO_INFORMATION_MULTI_QUEUE))
    return queue


def write(queue, port, core, cores, count):
    """Datagrams from a queue, while this process runs on a core."""
    os.sched_setaffinity(0, {core})
    for number in range(count):
        body = packets.udp(SENDER, ADDRESS, port, b"x" * 32, 0, 10000 + number)
        os.write(queue, packets.ip(SENDER, ADDRESS, body))
    os.sched_setaffinity(0, set(cores))


def compare(spread, lanes, port, queues, cores, wanted):
    """Sends from every queue on every core; `wanted(queue, core, lanes)` is the number of the right lane."""
    daemon = Daemon(listening(f'address = "{ADDRESS}:{port}"\ninterface = "card0"\nlanes = {lanes}\n'
                              f'spread = "{spread}"', out=NULL))
    before, sent = daemon.listener(), 0
    for queue, descriptor in enumerate(queues):
        for core in cores:
            write(descriptor, port, core, cores, EACH)
            sent += EACH
            after = daemon.await_listener(f"{sent} have come", lambda listener: listener["received"] >= sent)
            got = [new["received"] - old["received"] for new, old in zip(after["lanes"], before["lanes"])]
            right = wanted(queue, core, after["lanes"])
            same(got, [EACH if lane == right else 0 for lane in range(len(got))],
                 f"{spread}: queue {queue}, core {core}: lane {right} is right: {after}")
            before = after
    ledger = daemon.end()
    same(ledger["arrived"], sent, "arrived")
    passed(f'spread = "{spread}", {len(queues)} queues x {len(cores)} cores: {sent} of {sent} on the lane of the table')
    return ledger


def count(port, queues, cores):
    """What the counter says of datagrams whose queue and core are known, another number of each."""
    counter = subprocess.Popen([os.environ["ARRIVALS"], f"{ADDRESS}:{port}"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if counter.stdout.readline() != "counting\n":
        skipped(f"the counter by queue: {counter.communicate()[1].strip()}")
        return
    sent = []
    for core in cores:
        for queue, descriptor in enumerate(queues):
            here = EACH + 100 * queue + core
            write(descriptor, port, core, cores, here)
            sent.append(f"queue {queue} core {core}: {here}")
    same(counter.communicate()[0].splitlines(), sent, "counted")
    passed(f"the counter tells {len(queues)} queues x {len(cores)} cores apart, to the datagram")


def tables():
    queues = [open_queue() for _ in range(QUEUES)]
    ip(f"addr add {ADDRESS}/24 dev card0")
    ip("link set card0 up")
    cores = sorted(os.sched_getaffinity(0))[:8]
    # One lane for each queue, and with fewer cores than queues one for each core.
    lanes = min(QUEUES, len(os.sched_getaffinity(0)))
    by_queue = compare("queue", '"auto"', 5141, queues, cores, lambda queue, core, _: queue % lanes)
    same([lane["queue"] for lane in by_queue["lanes"]], list(range(lanes)), "queues of the lanes")
    compare("queue", QUEUES, 5144, queues, cores, lambda queue, core, lanes: queue)
    compare("queue", 3, 5142, queues, cores, lambda queue, core, lanes: queue % 3)
    by_core = compare("cpu", len(cores), 5143, queues, cores,
                      lambda queue, core, lanes: next(lane["lane"] for lane in lanes if core == lane["cpu"]))
    check(by_core["wrong_cpu"] is None, by_core)
    passed("the interface is not steered, so no core is wrong")
    count(5144, queues, cores)


main(tables)
