"""A log that others rotate; see logrotate.sh."""
import glob
import grp
import gzip
import os
import pwd
import re
import shutil

from lib.check import check, main, passed, same, setting, until
from lib.daemon import UDPD, WORK, Daemon, file_sink, listening
from lib.host import execute, read, write
from lib.load import Bench, free_port

ROTATIONS, MOVES = setting("ROTATIONS", 5), setting("MOVES", 20)
PORT, LOG = free_port(), f"{WORK}/log.d"


class Logging:
    """A daemon with an empty directory for its log, and a sender."""

    def __init__(self, rate):
        shutil.rmtree(LOG, ignore_errors=True)
        # logrotate refuses what others could write to.
        os.mkdir(LOG, 0o750)
        self.daemon = Daemon(listening(f'address = "127.0.0.1:{PORT}"\nreceive_buffer = "64MiB"',
                                       archive=file_sink(f"{LOG}/in.log", 'queue_bytes = "64MiB"')))
        self.sender = Bench(f"127.0.0.1:{PORT}", rate)
        self.await_written()

    def await_written(self):
        """Waits until there are some two thousand records in the log, however slow the machine is."""
        path = f"{LOG}/in.log"
        until("the log grows to 300,000 bytes", lambda: os.path.exists(path) and os.path.getsize(path) >= 300_000, 30)

    def end(self, what):
        """Ends the sender and the daemon, and counts."""
        self.sender.end()
        # A slow disk is given more time than an end has.
        self.daemon.await_arrived(0)
        listener = self.daemon.end()
        sink, lines, files = listener["sinks"][0], [], sorted(glob.glob(f"{LOG}/*"))
        for path in files:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                *whole, rest = file.read().split(b"\n")
            check(not rest, f"{path} ends with a part of a record")
            lines += whole
        same(sink["dropped"]["sink_error"], 0, f"{what}: failed")
        # Each datagram has its flow, its number and its time: no two are alike.
        same((len(lines), len(set(lines))), (sink["delivered"],) * 2, f"{what}: lines in the files, and distinct ones")
        check(sink["delivered"] > 10000, f"{what}: {sink}")
        lost = listener["kernel_dropped"] + sink["dropped"]["queue_full"]
        passed(f"{what}: {sink['delivered']} delivered and in {len(files)} files, "
               f"{sum(path.endswith('.gz') for path in files)} of them compressed; elsewhere lost: {lost}")
        return files


def rotate(what, pattern, replacement):
    """With a change to config/logrotate."""
    log = Logging("50k")
    text = read("config/logrotate")
    reopen = f"{UDPD} reopen --socket {log.daemon.socket}"
    for old, new in ((r"^/var/log/udpd/\*\.log", f"{LOG}/*.log"), ("udpd reopen -c .*", reopen),
                     ("rotate 14", "rotate 1000"), (pattern, replacement)):
        text = re.sub(old, new, text, flags=re.M)
    write(f"{WORK}/logrotate", text, 0o640)
    # As /etc/logrotate.conf has it; config/logrotate must say what it needs.
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    write(f"{WORK}/logrotate.conf", f"create\nsu {user} {group}\ninclude {WORK}/logrotate\n", 0o640)
    state = f"{WORK}/state{len(what)}"
    for _ in range(ROTATIONS):
        log.await_written()
        done = execute("logrotate", "--force", "--state", state, f"{WORK}/logrotate.conf")
        check(done.returncode == 0 and not done.stderr, f"logrotate: {done.stderr}")
    files = log.end(f"{what}, {ROTATIONS} rotations")
    check(not any(path.endswith(".backup") for path in files),
          f"{what}: logrotate found a file where it wanted to make one: {files}")
    same(len(files), ROTATIONS + 1, f"{what}: files, one for each rotation: {files}")


def all_cases():
    rotate("logrotate with delaycompress", "$^", "")
    rotate("logrotate without delaycompress", "^ *delaycompress", "")
    rotate("logrotate with create", "^ *nocreate", "create")
    log = Logging("20k")
    for number in range(MOVES):
        log.await_written()
        os.rename(f"{LOG}/in.log", f"{LOG}/in.log.{number}")
    log.end(f"mv of the current file, {MOVES} times")


main(all_cases)
