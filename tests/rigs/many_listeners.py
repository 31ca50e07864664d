"""A daemon with a thousand listeners; see many_listeners.sh."""
import re
import signal
import socket
import time
import urllib.request

from lib.check import check, main, passed, same, until
from lib.daemon import NULL, Daemon, closed
from lib.load import Paced, free_port, send
from lib.net import bound_sockets

LISTENERS, EACH, LOAD, RATE = 1000, 10, 100_000, 50_000


def free_ports(count):
    found = []
    for port in range(20000, 32700):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
        if len(found) == count:
            return found
    check(False, f"no {count} free ports on loopback")


def timed(action):
    """What an action returns, and how many seconds it takes."""
    begun = time.monotonic()
    return action(), time.monotonic() - begun


def bound():
    return {port for port, _ in bound_sockets()}


def delivered(ledger):
    return [listener["sinks"][0]["delivered"] for listener in ledger["listeners"]]


def listeners():
    ports, metrics = free_ports(LISTENERS), free_port(socket.SOCK_STREAM)
    one = '[[listener]]\nname = "customer{}"\naddress = "127.0.0.1:{}"\nsinks = ["all"]\n'
    text = f"[sink.all]\n{NULL}\n" + "".join(one.format(*pair) for pair in enumerate(ports))
    daemon, ready = timed(lambda: Daemon(text, daemon=f'metrics_address = "127.0.0.1:{metrics}"'))

    def cpu():
        # The CPU clock of another process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~daemon.child.pid << 3) | 2)

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            return answer.read().decode()

    def settled(expected):
        until(lambda: f"delivered {sum(delivered(daemon.ledger()))}, expected {sum(expected)}",
              lambda: delivered(daemon.ledger()) == expected, 30)
        return timed(daemon.ledger)

    check(set(ports) <= bound(), "not every port is bound")
    resident, before = daemon.status("VmRSS"), cpu()
    _, seconds = timed(lambda: time.sleep(5))
    idle = (cpu() - before) / seconds
    for number, port in enumerate(ports):
        send(port, [b"%d %d" % (number, datagram) for datagram in range(EACH)])
    _, reading = settled([EACH] * LISTENERS)
    text, scraped = timed(scrape)
    sample = r'^udpd_sink_delivered_datagrams_total\{listener="customer(\d+)",[^}]*\} (\d+)$'
    same(dict(re.findall(sample, text, re.M)), {str(number): str(EACH) for number in range(LISTENERS)}, "/metrics")
    # Scrapes and readings for as long as a load on the last listener takes.
    load, beside = Paced(ports[-1], RATE, lambda number: b"%010d" % number, count=LOAD), []
    while load.is_alive():
        beside.append(timed(scrape)[1])
        daemon.ledger()
    ledger, _ = settled([EACH] * (LISTENERS - 1) + [EACH + load.sent])
    same(ledger["listeners"][-1]["kernel_dropped"], 0, "what the kernel dropped beside the scrapes")
    daemon.child.send_signal(signal.SIGTERM)
    _, end = timed(daemon.wait)
    ledger = daemon.last()
    closed(ledger)
    same(sum(delivered(ledger)), LISTENERS * EACH + load.sent, "the last reading")
    check(not set(ports) & bound(), "a port is still bound")
    passed(f"{LISTENERS} listeners: {resident / 1024:.0f} MiB resident, ready after {ready:.2f} s, idle "
           f"{idle * 100:.2f} % of a core, a reading {reading * 1000:.0f} ms, a scrape {scraped * 1000:.0f} ms "
           f"(beside the load at most {max(beside) * 1000:.0f} ms, {len(beside)} scrapes), the end {end:.2f} s")


main(listeners)
