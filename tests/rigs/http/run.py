"""Servers of the HTTP sink that are killed, refuse, are busy or answer nonsense; see http.sh. What servers there are is
in servers.py, what is sent in payloads.py, and judge.py says whether a server has it."""
import concurrent.futures
import os
import time

import servers
from judge import judge
from lib.check import LONG, check, check_the_judge, main, passed, same, setting, skipped, until
from lib.daemon import Daemon, dropped_at, listening
from lib.host import read, read_bytes
from lib.load import Paced, free_port
from lib.records import HEADERS_BYTES, packets
from payloads import is_text, number_of, payload
from stored import Stored

DATAGRAMS, RATE = setting("DATAGRAMS", 1_000_000 if LONG else 50_000), setting("RATE", 25_000)
# One case by its name.
ONLY = os.environ.get("ONLY", "")
# How long the slowest server may take for what has waited.
PATIENCE = 1800 if LONG else 60
# Requests that are short, so that a kill finds some on the way.
BATCH = 'batch = { datagrams = 1000, every = "100ms" }'


def the_judge_sees():
    """What it must not let pass."""
    began = time.time()
    right = [Stored(payload(number), is_text(number), time.time_ns(), "127.0.0.1") for number in range(10)]
    same(judge("a server", right + right[:2], 10, 2, began), (10, 2), "what a server has")
    other = {"payload": payload(3) + b"x", "is_text": True, "time": 0, "source": "127.0.0.2"}
    wrong = {f"another {name}": right[:3] + [right[3]._replace(**{name: value})] + right[4:]
             for name, value in other.items()}
    wrong |= {"one is missing": right[1:], "one is there twice": right + right[:1], "one was never sent":
              [*right, Stored(payload(10), is_text(10), time.time_ns(), "127.0.0.1")]}
    check_the_judge(judge, {what: (what, stored, 10, 0, began) for what, stored in wrong.items()})
    check_the_judge(judge, {"one that was refused": ("", right, 10, 0, began, {4})})


def configuration(port, **sinks):
    return listening(f'address = "127.0.0.1:{port}"\nlanes = 1\nreceive_buffer = "16MiB"', **sinks)


def send(port, first, count, rate=RATE):
    """Numbers from `first` on, beside what follows."""
    return Paced(port, rate, lambda number: payload(first + number), count=count)


def sink_to(server, name, *keys, batch=BATCH):
    """The lines of a sink with a spill of its own."""
    spill = f'spill = {{ path = "DIR/{name}-spill", bytes = "1GiB" }}'
    return "\n".join([*server.keys(), batch, spill, *keys])


def are_sent(listener):
    """No sink of it has anything that waits."""
    return all(sink["spilled"] + sink["in_flight"] == 0 for sink in listener["sinks"])


def all_arrived(what, listener, count):
    """No receiver has lost anything, whatever a sink was doing."""
    same((listener["arrived"], listener["kernel_dropped"] or 0), (count, 0), f"{what}: arrived, dropped by the kernel")


def sinks_of(listener):
    return {sink["name"]: sink for sink in listener["sinks"]}


def through_kills(peers):
    """All servers are killed while datagrams arrive, and again while they are sent what has waited. Then, when nothing
    arrives, udpd is killed while they have taken what they have not answered. Nothing may be missing."""
    began, port, part = time.time(), free_port(), DATAGRAMS // 4
    text = configuration(port, **{name: sink_to(server, name) for name, server in peers.items()})

    def each_takes_more(answers_after, then=lambda _: None):
        """Begins all at once, each of which answers so many seconds after it has taken something, and does this to each
        as soon as it has more than when it was there last."""
        def one(name, server):
            before = server.last_taken
            server.behave("slow", seconds=answers_after)
            server.begin()
            until(f"{name} takes more", lambda: server.taken() > before)
            then(server)

        with concurrent.futures.ThreadPoolExecutor(len(peers)) as threads:
            list(threads.map(one, *zip(*peers.items())))

    first = Daemon(text)
    sender = send(port, 0, part)
    each_takes_more(0.1, servers.Server.kill)
    sender.join()
    sender = send(port, part, part)
    until("some come while no server is there", lambda: sender.sent > part // 4)
    each_takes_more(0.1, servers.Server.kill)
    sender.join()
    # No server is there: each has more to take afterwards, however fast it was.
    send(port, 2 * part, part).join()
    first.await_arrived(3 * part)
    # What they take is not answered yet when udpd is killed, so the ledger that is read before is not too old.
    each_takes_more(8)
    before = first.listener()
    first.kill()
    for server in peers.values():
        server.behave()

    second = Daemon(text, directory=first.directory)
    send(port, 3 * part, part).join()
    second.await_arrived(part)
    second.await_listener("the spills are sent", are_sent, PATIENCE)
    listener = second.end()
    for told, count in (before, 3 * part), (listener, part):
        all_arrived("servers that are killed", told, count)
    for name, server in peers.items():
        sinks = [sinks_of(told)[name] for told in (before, listener)]
        told = sinks[1]["spill_repeats_at_most"] + sum(sink["stream_repeats_at_most"] for sink in sinks)
        same(list(map(dropped_at, sinks)), [0, 0], f"{name}: dropped")
        found = judge(name, server.stored(), 4 * part, 0 if server.takes_once else told, began)
        server.kill()
        passed(f"{name}, {server.told}: {found.there} of {4 * part} are there after two kills of it and one of udpd, "
               f"{found.twice} came twice ({told} were told)")


def all_servers():
    kinds = {"clickhouse": servers.ClickHouse, "otlp": servers.Otlp, "splunk_hec": servers.Splunk,
             "elasticsearch": servers.Elasticsearch, "loki": servers.Loki, "ndjson": servers.Ndjson}
    real = {"clickhouse": (servers.CHDB, servers.ClickHouse, "ClickHouse (chdb from PyPI)"),
            "collector": (servers.COLLECTOR, servers.Collector, "OpenTelemetry's Collector (built from its modules)"),
            "opensearch": (servers.OPENSEARCH, servers.OpenSearch, "OpenSearch (from Maven)")}
    for name, (folder, kind, what) in real.items():
        kinds.pop(name, None)
        if folder:
            # Those that take long to begin come first.
            kinds = {name: kind} | kinds
        elif LONG or name == "clickhouse":
            skipped(f"the part with {what}: it could not be fetched")
    skipped("real Splunk and Loki: doubles from their public documentation stand for them")
    through_kills({name: kind() for name, kind in kinds.items()})


def troubled():
    """Servers that misbehave in every way at once: no receiver notices, the log names each, and when they come to
    their senses each gets everything."""
    count, began, port, trap = 5000, time.time(), free_port(), servers.Ndjson().begin()
    modes = {
        "is_slow": {"mode": "slow", "seconds": 5}, "drips": {"mode": "drip"}, "cuts": {"mode": "cut"},
        "babbles": {"mode": "garbage"},
        "redirects": {"mode": "redirect", "status": 307, "headers": {"Location": f"http://127.0.0.1:{trap.port}/"}},
        "is_busy": {"mode": "busy", "status": 429, "headers": {"Retry-After": "2"}},
        "is_down": {"mode": "busy", "status": 503, "headers": {"Retry-After": "1"}},
    }
    peers, sinks = {}, {}
    for name, mode in modes.items():
        peers[name] = server = servers.Ndjson()
        server.behave(**mode)
        timeout = "30s" if name == "is_slow" else "1s"
        sinks[name] = sink_to(server.begin(), name, f'timeout = "{timeout}"')
    daemon = Daemon(configuration(port, **sinks))
    send(port, 0, count, 2500).join()
    daemon.await_listener("all arrive", lambda now: now["arrived"] == count)
    for name, server in peers.items():
        until(f"{name}: two requests", lambda server=server: len(server.requests()) >= 2)
        server.behave()
    daemon.await_listener("the spills are sent", are_sent)
    listener = daemon.end()
    all_arrived("troubled servers", listener, count)
    same(trap.requests(), [], "where the redirect leads to")
    for name, sink in sinks_of(listener).items():
        same((sink["delivered"], dropped_at(sink)), (count, 0), f"{name}: delivered, dropped")
        found = judge(name, peers[name].stored(), count, sink["stream_repeats_at_most"], began)
        check(name == "is_slow" or f"sink {name}:" in daemon.log(), f"the log says nothing of the one that {name}")
        passed(f"a server that {name}: {found.there} of {count} are there in the end, {found.twice} came twice "
               f"({sink['stream_repeats_at_most']} were told)")
    for name in ("is_busy", "is_down"):
        pause = int(modes[name]["headers"]["Retry-After"])
        asked = [request for request in peers[name].requests() if request[5] == "busy"]
        pauses = [after[0] - before[0] for before, after in zip(asked, asked[1:])]
        check(min(pauses) >= pause, f"{name}: asked again after {min(pauses)} s, it wanted {pause} s")


# What of the numbers is absent where every tenth is refused, and whether the server says which those are.
REFUSALS = (
    (servers.Elasticsearch, lambda number: number % 20 == 10, True),
    (servers.Splunk, lambda number: number % 10 == 0, True),
    (servers.Loki, lambda number: number % 10 == 0, False),
    (servers.Otlp, lambda number: number % 10 == 0, False),
    # All or nothing, and there is one in each batch.
    (servers.Ndjson, lambda number: True, True),
)


def refused_for_good():
    """What a server refuses is counted, and kept in a capture; everything else is there."""
    count, began, port, peers, sinks = 400, time.time(), free_port(), {}, {}
    for kind, _, _ in REFUSALS:
        server = kind().begin()
        server.behave("refuse")
        peers[server.name] = server
        sinks[server.name] = sink_to(server, server.name, f'refused = "DIR/{server.name}.pcapng"',
                                     batch='batch = { datagrams = 100, every = "100ms" }')
    daemon = Daemon(configuration(port, **sinks))
    send(port, 0, count, 5000).join()
    daemon.await_listener("all is decided", lambda now: now["arrived"] == count and are_sent(now))
    listener = daemon.end()
    all_arrived("servers that refuse", listener, count)
    for (_, is_refused, names_them), (name, server) in zip(REFUSALS, peers.items()):
        sink, absent = sinks_of(listener)[name], set(filter(is_refused, range(count)))
        same((sink["dropped"]["refused"], dropped_at(sink)), (len(absent), len(absent)), f"{name}: refused, dropped")
        twice_at_most = 0 if server.takes_once else sink["stream_repeats_at_most"]
        judge(name, server.stored(), count, twice_at_most, began, absent)
        kept, is_cut = packets(read_bytes(f"{daemon.directory}/{name}.pcapng"))
        numbers = sorted(number_of(packet[HEADERS_BYTES:]) for packet in kept)
        check(not is_cut and len(numbers) == len(absent), f"{name}: {len(numbers)} kept, {len(absent)} refused")
        if names_them:
            same(numbers, sorted(absent), f"{name}: the numbers in its capture")
        passed(f"{name} refuses {len(absent)} of {count}: they are counted and in the capture, the others are there")


def not_let_in():
    """Certificates and tokens that are wrong: no server has anything, the log says why, and no secret is anywhere. A
    token that is put right in its file is taken without a restart."""
    certificates, port, secret = "crates/udpd-sinks/src/tcp/testing", free_port(), "a-token-that-is-wrong"
    began = time.time()
    cases = {
        "expired": (servers.Ndjson(certificate=f"{certificates}/expired.pem"), "ca", "expired"),
        "misnamed": (servers.Ndjson(certificate=f"{certificates}/misnamed.pem"), "ca", "name"),
        "stranger": (servers.Ndjson(certificate=f"{certificates}/server.pem"), "other_ca", "authority"),
        "weak": (servers.Ndjson(certificate=f"{certificates}/server.pem", tls="weak"), "ca", "TLS"),
        "token": (servers.Splunk(), None, "token_file"),
    }
    if servers.CHDB:
        server = servers.ClickHouse(credentials=["udpd", servers.ClickHouse.PASSWORD])
        cases["password"] = (server, None, "password_file")
    sinks = {}
    for name, (server, authority, _) in cases.items():
        keys = []
        if authority:
            keys.append(f'tls_ca_file = "{os.getcwd()}/{certificates}/{authority}.pem"')
        if name == "password":
            server.know(secret)
            keys += ['username = "udpd"', f'password_file = "{server.folder}/password"']
        if name == "token":
            server.know(secret)
        sinks[name] = sink_to(server, name, *keys)
        server.begin()
    daemon = Daemon(configuration(port, **sinks))
    send(port, 0, 1000).join()
    daemon.await_arrived(1000)
    for name in cases:
        daemon.await_log(f"sink {name}:")
    told = daemon.log() + daemon.ask("stats", "--json").stdout
    before = sinks_of(daemon.listener())
    for name, right in (("token", servers.Splunk.TOKEN), ("password", servers.ClickHouse.PASSWORD)):
        if name in cases:
            server = cases[name][0]
            server.know(right)
            daemon.await_listener(f"{name}: it is sent", lambda now, name=name: sinks_of(now)[name]["spilled"] == 0)
            judge(name, server.stored(), 1000, sinks_of(daemon.listener())[name]["stream_repeats_at_most"], began)
            passed(f"a {name} that is put right in its file: all 1000 are there")
    daemon.end()
    told += daemon.log() + read(daemon.ledger_path)
    check(secret not in told, "a secret is in the log or in the ledger")
    for name, (server, authority, word) in cases.items():
        sink = before[name]
        found = sink["delivered"], sink["spilled"], dropped_at(sink)
        same(found, (0, 1000, 0), f"{name}: delivered, waiting, dropped")
        if authority:
            same(server.requests(), [], f"{name}: what it was asked")
        lines = [line for line in daemon.log().splitlines() if f"sink {name}:" in line]
        check(any(word in line for line in lines), f"{name}: no line of the log says {word!r}: {lines}")
        passed(f"{name}: nothing sent, and the log says: {lines[0]}")


def beside_each_other():
    """Most of them wait most of the time."""
    cases = [case for case in (all_servers, troubled, refused_for_good, not_let_in) if ONLY in ("", case.__name__)]
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as threads:
        for case in [threads.submit(case) for case in cases]:
            case.result()


main(the_judge_sees, beside_each_other)
