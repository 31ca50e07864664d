"""A reader that follows a log by name; see tail_follows.sh."""
import glob
import os
import subprocess
import threading
import time

from lib.check import check, main, passed, same, setting, until
from lib.daemon import WORK, Daemon, listening
from lib.host import read
from lib.load import free_port, send

SECONDS = setting("SECONDS", 12)


class Patient(threading.Thread):
    """Follows by name as collectors of logs do: reads on in the old file for a second, and then in the new one."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.text, self.ends = path, "", False
        self.start()

    def run(self):
        while not self.ends:
            try:
                file = open(self.path)
            except FileNotFoundError:
                continue
            with file:
                replaced = None
                while not self.ends and (replaced is None or time.monotonic() < replaced + 1):
                    self.text += file.read()
                    time.sleep(0.01)
                    if replaced is None and not self.is_at(file):
                        replaced = time.monotonic()
                self.text += file.read()

    def is_at(self, file):
        try:
            return os.stat(self.path).st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False


def follow(what, keys, by_hand=None):
    os.makedirs(f"{WORK}/{what}")
    path, port = f"{WORK}/{what}/in.log", free_port()
    daemon = Daemon(listening(f'address = "127.0.0.1:{port}"\nreceive_buffer = "16MiB"', out=f'type = "file"\npath = "{path}"\n{keys}'))
    until("the log is there", lambda: os.path.exists(path))
    with open(f"{WORK}/{what}.seen", "wb") as seen:
        tail = subprocess.Popen(["tail", "-n", "+1", "-F", path], stdout=seen, stderr=subprocess.DEVNULL)
    patient = Patient(path)
    try:
        sent, begun, rotations = 0, time.monotonic(), 0
        while time.monotonic() < begun + SECONDS:
            send(port, [f"{number:08}".encode() for number in range(sent, sent + 500)])
            sent += 500
            if by_hand and time.monotonic() > begun + 2 * rotations + 1:
                rotations += 1
                by_hand(path, rotations)
        daemon.await_arrived(sent)
        until(f"{what}: tail has seen the last line", lambda: read(seen.name).endswith(f"{sent - 1:08}\n"), 20)
        until(f"{what}: the other reader has", lambda: patient.text.endswith(f"{sent - 1:08}\n"), 20)
    finally:
        tail.kill()
        tail.wait()
        patient.ends = True
        patient.join()
    daemon.end()
    lines, files = read(seen.name).split("\n")[:-1], len(glob.glob(f"{WORK}/{what}/*"))
    check(files >= SECONDS / 3, f"{what}: only {files} files")
    everything = [f"{number:08}" for number in range(sent)]
    same(patient.text.split("\n")[:-1], everything, f"{what}: who reads on in the old file sees every line, in order")
    same(lines, sorted(set(lines)), f"{what}: tail -F sees none twice, and all in order")
    passed(f"{what}: over {files} files tail -F saw {len(lines)} of {sent} lines, and who reads on in the old one all")


def all_cases():
    follow("rotated", 'rotate = { bytes = 0, every = "2s" }')
    follow("moved", 'rotate = { bytes = 0, every = "0s" }',
           lambda path, number: os.rename(path, f"{path}.{number}"))


main(all_cases)
