"""File systems of a rig's own, on loop devices."""
import os

from lib.check import Skipped
from lib.host import ends, execute


class LoopDisk:
    """ext4 in a file, mounted for a block."""

    def __init__(self, image, place, size, *features, options="defaults"):
        self.image, self.place, self.size, self.features, self.options = image, place, size, features, options
        self.device = ""

    def __enter__(self):
        os.makedirs(self.place, exist_ok=True)
        ends(0, "truncate", "-s", self.size, self.image)
        self.device = execute("losetup", "--find", "--show", self.image).stdout.strip()
        is_made = self.device and execute("mkfs.ext4", "-q", *self.features, self.device).returncode == 0
        if not is_made or execute("mount", "-o", self.options, self.device, self.place).returncode != 0:
            self.__exit__()
            raise Skipped("needs a loop device with ext4 on it")
        return self

    def __exit__(self, *_):
        # A frozen file system can neither be unmounted nor written back.
        execute("fsfreeze", "-u", self.place)
        while execute("umount", "-l", self.place).returncode == 0:
            pass
        if self.device:
            execute("losetup", "-d", self.device)

    def freeze(self):
        ends(0, "fsfreeze", "-f", self.place)

    def thaw(self):
        ends(0, "fsfreeze", "-u", self.place)
