"""A service manager in small, as in tests/util/manager.rs: it starts one udpd after another in the same place, hears what
each says, keeps the descriptors that they give it, and passes them to the next. It looks at the sockets that it keeps
itself, so what the kernel has dropped is known without asking udpd.
"""

import array
import fcntl
import os
import select
import signal
import socket
import subprocess
import time

SO_MEMINFO = 55
# Places of SO_MEMINFO.
RECEIVE_USED, DROPS = 0, 8
# Numbers that descriptors are passed under; taken here from the beginning, so that nothing of ours lies there.
PASSED_FROM, PASSED_MAX = 3, 60
PATIENCE = 60


class Failed(Exception):
    pass


class Manager:
    def __init__(self, directory, binary, command=()):
        """`command` is put before the binary, to start it as somebody else."""
        for _ in range(PASSED_MAX):
            os.open("/dev/null", os.O_RDONLY)
        self.directory, self.binary, self.command = directory, binary, list(command)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(directory, "notify.sock"))
        os.chmod(os.path.join(directory, "notify.sock"), 0o777)
        self.store = []
        self.child = None
        self.number = 0
        # By inode, also of sockets that are gone.
        self.drops = {}

    def launch(self, config):
        self.number += 1
        path = os.path.join(self.directory, "udpd.toml")
        with open(path, "w") as file:
            file.write(config)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for _, fd in self.store]

        def pass_on():
            for place, copy in enumerate(copies):
                os.dup2(copy, PASSED_FROM + place)

        environment = {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": os.path.join(self.directory, "notify.sock"),
            "FDSTORE": str(PASSED_MAX),
        }
        if self.store:
            environment["LISTEN_FDS"] = str(len(self.store))
            environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.store)
        shell = ["sh", "-c", 'LISTEN_PID=$$; export LISTEN_PID; exec "$@"', "sh"]
        with open(self.log_path(), "w") as log:
            self.child = subprocess.Popen(
                shell + self.command + [self.binary, "run", "-c", path],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                close_fds=False, preexec_fn=pass_on)
        for copy in copies:
            os.close(copy)

    def log_path(self):
        return os.path.join(self.directory, "log-%d" % self.number)

    def log(self):
        with open(self.log_path()) as file:
            return file.read()

    def start(self, config):
        """Starts a daemon and returns when it is ready."""
        self.launch(config)
        until = time.monotonic() + PATIENCE
        while not self.hear(0.2):
            if self.child.poll() is not None:
                raise Failed("udpd ended with %s before it was ready:\n%s" % (self.child.returncode, self.log()))
            if time.monotonic() > until:
                raise Failed("udpd is not ready after %d s:\n%s" % (PATIENCE, self.log()))

    def start_in_vain(self, config):
        """Starts one that ends by itself, and returns its code."""
        self.launch(config)
        return self.wait()

    def end(self, number=signal.SIGTERM):
        self.child.send_signal(number)
        code = self.wait()
        if number == signal.SIGTERM and code != 0:
            raise Failed("udpd ended with %s:\n%s" % (code, self.log()))

    def wait(self):
        code = self.child.wait(PATIENCE)
        while self.hear(0, every=True):
            pass
        self.child = None
        self.look()
        return code

    def hear(self, seconds, every=False):
        """Does what one message says of descriptors; true when it is the one of a daemon that is ready, or, with
        `every`, when there was one."""
        if not select.select([self.notify], [], [], seconds)[0]:
            return False
        message, control, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(4))
        descriptors = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        lines = message.decode().splitlines()
        name = next((line[7:] for line in lines if line.startswith("FDNAME=")), "")
        if "FDSTOREREMOVE=1" in lines:
            self.look()
            for own, fd in self.store:
                if own == name:
                    os.close(fd)
            self.store = [(own, fd) for own, fd in self.store if own != name]
        elif "FDSTORE=1" in lines:
            self.store.append((name, descriptors.pop()))
        for descriptor in descriptors:
            os.close(descriptor)
        return every or "READY=1" in lines

    def sockets(self):
        return [(name, fd) for name, fd in self.store if name != "udpd-record"]

    def look(self):
        """Notes the kernel's counts of drops; returns how many bytes wait in all sockets."""
        waiting = 0
        for _, fd in self.sockets():
            memory = meminfo(fd)
            waiting += memory[RECEIVE_USED]
            self.drops[os.fstat(fd).st_ino] = memory[DROPS]
        return waiting

    def dropped(self):
        self.look()
        return sum(self.drops.values())

    def await_empty(self):
        """Returns when nothing waits in the sockets: whoever ends the daemon then loses nothing in them."""
        until = time.monotonic() + PATIENCE
        while self.look() > 0:
            if time.monotonic() > until:
                raise Failed("what waits in the sockets is not read:\n" + self.log())
            time.sleep(0.02)

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        for _, fd in self.store:
            os.close(fd)
        self.notify.close()


def meminfo(fd):
    with socket.socket(fileno=os.dup(fd)) as one:
        return array.array("I", one.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
