"""The same from a seed twice over: to an engine with its socket, and to a socket alone. What both deliver must be the
same, payload by payload, whatever merged datagrams, put a tag beside a frame, or changed the MTU in between."""
import collections
import os
import shutil
import subprocess

CHUNK = 2500
# Rights of root without those by which the kernel is asked what a frame is, for the second of the generic modes.
WITHOUT = ("setpriv", "--bounding-set=-perfmon,-sys_admin", "--inh-caps=-perfmon,-sys_admin")


def settle(rig, line):
    """Follows the sender in what it has changed."""
    what, *value = line.split()
    if what == "mtu":
        rig.run("ip", "link", "set", "card0", "mtu", value[0])
    elif shutil.which("ethtool"):
        off = ["rx-udp-gro-forwarding", "off", "rx-gro-list", "off"]
        on = ["gro", "on", *value] if value != ["off"] else []
        rig.run("ethtool", "-K", "card0", *off)
        if on:
            rig.run("ethtool", "-K", "card0", *on)


def send(rig, card, seed, count, what):
    with rig.python_there("steps.py", seed, count, card.hex(), rig.PORT, ",".join(what)) as process:
        for line in process.stdout:
            if line.startswith("sent"):
                return [int(word) for word in line.split()[1:]]
            settle(rig, line)
            process.stdin.write("\n")
            process.stdin.flush()
    raise AssertionError(f"the sender of seed {seed} ended with {process.returncode}")


def by_payload(datagrams):
    """A port of the sender is another one each time."""
    found = collections.Counter()
    for line, count in datagrams.items():
        source, destination, payload = line.rstrip("\n").split(" ")
        found[source.rpartition(":")[0], destination, payload] += count
    return found


def run(rig, card, name, options, what, prefix=()):
    count = int(os.environ.get("XDP_RIG_ALIKE", "50000" if os.environ.get("LONG") else "2500"))
    seen = collections.Counter()
    for seed in range(0, count, CHUNK):
        size = min(CHUNK, count - seed)

        def attempt(*options, prefix=()):
            receiver = rig.Receiver(*options, write=True, prefix=prefix)
            sent = send(rig, card, seed, size, what)
            return receiver.end(), (sent, receiver.datagrams())

        _, (sent, alone) = rig.whole(f"{name}, a socket alone", lambda: attempt("--no-engine"))
        account, (again, by) = rig.whole(name, lambda: attempt(*options, prefix=prefix))
        assert sent == again, (sent, again)
        expected, found = by_payload(alone["ordinary"]), by_payload(by["engine"] + by["ordinary"])
        missing, more = expected - found, found - expected
        def short(lines):
            return [(line[:2], line[2][:40], len(line[2]) // 2, number) for line, number in lines.items()][:5]

        assert not missing and not more, \
            f"{name}, seed {seed}: {missing.total()} missing {short(missing)}, {more.total()} too many {short(more)}"
        for key, value in zip(("sent", "trains", "tagged"), sent):
            seen[key] += value
        seen["delivered"] += expected.total()
        seen["by AF_XDP"] += sum(by["engine"].values())
        seen["left to device"] += account["left_to_device"]
    assert seen["by AF_XDP"] > count / 50 and seen["by AF_XDP"] < seen["delivered"], dict(seen)
    print(f"passed: {name}, {', '.join(what)}: 0 differences: {dict(seen)}", flush=True)


def all_modes(rig, card):
    everything = ["trains", "tags", "mtu"]
    run(rig, card, "native", [], everything)
    run(rig, card, "generic", ["--generic"], [*everything, "merge"])
    # A tag is not seen then.
    run(rig, card, "generic without CAP_PERFMON", ["--generic"], ["trains", "mtu"], WITHOUT)
