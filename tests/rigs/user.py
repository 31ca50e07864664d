"""udpd that root starts becomes an ordinary user; see user.sh."""
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading

from lib import net
from lib.check import check, main, passed, same, until
from lib.daemon import UDPD, WORK, Daemon, need_sandbox, start
from lib.host import ends, read, read_bytes
from lib.host import write as write_file

USER = 47110
LOGS, SPILLS, PEERS, END = (f"{WORK}/{name}" for name in ("log.d", "spill.d", "peers", "end"))
CONFIG = f"{WORK}/udpd.toml"
LEDGER, CONTROL = f"{END}/ledger.json", "/run/udpd/control.sock"
NO_RIGHTS = "0000000000000000"
STAYS = "udpd stays root: "
SINKS = f"""[sink.file]
type = "file"
path = "{LOGS}/made/{{listener}}.log"
[sink.closed]
type = "unix"
path = "{PEERS}/closed"
[sink.shared]
type = "unix"
path = "{PEERS}/shared"
spill = {{ path = "{SPILLS}/made", bytes = "64MiB" }}
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:5199"]
keep_source = true
"""
# A process that passes a socket which it has bound, as a service manager does.
PASS = """
import os, socket, sys
passed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
passed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
passed.bind(("127.0.0.1", 515))
os.dup2(passed.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="two.0")
os.execv(sys.argv[1], sys.argv[1:])
"""


def listener(name, port, engine, sinks, more=""):
    return (f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\nengine = "{engine}"\nsinks = {sinks}\n'
            f"{more}\n")


def configuration(key="", more="", *changes):
    """Two listeners at low ports, and what follows; `key` is a line of [daemon]. A change is what is looked for, as
    a pattern, and what stands there instead."""
    text = f'[daemon]\nmetrics_address = ""\nsandbox = "require"\nstats_on_exit = "{LEDGER}"\n{key}\n'
    text += listener("one", 514, "recvmmsg", '["file", "closed", "shared", "relay"]')
    text += listener("two", 515, "io_uring", '["file"]', "lanes = 2") + more + SINKS
    for pattern, instead in changes:
        text = re.sub(pattern, instead, text, flags=re.M)
    return text


THREE = listener("three", 516, "recvmmsg", '["file"]')
# Where udpd is root, it needs none of the directories that were made for a user.
AS_ROOT = ((r"^sandbox.*", 'control_socket = ""'), ("log.d/made", "root.d"), ("spill.d/made", "root.spill"),
           (r"^stats_on_exit.*\n", ""))


def write(text):
    """Into the one file of all; its owner and its mode stay as they are."""
    write_file(CONFIG, text)


class Started(Daemon):
    """By the one file, with the control socket where it lies by default."""

    def __init__(self, *before, run=("run",)):
        super().__init__("", directory=f"{WORK}/{next(Daemon.numbers)}", before=before, run=run)

    def configure(self, text):
        self.config, self.ledger_path, self.socket = CONFIG, LEDGER, CONTROL

    def belongs_to(self, user):
        self.every_thread(Uid=" ".join([str(user)] * 4))
        return self

    def stays_root(self, why):
        same(self.said(STAYS + why), 1, f"it says once: {why}")
        self.belongs_to(0)
        self.finish()

    def finish(self):
        self.child.send_signal(signal.SIGTERM)
        self.wait()


def refused(code, words, *command):
    """A start, or another command, that has to end with a code and these words."""
    said = ends(code, *command)
    check(re.search(words, said), f"{command}: {words!r} in: {said}")


RUN, CHECK = (UDPD, "run", "-c", CONFIG), (UDPD, "check", "-c", CONFIG)


def checked():
    return ends(0, *CHECK)


def send(*ports):
    """50 datagrams to each."""
    own = net.udp_socket()
    for number in range(50):
        for port in ports:
            own.sendto(b"datagram %d" % number, ("127.0.0.1", port))


def await_lines(count):
    """Waits until the files have so many lines together."""
    def lines():
        return sum(read_bytes(path).count(b"\n") for path in glob.glob(f"{LOGS}/made/*.log"))

    until(lambda: f"{count} lines in the files, and not {lines()}", lambda: lines() == count)


def every_file_is_the_users(*paths):
    others = net.run("find", *paths, "!", "(", "-user", USER, "-group", USER, ")", "-printf", "%p of %U:%G ")
    check(not others, f"of another user: {others}")


class Peers(threading.Thread):
    """Sockets of root that listen, and one that root has let the group use; what each gets."""

    def __init__(self):
        super().__init__(daemon=True)
        os.mkdir(PEERS)
        self.got, self.sockets = {"closed": 0, "shared": 0, "relayed": 0}, {}
        for name, mode, owner in (("closed", 0o600, 0), ("shared", 0o660, USER)):
            own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            own.bind(f"{PEERS}/{name}")
            os.chown(f"{PEERS}/{name}", 0, owner)
            os.chmod(f"{PEERS}/{name}", mode)
            self.sockets[own] = name
        self.sockets[net.udp_socket("127.0.0.1", 5199)] = "relayed"
        self.start()

    def run(self):
        while True:
            for own in select.select(list(self.sockets), [], [])[0]:
                own.recv(2048)
                self.got[self.sockets[own]] += 1


def no_user():
    """Where there is none it stays root, and says so once. So does check."""
    write(configuration("", "", *AS_ROOT))
    check(re.search("^warning: udpd would stay root: this host has no user udpd", checked(), re.M), "check is silent")
    Started().stays_root("this host has no user udpd")
    write(configuration('user = "no-such-user"'))
    for command in (CHECK, RUN):
        refused(78, f'{CONFIG}:5:8: .*no user "no-such-user"', *command)
    write(configuration('user = "root"', "", (r"^spill.*\n", "")))
    refused(77, "only root can become another user", *net.as_user(65534), *RUN)


def make_user():
    write_file(f"{WORK}/passwd", f"udpd:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n", how="a")
    write_file(f"{WORK}/group", f"udpd:x:{USER}:\n", how="a")


def rights_of_threads(daemon):
    daemon.belongs_to(USER).every_thread(Gid=" ".join([str(USER)] * 4), Groups=str(USER), NoNewPrivs="1", Seccomp="2",
                                         CapInh=NO_RIGHTS, CapAmb=NO_RIGHTS)
    for task in daemon.threads():
        # The consumer of the relay makes raw sockets, with CAP_NET_RAW.
        name = read(f"{task}/comm")
        rights = "0000000000002000" if re.match("sink.*-relay", name) else NO_RIGHTS
        same(rights_of(task), [rights] * 3, f"rights of {name}")
    [warden] = read(f"/proc/{daemon.child.pid}/task/{daemon.child.pid}/children").split()
    path = f"/proc/{warden}"
    same(rights_of(path), ["0000000000003400"] * 3, "rights of the warden")
    for field in ("Uid", "Gid"):
        same(field_of(path, field).split(), [str(USER)] * 4, f"{field} of the warden")


def field_of(path, name):
    return re.search(rf"^{name}:\s*(.*)$", read(f"{path}/status"), re.M)[1]


def rights_of(path):
    return [field_of(path, name) for name in ("CapPrm", "CapEff", "CapBnd")]


def by_default(peers):
    """What it is there for, with the usual settings. The file is root's alone at first."""
    write(configuration())
    os.chmod(CONFIG, 0o600)
    told = checked()
    for words in (rf"^user: udpd \(uid {USER}\), which root becomes",
                  "^warning: a reload will be refused: root can read"):
        check(re.search(words, told, re.M), f"check does not say {words}: {told}")
    daemon = Started()
    for words in (f"user udpd (uid {USER}): root has started udpd, which has become it",
                  f"a reload will be refused: root can read {CONFIG} and user udpd, which udpd becomes, cannot"):
        same(daemon.said(words), 1, words)
    rights_of_threads(daemon)
    send(514, 515)
    await_lines(100)
    until(lambda: f"the peers have got {peers.got}", lambda: (peers.got["shared"], peers.got["relayed"]) == (50, 50))
    # Root's own socket is out of reach by the kernel's first rule.
    daemon.until("the closed peer is said", lambda: re.search(
        "peers/closed cannot be reached: Permission denied.*udpd has become user udpd", daemon.log()))
    same(peers.got["closed"], 0, "what a socket of root got")
    one = daemon.listener()
    sinks = {sink["name"]: sink for sink in one["sinks"]}
    same((one["received"], sinks["closed"]["dropped"]["sink_error"]), (50, 50), lambda: json.dumps(one))
    same([sinks[name]["delivered"] for name in ("file", "shared", "relay")], [50] * 3, lambda: json.dumps(one))
    every_file_is_the_users(f"{LOGS}/made", f"{SPILLS}/made", "/run/udpd")
    return daemon


def reloads():
    """A reload reads the file again, as soon as the user may, and binds a low port by the warden. It makes no file
    where only root may."""
    refused(78, "Permission denied", UDPD, "reload")
    os.chown(CONFIG, 0, USER)
    os.chmod(CONFIG, 0o640)
    write(configuration("", THREE))
    refused(0, "", UDPD, "reload")
    send(516)
    await_lines(150)
    write(configuration("", THREE, ("log.d/made", "log.d/other")))
    refused(77, "Permission denied", UDPD, "reload")
    check(not os.path.exists(f"{LOGS}/other"), "a directory was made where only root may")
    write(configuration("", THREE))


def kill_and_take_over(daemon):
    """A kill leaves what the next start goes on with. So does what takes over, which is root as well."""
    daemon.kill()
    before = Started()
    send(514, 515, 516)
    await_lines(300)
    every_file_is_the_users(f"{LOGS}/made", f"{SPILLS}/made", "/run/udpd")
    daemon = Started(run=("run", "--take-over")).await_log("took over 4 sockets")
    before.wait()
    daemon.belongs_to(USER)
    send(514, 515, 516)
    await_lines(450)
    daemon.finish()
    every_file_is_the_users(f"{LOGS}/made", f"{SPILLS}/made", LEDGER)
    check(not os.path.exists(CONTROL), "the control socket stays")


def what_is_of_root():
    """The holder of a port that cannot be had is said also where it is root's. What root has from before is neither
    taken nor overwritten, and the cure is said."""
    holder = start([sys.executable, "-c", "import socket, time\ntaken = socket.socket(type=socket.SOCK_DGRAM)\n"
                    "taken.bind(('127.0.0.1', 514))\nprint(flush=True)\ntime.sleep(600)"], stdout=subprocess.PIPE)
    holder.stdout.readline()
    refused(69, f"pid {holder.pid}", *RUN)
    holder.kill()
    holder.wait()
    for path in glob.glob(f"{LOGS}/made/*.log"):
        os.remove(path)
    path, denied = f"{LOGS}/made/one.log", "Permission denied.*udpd has become user udpd"
    write_file(path, "of root\n", 0o640)
    refused(77, f"{denied} before it opened anything", *RUN)
    same(read(path), "of root\n", "a file of root")
    os.remove(path)
    token = f"{WORK}/token"
    write_file(token, "x" * 32, 0o600)
    write(configuration("", THREE, (r"^metrics_address.*",
                                    f'metrics_address = "127.0.0.1:9817"\\nmetrics_token_file = "{token}"')))
    refused(78, "Permission denied", *CHECK)
    refused(78, denied, *RUN)
    os.chown(END, 0, 0)
    os.chmod(END, 0o755)
    write(configuration())
    refused(77, "cannot write stats_on_exit", *RUN)
    os.chown(END, USER, -1)


def passed_sockets():
    """Sockets that root has bound and passes: more lanes of the same port are the user's."""
    write(configuration())
    daemon = Started(sys.executable, "-c", PASS).belongs_to(USER)
    send(515)
    await_lines(50)
    daemon.finish()


def without_the_sandbox():
    """A user keeps what a start takes, and root keeps all."""
    off = (r"^sandbox.*", 'sandbox = "off"')
    write(configuration('user = "udpd"', "", off))
    daemon = Started().belongs_to(USER)
    daemon.every_thread(CapPrm="000000c000807400", CapEff="000000c000807400")
    daemon.finish()
    write(configuration("", "", (r"^sandbox.*", 'sandbox = "off"\\ncontrol_socket = ""'), ("made", "off"), AS_ROOT[-1]))
    Started().stays_root('sandbox = "off" gives up nothing')


def root_that_may_not():
    """Where root may not become another user: one warning, or no start."""
    for without in ("setpriv --bounding-set=-setuid", "unshare --user --map-root-user"):
        changes = ((r"^sandbox.*", 'control_socket = ""'), (":51([456])", r":2051\1"), ("made", "bound"),
                   (r"^keep_source.*\n", ""), AS_ROOT[-1])
        write(configuration("", "", *changes))
        Started(*without.split()).stays_root("it cannot become user udpd")
        write(configuration('user = "udpd"', "", *changes))
        refused(77, "cannot become user udpd", *without.split(), *RUN)
        for folder in (LOGS, SPILLS):
            shutil.rmtree(f"{folder}/bound", ignore_errors=True)


def all_cases():
    # Directories of root, in which the user may make nothing; one is given to it.
    for folder in (LOGS, SPILLS, END):
        os.mkdir(folder)
    os.chown(END, USER, -1)
    peers = Peers()
    no_user()
    make_user()
    write(configuration('user = "root"', "", *AS_ROOT))
    Started().stays_root('user = "root" says so')
    passed("without a user udpd, and with user = \"root\", it stays root and says so")
    daemon = by_default(peers)
    passed("all threads and the warden are the user, and what is sent is delivered, but to a socket of root")
    reloads()
    kill_and_take_over(daemon)
    passed("a reload, a kill and a take-over")
    what_is_of_root()
    passed("what is root's is refused with the cure")
    passed_sockets()
    without_the_sandbox()
    root_that_may_not()
    passed("sockets that are passed, no sandbox, and a root that may become no other user")


main(need_sandbox, all_cases)
