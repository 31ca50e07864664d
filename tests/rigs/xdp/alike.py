"""The same from a seed twice over: to an engine with its socket, and to a socket alone. What both deliver must be the
same, payload by payload, whatever merged datagrams, put a tag beside a frame, or changed the MTU in between."""
import collections
import contextlib

from cable import tags_of_marks
from lib.check import LONG, check, passed, same, setting
from lib.net import BLIND
from receiver import Receiver, whole
from steps import Sender

CHUNK = 2500


def send(card, seed, count, what):
    with tags_of_marks() if "tags" in what else contextlib.nullcontext():
        return Sender(seed, card, what).steps(count)


def by_payload(datagrams):
    """A port of the sender is another one each time."""
    found = collections.Counter()
    for line, count in datagrams.items():
        source, destination, payload = line.rstrip("\n").split(" ")
        found[source.rpartition(":")[0], destination, payload] += count
    return found


def run(card, name, options, what, prefix=()):
    count = setting("XDP_RIG_ALIKE", 50_000 if LONG else 2500)
    seen = collections.Counter()
    for seed in range(0, count, CHUNK):
        size = min(CHUNK, count - seed)

        def attempt(*options, prefix=()):
            receiver = Receiver(*options, write=True, prefix=prefix)
            sent = send(card, seed, size, what)
            return receiver.end(), (sent, receiver.datagrams())

        _, (sent, alone) = whole(f"{name}, a socket alone", lambda: attempt("--no-engine"))
        account, (again, by) = whole(name, lambda: attempt(*options, prefix=prefix))
        same(sent, again, "sent from one seed")
        expected, found = by_payload(alone["ordinary"]), by_payload(by["engine"] + by["ordinary"])
        missing, more = expected - found, found - expected

        def short(lines):
            return [(line[:2], line[2][:40], len(line[2]) // 2, number) for line, number in lines.items()][:5]

        check(not missing and not more, lambda: f"{name}, seed {seed}: {missing.total()} missing {short(missing)}, "
              f"{more.total()} too many {short(more)}")
        for key, value in zip(("sent", "trains", "tagged"), sent):
            seen[key] += value
        seen["delivered"] += expected.total()
        seen["by AF_XDP"] += sum(by["engine"].values())
        seen["left to device"] += account["left_to_device"]
    check(count / 50 < seen["by AF_XDP"] < seen["delivered"], dict(seen))
    passed(f"{name}, {', '.join(what)}: 0 differences: {dict(seen)}")


def all_modes(card):
    everything = ["trains", "tags", "mtu"]
    run(card, "native", [], everything)
    run(card, "generic", ["--generic"], [*everything, "merge"])
    # A tag is not seen then.
    run(card, "generic without CAP_PERFMON", ["--generic"], ["trains", "mtu"], BLIND)
