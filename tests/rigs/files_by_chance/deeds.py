"""What administrators and their programs do beside a daemon that writes files by source."""

import os
import time

from lib.daemon import WORK
from lib.host import read_bytes, write

BAIT = b"of another program\n"
FULL_PIECE_BYTES = 16384


class Deeds:
    """Each method is a deed; `any_of` draws one."""

    def __init__(self, scene):
        self.scene, self.chance = scene, scene.chance
        self.bait = f"{WORK}/bait"
        self.foreign, self.ballast, self.done = set(), None, []
        write(self.bait, BAIT)

    def any_of(self, names):
        name = self.chance.choice(names)
        self.done.append(name)
        try:
            getattr(self, name)()
        except OSError as error:
            # The daemon has renamed, compressed or removed it in the meantime, or the disk is full.
            self.done[-1] += f": {error.strerror}"

    def nothing(self):
        pass

    def wait(self):
        """A period of the shortest rotation, and what gathers is written."""
        time.sleep(1.2)

    def reopen(self):
        self.scene.daemon.ask("reopen")

    def reload(self):
        self.scene.daemon.configure(self.scene.draw_configuration())
        asked = self.scene.daemon.ask("reload")
        if asked.returncode != 0:
            # Such as for what stands in the place of a file, or a disk that is full. It goes on as before.
            self.done[-1] += f": {asked.stderr.strip()[-160:]}"

    def restart(self):
        self.scene.end()
        self.scene.start()

    def kill(self):
        self.scene.kill()
        self.scene.start()

    def files(self):
        """Those that are finished or are being written."""
        found = [os.path.join(path, name) for path, _, names in os.walk(self.scene.log) for name in names]
        return [path for path in found if not os.path.basename(path).startswith(".") and is_plain(path)]

    def away(self):
        return f"{self.scene.moved}/{len(os.listdir(self.scene.moved))}"

    def move_a_file(self):
        if files := self.files():
            os.rename(self.chance.choice(files), self.away())

    def move_a_directory(self):
        # Not the one that stands in the configuration: a sandbox is for that very directory, and takes a restart.
        fixed = os.path.dirname(self.scene.pattern.split("{")[0])
        below = [entry.path for entry in os.scandir(fixed) if entry.is_dir()]
        if below:
            os.rename(self.chance.choice(below), self.away())

    def remove_lists(self):
        for path, _, names in os.walk(self.scene.log):
            for name in names:
                if name.endswith(".udpd-index"):
                    os.remove(os.path.join(path, name))

    def touch(self):
        if files := self.files():
            os.utime(self.chance.choice(files), (1e9, 1e9))

    def fill_the_disk(self):
        if not self.scene.is_small or self.ballast:
            return
        self.ballast = f"{self.scene.root}/ballast"
        try:
            with open(self.ballast, "wb", buffering=0) as file:
                while file.write(bytes(FULL_PIECE_BYTES)):
                    pass
        except OSError:
            pass

    def free_the_disk(self):
        if self.ballast:
            os.remove(self.ballast)
            self.ballast = None

    def occupy(self):
        """Something stands where the file of a new source is to be."""
        if self.scene.is_dated:
            return
        source = f"127.9.{self.chance.randrange(256)}.{self.chance.randrange(1, 255)}"
        network = source.rsplit(".", 1)[0] + ".0_24"
        path = self.scene.pattern
        for code, text in (("{source}", source), ("{source/24}", network), ("{consumer}", "0"), ("{listener}", "in"),
                           ("{destination}", "127.0.0.1")):
            path = path.replace(code, text)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            return
        what = self.chance.choice(("a link", "a pipe", "a directory", "a second name"))
        if what == "a link":
            os.symlink(self.bait, path)
        elif what == "a pipe":
            os.mkfifo(path)
        elif what == "a directory":
            os.mkdir(path)
        else:
            own = f"{self.away()}.linked"
            write(own, BAIT)
            os.link(own, path)
            self.foreign.add((os.stat(path).st_dev, os.stat(path).st_ino))
        self.scene.sources.append(source)
        self.done[-1] += f" with {what}"

    def is_untouched(self):
        """Whether the file of others is as it was."""
        return read_bytes(self.bait) == BAIT

    def is_foreign(self, path):
        found = os.stat(path)
        return (found.st_dev, found.st_ino) in self.foreign


def is_plain(path):
    return os.path.isfile(path) and not os.path.islink(path)


NAMES = ("nothing", "nothing", "wait", "reopen", "reload", "restart", "kill", "move_a_file", "move_a_directory",
         "remove_lists", "touch", "fill_the_disk", "free_the_disk", "occupy", "occupy")
