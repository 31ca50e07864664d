"""Situations of loss, one cause or two at once: explain must name each cause with its amount, as the rig itself counts
it, exit as it says, and advise nothing that does not cure. What it prints as a command or a key is applied as it
stands; what it says of the program is done by starting the program so. Then the same is sent again."""
import json
import os
import random
import shlex
import socket as socket_module
import time

from lib import net
from lib.check import Failed, check, until
from lib.net import OTHER, ip
from scene import HERE, apply, sender

# Of the amount: explain looks before and after the rig does.
NEAR = 0.08
# A part of a loss with two causes that meet at one socket is decided by moments of a tenth of a second.
NEAR_AS_PART = 0.3
# Where the sysctls of a namespace cannot be set, the rig leaves them: they are the host's.
OF_THE_HOST = ("net.core.", "net.ipv4.udp_mem")


class Situation:
    """What is sent to a port and lost there."""

    def __init__(self, port, *flows, truth, seconds=1.2, cured=None, allowed=(), watched=None, asked=True, keys=None):
        self.port, self.flows, self.truth, self.seconds = port, flows, truth, seconds
        self.cured, self.allowed, self.asked, self.keys = cured, allowed, asked, keys
        self.watched = watched or int(seconds) + 1
        self.sent, self.arguments = {}, None

    def send(self):
        """Sends every flow at its rate; a sender that was held up lets what it missed be."""
        self.sent = {flow.name: 0 for flow in self.flows}
        began = time.monotonic()
        while (now := time.monotonic() - began) < self.seconds:
            for flow in self.flows:
                self.sent[flow.name] += flow.send(now, self.sent[flow.name])
            time.sleep(0.0005)


class Flow:
    """Datagrams of one sender at a rate, between two times."""

    def __init__(self, port, rate, name="flow", source="", to=HERE, size=60, begins=0, ends=99, burst=0, socket=None):
        self.name, self.rate, self.begins, self.ends, self.burst = name, rate, begins, ends, burst
        self.own = socket or sender(source)
        self.one = lambda: self.own.sendto(b"x" * size, (to, port))
        if burst:
            # In trains of a hundred, so that a reader on another core does not keep up with the sender.
            self.own.setsockopt(socket_module.SOL_UDP, net.UDP_SEGMENT, size)
            self.train = lambda: self.own.sendto(b"x" * size * 100, (to, port))

    def send(self, now, sent):
        if not self.begins <= now < self.ends:
            return 0
        due = int((now - self.begins) * self.rate)
        if self.burst:
            due = due // self.burst * self.burst
        elif due - sent > 64:
            # Not a burst of what was missed: that is a cause of its own.
            self.begins += (due - sent - 8) / self.rate
            due = sent + 8
        for _ in range(0, due - sent, 100) if self.burst else range(sent, due):
            (self.train if self.burst else self.one)()
        return max(due - sent, 0)


def dropped(port):
    return net.dropped_at_port(port)


def explain(scene, situation):
    before = dropped(situation.port)
    by_port = ["--port", str(situation.port)] if situation.asked else ["-c", scene.config.config]
    arguments = situation.arguments() if situation.arguments else by_port
    said = scene.explain(situation.send, *arguments, seconds=situation.watched)
    situation.at_socket = dropped(situation.port) - before
    return said


def amounts(said):
    found = {}
    for finding in said["findings"]:
        if finding["lost"]:
            found[finding["case"]] = found.get(finding["case"], 0) + finding["lost"]
    return found


def judge(said, truth):
    """Every cause with its amount, and no other."""
    found = amounts(said)
    whole = sum(truth.values())
    show = lambda: f"wanted {truth}, found {found}: {json.dumps(said, indent=1)}"
    for case, count in truth.items():
        near = NEAR_AS_PART if sum(other.startswith(("reader", "buffer")) for other in truth) > 1 else NEAR
        check(abs(found.get(case, 0) - count) <= max(count * near, 4), show)
    others = sum(count for case, count in found.items() if case not in truth)
    check(others <= max(whole * 0.05, 3), show)
    check(bool(found) == said["lost"], show)


def literal_cures(said):
    """The first cure of each finding that is a command, a sysctl or a key."""
    for finding in said["findings"]:
        if finding["lost"]:
            for one in finding["cures"]:
                if one["kind"] in ("command", "sysctl", "key"):
                    yield finding["case"], one
                    break


def go_through(scene, situation):
    """One situation: what is said, the cures as printed, and what is said then."""
    said = explain(scene, situation)
    truth = situation.truth(situation)
    judge(said, truth)
    for finding in said["findings"]:
        for one in finding["cures"]:
            if one["kind"] == "sysctl" and one["name"] == "net.core.rmem_max":
                check("rmem_max" in situation.allowed, f"rmem_max is raised for nothing: {finding}")
    applied = set()
    for case, one in literal_cures(said):
        if one["kind"] == "sysctl" and one["name"].startswith(OF_THE_HOST):
            continue
        if one["kind"] == "key":
            situation.keys(one)
        elif case == "no_listener":
            scene.start(shlex.split(one["command"]), stderr=-3)
            until("it listens", lambda: any(port == situation.port for port, _ in net.bound_sockets()))
        else:
            apply(one)
        applied.add(case)
    if situation.cured:
        applied |= set(situation.cured() or truth)
    if applied:
        again = amounts(explain(scene, situation))
        for case in applied:
            check(again.get(case, 0) <= truth.get(case, 0) * 0.02,
                  lambda: f"the cure of {case} does not cure: {truth.get(case)} before, then {again}; it was said: "
                          f"{json.dumps(said, indent=1)}")
    return len(applied)


def as_case(make):
    """A case of run.py from a function that makes a situation."""
    def case(scene):
        go_through(scene, make(scene))
    case.__name__ = make.__name__
    return case


def prepare():
    for address in ("10.9.0.3/24", "10.9.0.4/24"):
        ip(f"address replace {address} dev card1", OTHER)


def chances(make, count, first=1):
    """`count` situations from a seed; SEED begins elsewhere."""
    start = int(os.environ.get("SEED") or first)
    for seed in range(start, start + count):
        def case(scene, seed=seed):
            try:
                go_through(scene, make(scene, random.Random(seed)))
            except Failed as why:
                raise Failed(f"SEED={seed}: {why}") from why
        case.__name__ = f"by_chance_{seed}"
        yield case
