"""Destinations that move; see names.sh."""
import atexit, json, os, signal, socket, struct, subprocess, sys, threading, time

udpd, work, other = sys.argv[1:]
PORT = 6000

# What is started here ends with this.
started = []
atexit.register(lambda: [child.kill() for child in started if child.poll() is None])


class Resolver:
    """Answers for the names it knows, and says of all others that there are none."""

    def __init__(self):
        self.names = {}
        self.asked = 0
        self.socket = None
        self.begin()

    def begin(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.53", 53))
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
            at, labels = 12, []
            while question[at]:
                labels.append(question[at + 1:at + 1 + question[at]].decode())
                at += 1 + question[at]
            end = at + 5
            kind = struct.unpack_from("!H", question, at + 1)[0]
            known = self.names.get(".".join(labels).lower())
            answers = known if known and kind == 1 else []
            head = struct.pack("!2s5H", question[:2], 0x8180 if known else 0x8183, 1, len(answers), 0, 0)
            body = b"".join(b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 0, 4) + socket.inet_aton(one) for one in answers)
            own.sendto(head + question[12:end] + body, client)


class Receiver:
    """Counts what comes to one address."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # SO_RCVBUFFORCE, which Python does not name: whatever is sent while nobody looks has to fit.
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
        self.socket.bind((address, PORT))
        self.socket.setblocking(False)
        self.numbers = []

    def take(self):
        try:
            while True:
                self.numbers.append(int(self.socket.recv(64)))
        except BlockingIOError:
            return self.numbers


class Daemon:
    """A udpd that relays."""
    number = 0

    def __init__(self, keys):
        Daemon.number += 1
        self.directory, self.port, self.sent = f"{work}/{Daemon.number}", 5140 + Daemon.number, 0
        os.mkdir(self.directory)
        with open(f"{self.directory}/udpd.toml", "w") as file:
            file.write(f"""
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
address = "[::]:{self.port}"
sinks = ["relay"]
[sink.relay]
type = "udp"
{keys}
""")
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f"{self.directory}/notify")
        notify.settimeout(30)
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.log = open(f"{self.directory}/log", "w")
        self.child = subprocess.Popen([udpd, "run", "-c", f"{self.directory}/udpd.toml"], stderr=self.log,
                                      env={"NOTIFY_SOCKET": f"{self.directory}/notify"})
        started.append(self.child)
        while b"READY=1" not in notify.recv(4096):
            pass

    def text(self):
        return open(f"{self.directory}/log").read()

    def check(self, condition, why):
        if not condition:
            print(self.text())
            sys.exit(f"FAILED: {why}")

    def send(self, count=1):
        for _ in range(count):
            self.client.sendto(str(self.sent).encode(), ("127.0.0.1", self.port))
            self.sent += 1

    def sink(self):
        output = subprocess.check_output([udpd, "stats", "--json", "--socket", f"{self.directory}/control.sock"])
        return json.loads(output)["listeners"][0]["sinks"][0]

    def decided(self):
        """What became of all that was sent: delivered, and failed."""
        end = time.monotonic() + 30
        while True:
            sink = self.sink()
            delivered, failed = sink["delivered"], sum(sink["dropped"].values())
            if delivered + failed == self.sent and sink["in_flight"] == 0:
                return delivered, failed
            self.check(time.monotonic() < end, f"{self.sent} were sent: {json.dumps(sink)}")
            time.sleep(0.01)

    def send_until(self, what, condition, seconds=30):
        """Sends one after the other until something holds, as a relay looks where it sends only while it does."""
        end = time.monotonic() + seconds
        while not condition():
            self.check(time.monotonic() < end, what)
            self.send()
            time.sleep(0.01)
        self.decided()

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        self.check(self.child.wait(30) == 0, "it did not end well")
        listener = json.load(open(f"{self.directory}/ledger.json"))["listeners"][0]
        self.check((listener["arrived"], listener["kernel_dropped"], listener["residual"]) == (self.sent, 0, 0),
                   f"{self.sent} were to arrive: {json.dumps(listener)}")
        sink = listener["sinks"][0]
        return sink["delivered"], sum(sink["dropped"].values()), sink["destinations"]


def total(receivers):
    return sorted(number for receiver in receivers for number in receiver.take())


def names():
    resolver, receivers = Resolver(), [Receiver(f"127.0.0.{host}") for host in (2, 3, 4)]
    two, three, four = receivers
    resolver.names["collector.test"] = ["127.0.0.2"]
    daemon = Daemon('destinations = ["Collector.test:6000"]\nresolve_every = "1s"')
    daemon.send(100)
    daemon.check(daemon.decided() == (100, 0), "what comes first waits for no answer, because the start did")
    daemon.check(two.take() == list(range(100)), "all at the first address")
    resolver.names["collector.test"] = ["127.0.0.9", "127.0.0.3", "127.0.0.2"]
    asked = resolver.asked
    daemon.send_until("it is asked again", lambda: resolver.asked > asked + 6)
    daemon.check(not three.take(), "it stays with an address that is still among the answers")
    resolver.names["collector.test"] = ["127.0.0.3"]
    daemon.send_until("it goes over to the new answer", three.take)
    before = len(two.take())
    daemon.send(50)
    daemon.decided()
    heard = total(receivers)
    missing = sorted(set(range(daemon.sent)) - set(heard))
    daemon.check(len(two.take()) == before and not missing and len(heard) == daemon.sent,
                 f"each is to arrive once: {missing} of {daemon.sent} did not, {len(two.take()) - before} late ones")
    resolver.end()
    daemon.send_until("it says that nobody answers", lambda: "cannot look up collector.test" in daemon.text())
    heard = len(three.take())
    daemon.send(50)
    daemon.decided()
    daemon.check(len(three.take()) == heard + 50, "without a resolver it goes on with the address that it knows")
    resolver.begin()
    resolver.names["collector.test"] = ["127.0.0.4"]
    daemon.send_until("it hears of the resolver that is back", four.take)
    daemon.check(total(receivers) == list(range(daemon.sent)), "nothing is lost by any of it")
    delivered, failed, [destination] = daemon.end()
    daemon.check((delivered, failed) == (daemon.sent, 0), "by the ledger as well")
    daemon.check(destination["address"] == "collector.test:6000", "which calls it what it is called")
    text = daemon.text()
    counts = [text.count(words) for words in ("cannot look up", "can be looked up again", "is at 127.0.0.")]
    daemon.check(counts == [1, 1, 2], f"each is said once: {counts}")
    print(f"passed: {delivered} datagrams to a name with three addresses, one after the other, and no resolver for a while")
    return resolver, receivers


def unknown_at_first(resolver, receiver):
    heard = len(receiver.take())
    daemon = Daemon('destinations = ["later.test:6000"]\nresolve_every = "1s"')
    daemon.send(10)
    daemon.check(daemon.decided() == (0, 10), "they fail and are counted")
    resolver.names["later.test"] = ["127.0.0.2"]
    daemon.send_until("it gets an address", lambda: len(receiver.take()) > heard)
    delivered, failed, _ = daemon.end()
    daemon.check(len(receiver.take()) == heard + delivered and failed >= 10, "what is delivered has arrived")
    print(f"passed: a name that nobody knew: {failed} counted as failed until it had an address, {delivered} delivered")


def back_to_itself(resolver):
    resolver.names["loop.test"] = ["127.0.0.1"]
    daemon = Daemon(f'destinations = ["loop.test:{5140 + Daemon.number + 1}"]\nresolve_every = "1s"')
    daemon.send(10)
    daemon.check(daemon.decided() == (0, 10), "nothing comes back")
    daemon.check("none of its addresses can be sent to" in daemon.text(), "and it says why")
    daemon.end()
    print("passed: a name that leads back to its own listener is not sent to")


def at(place, *command):
    prefix = ["nsenter", "--target", other, "--net"] if place else []
    subprocess.run([*prefix, *command], check=True, stdout=subprocess.DEVNULL)


def lay(here):
    """A cable to the other namespace, whose end there is always the same."""
    at("", "ip", "link", "add", "out0", "index", str(here), "type", "veth", "peer", "name", "far0", "netns", other)
    at("other", "ip", "address", "add", "fe80::9/64", "dev", "far0", "nodad")
    at("other", "ip", "link", "set", "far0", "up")
    at("", "sysctl", "-q", "net.ipv6.conf.out0.accept_dad=0")
    at("", "ip", "link", "set", "out0", "up")


RECEIVER = """
import socket
receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
receiver.bind(("::", 6000))
print("ready", flush=True)
while True:
    print(receiver.recv(64).decode(), flush=True)
"""


def on_an_interface():
    at("other", "ip", "link", "set", "lo", "up")
    child = subprocess.Popen(["nsenter", "--target", other, "--net", sys.executable, "-c", RECEIVER], text=True,
                             stdout=subprocess.PIPE)
    started.append(child)
    assert child.stdout.readline() == "ready\n"
    numbers = []
    threading.Thread(target=lambda: [numbers.append(int(line)) for line in child.stdout], daemon=True).start()
    daemon = Daemon('destinations = ["[fe80::9%out0]:6000"]')
    daemon.send(10)
    daemon.check(daemon.decided() == (0, 10), "they fail while there is no such interface")
    for index in (40, 50):
        lay(index)
        heard = len(numbers)
        daemon.send_until(f"it finds the interface with number {index}", lambda: len(numbers) > heard)
        end = time.monotonic() + 20
        daemon.send(50)
        daemon.decided()
        last = daemon.sent - 1
        while not numbers or numbers[-1] != last:
            daemon.check(time.monotonic() < end, f"the last of {daemon.sent} did not come: {numbers[-3:]}")
            time.sleep(0.01)
        at("", "ip", "link", "delete", "out0")
    delivered, failed, [destination] = daemon.end()
    daemon.check(destination["address"] == "[fe80::9%out0]:6000", json.dumps(destination))
    print(f"passed: an interface that came twice: {len(numbers)} datagrams arrived, {failed} failed while it was gone")


resolver, receivers = names()
unknown_at_first(resolver, receivers[0])
back_to_itself(resolver)
on_an_interface()
