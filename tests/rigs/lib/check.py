"""How a rig says what it found: passed, skipped, or failed, then with what the processes under test said last."""
import os
import sys
import time
import traceback

RIG = os.environ.get("RIG", "")
LONG = os.environ.get("LONG", "0") not in ("", "0")
# Functions that return what a reader of a failure wants to see.
evidence = []


class Failed(Exception):
    """What was promised does not hold."""


class Skipped(Exception):
    """This machine cannot show it."""


def setting(name, default):
    """A number from the environment."""
    return int(os.environ.get(name) or default)


def text_of(what):
    """Of a text, or of a function that makes it, where that costs something."""
    return what() if callable(what) else what


def check(holds, why):
    if not holds:
        raise Failed(text_of(why))


def same(found, wanted, what):
    check(found == wanted, lambda: f"{text_of(what)}: found {found!r}, wanted {wanted!r}")


def until(what, condition, seconds=60, pause=0.01):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        check(time.monotonic() < deadline, lambda: f"not within {seconds} s: {text_of(what)}")
        time.sleep(pause)
    return found


def check_the_judge(judge, wrong):
    """A judge that lets one of these pass shows nothing: `wrong` has its arguments by what is wrong with them."""
    for what, arguments in wrong.items():
        try:
            judge(*arguments)
        except Failed:
            continue
        raise Failed(f"the judge lets pass: {what}")


def passed(what):
    print(f"passed: {what}", flush=True)


def skipped(why):
    print(f"SKIPPED {RIG}: {why}", flush=True)


def main(*cases):
    """Runs the cases of a rig in turn, and ends this process with 1 where one failed."""
    try:
        for case in cases:
            case()
        return
    except Skipped as why:
        skipped(why)
        return
    except Failed as why:
        traceback.print_exc(limit=-3)
        told = f"FAILED: {why}"
    except Exception:  # pylint: disable=broad-except
        told = f"FAILED: {traceback.format_exc()}"
    print("\n".join([*(tell() for tell in evidence[-2:]), told]), flush=True)
    sys.exit(1)
