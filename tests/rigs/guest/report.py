"""What was checked: each check is said when it is known, and counted."""
import csv
import datetime
import json
import pathlib
import platform
import time


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
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        minutes = (time.monotonic() - self.started) / 60
        failed = self.failed()
        host = f"{platform.machine()}, Linux {platform.release()}; in the guests Linux {kernel}"
        text = [
            f"# {title}",
            "",
            f"{datetime.date.today()}, {host}, emulated without KVM.",
            f"`{command}`:",
            f"{len(self.checks)} checks in {minutes:.0f} minutes, {len(failed)} failed. Each is a line of {name}.csv.",
            "",
            "| machine | checks | failed |",
            "|---|---|---|",
        ]
        for shape in dict.fromkeys(check[0] for check in self.checks):
            its = [check for check in self.checks if check[0] == shape]
            text.append(f"| {shape} | {len(its)} | {sum(bool(check[2]) for check in its)} |")
        text += ["", "| machine | what | value |", "|---|---|---|"]
        text += [f"| {shape} | {what} | {value} |" for shape, what, value in self.facts]
        if failed:
            text += ["", "Failed:", "", *(f"- {shape}: {name}" for shape, name, _ in failed)]
        (folder / f"{name}.md").write_text("\n".join(text) + "\n")
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["machine", "check", "result"])
            writer.writerows([shape, name, "failed" if wrong else "ok"] for shape, name, wrong in self.checks)
