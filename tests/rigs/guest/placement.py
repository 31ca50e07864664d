"""A case: planned as reviewed, judged, applied, under traffic, and taken back exactly."""
import copy
import difflib
import json
import pathlib
import re
import time

import judge
import machine

PLANS = pathlib.Path(__file__).parent / "plans"


def configuration(case):
    """The daemon's file for a case."""
    names = ", ".join(f'"port{port}"' for port in case.ports)
    # The guest has no user but root.
    text = '[daemon]\nuser = "root"\ncontrol_socket = "/run/control.sock"\nmetrics_address = ""\n'
    text += 'stats_on_exit = "/tmp/ledger.json"\n'
    for port in case.ports:
        text += f'[[listener]]\nname = "port{port}"\naddress = "10.9.{port}.2:5140"\ninterface = "port{port}"\n'
        text += f'{case.listener}\nsinks = ["nothing"]\n'
    return text + f'[sink.nothing]\ntype = "null"\n[steer]\ninterfaces = [{names}]\n{case.steer}'


def as_reviewed(case, plan, bless):
    """Compares a plan with the one on file. Numbers of interrupts are the kernel's business and not the plan's."""
    shown = re.sub(r"interrupt \d+ ", "interrupt N ", re.split("would change:|everything is as planned", plan)[0])
    path = PLANS / f"{case.name}.txt"
    if bless:
        path.write_text(shown)
    reviewed = path.read_text() if path.exists() else ""
    return list(difflib.unified_diff(reviewed.splitlines(), shown.splitlines(), "reviewed", "planned", lineterm=""))


def spoil(plan):
    """The seat of the first queue alone, with the receiver on its interrupt's core: no judge may let that pass while
    its node has another."""
    spoiled = copy.deepcopy(plan["interfaces"][0])
    seat = spoiled["seats"][0]
    seat["receiver_cpu"] = seat["interrupt_cpu"]
    return {"interfaces": [spoiled | {"seats": [seat], "spare_seats": []}]}


class Stage:
    """A guest in which cases are tried."""

    def __init__(self, guest, report, bless=False, limit_seconds=60):
        self.guest, self.report, self.bless = guest, report, bless
        # How long something may take to be noticed, by the guest's clock. The promise is ten seconds, and a machine
        # that emulates two guests beside other work keeps no time.
        self.limit_seconds = limit_seconds
        self.topology = judge.Topology(guest.run(judge.TOPOLOGY).text)
        shown = guest.run("for port in /sys/class/net/port*; do echo ${port##*/port} $(readlink -f $port/device); done")
        self.devices = {int(line.split()[0]): line.split("/")[-1] for line in shown.lines()}
        self.uneven()

    def uneven(self):
        """Everything on the last core: no plan is like that."""
        self.guest.run(f"for file in /proc/irq/*/smp_affinity_list; do echo {self.topology.cores[-1]} >$file; done")

    def snapshot(self, ports):
        return self.guest.run("sh /snapshot.sh " + " ".join(f"port{port}" for port in ports)).text

    def interrupts(self):
        return judge.Interrupts(self.guest.run(judge.INTERRUPTS).text)

    def ledger(self):
        said = self.guest.run("udpd stats --json --socket /run/control.sock")
        return json.loads(said.text) if said.code == 0 else None

    def start(self, path="/tmp/udpd.toml"):
        """Starts a daemon and waits until it receives; its log is /tmp/log."""
        self.guest.run(f"udpd run -c {path} >/tmp/log 2>&1 & echo $! >/tmp/pid")
        return self.guest.wait("grep -q ready: /tmp/log || ! kill -0 $(cat /tmp/pid)", 60) is not None and (
            self.guest.run("grep ready: /tmp/log").code == 0
        )

    def stop(self):
        """Ends it; the last ledger."""
        self.guest.run("kill $(cat /tmp/pid)")
        self.guest.wait("! kill -0 $(cat /tmp/pid) 2>/dev/null", 30)
        said = self.guest.run("cat /tmp/ledger.json")
        return json.loads(said.text) if said.code == 0 else None

    def noticed(self, what, condition, seconds=None, fact="", told=lambda: ""):
        """Waits in the guest for a condition, which must hold within its limit; `fact` records after how long."""
        limit = seconds or self.limit_seconds
        took = self.guest.wait(condition, limit)
        self.report.check(what, [] if took is not None else f"not within {limit} s; {told()}")
        if took is not None and fact:
            self.report.fact(fact, took)

    def succeeds(self, what, command):
        said = self.guest.run(command)
        self.report.check(what, [] if said.code == 0 else said.text)

    def complaints(self):
        """What the daemon warns of. A guest has no huge pages to give and no user udpd, which is another matter."""
        return self.guest.run("grep -E '^(warn|error)' /tmp/log | grep -vE 'huge pages|stays root'").text

    def arrived(self, wanted, seconds=20):
        """The ledger once it has so many datagrams, or when it still has not."""
        until = time.monotonic() + seconds
        while True:
            found = self.ledger()
            if found and sum(of["arrived"] for of in found["listeners"]) >= wanted or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def case(self, case):
        """All of a case."""
        guest, report = self.guest, self.report
        guest.run(case.prepare)
        guest.write("/tmp/udpd.toml", configuration(case))
        before = self.snapshot(case.ports)
        shown = guest.run("udpd steer plan -c /tmp/udpd.toml")
        report.check(f"{case.name}: the plan is the one that was reviewed", as_reviewed(case, shown.text, self.bless))
        said = guest.run("udpd steer plan -c /tmp/udpd.toml --json")
        if said.code != 0:
            report.check(f"{case.name}: there is a plan", said.text)
            return
        plan = json.loads(said.text)
        report.check(f"{case.name}: no seat is worse than it has to be", judge.seats(plan, self.topology))
        if self.topology.has_free_beside(plan["interfaces"][0]["seats"][0]["interrupt_cpu"]):
            seen = judge.seats(spoil(plan), self.topology)
            report.check(f"{case.name}: and a worse one would be seen", bool(seen))
        if self.bless:
            return
        self.succeeds(f"{case.name}: apply succeeds", "udpd steer apply -c /tmp/udpd.toml")
        again = guest.run("udpd steer apply -c /tmp/udpd.toml")
        changed = [line for line in again.lines() if " -> " in line]
        report.same(f"{case.name}: a second apply changes nothing", (again.code, changed), (0, []))
        report.check(
            f"{case.name}: each interrupt may fire where it is planned",
            judge.applied(plan, self.devices, self.interrupts()),
        )
        self.traffic(case, plan)
        self.succeeds(f"{case.name}: restore succeeds", "udpd steer restore")
        self.is_restored(case.name, case.ports, before)

    def is_restored(self, name, ports, before, others=True):
        """Without `others` the interrupts that no queue has do not count: a core that went has moved them too."""
        shown = [before, self.snapshot(ports)]
        if not others:
            now = self.interrupts()
            numbers = {now.of_queue(port, self.devices[port], queue) for port in ports for queue in range(8)}
            foreign = re.compile("/proc/irq/(?!(%s)/)" % "|".join(map(str, numbers)))
            shown = ["\n".join(line for line in text.splitlines() if not foreign.match(line)) for text in shown]
        found = difflib.unified_diff(*(text.splitlines() for text in shown), "before", "after", lineterm="", n=0)
        return self.report.check(f"{name}: after restore everything is as before, byte for byte", list(found))

    def traffic(self, case, plan):
        """Datagrams to each card, and where they end."""
        guest, report = self.guest, self.report
        planned = guest.run("udpd check -c /tmp/udpd.toml --json")
        if not report.check(f"{case.name}: the daemon starts", [] if self.start() else guest.run("cat /tmp/log").text):
            return
        wanted = sorted(core for interface in plan["interfaces"] for core in judge.receiver_cores(interface))
        shown = guest.run(
            "for task in /proc/$(cat /tmp/pid)/task/*; do read -r name <$task/comm; case $name in rx*)"
            " sed -n 's/^Cpus_allowed_list:\\t//p' $task/status ;; esac; done"
        )
        found = sorted(core for line in shown.lines() for core in judge.cores_of(line))
        if case.receivers:
            counts = (len(found), len(set(found)))
            report.same(f"{case.name}: each receiver has a core of its own", counts, (case.receivers, case.receivers))
            report.check(f"{case.name}: and those of the plan are among them", set(wanted) <= set(found))
        else:
            report.same(f"{case.name}: the receivers run on the plan's cores", found, wanted)
        maps = guest.run("cat /proc/$(cat /tmp/pid)/numa_maps").text
        report.check(
            f"{case.name}: the pool lies on the nearest memory",
            judge.memory(json.loads(planned.text), maps, self.topology),
        )
        # An interrupt moves at its next firing: after a few datagrams to each queue it has.
        for port in case.ports:
            machine.send(port, case.flows, 4 * case.flows, 2000)
        warm = 4 * case.flows * len(case.ports)
        start = self.arrived(warm)
        interrupts = self.interrupts()
        for port in case.ports:
            machine.send(port, case.flows, case.datagrams, 3000)
        sent = warm + case.datagrams * len(case.ports)
        end = self.arrived(sent)
        report.same(f"{case.name}: everything arrived", sum(of["arrived"] for of in end["listeners"]), sent)
        report.check(
            f"{case.name}: the interrupts fired where they are planned",
            judge.fired(plan, self.devices, interrupts, self.interrupts()),
        )
        if case.wrong_cpu is not None:
            wrong = [of["wrong_cpu"] for of in end["listeners"]]
            before = [of["wrong_cpu"] for of in start["listeners"]]
            grown = sum(now or 0 for now in wrong) - sum(then or 0 for then in before)
            report.same(f"{case.name}: datagrams on a wrong core", grown, case.wrong_cpu)
        # Some guests are so small that udp_mem does not cover the buffers of all lanes, which is true and told.
        said = [line for line in self.complaints().splitlines() if "net.ipv4.udp_mem allows" not in line]
        others = [line for line in said if not case.warning or case.warning not in line]
        report.check(f"{case.name}: the daemon complains of nothing else", others)
        if case.warning:
            report.check(f"{case.name}: it warns of what it does otherwise than asked", len(others) < len(said))
        last = self.stop()
        residuals = [of["residual"] for of in last["listeners"]] if last else None
        report.same(f"{case.name}: the ledger closes", residuals, [0] * len(case.ports))
