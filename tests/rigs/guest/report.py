"""What was checked: each check is said when it is known, and counted."""
import datetime
import json
import pathlib
import platform
import time

from lib import report


class Report:
    """The checks of a guest, or of all of them."""

    def __init__(self, shape=""):
        self.checks = []
        self.facts = []
        self.shape = shape
        self.started = time.monotonic()

    def check(self, name, wrong):
        """`wrong`: what is wrong, as a list or a text; or whether the check holds."""
        if isinstance(wrong, bool):
            wrong = [] if wrong else ["it does not hold"]
        if isinstance(wrong, str):
            wrong = wrong.splitlines()
        self.checks.append((self.shape, name, list(wrong)))
        print(f"{'not ok' if wrong else 'ok'} {self.shape}: {name}", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)
        return not wrong

    def same(self, name, found, wanted):
        """The check that two values are the same."""
        return self.check(name, [] if found == wanted else [f"found:  {found!r}", f"wanted: {wanted!r}"])

    def fact(self, what, value):
        """A number worth recording."""
        self.facts.append((self.shape, what, value))
        print(f"   {self.shape}: {what}: {value}", flush=True)

    def failed(self):
        return [check for check in self.checks if check[2]]

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps({"checks": self.checks, "facts": self.facts}))

    def take(self, saved):
        """Adds what the host of a guest has saved."""
        self.checks += saved["checks"]
        self.facts += saved["facts"]

    def record(self, folder, command, kernel, name, title):
        """The page of this run, and each check as a line of its table."""
        minutes, failed = (time.monotonic() - self.started) / 60, self.failed()
        machines = {}
        for shape, _, wrong in self.checks:
            machines.setdefault(shape, []).append(bool(wrong))
        page = [f"# {title}", "",
                f"{datetime.date.today()}, {platform.machine()}, Linux {platform.release()}; in the guests Linux "
                f"{kernel}, emulated without KVM. `{command}`:",
                f"{len(self.checks)} checks in {minutes:.0f} minutes, {len(failed)} failed.",
                f"Each is a line of {name}.csv.", "", *report.markdown_table("| machine | checks | failed |",
                                           [(shape, len(its), sum(its)) for shape, its in machines.items()]),
                "", *report.markdown_table("| machine | what | value |", self.facts)]
        if failed:
            page += ["", "Failed:", "", *(f"- {shape}: {name}" for shape, name, _ in failed)]
        rows = [{"machine": shape, "check": what, "result": "failed" if wrong else "ok"}
                for shape, what, wrong in self.checks]
        report.record(folder, name, ["machine", "check", "result"], rows, page)
