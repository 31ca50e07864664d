"""The bench on cables; see bench_cable.sh."""
import json
import os

from lib.check import check, main, passed
from lib.daemon import UDPD
from lib.host import execute, read
from lib.net import UNPRIVILEGED, ip, link

SHORT = ["--seconds", "0.3", "--rate", "5k..20k", "--precision", "50%", "--json"]
LONE = ["--to", "null:", "--interface", "card0"]
NAMED = [*LONE, "--from", "card1"]


def bench(*arguments, status=0, prefix=(), words=""):
    """The report, or what is said with another status."""
    done = execute(*prefix, UDPD, "bench", *arguments, timeout=120)
    check(done.returncode == status and words in done.stderr,
          f"bench {' '.join(arguments)}: exit {done.returncode}, not {status}, and {words!r} in: {done.stderr}")
    return json.loads(done.stdout)["report"] if status == 0 else done.stderr


def surroundings():
    return ip("link"), os.readlink("/proc/self/ns/net"), read("/proc/self/mounts")


def must_add_up(report):
    check(report["trials"], "no trial")
    for trial in report["trials"]:
        check(trial["sent"] == trial["delivered"] + sum(trial["lost"].values()), f"does not add up: {trial}")
    check(any(trial["delivered"] for trial in report["trials"]), "nothing was delivered")


def own_cable():
    """A cable of its own, which is seen from nowhere else."""
    before = surroundings()
    own = bench("max", "--engine", "af_xdp", "--to", "null:", "--flows", "100k", *SHORT)
    must_add_up(own)
    check(any("virtual cable" in line for line in own["changed"]), f"it does not say where: {own['changed']}")
    ladder = bench("ladder", "--interface", "--steps", "pinned,io_uring,af_xdp,af_xdp_gather", "--rounds", "1",
                   "--seconds", "0.2", "--rate", "20k", "--json")
    for row in ladder["steps"]:
        if row["obstacle"] is not None:
            check(row["step"] == "io_uring", f"an obstacle: {row}")
            continue
        check(row["offered"] == row["received"] + sum(row["lost"].values()), f"does not add up: {row}")
        check(row["received"] > 0, f"nothing was received: {row}")
    check(before == surroundings(), "it has left something")
    passed("a cable of its own")


def named_cable():
    """Two interfaces that are wired to each other. The receiver's counter knows nothing of the bench."""
    def received():
        return link("card0")["stats64"]["rx"]["packets"]

    for engine in ("af_xdp", "recvmmsg"):
        begun = received()
        report = bench("max", "--engine", engine, *NAMED, *SHORT)
        must_add_up(report)
        sent, came = sum(trial["sent"] for trial in report["trials"]), received() - begun
        # The kernel itself may have something to say to its neighbours.
        check(sent <= came <= sent + 50, f"{engine}: {sent} sent, and {came} came")
        check("prog/xdp" not in ip("link"), "its program has stayed")
        passed(f"two interfaces, {engine}: {sent} sent, {came} counted by the receiver")


def refusals():
    for arguments, status, words in (
        (["--to", "null:", "--interface", "card7", "--from", "card1"], 69, "ip link"),
        (["--to", "null:", "--interface", "card1", "--from", "card0"], 69, "ip address add"),
        (["--to", "null:", "--interface", "lo", "--from", "card0"], 69, "is loopback"),
        (LONE, 2, "--from IF"),
        ([*NAMED, "--gso", "4"], 2, "--gso"),
        ([*NAMED, "--threads", "2"], 2, "--threads"),
        (["--to", "null:", "--from", "card1"], 2, "--interface"),
        (["--engine", "af_xdp", "--to", "null:", "--real-sinks"], 2, "--interface IF --from IF"),
    ):
        bench("max", *arguments, status=status, words=words)
    ip("route add default dev card1")
    bench("max", *NAMED, *SHORT, status=2, words="--despite-default-route")
    must_add_up(bench("max", *NAMED, "--despite-default-route", *SHORT))
    bench("ladder", "--interface", "--sizes", status=2, words="--sizes")
    bench("max", "--engine", "af_xdp", "--to", "null:", status=77, prefix=UNPRIVILEGED, words="CAP_SYS_ADMIN")
    passed("what cannot be measured is refused with its reason")


main(own_cable, named_cable, refusals)
