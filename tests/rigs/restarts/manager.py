"""A service manager in small, as in tests/util/manager.rs: it starts one udpd after another in the same place, hears
what each says, keeps the descriptors that they give it, and passes them to the next. It looks at the sockets that it
keeps itself, so what the kernel has dropped is known without asking udpd.
"""
import array
import fcntl
import os
import select
import signal
import socket

from lib.check import check, until
from lib.daemon import PATIENCE, UDPD
from lib.service import Service

SO_MEMINFO = 55
# Places of SO_MEMINFO.
RECEIVE_USED, DROPS = 0, 8
# Numbers that descriptors are passed under; taken here from the beginning, so that nothing of ours lies there.
PASSED_FROM, PASSED_MAX = 3, 60
for _ in range(PASSED_MAX):
    os.open("/dev/null", os.O_RDONLY)


class Managed(Service):
    """A service whose manager keeps its sockets. `before` is put before the program, to start it as another user."""

    def __init__(self, what, rate, *arguments, before=(), **more):
        super().__init__(what, rate, *arguments, **more)
        self.program, self.before, self.said = UDPD, list(before), []
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(f"{self.directory}/notify.sock")
        os.chmod(f"{self.directory}/notify.sock", 0o777)
        # Names and descriptors; and the drops by inode, also of sockets that are gone.
        self.store, self.drops = [], {}
        self.process = None

    def pass_sockets(self, text):
        """Starts a process with all that is kept."""
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for _, fd in self.store]

        def pass_on():
            for place, copy in enumerate(copies):
                os.dup2(copy, PASSED_FROM + place)

        environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"{self.directory}/notify.sock",
                       "FDSTORE": str(PASSED_MAX)}
        if self.store:
            environment["LISTEN_FDS"] = str(len(self.store))
            environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.store)
        shell = ["sh", "-c", 'LISTEN_PID=$$; export LISTEN_PID; exec "$@"', "sh"]
        self.process = self.launch(text, program=self.program, before=[*shell, *self.before], env=environment,
                                   close_fds=False, preexec_fn=pass_on)
        for copy in copies:
            os.close(copy)

    def start(self, **keys):
        """Starts a process and returns when it is ready."""
        self.pass_sockets(self.text(**keys))
        self.process.until("it is ready", lambda: self.hear(0.2))

    def start_in_vain(self, code, **keys):
        """Starts one that ends by itself with a code."""
        self.pass_sockets(self.text(**keys))
        self.wait(code)

    def end_process(self, number=signal.SIGTERM):
        self.process.child.send_signal(number)
        self.wait(0 if number == signal.SIGTERM else -number)

    def wait(self, code):
        self.process.wait(code)
        while self.hear(0, every=True):
            pass
        self.look()

    def begin(self, **keys):
        self.start(**keys)
        self.begin_sending()

    def end(self):
        self.end_sending()
        # What waits in the sockets is read first, so the end loses nothing in them.
        until(lambda: f"what waits in the sockets is read: {self.process.log()}", lambda: self.look() == 0, PATIENCE)
        self.end_process()

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
        # A process that is started later is to have those alone that it is passed.
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
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

    def look(self):
        """Notes the kernel's counts of drops; returns how many bytes wait in all sockets."""
        waiting = 0
        for name, fd in self.store:
            if name != "udpd-record":
                memory = meminfo(fd)
                waiting += memory[RECEIVE_USED]
                self.drops[os.fstat(fd).st_ino] = memory[DROPS]
        return waiting

    def dropped(self):
        self.look()
        return sum(self.drops.values())

    def close(self):
        check(self.process.child.poll() is not None, f"{self.what} has not ended")
        for _, fd in self.store:
            os.close(fd)
        self.notify.close()


def meminfo(fd):
    with socket.socket(fileno=os.dup(fd)) as one:
        return array.array("I", one.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
