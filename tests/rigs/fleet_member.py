"""A member of a fleet; see fleet_member.sh."""
import os
import signal
import socket
import threading
import time

from lib import net
from lib.check import check, main, passed, same, setting, until
from lib.daemon import NULL, WORK, Daemon, all_delivered, closed, file_sink, listening
from lib.host import execute
from lib.net import OTHER, ip

HERE, THERE, SERVICE, PORT = "10.9.0.1", "10.9.0.2", "192.0.2.53", 5140
ANNOUNCE = f'announce = ["{SERVICE}/32"]'
CHECKS = setting("CHECKS", 10_000)
# A second for the end of the daemon to be seen; what the kernel gives an address that no process renews, and as much
# for a busy host.
SOON, LIFETIME = 20, 40


def addresses(card="lo"):
    return [words.split()[3] for words in ip(f"-4 -o address show dev {card}").splitlines()]


def is_announced():
    return f"{SERVICE}/32" in addresses()


def routes():
    return execute("ip", "route", "show", "table", "local", "proto", "117").stdout


class Sender(threading.Thread):
    """Sends to the service address from the other host, as a router that has not heard yet, until it is told to end."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket, self.sent, self.goes_on = net.udp_socket(THERE, place=OTHER), 0, True
        self.start()

    def run(self):
        while self.goes_on:
            for _ in range(5):
                self.socket.sendto(b"%08d" % self.sent, (SERVICE, PORT))
                self.sent += 1
            time.sleep(0.002)

    def end(self):
        self.goes_on = False
        self.join()
        return self.sent


def member(keys="", sink=NULL, listener=f'address = "0.0.0.0:{PORT}"\nlanes = 1', **options):
    daemon = Daemon(listening(listener, out=sink), daemon=f'user = "root"\n{keys}', **options)
    daemon.until("it is ready", lambda: daemon.ask("ready").returncode == 0)
    return daemon


def why(daemon):
    """The word that says why it is not ready."""
    told = daemon.ask("ready")
    return "ready" if told.returncode == 0 else told.stderr.split(": ")[2]


def await_word(daemon, word, seconds=60):
    until(lambda: f"{word}, and it is {why(daemon)}: {daemon.log()}", lambda: why(daemon) == word, seconds, 0.1)


def a_drain_loses_nothing():
    daemon = member(f'{ANNOUNCE}\ndrain = "60s"\ndrain_quiet = "1s"')
    until("the address is there", is_announced)
    sender = Sender()
    daemon.await_listener("datagrams come", lambda listener: listener["received"] > 500)
    for _ in range(3):
        same(daemon.ask("drain").returncode, 0, "drain")
        check(not is_announced(), "the address is gone when the command returns")
        before = sender.sent
        until("more is sent", lambda: sender.sent > before + 200)
        same(daemon.ask("undrain").returncode, 0, "undrain")
        check(is_announced(), "the address is back")
    daemon.child.send_signal(signal.SIGTERM)
    until("the address is gone", lambda: not is_announced())
    before = sender.sent
    until("the sender has not heard yet", lambda: sender.sent > before + 500)
    sent = sender.end()
    daemon.wait(words="and none in the last")
    all_delivered(closed(daemon.last()), sent)
    check(daemon.last()["drain"]["arrived"] >= 500, lambda: f"after SIGTERM: {daemon.last()['drain']}")
    same((is_announced(), routes()), (False, ""), "nothing is left behind")
    passed(f"3 drains taken back and one to the end: {sent} datagrams sent while routers did not know, all delivered")


def a_kill_takes_the_address_with_it():
    for with_helper in (False, True):
        daemon = member(ANNOUNCE)
        until("the address is there", is_announced)
        helper = execute("pgrep", "-P", str(daemon.child.pid)).stdout.split()
        same(len(helper), 1, "one helper process")
        if with_helper:
            os.kill(int(helper[0]), signal.SIGSTOP)
        daemon.kill()
        if with_helper:
            os.kill(int(helper[0]), signal.SIGKILL)
        until("the address is gone", lambda: not is_announced(), LIFETIME if with_helper else SOON)
        # A local route has no lifetime. The next daemon takes it for its own.
        check(with_helper or routes() == "", routes)
    daemon = member(ANNOUNCE)
    until("the address is there", is_announced)
    daemon.end()
    same((is_announced(), routes()), (False, ""), "the next daemon leaves nothing behind")
    passed("kill -9 of the daemon, and of its helper process as well, takes the address away")


def what_was_there_before_stays():
    ip(f"address add {SERVICE}/32 dev lo")
    daemon = member(ANNOUNCE)
    daemon.await_log("was on lo before")
    same(daemon.ask("drain").returncode, 0, "drain")
    check(is_announced(), "it stays in a drain")
    daemon.end()
    check(is_announced(), "and after the end")
    daemon = member(ANNOUNCE)
    daemon.kill()
    daemon = member(ANNOUNCE)
    ip(f"address del {SERVICE}/32 dev lo")
    daemon.await_log(f"{SERVICE} is on lo now")
    daemon.end()
    same(is_announced(), False, "when the other has removed its own, it is udpd's")
    passed("an address that was there before is named in the log and left")


def without_the_right_it_says_so():
    rights = ("capsh", "--drop=cap_net_admin", "--shell=/bin/sh", "--", "-c", 'exec "$0" "$@"')
    if execute("sh", "-c", "command -v capsh").returncode != 0:
        rights = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    daemon = member(ANNOUNCE, before=rights)
    daemon.await_log("start it with CAP_NET_ADMIN")
    same((is_announced(), daemon.said("start it with CAP_NET_ADMIN"), why(daemon)), (False, 1, "ready"), "said once, and no fault")
    daemon.end()
    passed("without CAP_NET_ADMIN it warns once, and receives")


def a_take_over_leaves_the_address():
    old = member(ANNOUNCE)
    until("the address is there", is_announced)
    seen, watches = [], threading.Event()

    def watch():
        while not watches.is_set():
            seen.append(is_announced())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    new = member(ANNOUNCE, directory=old.directory, run=("run", "--take-over"))
    old.child.wait(60)
    before = len(seen)
    until("it is watched", lambda: len(seen) > before + 20)
    watches.set()
    watcher.join()
    check(all(seen), lambda: f"the address was gone in {seen.count(False)} of {len(seen)} looks")
    new.end()
    same((is_announced(), routes()), (False, ""), "nothing is left behind")
    passed(f"a take-over leaves the address where it is, in {len(seen)} looks")


def readiness_under_faults():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        target = deaf.getsockname()[1]
        daemon = member(sink=f'type = "tcp"\ndestinations = ["127.0.0.1:{target}"]\nqueue_bytes = "1MiB"')
        sender = net.udp_socket()
        peer, _ = deaf.accept()
        for _ in range(40_000):
            sender.sendto(bytes(1000), ("127.0.0.1", PORT))
        until(lambda: f"sink or queue: {why(daemon)}", lambda: why(daemon) in ("sink", "queue"), 60, 0.1)
        reading = threading.Event()

        def drain():
            while not reading.is_set() and peer.recv(1 << 20):
                pass

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        await_word(daemon, "ready")
        daemon.end()
        reading.set()
    disk = f"{WORK}/full"
    os.makedirs(disk)
    net.run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk)
    daemon = member(sink=file_sink(f"{disk}/in.log"))

    def fill():
        for _ in range(200):
            sender.sendto(bytes([65] * 1000), ("127.0.0.1", PORT))
        return why(daemon) == "sink"

    until(lambda: f"sink: {why(daemon)}", fill, 60, 0.2)
    net.run("mount", "-o", "remount,size=64m", disk)
    await_word(daemon, "ready")
    daemon.reload("[[listener]]\nname = 7", code=78)
    same(why(daemon), "ready", "a bad file changes nothing")
    daemon.end()
    net.run("umount", disk)
    daemon = member(listener=f'address = "0.0.0.0:{PORT}"\ninterface = "card0"\nlanes = 1')
    net.cut()
    await_word(daemon, "lane")
    net.lay([f"{HERE}/24"], [f"{THERE}/24"])
    await_word(daemon, "ready")
    falls = daemon.said("not ready:")
    same(falls, 1, "it fell once and rose once")
    daemon.end()
    passed("a peer that takes nothing, a full disk and an interface that goes have their words, and are over")


def checks_cost_no_datagram():
    daemon = member(f'health_address = "127.0.0.1:{PORT}"')
    slow = []
    for _ in range(300):
        client = socket.create_connection(("127.0.0.1", PORT))
        client.sendall(b"GET /ready HTTP/1.1\r\nX: ")
        slow.append(client)
    goes_on, sent = threading.Event(), [0]

    def load():
        own = net.udp_socket()
        while not goes_on.is_set():
            for _ in range(20):
                own.sendto(b"%08d" % sent[0], ("127.0.0.1", PORT))
                sent[0] += 1
            time.sleep(0.001)

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    answers, took = [0] * 4, [[] for _ in range(4)]

    def ask(number):
        for _ in range(CHECKS // 4):
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", PORT), timeout=60) as client:
                client.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
                answers[number] += client.makefile("rb").read().startswith(b"HTTP/1.1 200 OK")
            took[number].append(time.monotonic() - begun)

    askers = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(4)]
    begun = time.monotonic()
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    seconds = time.monotonic() - begun
    goes_on.set()
    loader.join()
    same(sum(answers), CHECKS // 4 * 4, "each check gets its answer")
    daemon.await_arrived(sent[0])
    all_delivered(daemon.end(), sent[0])
    late = sorted(sum(took, []))[-len(sum(took, [])) // 100]
    passed(f"{sum(answers)} checks in {seconds:.1f} s beside 300 slow clients, 99 of 100 within {1000 * late:.1f} ms; "
           f"{sent[0]} datagrams meanwhile, none lost")


net.lay([f"{HERE}/24"], [f"{THERE}/24"])
ip(f"route add {SERVICE}/32 via {HERE}", OTHER)
main(a_drain_loses_nothing, a_kill_takes_the_address_with_it, what_was_there_before_stays,
     without_the_right_it_says_so, a_take_over_leaves_the_address, readiness_under_faults, checks_cost_no_datagram)
