#!/usr/bin/env bash
# Every form of the bench on loopback under strace, over a configuration with a sink of every kind: each path that is
# opened for writing, made, renamed or removed lies in a directory that the bench has made, and each address that is
# connected to, sent to or bound is one of loopback that nobody has configured. The checker does not believe the bench,
# and is itself checked with --real-sinks, which it has to object to.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=bench_touches_nothing.sh
for tool in strace python3; do
    command -v "$tool" >/dev/null || { echo "SKIPPED $name: needs $tool"; exit 0; }
done
if ! strace -f -o /dev/null true 2>/dev/null; then
    echo "SKIPPED $name: may trace no process here"
    exit 0
fi

cargo build --release --bin udpd
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 - "$PWD/target/release/udpd" "$directory" <<'END'
import os, re, socket, subprocess, sys

udpd, directory = sys.argv[1:]
log, run, temporary = (os.path.join(directory, name) for name in ("log", "run", "tmp"))
for path in (log, run, temporary):
    os.mkdir(path)

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

# The other ends of what is configured belong to this rig, which must hear nothing.
def udp(family, address):
    there = socket.socket(family, socket.SOCK_DGRAM)
    there.bind((address, 0))
    there.setblocking(False)
    return there

relayed = [udp(socket.AF_INET, "127.0.0.1"), udp(socket.AF_INET6, "::1")]
ports = [there.getsockname()[1] for there in relayed]
messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
messages.bind(f"{run}/messages")
stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
stream.bind(f"{run}/stream")
stream.listen()

write(f"{log}/in.log", "of the daemon\n")
for number in range(10, 60):
    write(f"{log}/in.log.20250101T0000{number}Z", f"{number}\n")
write(f"{directory}/udpd.toml", f"""
[daemon]
control_socket = "{run}/control.sock"
metrics_address = "127.0.0.1:29817"
stats_on_exit = "{run}/ledger.json"
[[listener]]
name = "in"
address = "0.0.0.0:25139"
multicast_groups = ["239.255.77.2"]
allow = ["192.0.2.0/24"]
sinks = ["archive", "dated", "relay", "chosen", "local", "pushed", "out"]
[sink.archive]
type = "file"
path = "{log}/{{listener}}.log"
rotate = {{ bytes = "64KiB", every = "1s" }}
keep = {{ files = 2 }}
sync = "100ms"
[sink.dated]
type = "file"
format = "pcapng"
path = "{log}/%Y/%m/{{lane}}.pcapng"
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:{ports[0]}", "[::1]:{ports[1]}"]
[sink.chosen]
type = "udp"
distribute = "by_source"
destinations = ["192.0.2.9:514", "198.51.100.9:514"]
[sink.local]
type = "unix"
path = "{run}/messages"
[sink.pushed]
type = "unix"
socket = "stream"
path = "{run}/stream"
[sink.out]
type = "stdout"
""")
write(f"{directory}/real.toml", f"""
[[listener]]
name = "in"
address = "127.0.0.1:25139"
sinks = ["archive", "relay", "local"]
[sink.archive]
type = "file"
path = "{log}/real.log"
[sink.relay]
type = "udp"
destinations = ["127.0.0.1:{ports[0]}"]
[sink.local]
type = "unix"
path = "{run}/messages"
""")

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
                is_configured = int(port) in (*ports, 514, 25139, 29817)
                if is_strange or is_configured:
                    wrong.append(line)
            if any(OWN not in path for path in LOCAL.findall(arguments)):
                wrong.append(line)
        elif what == "setsockopt" and re.search(r"MEMBERSHIP|MCAST_JOIN|SO_BINDTODEVICE", arguments):
            wrong.append(line)
        elif what == "ioctl" and re.search(r"SIOCETHTOOL|SIOCS", arguments):
            wrong.append(line)
    return wrong

def bench(*arguments, statuses=(0,)):
    trace = f"{directory}/trace"
    command = ["strace", "-f", "-y", "-qq", "-s", "200", "-e", "trace=%file,%network,ioctl",
               "-e", "signal=none", "-o", trace]
    environment = dict(os.environ, TMPDIR=temporary)
    done = subprocess.run([*command, udpd, "bench", *arguments], capture_output=True, text=True, env=environment)
    if done.returncode not in statuses:
        sys.exit(f"FAILED: bench {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
    return trace

def must_be_clean(*arguments):
    wrong = objections(bench(*arguments))
    if wrong:
        sys.exit(f"FAILED: bench {' '.join(arguments)} touches what it has not made:\n" + "".join(wrong[:10]))
    print(f"passed: bench {' '.join(arguments).replace(directory, 'DIR')}")

def tree():
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            if name != "trace":
                found[path] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_mode)
    return found

SHORT = ("--rate", "500..1k", "--seconds", "0.2", "--gso", "4", "--precision", "50%")
before = tree()
must_be_clean("max", "-c", f"{directory}/udpd.toml", *SHORT)
for to in (f"file:{log}/in.log", f"udp:127.0.0.1:{ports[0]}", f"unix:{run}/messages", "stdout:"):
    must_be_clean("max", "--to", to, *SHORT)
must_be_clean("ladder", "--rounds", "1", "--seconds", "0.1", "--rate", "500")
must_be_clean("recv", "--listen", "127.0.0.1:25138", "--seconds", "0.2")
# A sender sends where it is told, and nowhere else; port 9 of loopback is nobody's.
must_be_clean("send", "--to", "127.0.0.1:9", "--rate", "500", "--seconds", "0.2")
after = tree()
if before != after:
    sys.exit(f"FAILED: changed: {sorted(set(before.items()) ^ set(after.items()))}")
for there in (*relayed, messages):
    there.setblocking(False)
    try:
        sys.exit(f"FAILED: {there.getsockname()} has heard {there.recv(100)!r}")
    except BlockingIOError:
        pass
print("passed: no file is another than before, and no configured socket has heard anything")

wrong = objections(bench("max", "-c", f"{directory}/real.toml", "--real-sinks", *SHORT))
for what in (f"{log}/real.log", f"htons({ports[0]})", f"{run}/messages"):
    if not any(what in line for line in wrong):
        sys.exit(f"FAILED: the checker does not see {what}, so it proves nothing")
print("passed: the checker objects to the file, the address and the socket of --real-sinks")
END
