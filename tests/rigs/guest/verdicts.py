"""What an ordinary user may do, and what `status` may never call "as planned"."""
from placement import configuration
from shapes import Case

AS_PLANNED, DIFFERS, UNKNOWN = 0, 1, 4
NO_PERMISSION = 77
CALM = "everything is as planned"  # on a line of its own
CASE = Case("verdicts", [0])


def as_ordinary_user(guest, command):
    """Runs a command as a user without any capability."""
    return guest.run(f"su nobody -c '{command}'")


def privileges(stage, _):
    """A plan needs none; an apply does."""
    guest, report = stage.guest, stage.report
    guest.write("/tmp/udpd.toml", configuration(CASE))
    stage.uneven()
    before = stage.snapshot([0])
    shown = as_ordinary_user(guest, "grep -E \"^(Uid|CapEff)\" /proc/self/status")
    report.same(
        "the user has no capability", [line.split()[1] for line in shown.lines()],
        ["65534", "0000000000000000"],
    )
    plan = "udpd steer plan -c /tmp/udpd.toml"
    root, user = guest.run(plan), as_ordinary_user(guest, plan)
    report.same("a plan needs no privileges and is root's", (user.code, user.text), (0, root.text))
    report.same("neither does status", as_ordinary_user(guest, "udpd steer status -c /tmp/udpd.toml").code, DIFFERS)
    refused = as_ordinary_user(guest, "udpd steer apply -c /tmp/udpd.toml")
    report.same("apply needs some", refused.code, NO_PERMISSION)
    report.same("and changes nothing without", stage.snapshot([0]), before)


# What is done to a host that is as planned, and what takes it back.
STATES = {
    "an interrupt elsewhere": ("echo 3 >/proc/irq/$irq/smp_affinity_list", "udpd steer apply -c /tmp/udpd.toml"),
    "RPS on a queue": (
        "echo f >/sys/class/net/port0/queues/rx-0/rps_cpus", "echo 0 >/sys/class/net/port0/queues/rx-0/rps_cpus",
    ),
    "threads that poll": ("echo 1 >/sys/class/net/port0/threaded", "echo 0 >/sys/class/net/port0/threaded"),
    "fewer queues": ("ethtool -L port0 combined 2", "ethtool -L port0 combined 4; udpd steer apply -c /tmp/udpd.toml"),
    "the card down": ("ip link set port0 down", "ip link set port0 up; udpd steer apply -c /tmp/udpd.toml"),
}


def verdicts(stage, _):
    """Each state in turn, and after each the calm one."""
    guest, report = stage.guest, stage.report
    guest.write("/tmp/udpd.toml", configuration(CASE))
    stage.uneven()
    before = stage.snapshot([0])
    guest.run("udpd steer apply -c /tmp/udpd.toml")
    number = stage.interrupts().of_queue(0, stage.devices[0], 0)
    said = guest.run("udpd steer status -c /tmp/udpd.toml")
    report.same("status can say that all is as planned", (said.code, CALM in said.lines()), (AS_PLANNED, True))
    # A daemon that is started now keeps its plan, whatever becomes of the host.
    stage.start()
    for state, (make, undo) in STATES.items():
        guest.run(f"irq={number}; {make}")
        said = guest.run("udpd steer status -c /tmp/udpd.toml")
        told = said.code in (DIFFERS, UNKNOWN) and CALM not in said.lines()
        report.check(f"status with {state}: differs or unknown", [] if told else f"exit {said.code}\n{said.text}")
        undone = guest.run(undo)
        said = guest.run("udpd steer status -c /tmp/udpd.toml")
        calm = [] if said.code == AS_PLANNED else f"{undone.text}\nexit {said.code}\n{said.text}"
        report.check(f"status after {state}: as planned", calm)
    stage.stop()
    # One that cannot be had at all: this card hashes no UDP.
    guest.write("/tmp/hash.toml", configuration(Case("hash", [1], steer='flow_hash_udp = "sdfn"')))
    guest.run("udpd steer apply -c /tmp/hash.toml")
    said = guest.run("udpd steer status -c /tmp/hash.toml")
    told = said.code in (DIFFERS, UNKNOWN) and CALM not in said.lines()
    report.check("status with a hash not to be had: differs or unknown", [] if told else f"{said.code}\n{said.text}")
    guest.run("udpd steer restore")
    stage.is_restored("verdicts", [0], before)
