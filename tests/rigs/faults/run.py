"""Every system call of the daemon made to fail, one at a time, and what became of every datagram.

    run.py [--all] [--jobs N] [--only CALL,...] [--variants V,...] [--record DIRECTORY]

The short form takes the first time and the first time after the start for each call, and that it fails from then on.
`--all`, or RUNS=all, takes every N until it is no longer reached: each one for the first error of a call (sparser
beyond the sixtieth), sparsely for its other errors, for a call that fails from then on, and for the two configurations
beside the main ones. `--record` writes each run into faults.csv and a table into faults.md.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import errno
import os
import signal
import time
from dataclasses import dataclass, replace

import calls
import verdict
from lib.check import Failed, check, main, passed
from lib.daemon import UDPD
from lib.host import ends
from lib.report import host, markdown_table, record
from trial import KEPT_FILES, VARIANTS, Fault, Trial

MAIN, BESIDE = ("lines", "pcapng"), ("lanes", "ring")
DENSE_UNTIL = 60
SHORT_LOAD_SECONDS = 0.15
FAILURES_SHOWN = 3
# How often a run makes a call differs by some; a series is over when so many runs have not reached its N.
UNREACHED_MAX = 2
PR_SET_PDEATHSIG = 1
FIELDS = "variant call error mode counted_from nth outcome good failed_on detail".split()


@dataclass(frozen=True)
class Series:
    """Runs that differ only in N, until it is no longer reached."""
    variant: object
    call: calls.Call
    error: str
    sticky: bool
    after_ready: bool
    steps: str              # one | dense | sparse
    seen: int               # about how often the call is made


def numbers_of(names):
    """The numbers of system calls on this machine, from the compiler's headers; those it does not know are left out."""
    text = "#include <sys/syscall.h>\n" + "".join(f"#ifdef SYS_{name}\n= {name} SYS_{name}\n#endif\n" for name in names)
    # The macro's name is replaced by another macro and then by a number, its own name in the line is not.
    words = ends(0, "cc", "-E", "-P", "-", input=text).split()
    return {words[at + 1]: int(words[at + 2]) for at, word in enumerate(words) if word == "="}


def all_names():
    lines = ends(0, "cc", "-E", "-dM", "-", input="#include <sys/syscall.h>\n").splitlines()
    return [line.split()[1][4:] for line in lines if line.startswith("#define SYS_")]


def survey(variant, names):
    """How often each call is made in a run that nothing happens to, from the opening of the configuration on."""
    run, _, _, found = Trial(variant, Fault(("--survey",))).run()
    good, outcome, detail = verdict.verdict(run)
    check((good, outcome) == (True, "closed"), f"{variant.name} without any fault: {outcome}: {detail}\n{run.log}")
    # Of two lanes one may get nothing.
    check(variant.lanes > 1 or run.kept not in (0, KEPT_FILES), f"{variant.name}: keep left {run.kept} of {KEPT_FILES} "
          "older files, so its calls are not made as they should be")
    check_judge(run)
    return {names.get(int(number), f"call {number}"): int(count) for number, count in (line.split() for line in found)}


def check_judge(run):
    """A judge that finds nothing wrong with these is none."""
    ledger, disk = run.ledger, run.disk
    some = next(iter(disk.numbers))
    wrong = {
        "a record is missing": replace(run, disk=replace(disk, numbers=disk.numbers - {some})),
        "a record is there twice": replace(run, disk=replace(disk, twice=1)),
        "a file ends within a record": replace(run, disk=replace(disk, torn=["in-0.log"])),
        "a record that was not sent": replace(run, disk=replace(disk, foreign=1)),
        "one was sent and is nowhere": replace(run, sent=run.sent + 1),
        "one is counted twice": replace(run, ledger=replace(ledger, dropped=ledger.dropped + 1)),
        "a residual": replace(run, ledger=replace(ledger, residual=1)),
        "unknown, and it is not said": replace(run, ledger=replace(ledger, residual=None)),
        "no ledger": replace(run, ledger=None),
        "an exit code without a reason": replace(run, code=1),
        "a signal": replace(run, ended="signal", code=11),
        "a hang": replace(run, ended="hang"),
        "a program that stays": replace(run, left=True),
        "a panic": replace(run, log=run.log + "\nthread 'rx0-in' (1) panicked at src/main.rs:1:1:\n"),
    }
    missed = [what for what, one in wrong.items() if verdict.verdict(one)[0]]
    check(not missed, f"the judge lets pass: {', '.join(missed)}")


def check_table(seen):
    missing = sorted(set(seen) - {call.name for call in calls.CALLS} - set(calls.NOT_TRIED))
    check(not missing, f"the daemon makes calls that tests/rigs/faults/calls.py does not know: {', '.join(missing)}")


def plan(settings, surveys):
    """All series, the longest first."""
    series = []
    for name in settings.variants:
        variant, seen = VARIANTS[name], surveys[name]
        for call in calls.CALLS:
            if call.name not in seen or (call.engine and call.engine != variant.engine):
                continue
            if settings.only and not {call.name, call.shown} & set(settings.only):
                continue
            one = Series(variant, call, call.errors[0], False, False, "one", seen[call.name])
            series += short_form(one) if not settings.all else long_form(one)
    return sorted(series, key=lambda one: -one.seen)


def short_form(one):
    one = replace(one, variant=replace(one.variant, seconds=SHORT_LOAD_SECONDS))
    later = replace(one, after_ready=True)
    lasting = [replace(later, error=error, sticky=True) for error in one.call.errors if one.call.lasts(error)][:1]
    return [one, later] + (lasting if one.variant.name == "lines" else [])


def long_form(one):
    first = replace(one, steps="dense" if one.variant.name in MAIN else "sparse")
    errors = one.call.errors if one.variant.name in MAIN else one.call.errors[:1]
    others = [replace(one, error=error, steps="sparse") for error in errors[1:]]
    lasting = [replace(one, error=error, sticky=True, after_ready=later, steps="sparse")
               for error in errors if one.call.lasts(error) for later in (False, True)]
    return [first, *others, *lasting]


def numbers(steps):
    yield 1
    nth = 1
    while steps != "one":
        growth = 1.15 if steps == "dense" else 1.7
        nth = nth + 1 if steps == "dense" and nth < DENSE_UNTIL else max(nth + 1, int(nth * growth))
        yield nth


def run_series(series, number):
    """The rows of one series."""
    rows, unreached = [], 0
    call = series.call
    how = ("--value", str(call.value)) if call.value is not None else ("--errno", str(getattr(errno, series.error)))
    options = ["--call", str(number), *how, *(("--kind", call.kind) if call.kind else ())]
    options += ["--from"] if series.sticky else []
    for index, mask, value in call.arguments:
        options += ["--argument", f"{index}:{mask}:{value}"]
    for nth in numbers(series.steps):
        if unreached == UNREACHED_MAX:
            break
        fault = Fault((*options, "--nth", str(nth)), series.after_ready)
        run, counts, failed_on, _ = Trial(series.variant, fault).run()
        good, outcome, detail = verdict.verdict(run)
        # Of a daemon that had to be killed there is no count, but what failed first was written at once.
        if not counts["failed"] and not failed_on:
            unreached += 1
            if good:
                continue
            failed_on = "nothing failed"
        rows.append(dict(variant=series.variant.name, call=call.shown, error=series.error, nth=nth,
                         mode="from then on" if series.sticky else "once",
                         counted_from="ready" if series.after_ready else "start", good=good, outcome=outcome,
                         failed_on=failed_on, detail=detail if good else f"{detail} || {run.log[-600:]!r}"))
    return rows


def say_failure(row, said):
    """The first three of a kind in full."""
    kind = tuple(row[name] for name in ("variant", "call", "error", "mode", "outcome"))
    said[kind] += 1
    if said[kind] <= FAILURES_SHOWN:
        print("FAILED: {variant}: {call} = {error}, {mode}, number {nth} from {counted_from} on ({failed_on}): "
              "{outcome}: {detail}".format(**row), flush=True)


def page(rows, seconds):
    """The dated summary: each call and error, and how many runs ended in which way."""
    outcomes = sorted({row["outcome"] for row in rows}, key=lambda name: (name != "closed", name))
    groups = collections.defaultdict(collections.Counter)
    for row in rows:
        groups[row["call"], row["error"]][row["outcome"]] += 1
    cells = [[*key, counts.total(), *(counts[name] or "" for name in outcomes)]
             for key, counts in sorted(groups.items())]
    total = collections.Counter(row["outcome"] for row in rows)
    cells.append(["all", "", len(rows), *(total[name] for name in outcomes)])
    return ["# Every system call made to fail", "",
            f"{host(UDPD)} `RUNS=all tests/rigs/faults.sh`: {len(rows)} runs in {seconds / 60:.0f} minutes, "
            f"{sum(not row['good'] for row in rows)} of them wrong.", "",
            "A run is right when what was sent is what is on disk plus what was counted, or when the daemon ended by",
            "itself and said why. Each run is a line of faults.csv.", "",
            *markdown_table(f"| call | error | runs | {' | '.join(outcomes)} |", cells)]


def end_with_parent():
    """A worker does not outlive a campaign that is killed, nor does a daemon."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read_settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", default=os.environ.get("RUNS") == "all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--variants", type=lambda text: text.split(","))
    parser.add_argument("--record")
    settings = parser.parse_args()
    settings.variants = settings.variants or (MAIN + BESIDE if settings.all else MAIN)
    return settings


def campaign():
    settings, begun = read_settings(), time.monotonic()
    numbers_by_name = numbers_of(all_names())
    names_by_number = {number: name for name, number in numbers_by_name.items()}
    surveys = {name: survey(VARIANTS[name], names_by_number) for name in settings.variants}
    check_table({name for seen in surveys.values() for name in seen})
    rows, said = [], collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(settings.jobs, initializer=end_with_parent) as pool:
        waiting = [pool.submit(run_series, one, numbers_by_name[one.call.name]) for one in plan(settings, surveys)]
        for done in concurrent.futures.as_completed(waiting):
            rows += done.result()
            for row in done.result():
                if not row["good"]:
                    say_failure(row, said)
    seconds = time.monotonic() - begun
    if settings.record:
        ordered = sorted(rows, key=lambda row: [str(row[name]).rjust(6) for name in FIELDS[:6]])
        record(settings.record, "faults", FIELDS, ordered, page(rows, seconds))
    for kind, count in said.items():
        print(f"FAILED {count} times: {', '.join(kind)}")
    counts = collections.Counter(row["outcome"] for row in rows)
    told = (f"{len(rows)} runs in {seconds:.0f} s: " +
            ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    if not rows or any(not row["good"] for row in rows):
        raise Failed(told)
    passed(told)


if __name__ == "__main__":
    main(campaign)
