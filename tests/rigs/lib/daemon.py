"""A udpd under test: its folder, configuration, log and ledger; how it is started, asked and ended."""
import atexit
import glob
import itertools
import json
import os
import re
import signal
import subprocess

from lib import check as checks
from lib.check import Failed, check, text_of
from lib.host import execute, read, write

UDPD, WORK = os.environ.get("UDPD", ""), os.environ.get("WORK", "")
PATIENCE = 60

started = []


@atexit.register
def kill_all():
    """What a rig has started ends with it."""
    for child in started:
        if child.poll() is None:
            child.kill()
            child.wait()


def start(command, **options):
    """A process that ends with the rig."""
    child = subprocess.Popen(list(map(str, command)), **options)
    started.append(child)
    return child


def listening(keys, **sinks):
    """A configuration: one listener, called `in`, which feeds all of these sinks. Keys are lines of TOML."""
    names = ", ".join(f'"{name}"' for name in sinks)
    tables = "".join(f"[sink.{name}]\n{lines}\n" for name, lines in sinks.items())
    return f'[[listener]]\nname = "in"\nsinks = [{names}]\n{keys}\n{tables}'


def file_sink(path, *keys):
    """The lines of a sink that writes one file."""
    return "\n".join(['type = "file"', f'path = "{path}"', 'rotate = { bytes = 0, every = "0s" }', *keys])


NULL = 'type = "null"'


def check_configuration(text, *arguments, program=UDPD, path=f"{WORK}/checked.toml"):
    """What `udpd check` says of a configuration."""
    write(path, text)
    return execute(program, "check", "-c", path, *arguments)


def need_sandbox():
    """Skips where the kernel has no seccomp or no Landlock."""
    done = execute(UDPD, "check", "--sandbox", "-c", "config/udpd.toml")
    if done.returncode != 0:
        raise checks.Skipped(f"needs a kernel with seccomp and Landlock, and says: {done.stdout}{done.stderr}")


def engines():
    """The engines of sockets that this host allows; says which it does not."""
    refused = check_configuration(listening('address = "127.0.0.1:1"\nengine = "io_uring"', out=NULL))
    if refused.returncode == 0:
        return ["recvmmsg", "io_uring"]
    checks.skipped(f"the part with io_uring: {refused.stderr.strip()}")
    return ["recvmmsg"]


def closed(ledger):
    """The first listener of a last ledger. The terms of every listener must add up."""
    for listener in ledger["listeners"]:
        checks.same(listener["residual"], 0, lambda: f"residual of {json.dumps(listener)}")
        for sink in listener["sinks"]:
            parts = sink["delivered"] + dropped_at(sink) + sink["in_flight"] + sink.get("spilled", 0)
            checks.same(sink["offered"] + sink.get("spilled_before", 0), parts, lambda: f"offered: {json.dumps(sink)}")
    return ledger["listeners"][0]


def dropped_at(sink):
    return sum(sink["dropped"].values())


def last_ledger(path, arrived=""):
    """Of a file that a script has of a daemon elsewhere: it must close, over so many datagrams where that is known."""
    listener = closed(json.loads(read(path)))
    sink = listener["sinks"][0]
    checks.same(listener["arrived"], listener["received"] + listener["kernel_dropped"], "received and dropped")
    checks.same(listener["arrived"], int(arrived or listener["arrived"]), "arrived")
    checks.same(sink["in_flight"], 0, "under way")
    print(f"        arrived {listener['arrived']}, delivered {sink['delivered']}, dropped {sink['dropped']}")


def all_delivered(listener, count):
    """Everything arrived, and every sink delivered it."""
    found = (listener["arrived"], listener["kernel_dropped"], [sink["delivered"] for sink in listener["sinks"]])
    checks.same(found, (count, 0, [count] * len(listener["sinks"])), lambda: json.dumps(listener))


class Daemon:
    """A udpd in a folder of its own. In its configuration DIR stands for that folder; [daemon] is written here, with
    the lines of `daemon` below the usual ones."""

    numbers = itertools.count(1)

    def __init__(self, text, *, daemon="", directory=None, socket=None, program=UDPD, before=(), run=("run",),
                 owner=None, wait=True, **options):
        self.directory = str(directory or f"{WORK}/{next(Daemon.numbers)}")
        os.makedirs(self.directory, exist_ok=True)
        if owner is not None:
            os.chown(self.directory, owner, owner)
        self.socket, self.config = socket or f"{self.directory}/control.sock", f"{self.directory}/udpd.toml"
        self.log_path, self.ledger_path = f"{self.directory}/log", f"{self.directory}/ledger.json"
        if os.path.exists(self.ledger_path):
            os.unlink(self.ledger_path)
        self.program, self.daemon_keys = program, daemon
        self.configure(text)
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | options
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.child = start([*before, program, *run, "-c", self.config], stderr=log, **options)
        checks.evidence.append(lambda: f"---- {self.log_path}\n{self.log()[-6000:]}")
        if wait:
            self.await_log("ready:")

    def configure(self, text):
        """Writes its file anew."""
        usual = {"control_socket": self.socket, "metrics_address": "", "stats_on_exit": self.ledger_path}
        lines = [f'{key} = "{value}"' for key, value in usual.items()
                 if not re.search(rf"^{key}\b", self.daemon_keys, re.M)]
        whole = "\n".join(["[daemon]", *lines, self.daemon_keys, text])
        write(self.config, whole.replace("DIR", self.directory))

    def log(self):
        return read(self.log_path)

    def said(self, words):
        """How often the log has these words."""
        return self.log().count(words)

    def until(self, what, condition, seconds=PATIENCE):
        """Waits until a condition holds; an end of the daemon is a failure."""
        def holds():
            found = condition()
            check(found or self.child.poll() is None,
                  lambda: f"udpd ended with {self.child.returncode} before this: {text_of(what)}\n{self.log()}")
            return found

        return checks.until(what, holds, seconds)

    def await_log(self, words, times=1, seconds=PATIENCE):
        self.until(f"the log says {times} times: {words}", lambda: self.said(words) >= times, seconds)
        return self

    def await_listener(self, what, condition, seconds=PATIENCE):
        """Waits until the first listener of the ledger is so, and returns it."""
        seen = {}

        def look():
            seen["last"] = self.listener()
            return condition(seen["last"])

        self.until(lambda: f"{text_of(what)}: {json.dumps(seen['last'])}", look, seconds)
        return seen["last"]

    def await_arrived(self, count):
        """Waits until so many have arrived and no sink has any of them under way."""
        return self.await_listener(f"{count} arrive and are decided", lambda listener: listener["arrived"] >= count and
                                   all(sink["in_flight"] == 0 for sink in listener["sinks"]))

    def ask(self, *words):
        """A command of udpd over the control socket."""
        return execute(self.program, *words, "--socket", self.socket, timeout=PATIENCE)

    def ledger(self):
        told = self.ask("stats", "--json")
        check(told.returncode == 0, lambda: f"udpd stats: {told.stderr}")
        return json.loads(told.stdout)

    def listener(self):
        return self.ledger()["listeners"][0]

    def sink(self):
        return self.listener()["sinks"][0]

    def reload(self, text, code=0):
        """Has it take another configuration, which must end with this code; what it said."""
        self.configure(text)
        told = self.ask("reload")
        checks.same(told.returncode, code, lambda: f"reload: {told.stdout}{told.stderr}")
        return told.stdout + told.stderr

    def status(self, field):
        """A number of /proc/PID/status: VmRSS in KiB, Threads."""
        return int(re.search(rf"^{field}:\s+(\d+)", read(f"/proc/{self.child.pid}/status"), re.M)[1])

    def every_thread(self, **wanted):
        """Compares lines of /proc/PID/task/*/status of all threads, blanks as one."""
        for field, value in wanted.items():
            lines = [re.search(rf"^{field}:(.*)", read(f"{task}/status"), re.M)[1] for task in self.threads()]
            checks.same({" ".join(line.split()) for line in lines}, {value}, f"{field} of all threads")

    def threads(self):
        """The folder of each thread below /proc."""
        return glob.glob(f"/proc/{self.child.pid}/task/*")

    def wait(self, code=0, words=""):
        """Its end, with this code and these words in its log."""
        try:
            found = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"udpd does not end\n{self.log()}") from error
        check(found == code and words in self.log(),
              lambda: f"it ended with {found}, wanted {code}, and {words!r} in: {self.log()}")
        return self

    def last(self):
        """The ledger that it wrote at its end."""
        return json.loads(read(self.ledger_path))

    def end(self, number=signal.SIGTERM):
        """Ends it in good order; the first listener of the closed ledger."""
        self.child.send_signal(number)
        self.wait()
        return closed(self.last())

    def kill(self):
        self.child.kill()
        self.child.wait()
