"""PROXY headers between udpd and dnsdist, in both directions; see dnsdist.sh."""
import json
import re
import subprocess
import time

from lib import net
from lib.check import check, main, passed, same, until
from lib.daemon import WORK, Daemon, all_delivered, dropped_at, listening, start
from lib.host import read, read_bytes, write
from lib.records import json_payload, json_records

CLIENTS = [("127.0.0.7", 100), ("127.0.0.8", 100), ("::1", 100)]


def query(number):
    """A DNS query that no other client sends, of one length or another."""
    name = f"host-{number}{'x' * (number % 20)}".encode()
    labels = bytes([len(name)]) + name + b"\x07example\x00"
    return b"".join(part.to_bytes(2, "big") for part in (number, 0x0100, 1, 0, 0, 0)) + labels + b"\0\1\0\1"


def name_in(payload):
    return payload[13:13 + payload[12]].decode()


def ask(port):
    """Each client sends its queries to its port; returns which client asked for what."""
    asked, number = {}, 0
    for address, count in CLIENTS:
        client = net.udp_socket(address)
        for _ in range(count):
            number += 1
            asked[name_in(query(number))] = (address, client.getsockname()[1])
            client.sendto(query(number), ("::1" if ":" in address else "127.0.0.1", port))
            # Neither side is asked how much it can take at once.
            time.sleep(0.0005)
    return asked


def run(port, keys, sink):
    return Daemon(listening(f'address = "[::]:{port}"\nreceive_buffer = "8MiB"\n{keys}', out=sink))


def dnsdist(name, port, text):
    """A dnsdist for both families of loopback, which asks no other server."""
    path = f"{WORK}/{name}.conf"
    write(path, 'setSecurityPollSuffix("")\nsetACL({"0.0.0.0/0", "::/0"})\n'
          f'addLocal("127.0.0.1:{port}")\naddLocal("[::1]:{port}")\n{text}\n')
    with open(f"{WORK}/{name}.log", "w", encoding="utf-8") as log:
        child = start(["dnsdist", "--supervised", "--disable-syslog", "-C", path], stdin=subprocess.DEVNULL, stdout=log,
                      stderr=subprocess.STDOUT)

    def listens():
        check(child.poll() is None, lambda: read(f"{WORK}/{name}.log"))
        return all(f":{port:04X} " in read(f"/proc/net/{table}") for table in ("udp", "udp6"))

    until(f"dnsdist listens at {port}", listens, 30)
    return child


def dnsdist_sends():
    collector = run(5514, 'proxy_protocol = "v2"\nproxy_from = ["127.0.0.1/32", "::1/128"]',
                    'type = "file"\nformat = "jsonl"\npath = "DIR/archive"')
    between = dnsdist("sender", 5300, 'newServer({address="127.0.0.1:5514", useProxyProtocol=true}):setUp()')
    asked = ask(5300)
    collector.await_arrived(len(asked))
    between.kill()
    # From the address of the proxy and past it; its header is not there, or not whole.
    past = net.udp_socket()
    for payload in [query(1), b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c"]:
        past.sendto(payload, ("127.0.0.1", 5514))
    collector.await_arrived(len(asked) + 2)
    listener = collector.end()
    dropped = {reason: count for reason, count in listener["dropped"].items() if count}
    same((listener["arrived"], dropped), (len(asked) + 2, {"proxy_missing": 1, "proxy_malformed": 1}), "the ledger")
    same(listener["sinks"][0]["delivered"], len(asked), lambda: json.dumps(listener))
    heard = {}
    for record in json_records(read_bytes(f"{collector.directory}/archive")):
        address, port = record["source"].rsplit(":", 1)
        heard[name_in(json_payload(record))] = (address.strip("[]"), int(port))
    same(heard, asked, "who asked")
    passed(f"{len(asked)} queries of {len(CLIENTS)} clients behind dnsdist, each from its own address and port")


def dnsdist_receives():
    # It answers by itself, and notes who has asked it.
    note = f"{WORK}/noted"
    behind = dnsdist("receiver", 5301, 'setProxyProtocolACL({"127.0.0.1/32"})\n'
                     f'addAction(AllRule(), LogAction("{note}", false, false, false))\n'
                     'addAction(AllRule(), SpoofAction("192.0.2.1"))')
    relay = run(5515, "", 'type = "udp"\ndestinations = ["127.0.0.1:5301"]\nkeep_source = "proxy"')
    asked = ask(5515)
    relay.await_arrived(len(asked))
    listener = relay.end()
    all_delivered(listener, len(asked))
    same(dropped_at(listener), 0, "what the listener dropped")

    def noted():
        pattern = r"Packet from (\S+):(\d+) for (\S+?)\.example\. "
        found = [re.match(pattern, line) for line in read(note).splitlines()]
        return {one[3]: (one[1].strip("[]"), int(one[2])) for one in found}

    until(lambda: f"{asked} are noted: {noted()}", lambda: noted() == asked, 30)
    behind.kill()
    passed(f"{len(asked)} queries relayed with headers, and dnsdist knows each client by its address and port")


main(dnsdist_sends, dnsdist_receives)
