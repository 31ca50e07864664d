"""What the sandbox allows a daemon that runs; see sandbox.sh."""
import contextlib
import os
import platform
import re
import shutil
import signal
import socket
import time

import injections
from lib import net, packets
from lib.check import check, main, passed, same, skipped
from lib.daemon import WORK, Daemon, listening, need_sandbox
from lib.host import ends, execute, read, write
from lib.net import as_user, cut, ip

NO_RIGHTS = "0000000000000000"
ALL_SETS = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), NO_RIGHTS)
GONE, BACK = "interface card0 is gone", "udpd bound its sockets to it again"


def lay():
    ip("link add card0 numrxqueues 1 numtxqueues 1 type veth peer name card1")
    ip("address add 10.9.0.1/24 dev card0")
    for card in ("card0", "card1"):
        ip(f"link set {card} up")


def cut_and_laid_again(daemon, times=1):
    cut()
    daemon.await_log(GONE, times)
    lay()
    daemon.await_log(BACK, times)


@contextlib.contextmanager
def a_cable():
    lay()
    yield
    cut()


def run(sandbox, port, engine, **more):
    return Daemon(listening(f'address = "0.0.0.0:{port}"\ninterface = "card0"\nengine = "{engine}"',
                            file='type = "file"\npath = "DIR/in.log"',
                            relay='type = "udp"\ndestinations = ["10.9.0.2:5199"]'),
                  daemon=f'sandbox = "{sandbox}"', **more)


def send(port):
    """50 whole frames on the other end of the cable: one namespace is enough."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind(("card1", 0))
        to = bytes.fromhex(net.link("card0")["address"].replace(":", ""))
        for number in range(50):
            body = packets.udp("10.9.0.9", "10.9.0.1", port, b"datagram %d" % number, 0)
            out.send(packets.frame(to, packets.ip("10.9.0.9", "10.9.0.1", body)))


def send_and_await(daemon, port, total):
    send(port)
    daemon.await_listener(f"{total} are received", lambda listener: listener["received"] == total)


def child_of(process):
    """The first process that a process has started."""
    return int(read(f"/proc/{process}/task/{process}/children").split()[0])


def status_of(process):
    return dict(line.split(":\t", 1) for line in read(f"/proc/{process}/status").splitlines() if ":\t" in line)


def interface_that_comes_back(engine):
    """It goes and comes back three times: new sockets are made and bound inside."""
    with a_cable():
        daemon = run("require", 5140, engine)
        for number in (1, 2, 3):
            send_and_await(daemon, 5140, 50 * number)
            cut_and_laid_again(daemon, number)
        send_and_await(daemon, 5140, 200)
        daemon.every_thread(NoNewPrivs="1", Seccomp="2", **ALL_SETS)
        daemon.end()
        denied = re.search("not permitted|Permission denied|less of a sandbox", daemon.log())
        check(not denied, "something was denied")


def low_ports(engine):
    """A low port is bound again, by the warden: it alone has rights, and no more than it needs. So is one that a reload
    adds, with more receive buffer than every user may have."""
    with a_cable():
        daemon = run("require", 514, engine)
        warden = child_of(daemon.child.pid)
        seen = status_of(warden)
        same([seen[name] for name in ("CapPrm", "CapEff", "Seccomp")], ["0000000000003400"] * 2 + ["2"], "the warden")
        daemon.every_thread(**ALL_SETS)
        send_and_await(daemon, 514, 50)
        cut_and_laid_again(daemon)
        send_and_await(daemon, 514, 100)
        buffer = 4 * int(read("/proc/sys/net/core/rmem_max"))
        write(daemon.config, f'[[listener]]\nname = "added"\naddress = "127.0.0.1:515"\nreceive_buffer = {buffer}\n'
              'sinks = ["file"]\n', how="a")
        done = daemon.ask("reload")
        check(done.returncode == 0, f"a low port cannot be added: {done}")
        check(not daemon.said("clamped") and not daemon.said("rmem_max"), "the receive buffer is cut down")
        # Signals are for the daemon. Without the warden a low port is refused, once and with the reason.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            os.kill(warden, number)
        cut()
        daemon.await_log(GONE, 2)
        lay()
        daemon.await_log("which udpd gave up when it had started (sandbox)")
        time.sleep(3)
        same((daemon.said("back but unusable"), daemon.said("udpd-warden) does not answer")), (1, 1), "said")
        daemon.end()


def without_the_sandbox(engine):
    """A low port is bound again without a warden."""
    with a_cable():
        daemon = run("off", 514, engine)
        cut_and_laid_again(daemon)
        daemon.end()


def ordinary_user(engine):
    with a_cable():
        daemon = run("require", 5140, engine, before=as_user(65534), owner=65534)
        send_and_await(daemon, 5140, 50)
        own = {name: NO_RIGHTS for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
        daemon.every_thread(Uid="65534 65534 65534 65534", NoNewPrivs="1", Seccomp="2", **own)
        daemon.end()


def kernel_that_lacks(part):
    """One warning, or no start."""
    with a_cable():
        tracer = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={part}"]
        daemon = run("auto", 5140, "recvmmsg", before=tracer)
        same(daemon.said("running with less of a sandbox"), 1, f"{part}: warnings")
        os.kill(child_of(daemon.child.pid), signal.SIGTERM)
        daemon.wait()
        run("require", 5140, "recvmmsg", before=tracer, wait=False).wait(77, 'sandbox = "require"')


def ways_out():
    if not shutil.which("cc") or platform.machine() != "x86_64":
        skipped("injections need cc, and the registers of x86_64")
        return
    command = ["cc", "-O1", "-Wall", "-o", f"{WORK}/inject", "tests/rigs/sandbox/inject.c"]
    if execute(*command, "-static").returncode != 0:
        ends(0, *command)
    for engine in ("recvmmsg", "io_uring"):
        for user in (0, 65534):
            injections.attempts(user, engine)


def rights_that_are_given_up():
    for engine in ("recvmmsg", "io_uring"):
        for case in (interface_that_comes_back, low_ports, without_the_sandbox, ordinary_user):
            case(engine)
            passed(f"{case.__name__.replace('_', ' ')}, {engine}")
    for part in ("landlock_create_ruleset:error=ENOSYS", "seccomp:error=EINVAL", "capset:error=EPERM"):
        kernel_that_lacks(part)
        passed(f"a kernel that lacks {part}")


main(need_sandbox, rights_that_are_given_up, ways_out)
