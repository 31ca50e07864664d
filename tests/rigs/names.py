"""Destinations that move; see names.sh."""
import glob
import json
import os
import socket
import struct
import threading
import time

from lib import net
from lib.check import check, main, passed, same, until
from lib.daemon import Daemon, all_delivered, dropped_at, file_sink, listening
from lib.host import read
from lib.load import free_port
from lib.net import OTHER, ip

PORT = 6000


class Resolver:
    """Answers for the names it knows, and says of all others that there are none."""

    def __init__(self):
        self.names, self.asked, self.socket = {}, 0, None
        # Questions for these are answered when it is over.
        self.hanging, self.is_over = set(), False
        self.begin()

    def begin(self):
        self.socket = net.udp_socket("127.0.0.53", 53)
        threading.Thread(target=self.serve, args=[self.socket], daemon=True).start()

    def end(self):
        self.socket.close()

    def serve(self, own):
        while own.fileno() >= 0:
            try:
                own.settimeout(0.05)
                question, client = own.recvfrom(512)
            except TimeoutError:
                continue
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self.reply, args=[own, question, client], daemon=True).start()

    def reply(self, own, question, client):
        try:
            own.sendto(self.answer(question), client)
        except OSError:
            pass

    def answer(self, question):
        at, labels = 12, []
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode())
            at += 1 + question[at]
        kind = struct.unpack_from("!H", question, at + 1)[0]
        name = ".".join(labels).lower()
        while name in self.hanging and not self.is_over:
            time.sleep(0.05)
        known = self.names.get(name)
        if known and kind == 12:
            return self.pointer(question, at, known)
        answers = known if known and kind == 1 else []
        head = struct.pack("!2s5H", question[:2], 0x8180 if known else 0x8183, 1, len(answers), 0, 0)
        body = b"".join(b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 0, 4) + socket.inet_aton(one) for one in answers)
        return head + question[12:at + 5] + body


    def pointer(self, question, at, name):
        text = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".")) + b"\0"
        head = struct.pack("!2s5H", question[:2], 0x8180, 1, 1, 0, 0)
        return head + question[12:at + 5] + b"\xc0\x0c" + struct.pack("!2HIH", 12, 1, 0, len(text)) + text


class Receiver:
    """The numbers that come to one address."""

    def __init__(self, address, place=None):
        # Whatever is sent while it is not read has to fit.
        self.socket = net.udp_socket(address, PORT, place, 1 << 24)
        self.socket.setblocking(False)
        self.numbers = []

    def take(self):
        try:
            while True:
                self.numbers.append(int(self.socket.recv(64)))
        except BlockingIOError:
            return self.numbers


class Relay(Daemon):
    """A udpd that relays; `sent` datagrams, each with its number."""

    def __init__(self, keys, port=0):
        self.port, self.sent, self.client = port or free_port(), 0, net.udp_socket()
        super().__init__(listening(f'address = "[::]:{self.port}"', relay=f'type = "udp"\n{keys}'))

    def send(self, count=1):
        for _ in range(count):
            self.client.sendto(str(self.sent).encode(), ("127.0.0.1", self.port))
            self.sent += 1

    def decided(self):
        """What became of all that was sent: delivered, and failed."""
        def is_decided(listener):
            sink = listener["sinks"][0]
            return sink["delivered"] + dropped_at(sink) == self.sent and sink["in_flight"] == 0

        [sink] = self.await_listener(f"{self.sent} are decided", is_decided, 30)["sinks"]
        return sink["delivered"], dropped_at(sink)

    def send_until(self, what, condition, seconds=30):
        """Sends one after the other until something holds, as a relay looks where it sends only while it does."""
        self.until(what, lambda: condition() or self.send(), seconds)
        self.decided()

    def finish(self):
        listener = self.end()
        same((listener["arrived"], listener["kernel_dropped"]), (self.sent, 0), lambda: json.dumps(listener))
        [sink] = listener["sinks"]
        [destination] = sink["destinations"]
        return sink["delivered"], dropped_at(sink), destination["address"]


def total(receivers):
    return sorted(number for receiver in receivers for number in receiver.take())


def names(resolver, receivers):
    two, three, four = receivers
    resolver.names["collector.test"] = ["127.0.0.2"]
    daemon = Relay('destinations = ["Collector.test:6000"]\nresolve_every = "1s"')
    daemon.send(100)
    same(daemon.decided(), (100, 0), "what comes first waits for no answer, because the start did")
    same(two.take(), list(range(100)), "all at the first address")
    resolver.names["collector.test"] = ["127.0.0.9", "127.0.0.3", "127.0.0.2"]
    asked = resolver.asked
    daemon.send_until("it is asked again", lambda: resolver.asked > asked + 6)
    check(not three.take(), "it leaves an address that is still among the answers")
    resolver.names["collector.test"] = ["127.0.0.3"]
    daemon.send_until("it goes over to the new answer", three.take)
    before = len(two.take())
    daemon.send(50)
    daemon.decided()
    same(total(receivers), list(range(daemon.sent)), "each arrives once")
    same(len(two.take()), before, "late ones at the address before")
    resolver.end()
    daemon.send_until("it says that no resolver answers", lambda: daemon.said("cannot look up collector.test"))
    heard = len(three.take())
    daemon.send(50)
    daemon.decided()
    same(len(three.take()), heard + 50, "without a resolver it goes on with the address that it knows")
    resolver.begin()
    resolver.names["collector.test"] = ["127.0.0.4"]
    daemon.send_until("it hears of the resolver that is back", four.take)
    same(total(receivers), list(range(daemon.sent)), "nothing is lost by any of it")
    delivered, failed, address = daemon.finish()
    same((delivered, failed, address), (daemon.sent, 0, "collector.test:6000"), "the ledger")
    counts = [daemon.said(words) for words in ("cannot look up", "can be looked up again", "is at 127.0.0.")]
    same(counts, [1, 1, 2], "how often each is said")
    passed(f"{delivered} datagrams to a name with three addresses, one after the other, and no resolver for a while")


def unknown_at_first(resolver, receiver):
    heard = len(receiver.take())
    daemon = Relay('destinations = ["later.test:6000"]\nresolve_every = "1s"')
    daemon.send(10)
    same(daemon.decided(), (0, 10), "they fail and are counted")
    resolver.names["later.test"] = ["127.0.0.2"]
    daemon.send_until("it gets an address", lambda: len(receiver.take()) > heard)
    delivered, failed, _ = daemon.finish()
    check(len(receiver.take()) == heard + delivered and failed >= 10, "what is delivered has not arrived")
    passed(f"a name that no resolver knew: {failed} counted as failed until it had an address, {delivered} delivered")


def back_to_itself(resolver):
    resolver.names["loop.test"] = ["127.0.0.1"]
    port = free_port()
    daemon = Relay(f'destinations = ["loop.test:{port}"]\nresolve_every = "1s"', port)
    daemon.send(10)
    same(daemon.decided(), (0, 10), "nothing comes back")
    check(daemon.said("none of its addresses can be sent to"), "it does not say why")
    daemon.finish()
    passed("a name that leads back to its own listener is not sent to")


def on_an_interface():
    receiver = Receiver("::", OTHER)
    daemon = Relay('destinations = ["[fe80::9%out0]:6000"]')
    daemon.send(10)
    same(daemon.decided(), (0, 10), "they fail while there is no such interface")
    for index in (40, 50):
        # The far end is always the same.
        net.lay([], ["fe80::9/64"], "out0", "far0", more=f"index {index}")
        net.set_proc("ipv6/conf/out0/accept_dad", 0)
        ip("link set out0 down")
        ip("link set out0 up")
        heard = len(receiver.take())
        daemon.send_until(f"it finds the interface with number {index}", lambda: len(receiver.take()) > heard)
        daemon.send(50)
        daemon.decided()
        until(f"the last of {daemon.sent} comes", lambda: receiver.take()[-1] == daemon.sent - 1, 20)
        ip("link delete out0")
    _, failed, address = daemon.finish()
    same(address, "[fe80::9%out0]:6000", "the destination")
    passed(f"an interface that came twice: {len(receiver.take())} datagrams arrived, {failed} failed while it was gone")


def reverse(host):
    return f"{host}.1.1.127.in-addr.arpa"


def files_by_name(resolver):
    """Files by the names of senders: names that lead back, that lie, that are no names, and a resolver that hangs."""
    resolver.names |= {
        reverse(1): "Web1.Test", reverse(2): "web1.test", "web1.test": ["127.1.1.1", "127.1.1.2"],
        reverse(3): "web1.test", reverse(4): "bank.test", "bank.test": ["127.9.9.9"],
        reverse(5): "../../../etc/x.test", reverse(6): "127.1.1.1", "127.1.1.1": ["127.1.1.6"],
        reverse(7): "overflow", "overflow": ["127.1.1.7"], reverse(9): "a" * 63 + "." + "b" * 63 + "." + "c" * 63,
        reverse(10): "back.test", "back.test": ["127.1.1.10"],
    }
    resolver.hanging = {reverse(8)}
    port = free_port()
    daemon = Daemon(listening(f'address = "127.0.0.1:{port}"', out=file_sink("DIR/hosts/{host}.log", 'sources_max = 64')))
    senders = {host: net.udp_socket(f"127.1.1.{host}") for host in range(1, 12)}
    sent = 0
    for number in range(40):
        for host, sender in senders.items():
            sender.sendto(f"{host} {number}".encode(), ("127.0.0.1", port))
            sent += 1
        time.sleep(0.1)
    daemon.await_arrived(sent)
    resolver.is_over = True
    check(daemon.said("calls itself \"bank.test\"") or daemon.said("which does not lead back"), "a lie is not said")
    all_delivered(daemon.end(), sent)
    found = {os.path.basename(path)[:-4]: read(path).split("\n")[:-1] for path in glob.glob(f"{daemon.directory}/hosts/*")}
    lines = [line for own in found.values() for line in own]
    same((len(lines), len(set(lines))), (sent, sent), "every line once, in one file")
    allowed = {1: "web1.test", 2: "web1.test", 10: "back.test"}
    for name, own in found.items():
        for host in {int(line.split()[0]) for line in own}:
            check(name in (f"127.1.1.{host}", allowed.get(host)), f"a line of {host} is in the file {name}")
    for host, name in allowed.items():
        last = [line for line in found[name] if line.split()[0] == str(host)]
        same(last, [f"{host} {number}" for number in range(40 - len(last), 40)], f"the last lines of {host}, in order")
        check(len(last) > 20, f"{host} has few lines by its name: {len(last)}")
    passed(f"{sent} lines of 11 senders in {sorted(found)}: names that lie, escape or hang are not used")


def all_cases():
    resolver, receivers = Resolver(), [Receiver(f"127.0.0.{host}") for host in (2, 3, 4)]
    names(resolver, receivers)
    unknown_at_first(resolver, receivers[0])
    back_to_itself(resolver)
    on_an_interface()
    files_by_name(resolver)


main(all_cases)
