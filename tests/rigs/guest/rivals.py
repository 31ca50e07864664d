"""What undoes a plan, done for real under a running daemon: each is named in time and with its cause."""
import machine
from placement import configuration
from shapes import Case

CASE = Case("rivals", [0])
IRQBALANCE = "irqbalance --foreground --interval=2 >/tmp/irqbalance.log 2>&1 & echo $! >/tmp/irqbalance.pid"


def named(stage, what, pattern):
    """Waits for a line of the log that is newer than the last mark."""
    new_lines = "tail -n +$(cat /tmp/mark) /tmp/log"
    stage.noticed(f"{what} is named", f"{new_lines} | grep -qE '{pattern}'", fact=f"seconds until {what} is named",
                  told=lambda: f"wanted /{pattern}/ in\n{stage.guest.run(new_lines).text}")


def mark(stage):
    """What the daemon says from here on is new."""
    stage.guest.run("echo $(($(wc -l </tmp/log) + 1)) >/tmp/mark")


def apply(stage):
    stage.guest.run("udpd steer apply -c /tmp/udpd.toml")


def rivals(stage, _):
    guest, report = stage.guest, stage.report
    guest.write("/tmp/udpd.toml", configuration(CASE))
    stage.uneven()
    before = stage.snapshot([0])
    apply(stage)
    report.check("a daemon to be disturbed starts", stage.start())
    number = stage.interrupts().of_queue(0, stage.devices[0], 0)
    mark(stage)
    guest.run(f"echo 2 >/proc/irq/{number}/smp_affinity_list")
    named(stage, "an interrupt that was moved", f"interrupt {number} .* is 2, wanted 0")
    apply(stage)
    channels(stage)
    card(stage)
    core(stage)
    report.same("the ledger closes after all of it", [of["residual"] for of in stage.stop()["listeners"]], [0])
    irqbalance(stage)
    guest.run("udpd steer restore")
    stage.is_restored("rivals", [0], before, others=False)


def channels(stage):
    mark(stage)
    stage.guest.run("ethtool -L port0 combined 2")
    named(stage, "a change of channels", "port0 has 2 queues and .* planned for 4: .*ethtool -L")
    stage.guest.run("ethtool -L port0 combined 4")
    apply(stage)


def card(stage):
    mark(stage)
    stage.guest.run("ip link set port0 down")
    named(stage, "a card that is down", "port0.* down")
    stage.guest.run("ip link set port0 up")
    apply(stage)
    sent = stage.ledger()["listeners"][0]["arrived"] + 64 * 4
    machine.send(0, 64, 64 * 4, 2000)
    arrived = stage.arrived(sent)["listeners"][0]["arrived"]
    stage.report.same("a card that is up again is heard", arrived, sent)


def receivers(stage):
    """The cores that each receiver may run on, by its name."""
    shown = stage.guest.run(
        "for task in /proc/$(cat /tmp/pid)/task/*; do read -r name <$task/comm; case $name in rx*)"
        " echo $name $(sed -n 's/^Cpus_allowed_list:\\t//p' $task/status) ;; esac; done"
    )
    return dict(line.split() for line in shown.lines())


def core(stage):
    guest, report = stage.guest, stage.report
    was = receivers(stage)
    away = next(name for name, cores in was.items() if cores == "3")
    mark(stage)
    guest.run("echo 0 >/sys/devices/system/cpu/cpu3/online")
    # A thread that sleeps is not moved before it wakes.
    sent = stage.ledger()["listeners"][0]["arrived"] + 640
    machine.send(0, 64, 640, 1000)
    named(stage, "a core that is off", "core 3 is off, and .*receiver . is on it")
    report.same("nothing is lost", stage.arrived(sent)["listeners"][0]["arrived"], sent)
    at = f"grep -l {away} /proc/$(cat /tmp/pid)/task/*/comm"
    on_the_core = f"grep -q 'Cpus_allowed_list:.3$' $(dirname $({at}))/status"
    stage.noticed("and its receiver runs elsewhere", f"! {on_the_core}")
    guest.run("echo 1 >/sys/devices/system/cpu/cpu3/online")
    stage.noticed("and is pinned again when its core is back", on_the_core,
                  fact="seconds until a receiver is pinned again", told=lambda: receivers(stage))
    report.same("so are all of them", receivers(stage), was)
    apply(stage)


def moved(stage):
    """A command that succeeds once an interrupt is not where it is planned."""
    return "[ $(udpd steer status -c /tmp/udpd.toml >/dev/null 2>&1; echo $?) = 1 ]"


def irqbalance(stage):
    """The real one: named, and with a ban off, also when it is started again."""
    guest, report = stage.guest, stage.report
    apply(stage)
    report.check("the daemon starts again", stage.start())
    mark(stage)
    guest.run(f"mkdir -p /run/irqbalance; {IRQBALANCE}")
    # It moves what fires: a stream keeps it busy until it does.
    moves = False
    for _ in range(10):
        machine.send(0, 64, 3000, 1500)
        if moves := guest.run(moved(stage)).code == 0:
            break
    if not report.check("irqbalance moves an interrupt", bool(moves)):
        report.check("what it said", guest.run("cat /tmp/irqbalance.log").text)
    number = guest.run("cat /tmp/irqbalance.pid").text.strip()
    named(stage, "an interrupt that irqbalance moved", f"wanted .*irqbalance runs \\(process {number}\\)")
    stage.stop()
    guest.write("/tmp/ban.toml", configuration(Case("ban", [0], steer='irqbalance = "ban"')))
    guest.run("udpd steer apply --watch -c /tmp/ban.toml >/tmp/watch.log 2>&1 & echo $! >/tmp/watch.pid")
    calm = "udpd steer status -c /tmp/ban.toml"
    report.check("it is put right with a ban", guest.wait(calm, 20) is not None)
    machine.send(0, 64, 9000, 1500)
    # What it had decided before it heard of the ban is put right once more.
    guest.wait(calm, 20)
    machine.send(0, 64, 9000, 1500)
    report.same("and left alone", guest.run(calm).code, 0)
    guest.run(f"kill $(cat /tmp/irqbalance.pid); sleep 1; {IRQBALANCE}")
    machine.send(0, 64, 15000, 1500)
    guest.wait(calm, 20)
    stage.succeeds("also by an irqbalance that is started again", calm)
    guest.run("kill $(cat /tmp/watch.pid) $(cat /tmp/irqbalance.pid)")
    guest.wait("! kill -0 $(cat /tmp/watch.pid) && ! kill -0 $(cat /tmp/irqbalance.pid)", 10)
