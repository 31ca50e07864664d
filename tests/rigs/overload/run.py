"""More than can be taken, in every mixture, and whether the ledger says of each datagram what became of it.

    run.py [--runs N] [--only NUMBER,...] [--jobs N] [--record DIRECTORY]

Run number n is the same mixture every time. A run is right when for each sink the records that came out are whole, in
order for each source, none twice, and as many as the ledger calls delivered; when what was sent is delivered plus every
reason why something was not; and when the residual is 0.
"""
import argparse
import concurrent.futures
import copy
import multiprocessing
import random
import time

from lib.check import Failed, check, main, passed, setting
from lib.daemon import UDPD, dropped_at, engines
from lib.report import host, markdown_table, record
from trial import TRAIN, Mix, SinkChoice, run

POLICIES = ("drop_newest", "drop_oldest", "block")
TRAFFIC = ("lone", "bursts", "flood")
LENGTHS = ((20, False), (200, False), (1400, False), (9000, False), (1000, True))
MANNERS = ("late", "slow", "dead", "steady")
FIELDS = ("number engine lanes sinks traffic length sent delivered queue_full sink_error kernel_dropped good "
          "detail").split()


def mix_of(number, allowed):
    """The mixture of a run: the axes that matter most go round, the others are drawn."""
    dice = random.Random(number)
    length, is_train = LENGTHS[number // 2 % len(LENGTHS)]
    traffic = TRAFFIC[number // 3 % 3]
    kinds = dice.sample(["stdout", "unix", "udp", "file"], 1 + number % 3)
    chosen = []
    for at, kind in enumerate(kinds):
        # The first is in trouble in any case, unless it is a file, whose disk takes everything.
        manner = dice.choice(MANNERS[:2] * 4 + MANNERS[2:3]) if at == 0 else dice.choice(MANNERS[:2] + ("steady",) * 3)
        if kind == "file" or (kind == "udp" and manner == "dead"):
            manner = "steady"
        chosen.append(SinkChoice(kind, manner, POLICIES[(number + at) // 2 % 3]))
    datagrams = {"lone": 4_000, "bursts": 16_000, "flood": 48_000}[traffic]
    datagrams = max(1_000, min(datagrams, (48 << 20) // length))
    queue = dice.choice(["64KiB", "256KiB", "1MiB"])
    return Mix(number, allowed[number % len(allowed)], 1 + number // 5 % 2, tuple(chosen), traffic, length, is_train,
               datagrams, queue)


def judge(outcome):
    """What is wrong with a run, or nothing."""
    ledger, mix = outcome.ledger, outcome.mix
    if outcome.wrong:
        return outcome.wrong
    if "panicked" in outcome.log:
        return f"a panic: {outcome.log[-300:]!r}"
    if ledger["residual"] != 0:
        return f"residual {ledger['residual']}"
    # Of a train that finds no room the kernel counts the buffer; all trains here are of one length.
    dropped_by_kernel = ledger["kernel_dropped"] * (TRAIN if mix.is_train else 1)
    received, refused = ledger["received"], dropped_at(ledger)
    if received + dropped_by_kernel != outcome.sent:
        return f"sent {outcome.sent}, received {received}, dropped by the kernel {dropped_by_kernel}"
    for at, (choice, read, lost) in enumerate(zip(mix.sinks, outcome.read, outcome.lost_in_sockets)):
        sink, who = ledger["sinks"][at], f"sink {at} ({choice.kind}, {choice.manner}, {choice.when_full})"
        if read.wrong:
            return f"{who}: {'; '.join(read.wrong)}"
        # What a write that never came back had handed over by then, the daemon cannot know; it counts as failed.
        unknown = sink["dropped"]["sink_error"] if choice.manner == "dead" else 0
        if not 0 <= read.records + lost - sink["delivered"] <= unknown:
            return f"{who}: delivered {sink['delivered']}, came out {read.records}, lost behind it {lost}"
        if sink["offered"] + refused != received:
            return f"{who}: received {received}, offered {sink['offered']}, refused {refused}"
        if sink["delivered"] + dropped_at(sink) != sink["offered"] or sink["in_flight"]:
            return f"{who}: offered {sink['offered']}, delivered {sink['delivered']}, {sink['dropped']}"
        if choice.when_full == "block" and sink["dropped"]["queue_full"]:
            return f"{who}: a receiver that waits has dropped {sink['dropped']}"
        # Where a receiver waits for a dead sink the others get the rest when it gives up, and little time for it.
        is_held_up = any(sink.manner == "dead" and sink.when_full == "block" for sink in mix.sinks)
        is_read = choice.manner != "dead" and not is_held_up
        if is_read and sink["dropped"]["sink_error"] and choice.kind != "udp":
            return f"{who}: {sink['dropped']} although its reader reads"
    return ""


def check_judge(outcome):
    """A judge that finds nothing wrong with these is none."""
    def changed(change):
        other = copy.deepcopy(outcome)
        change(other)
        return other

    def one_more(where, name):
        where[name] += 1

    wrong = {
        "a record is missing": lambda it: setattr(it.read[0], "records", it.read[0].records - 1),
        "a record is there twice": lambda it: it.read[0].wrong.append("twice"),
        "one was sent and is nowhere": lambda it: setattr(it, "sent", it.sent + 1),
        "one is counted twice": lambda it: one_more(it.ledger["sinks"][0]["dropped"], "queue_full"),
        "one is under way for ever": lambda it: one_more(it.ledger["sinks"][0], "in_flight"),
        "one was not offered": lambda it: one_more(it.ledger, "received"),
        "a residual": lambda it: one_more(it.ledger, "residual"),
        "a panic": lambda it: setattr(it, "log", "thread 'main' panicked"),
    }
    missed = [what for what, change in wrong.items() if not judge(changed(change))]
    check(not missed, f"the judge lets pass: {', '.join(missed)}")


def row_of(outcome):
    mix, wrong = outcome.mix, judge(outcome)
    listed = outcome.ledger.get("sinks", [])
    total = lambda key: sum(sink["dropped"][key] for sink in listed)
    return dict(number=mix.number, engine=mix.engine, lanes=mix.lanes, traffic=mix.traffic,
                sinks=" + ".join(f"{sink.kind} {sink.manner} {sink.when_full}" for sink in mix.sinks),
                length=f"{TRAIN} x {mix.length}" if mix.is_train else mix.length, sent=outcome.sent,
                delivered=sum(sink["delivered"] for sink in listed), queue_full=total("queue_full"),
                sink_error=total("sink_error"), kernel_dropped=outcome.ledger.get("kernel_dropped", 0),
                good=not wrong, detail=wrong)


def page(rows, seconds):
    """The dated summary."""
    bad = sum(not row["good"] for row in rows)
    groups = {}
    for row in rows:
        groups.setdefault((row["engine"], row["traffic"]), []).append(row)
    cells = [[*group, len(some), sum(not row["good"] for row in some), f"{sum(row['sent'] for row in some):,}",
              sum(row["queue_full"] > 0 for row in some), sum(row["kernel_dropped"] > 0 for row in some)]
             for group, some in sorted(groups.items())]
    return ["# Overload in every mixture", "",
            f"{host(UDPD)} `RUNS={len(rows)} tests/rigs/overload.sh`: {len(rows)} runs in {seconds:.0f} s, "
            f"{bad} wrong.", "",
            "A run is right when each sink gave out whole records, in order for each source, none twice, as many as",
            "the ledger calls delivered; and when what was sent is delivered plus every reason. Each run is a line of",
            "overload.csv.", "",
            *markdown_table("| engine | traffic | runs | wrong | sent | with `queue_full` | with kernel drops |",
                            cells)]


def campaign():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    parser.add_argument("--runs", type=int, default=setting("RUNS", 10))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=lambda text: [int(number) for number in text.split(",")])
    settings = parser.parse_args()
    allowed = engines()
    # Spread over all mixtures also where there are few runs.
    numbers = settings.only or [at * 7 % 211 for at in range(settings.runs)]
    began, rows, judged = time.monotonic(), [], False
    with concurrent.futures.ProcessPoolExecutor(settings.jobs, multiprocessing.get_context("fork")) as pool:
        for outcome in pool.map(run, [mix_of(number, allowed) for number in numbers]):
            # Of a dead sink's records the judge knows a bound only.
            if not judged and not judge(outcome) and outcome.mix.sinks[0].manner != "dead":
                check_judge(outcome)
                judged = True
            rows.append(row_of(outcome))
            if not rows[-1]["good"]:
                print("FAILED: run {number} ({engine}, {lanes} lanes, {sinks}, {traffic}, {length} bytes): "
                      "{detail}".format(**rows[-1]), flush=True)
    seconds = time.monotonic() - began
    if settings.record:
        record(settings.record, "overload", FIELDS, rows, page(rows, seconds))
    bad, full = sum(not row["good"] for row in rows), sum(row["queue_full"] > 0 for row in rows)
    if not settings.only:
        check(judged or bad, "the judge was never given a wrong account: this shows nothing")
        check(full, "no queue was ever full: this shows nothing")
    told = (f"{len(rows)} runs in {seconds:.0f} s, {bad} wrong; {full} with a full queue, "
            f"{sum(row['kernel_dropped'] > 0 for row in rows)} with kernel drops")
    if bad:
        raise Failed(told)
    passed(told)


main(campaign)
