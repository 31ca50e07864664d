"""A service of which each process takes over from the one before."""
import signal

from lib.check import LONG, setting
from lib.daemon import UDPD
from lib.service import Service

RATE = setting("RATE", 100_000 if LONG else 20_000)


class Successive(Service):
    """`running` is the process that receives; `served` are those that did, in their order."""

    def __init__(self, what, engine="recvmmsg", rate=RATE, buffer=None):
        super().__init__(what, rate, engine, address="127.0.0.1:5189", buffer=buffer)
        self.running, self.served = None, []

    def next(self, program=UDPD, **keys):
        """A process that is to take over, which is not waited for."""
        return self.launch(self.text(**keys), program=program, run=("run", "--take-over"))

    def goes_on_with(self, process):
        self.running = process.await_log("ready: ")
        self.served.append(process)

    def begin(self, **keys):
        self.goes_on_with(self.next(**keys))
        self.begin_sending()

    def end_running(self):
        """What waits in the sockets is read before they are closed: udpd ends with an empty one."""
        self.running.child.send_signal(signal.SIGTERM)
        self.running.wait()
