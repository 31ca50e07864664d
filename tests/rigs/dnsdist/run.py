"""PROXY headers between udpd and dnsdist, in both directions; see dnsdist.sh."""
import atexit, json, os, re, signal, socket, struct, subprocess, sys, time

udpd, work = sys.argv[1:]
CLIENTS = [("127.0.0.7", 100), ("127.0.0.8", 100), ("::1", 100)]

# What is started here ends with this.
started = []
atexit.register(lambda: [child.kill() for child in started if child.poll() is None])


def query(number):
    """A DNS query that no other client sends, of one length or another."""
    name = f"host-{number}{'x' * (number % 20)}".encode()
    labels = bytes([len(name)]) + name + b"\x07example\x00"
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!2H", 1, 1)


def name_in(payload):
    return payload[13:13 + payload[12]].decode()


def ask(ports):
    """Each client sends its queries to its port; returns who asked for what."""
    asked, number = {}, 0
    for address, count in CLIENTS:
        client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        client.bind((address, 0))
        to = ("::1" if ":" in address else "127.0.0.1", ports)
        for _ in range(count):
            number += 1
            asked[name_in(query(number))] = (address, client.getsockname()[1])
            client.sendto(query(number), to)
            # Neither side is asked how much it can take at once.
            time.sleep(0.0005)
    return asked


class Daemon:
    """A udpd with one listener."""

    def __init__(self, name, port, keys, sink):
        self.directory = f"{work}/{name}"
        os.mkdir(self.directory)
        with open(f"{self.directory}/udpd.toml", "w") as file:
            file.write(f"""
[daemon]
control_socket = "{self.directory}/control.sock"
metrics_address = ""
stats_on_exit = "{self.directory}/ledger.json"
[[listener]]
name = "in"
address = "[::]:{port}"
receive_buffer = "8MiB"
sinks = ["out"]
{keys}
[sink.out]
{sink}
""")
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f"{self.directory}/notify")
        notify.settimeout(30)
        self.child = subprocess.Popen([udpd, "run", "-c", f"{self.directory}/udpd.toml"],
                                      env={"NOTIFY_SOCKET": f"{self.directory}/notify"})
        started.append(self.child)
        while b"READY=1" not in notify.recv(4096):
            pass

    def listener(self):
        output = subprocess.check_output([udpd, "stats", "--json", "--socket", f"{self.directory}/control.sock"])
        return json.loads(output)["listeners"][0]

    def wait_for(self, arrived):
        end = time.monotonic() + 30
        while (listener := self.listener())["arrived"] < arrived or listener["sinks"][0]["in_flight"] > 0:
            assert time.monotonic() < end, f"{arrived} were to arrive: {json.dumps(listener)}"
            time.sleep(0.02)

    def end(self, arrived):
        """Ends it and returns what it dropped; its books close."""
        self.wait_for(arrived)
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(30) == 0
        listener = json.load(open(f"{self.directory}/ledger.json"))["listeners"][0]
        dropped, [sink] = sum(listener["dropped"].values()), listener["sinks"]
        assert (listener["arrived"], listener["kernel_dropped"], listener["residual"]) == (arrived, 0, 0), listener
        assert sink["delivered"] == arrived - dropped and sum(sink["dropped"].values()) == 0, listener
        return listener["dropped"]


def dnsdist(name, port, text):
    """A dnsdist for both families of loopback, which asks nobody else for anything."""
    path = f"{work}/{name}.conf"
    with open(path, "w") as file:
        file.write(f"""
setSecurityPollSuffix("")
setACL({{"0.0.0.0/0", "::/0"}})
addLocal("127.0.0.1:{port}")
addLocal("[::1]:{port}")
{text}
""")
    log = open(f"{work}/{name}.log", "w")
    child = subprocess.Popen(["dnsdist", "--supervised", "--disable-syslog", "-C", path], stdin=subprocess.DEVNULL,
                             stdout=log, stderr=subprocess.STDOUT)
    started.append(child)
    end = time.monotonic() + 30
    while f":{port:04X} " not in open("/proc/net/udp").read() or f":{port:04X} " not in open("/proc/net/udp6").read():
        assert child.poll() is None and time.monotonic() < end, open(log.name).read()
        time.sleep(0.02)
    return child


def dnsdist_sends():
    collector = Daemon("collector", 5514, 'proxy_protocol = "v2"\nproxy_from = ["127.0.0.1/32", "::1/128"]',
                       f'type = "file"\nformat = "jsonl"\npath = "{work}/collector/archive"')
    between = dnsdist("sender", 5300, 'newServer({address="127.0.0.1:5514", useProxyProtocol=true}):setUp()')
    asked = ask(5300)
    collector.wait_for(len(asked))
    between.kill()
    # From the address of the proxy and past it; its header is not there, or not whole.
    past = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for payload in [query(1), b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c"]:
        past.sendto(payload, ("127.0.0.1", 5514))
    dropped = collector.end(len(asked) + 2)
    assert (dropped["proxy_missing"], dropped["proxy_malformed"], sum(dropped.values())) == (1, 1, 2), dropped
    heard = {}
    for line in open(f"{work}/collector/archive"):
        record = json.loads(line)
        # Queries are bytes: those that are no text are in the other encoding.
        payload = record["payload"].encode() if "payload" in record else __import__("base64").b64decode(
            record["payload_base64"])
        address, port = record["source"].rsplit(":", 1)
        heard[name_in(payload)] = (address.strip("[]"), int(port))
    assert heard == asked, {name: (heard.get(name), asked[name]) for name in asked if heard.get(name) != asked[name]}
    print(f"passed: {len(asked)} queries of {len(CLIENTS)} clients behind dnsdist, each from its own address and port")


def dnsdist_receives():
    # It answers by itself, and notes who has asked it.
    note = f"{work}/noted"
    behind = dnsdist("receiver", 5301, f"""
setProxyProtocolACL({{"127.0.0.1/32"}})
addAction(AllRule(), LogAction("{note}", false, false, false))
addAction(AllRule(), SpoofAction("192.0.2.1"))
""")
    relay = Daemon("relay", 5515, "", 'type = "udp"\ndestinations = ["127.0.0.1:5301"]\nkeep_source = "proxy"')
    asked = ask(5515)
    dropped = relay.end(len(asked))
    assert sum(dropped.values()) == 0, dropped
    end = time.monotonic() + 30
    while True:
        noted = {}
        for line in open(note):
            found = re.match(r"Packet from (\S+):(\d+) for (\S+?)\.example\. ", line)
            assert found, line
            noted[found[3]] = (found[1].strip("[]"), int(found[2]))
        if noted == asked:
            break
        wrong = {name: (noted.get(name), asked[name]) for name in asked if noted.get(name) != asked[name]}
        assert time.monotonic() < end, wrong
        time.sleep(0.05)
    behind.kill()
    print(f"passed: {len(asked)} queries relayed with headers, and dnsdist knows each client by its address and port")


dnsdist_sends()
dnsdist_receives()
