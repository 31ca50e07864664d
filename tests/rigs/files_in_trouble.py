"""Disks that fail under a file sink; see files_in_trouble.sh."""
import glob
import os
import re
import shutil

from lib.check import Skipped, check, main, passed, same, skipped, until
from lib.daemon import NULL, WORK, Daemon, file_sink, listening
from lib.disks import LoopDisk
from lib.host import execute, read_bytes, write
from lib.load import Bench, bench, free_port
from lib.net import run

PORT, DISK = free_port(), f"{WORK}/disk"
TO = f"127.0.0.1:{PORT}"


class Writing(Daemon):
    """With a sink of a file in trouble, and one beside it that nothing happens to."""

    def __init__(self, path, sync="never", sandbox="auto"):
        self.path = path
        super().__init__(listening(f'address = "{TO}"\nreceive_buffer = "16MiB"',
                                   archive=file_sink(path, f'sync = "{sync}"', 'queue_bytes = "64MiB"'),
                                   beside=f'{NULL}\nqueue_bytes = "64MiB"'), daemon=f'sandbox = "{sandbox}"')

    def await_over(self, what, count, value, seconds=10):
        """Waits until a number of the file sink is over another."""
        self.await_listener(what, lambda listener: value(listener["sinks"][0]) > count, seconds)

    def await_failures(self, what):
        self.await_over(what, 0, failed)

    def await_resumed(self, what):
        """Within a second of what was just done."""
        self.await_over(f"records resume within a second of {what}", self.before, delivered, 1)

    def remember(self):
        self.before = self.sink()["delivered"]

    def finish(self, sent):
        """The file sink of the last ledger; the sink beside it had all that was sent."""
        listener = self.end()
        archive, beside = listener["sinks"]
        same((listener["arrived"], listener["kernel_dropped"], beside["delivered"]), (sent["sent"], 0, sent["sent"]),
             "arrived, dropped by the kernel, delivered beside")
        return archive

    def ends_with_a_whole_record(self):
        check(read_bytes(self.path).endswith(b"\n"), "the file does not end with a whole record")


def delivered(sink):
    return sink["delivered"]


def failed(sink):
    return sink["dropped"]["sink_error"]


def full():
    """The disk fills up, is freed, and the records resume."""
    daemon = Writing(f"{DISK}/archive.log")
    write(f"{DISK}/filler", bytes(6 << 20))
    sender = Bench(TO, "20k", seconds=6, size=200)
    daemon.await_failures("a full disk is noticed")
    daemon.remember()
    os.remove(f"{DISK}/filler")
    daemon.await_resumed("the disk being freed")
    archive = daemon.finish(sender.end(is_told=False))
    daemon.ends_with_a_whole_record()
    same(read_bytes(daemon.path).count(b"\n"), archive["delivered"], "lines in the file")
    lengths = {len(line) for line in read_bytes(daemon.path).split(b"\n")[:-1]}
    check(len(lengths) <= 40, lambda: f"lines that are no records of one size: {sorted(lengths)[-5:]}")
    check(not daemon.said("could not be taken back"), "a part of a record was left where the disk was full")
    check(daemon.said("free some space on that file system"), "the cure is not said")
    # Each time that it was written again, and the end, says what it cost; together that is what the ledger says.
    said = re.findall(r" written again.*; (\d+) datagrams .* were lost meanwhile ", daemon.log())
    same(sum(map(int, said)), failed(archive), "what the log says was lost")
    os.remove(daemon.path)
    passed(f"a full disk costs what it could not take, {failed(archive)} of {archive['offered']}, and records resume "
           "within a second")


def removed(sandbox):
    """The directory is removed. Without the sandbox udpd makes it again; inside, it may not, says so, and counts."""
    folder = f"{DISK}/deep"
    os.mkdir(folder)
    daemon = Writing(f"{folder}/archive.log", sandbox=sandbox)
    sender = Bench(TO, "20k", seconds=3)
    daemon.await_over("something is delivered", 1000, delivered)
    is_inside = sandbox != "off" and daemon.status("Seccomp") == 2
    # A slow removal finds the next file in it already.
    until("the directory is removed", lambda: execute("rm", "-r", folder).returncode == 0)
    if is_inside:
        daemon.await_failures("what cannot be written is counted as failed")
        check(daemon.said("was removed meanwhile, restart udpd"), "the cure is not said")
    else:
        until("the file is begun again", lambda: os.path.exists(daemon.path) and os.path.getsize(daemon.path), 1)
    daemon.finish(sender.end(is_told=False))
    shutil.rmtree(folder, ignore_errors=True)


def lost_at_the_sync():
    """A disk that takes every write and loses it at the sync: a file system in a sparse file on the small tmpfs."""
    with LoopDisk(f"{DISK}/sparse", f"{WORK}/lying", "64M", "-O", "^has_journal") as disk:
        daemon = Writing(f"{disk.place}/archive.log", "200ms")
        report = bench(TO, "--rate", "20k", "--count", 60_000, "--size", 200)
        daemon.await_over("a sync that fails is noticed", 0, lambda sink: sink["files"]["sync_failures"])
        check(daemon.sink()["files"]["doubtful_bytes"] > 0, "what may be lost is not counted as doubtful")
        check(glob.glob(f"{disk.place}/archive.log.*.failed"), "the failed file is not set aside")
        daemon.finish(report)
        check(re.search("cannot sync .* to the disk", daemon.log()), "the failed sync is not said")
    passed("a sync that fails is final: the file is set aside and its unsynced bytes are doubtful")


def read_only():
    """A file system that finds an error in itself and turns read-only, until another is mounted in its place."""
    os.mkdir(f"{WORK}/large")
    run("mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", f"{WORK}/large")
    with LoopDisk(f"{WORK}/large/image", f"{WORK}/place", "64M", options="errors=remount-ro") as disk:
        trigger = f"/sys/fs/ext4/{os.path.basename(disk.device)}/trigger_fs_error"
        if not os.path.exists(trigger):
            raise Skipped("needs a kernel in which ext4 can be made to fail")
        # Inside the sandbox another file system is not found.
        daemon = Writing(f"{disk.place}/archive.log", sandbox="off")
        sender = Bench(TO, "20k", seconds=5)
        daemon.await_over("something is delivered", 1000, delivered)
        write(trigger, "1")
        daemon.await_failures("a read-only file system is noticed")
        check(daemon.said("Read-only file system"), "it is not said what is wrong")
        daemon.remember()
        run("umount", "-l", disk.place)
        run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk.place)
        daemon.await_resumed("the new mount")
        daemon.finish(sender.end(is_told=False))
        daemon.ends_with_a_whole_record()
    passed("a file system that turned read-only costs what it could not take; records resume within a second of "
           "another")


def both_removed():
    for sandbox in ("off", "auto"):
        removed(sandbox)
    passed("a removed directory is made again within a second, and inside the sandbox its loss is counted")


def disks_of_its_own():
    for case in (lost_at_the_sync, read_only):
        try:
            case()
        except Skipped as why:
            skipped(f"{case.__name__}: {why}")


main(full, both_removed, disks_of_its_own)
