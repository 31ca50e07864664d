"""The example af_xdp of mmsg at the end of the cable, and its account."""
import collections
import subprocess

import cable
from cable import ADDRESSES, PORT
from lib.check import Failed, check, passed, same
from lib.daemon import WORK, start


class Receiver:
    """The example, from its start to its account."""

    def __init__(self, *options, write=False, prefix=()):
        self.file, self.account_of_engine = f"{WORK}/datagrams", ""
        options = [*options, "--write", self.file] if write else options
        command = [*prefix, f"{WORK}/af_xdp", *map(str, options), "card0", str(PORT), *ADDRESSES]
        pipe = subprocess.PIPE
        self.process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.cable = cable.dropped()
        first = self.process.stdout.readline()
        if first != "ready\n":
            raise RuntimeError(self.process.communicate()[1])

    def finish(self):
        """Ends the engine, while the ordinary socket goes on."""
        self.process.stdin.write("finish\n")
        self.process.stdin.flush()
        self.account_of_engine = self.process.stdout.readline()

    def end(self):
        """The account as numbers; `cable` is what never came out of it."""
        out, errors = self.process.communicate()
        check(self.process.returncode == 0, errors)
        account = collections.Counter()
        for line in (self.account_of_engine + out).splitlines():
            words = line.split()
            if words[0] == "queue":
                words = words[2:]
            for name, value in zip(words[::2], words[1::2]):
                account["socket_dropped" if name == "dropped" else name] += int(value)
        account["cable"] = cable.dropped() - self.cable
        return account

    def datagrams(self):
        """What the engine and the ordinary socket got, once the account is made."""
        lines = [line.split(" ", 1) for line in open(self.file)]
        return {who: collections.Counter(line for name, line in lines if name == who) for who in ("engine", "ordinary")}


def total(account):
    return sum(account[name] for name in ("datagrams", "refused", "lost", "ordinary", "socket_dropped", "cable"))


def closes(case, sent, account):
    same(total(account), sent, f"{case}: accounted for, and sent: {dict(account)}")
    passed(f"{case}: sent {sent} = {', '.join(f'{name} {number}' for name, number in account.items() if number)}")


def whole(case, attempt):
    """A comparison of contents needs a cable that dropped nothing; a busy machine's may. What the socket dropped are
    wrong checksums: its buffer has room for all of it."""
    for _ in range(5):
        account, result = attempt()
        if account["cable"] + account["lost"] == 0:
            return account, result
        print(f"again: {case}: the machine was too slow for the cable: {dict(account)}")
    raise Failed(f"{case}: the cable dropped frames five times over")


