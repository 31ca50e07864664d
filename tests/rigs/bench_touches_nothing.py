"""What every form of the bench touches; see bench_touches_nothing.sh."""
import os
import re
import socket

from lib.check import check, main, passed, same
from lib.daemon import UDPD, WORK, listening
from lib.host import execute, write
from lib.net import udp_socket

LOG, RUN, TEMPORARY = (f"{WORK}/{name}" for name in ("log", "run", "tmp"))
# The other ends of what is configured belong to this rig, which must hear nothing.
RELAYED = [udp_socket("127.0.0.1"), udp_socket("::1")]
PORTS = [there.getsockname()[1] for there in RELAYED]
LOCAL_SINK = f'type = "unix"\npath = "{RUN}/messages"'
CONFIGURATION = f"""
[daemon]
control_socket = "{RUN}/control.sock"
metrics_address = "127.0.0.1:29817"
stats_on_exit = "{RUN}/ledger.json"
""" + listening(
    'address = "0.0.0.0:25139"\nmulticast_groups = ["239.255.77.2"]\nallow = ["192.0.2.0/24"]',
    archive=f'type = "file"\npath = "{LOG}/{{listener}}.log"\nrotate = {{ bytes = "64KiB", every = "1s" }}\n'
            'keep = { files = 2 }\nsync = "100ms"',
    dated=f'type = "file"\nformat = "pcapng"\npath = "{LOG}/%Y/%m/{{lane}}.pcapng"',
    relay=f'type = "udp"\ndestinations = ["127.0.0.1:{PORTS[0]}", "[::1]:{PORTS[1]}"]',
    chosen='type = "udp"\ndistribute = "by_source"\ndestinations = ["192.0.2.9:514", "198.51.100.9:514"]',
    local=LOCAL_SINK, pushed=f'type = "unix"\nsocket = "stream"\npath = "{RUN}/stream"', out='type = "stdout"')
REAL = listening('address = "127.0.0.1:25139"', archive=f'type = "file"\npath = "{LOG}/real.log"',
                 relay=f'type = "udp"\ndestinations = ["127.0.0.1:{PORTS[0]}"]', local=LOCAL_SINK)
OWN = "/.udpd-bench-"
OPENS = ("open", "openat", "openat2", "creat")
CHANGES = ("unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "link", "linkat",
           "symlink", "symlinkat", "truncate", "chmod", "fchmodat", "chown", "lchown", "fchownat", "utime", "utimes",
           "utimensat", "futimesat",
           "mknod", "mknodat", "setxattr", "lsetxattr", "removexattr", "mount", "umount2")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
CALL = re.compile(r"^\d+\s+(\w+)\((.*)$")
V4 = re.compile(r'sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)')
V6 = re.compile(r'sin6_port=htons\((\d+)\).*?inet_pton\(AF_INET6, "([^"]+)"')
LOCAL = re.compile(r'sa_family=AF_UNIX, sun_path=@?"([^"]+)"')


def paths(arguments):
    """What a call names: absolute, or in the directory that strace has put behind its number."""
    found, base = [], ""
    for number, text in re.findall(r'(?:AT_FDCWD|\d+)<([^>]*)>|"((?:[^"\\]|\\.)*)"', arguments):
        if number:
            base = number
        else:
            found.append(text if text.startswith("/") else f"{base}/{text}")
    return found


def objections(trace):
    wrong = []
    for line in open(trace):
        call = CALL.match(line)
        if not call:
            continue
        what, arguments = call.groups()
        if what in OPENS and (what == "creat" or WRITES.search(arguments)):
            if any(OWN not in path and path != "/dev/null" for path in paths(arguments)[:1]):
                wrong.append(line)
        elif what in CHANGES:
            named = paths(arguments)
            if what.startswith("symlink"):
                named = named[1:]
            if not named or any(OWN not in path for path in named):
                wrong.append(line)
        elif what in ("connect", "bind", "sendto", "sendmsg", "sendmmsg"):
            for port, address in V4.findall(arguments) + V6.findall(arguments):
                is_strange = not (address.startswith("127.") or address == "::1")
                is_configured = int(port) in (*PORTS, 514, 25139, 29817)
                if is_strange or is_configured:
                    wrong.append(line)
            if any(OWN not in path for path in LOCAL.findall(arguments)):
                wrong.append(line)
        elif what == "setsockopt" and re.search(r"MEMBERSHIP|MCAST_JOIN|SO_BINDTODEVICE", arguments):
            wrong.append(line)
        elif what == "ioctl" and re.search(r"SIOCETHTOOL|SIOCS", arguments):
            wrong.append(line)
    return wrong


def unix_socket(kind, name):
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(f"{RUN}/{name}")
    return made


def bench(*arguments):
    """The calls that it makes."""
    trace = f"{WORK}/trace"
    command = ["strace", "-f", "-y", "-qq", "-s", "200", "-e", "trace=%file,%network,ioctl", "-e", "signal=none", "-o",
               trace, UDPD, "bench", *arguments]
    done = execute(*command, env=os.environ | {"TMPDIR": TEMPORARY})
    check(done.returncode == 0, f"bench {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
    return trace


def must_be_clean(*arguments):
    wrong = objections(bench(*arguments))
    what = f"bench {' '.join(arguments)}"
    check(not wrong, f"{what} touches what it has not made:\n" + "".join(wrong[:10]))
    passed(what.replace(WORK, "DIR"))


def tree():
    found = {}
    for folder, _, names in os.walk(WORK):
        for name in names:
            seen = os.lstat(path := os.path.join(folder, name))
            if name != "trace":
                found[path] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_mode)
    return found


def all_forms():
    for path in (LOG, RUN, TEMPORARY):
        os.mkdir(path)
    messages, stream = unix_socket(socket.SOCK_DGRAM, "messages"), unix_socket(socket.SOCK_STREAM, "stream")
    stream.listen()
    write(f"{LOG}/in.log", "of the daemon\n")
    for number in range(10, 60):
        write(f"{LOG}/in.log.20250101T0000{number}Z", f"{number}\n")
    write(f"{WORK}/udpd.toml", CONFIGURATION)
    write(f"{WORK}/real.toml", REAL)
    short = ("--rate", "500..1k", "--seconds", "0.2", "--gso", "4", "--precision", "50%")
    before = tree()
    must_be_clean("max", "-c", f"{WORK}/udpd.toml", *short)
    for to in (f"file:{LOG}/in.log", f"udp:127.0.0.1:{PORTS[0]}", f"unix:{RUN}/messages", "stdout:"):
        must_be_clean("max", "--to", to, *short)
    must_be_clean("ladder", "--rounds", "1", "--seconds", "0.1", "--rate", "500")
    must_be_clean("recv", "--listen", "127.0.0.1:25138", "--seconds", "0.2")
    # A sender sends where it is told, and nowhere else; no process has port 9 of loopback.
    must_be_clean("send", "--to", "127.0.0.1:9", "--rate", "500", "--seconds", "0.2")
    same(sorted(set(before.items()) ^ set(tree().items())), [], "files that are changed")
    for there in (*RELAYED, messages):
        there.setblocking(False)
        try:
            check(False, f"{there.getsockname()} has heard {there.recv(100)!r}")
        except BlockingIOError:
            pass
    passed("no file is another than before, and no configured socket has heard anything")
    wrong = objections(bench("max", "-c", f"{WORK}/real.toml", "--real-sinks", *short))
    for what in (f"{LOG}/real.log", f"htons({PORTS[0]})", f"{RUN}/messages"):
        check(any(what in line for line in wrong), f"the checker does not see {what}, so it proves nothing")
    passed("the checker objects to the file, the address and the socket of --real-sinks")


main(all_forms)
