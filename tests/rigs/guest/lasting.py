"""A plan that lasts: whatever undoes it, `apply --watch` makes it anew; and nothing is called undone that is not."""
import machine
from placement import configuration
from shapes import Case

CASE = Case("lasting", [0], steer="rx_queues = 4")
CALM = "udpd steer status -c /tmp/udpd.toml"

# $irq is the interrupt of the first queue.
DEEDS = {
    "an interrupt that was moved": "echo 2 >/proc/irq/$irq/smp_affinity_list",
    "a card that was down": "ip link set port0 down; sleep 1; ip link set port0 up",
    "fewer queues": "ethtool -L port0 combined 2",
    "another table": "ethtool -X port0 equal 1",
    "a core that was off": "cd /sys/devices/system/cpu/cpu3; echo 0 >online; sleep 1; echo 1 >online",
}


def lasting(stage, whole):
    guest, report = stage.guest, stage.report
    guest.write("/tmp/udpd.toml", configuration(CASE))
    stage.uneven()
    before = stage.snapshot([0])
    guest.run("udpd steer apply --watch -c /tmp/udpd.toml >/tmp/watch.log 2>&1 & echo $! >/tmp/watch.pid")
    report.check("`apply --watch` applies first", guest.wait(CALM, 30) is not None)
    for deed, script in DEEDS.items():
        number = stage.interrupts().of_queue(0, stage.devices[0], 0)
        guest.run(f"irq={number}; {script}")
        stage.noticed(f"{deed}: all is as planned again", CALM, fact=f"seconds until all is as planned after {deed}",
                      told=lambda: "it says:\n" + guest.run("tail -n 20 /tmp/watch.log").text)
    alive = guest.run("kill -0 $(cat /tmp/watch.pid)").code == 0
    report.check("the watcher is there to the end", [] if alive else guest.run("cat /tmp/watch.log").text)
    guest.run("kill $(cat /tmp/watch.pid)")
    guest.wait("! kill -0 $(cat /tmp/watch.pid)", 10)
    report.same("and leaves everything as it is", guest.run(CALM).code, 0)
    alarms(stage, 600 if whole else 30)
    stage.succeeds("restore after it succeeds", "udpd steer restore")
    stage.is_restored("lasting", [0], before, others=False)


def alarms(stage, seconds):
    """Ordinary traffic, from the first datagram on: now few flows, now many, now none."""
    guest, report = stage.guest, stage.report
    report.check("a daemon with nothing to complain of starts", stage.start())
    sent = 0
    for turn in range(seconds // 10):
        flows, rate = [(64, 1000), (3, 200), (200, 1500)][turn % 3]
        machine.send(0, flows, 8 * rate, rate)
        sent += 8 * rate
        guest.run("sleep 2")
    report.check(f"no false alarm in {seconds} s of ordinary traffic", stage.complaints())
    arrived = stage.arrived(sent)["listeners"][0]
    report.same("all of which arrived", (arrived["arrived"], arrived["residual"]), (sent, 0))
    # An interrupt moves when it next fires, so what its queue held at that moment is still handled on the old core.
    wrong = arrived["wrong_cpu"] or 0
    report.check("on the planned cores, but for what came before the interrupts had moved", wrong <= 64 * 4)
    stage.stop()
