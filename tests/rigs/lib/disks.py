"""File systems of a rig's own, on loop devices."""
import os
import subprocess


class NoDisk(Exception):
    """This machine gives no such file system."""


def quiet(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


class LoopDisk:
    """ext4 in a file, mounted for a block."""

    def __init__(self, image, place, size, *features, options="defaults"):
        self.image, self.place, self.size, self.features, self.options = image, place, size, features, options
        self.device = ""

    def __enter__(self):
        os.makedirs(self.place, exist_ok=True)
        subprocess.run(["truncate", "-s", self.size, self.image], check=True)
        found = quiet("losetup", "--find", "--show", self.image)
        self.device = found.stdout.strip()
        is_made = self.device and quiet("mkfs.ext4", "-q", *self.features, self.device).returncode == 0
        if not is_made or quiet("mount", "-o", self.options, self.device, self.place).returncode != 0:
            self.__exit__()
            raise NoDisk("a loop device with ext4 on it")
        return self

    def __exit__(self, *_):
        # A frozen file system can neither be unmounted nor written back.
        quiet("fsfreeze", "-u", self.place)
        while quiet("umount", "-l", self.place).returncode == 0:
            pass
        if self.device:
            quiet("losetup", "-d", self.device)

    def freeze(self):
        subprocess.run(["fsfreeze", "-f", self.place], check=True)

    def thaw(self):
        subprocess.run(["fsfreeze", "-u", self.place], check=True)
