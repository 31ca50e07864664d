"""What udpd's own sockets and sinks lose; the printed key is written into its configuration."""
import itertools
import struct
import subprocess
import threading
import time

from lib.check import Skipped, check
from lib.findings import cure, first, nothing
from lib.host import read
from scene import HERE, bursts, change, listening, nothing_at, paced, sender, stalled


def with_key(scene, keys, found):
    """udpd again, with the printed key."""
    return scene.again(change(keys, cure(found, "key")))


def buffer_too_small(scene):
    """A buffer of 19 datagrams before bursts of 50."""
    keys = listening(5921, receive_buffer='"8KiB"')
    scene.daemon(keys)
    own = sender()
    provoke = lambda: bursts(own, 5921, 50, 30, 0.02)
    found = first(scene.explain_udpd(provoke), "buffer_too_small", 100)
    with_key(scene, keys, found)
    nothing(scene.explain_udpd(provoke))


def buffer_clamped(scene):
    """rmem_max is less than was asked for, and a stall comes; the right that is printed takes it away."""
    limit = int(read("/proc/sys/net/core/rmem_max"))
    if limit > 4 << 20:
        raise Skipped(f"an rmem_max of at most 4 MiB, for it has to be overrun in a moment; it is {limit}")
    keys = listening(5922, receive_buffer=f'"{4 * limit}B"')
    without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    daemon = scene.daemon(keys, before=without)
    own = sender()
    burst = 2 * limit // 832 * 5 // 4
    provoke = lambda: stalled(daemon, lambda: bursts(own, 5922, 100, burst // 100, 0), 0.2)
    found = first(scene.explain_udpd(provoke), "buffer_clamped", 100)
    cure(found, "sysctl", "net.core.rmem_max")
    cure(found, "elsewhere", "CAP_NET_ADMIN")
    daemon.kill()
    daemon.wait()
    daemon = scene.daemon(keys)
    nothing(scene.explain_udpd(provoke))


def hot_sender(scene):
    """All of a sender goes to one of two lanes, whose buffer is too small for a stall; both together have room."""
    keys = listening(5923, lanes="2", receive_buffer='"512KiB"')
    daemon = scene.daemon(keys)
    own = sender()
    burst = 2 * (512 << 10) // 832 * 3 // 2

    def send():
        # In parts, because a busy core's backlog has room for a thousand packets.
        for _ in range(0, burst, 100):
            for _ in range(100):
                own.sendto(b"x" * 60, ("10.9.0.1", 5923))
            time.sleep(0.01)

    def provoke():
        stalled(daemon, send, 0.2)

    found = first(scene.explain_udpd(provoke, seconds=2), "hot_sender", 100)
    daemon = with_key(scene, keys, found)
    nothing(scene.explain_udpd(provoke, seconds=2))


def output(scene, keys, after):
    """udpd that writes into a pipe, which is not read for some time."""
    daemon = scene.daemon(keys, stdout=subprocess.PIPE)

    def drain():
        time.sleep(after)
        while daemon.stdout.read1(1 << 16):
            pass

    threading.Thread(target=drain, daemon=True).start()
    return daemon


def sink_too_slow(scene):
    """A sink that rests for a second, with a short queue; the printed length holds what comes meanwhile."""
    keys = listening(5924, 'type = "stdout"')
    keys["[sink.out]"]["queue_bytes"] = '"64KiB"'
    output(scene, keys, 1.6)
    own = sender()
    provoke = lambda: paced(own, 5924, 5000, 0.6, b"x" * 400)
    found = first(scene.explain_udpd(provoke, seconds=2), "sink_too_slow", 100)
    scene.stop_all()
    output(scene, change(keys, cure(found, "key", "queue_bytes")), 1.6)
    nothing(scene.explain_udpd(provoke, seconds=2))


def sink_blocks(scene):
    """The same with when_full = "block", which moves the loss into the receive buffer."""
    keys = listening(5925, 'type = "stdout"', receive_buffer='"512KiB"')
    keys["[sink.out]"].update(queue_bytes='"64KiB"', when_full='"block"')
    output(scene, keys, 30)
    own = sender()
    provoke = lambda: paced(own, 5925, 8000, 0.7, b"x" * 400)
    found = first(scene.explain_udpd(provoke), "sink_blocks", 100)
    scene.stop_all()
    output(scene, change(keys, cure(found, "key", "when_full")), 30)
    nothing_at(scene.explain_udpd(provoke), "socket")


def listener_dropped(scene):
    """Longer than max_length, and on_truncate says to drop those."""
    keys = listening(5926, max_length='"512B"', on_truncate='"drop"')
    scene.daemon(keys)
    own = sender()
    provoke = lambda: paced(own, 5926, 150, 0.6, b"x" * 1000)
    found = first(scene.explain_udpd(provoke), "listener_dropped", 50)
    check("Raise max_length" in cure(found, "elsewhere")["note"], found)
    scene.again(listening(5926, max_length='"2KiB"', on_truncate='"drop"'))
    nothing(scene.explain_udpd(provoke))


def lost_upstream(scene):
    """A sender of RTP leaves out each tenth number, as if the network had lost it; cured there, as is printed."""
    scene.daemon(listening(5927, sequence='"rtp"'))
    own = sender()
    numbers = itertools.count(1)

    def provoke(loses):
        for place, number in enumerate(itertools.islice(numbers, 1000)):
            # What is missing at the end may still be on its way.
            if not loses or place % 10 != 5 or place > 800:
                own.sendto(struct.pack("!BBHII", 0x80, 96, number & 0xFFFF, 0, 4711), (HERE, 5927))
                time.sleep(0.0002)

    provoke(loses=False)
    found = first(scene.explain_udpd(lambda: provoke(loses=True), seconds=2), "lost_upstream", 80)
    check((found["lost"], found["unit"]) == (80, "datagrams"), f"80 datagrams were left out: {found}")
    cure(found, "elsewhere", "look at the sender's own drops")
    nothing(scene.explain_udpd(lambda: provoke(loses=False), seconds=2))


def queue_too_short(scene):
    """A receive queue past the stack with room for few frames, and a receiver that stands still while more come."""
    keys = listening(5928, lanes='"auto"', interface='"card0"', engine='"af_xdp"',
                     absorb='{ rate = 1000, stall = "10ms" }')
    daemon = scene.daemon(keys)
    own = sender()

    def provoke():
        stalled(daemon, lambda: bursts(own, 5928, 100, 60, 0), 0.2)

    found = first(scene.explain_udpd(provoke), "queue_too_short", 1000)
    check("receive queue 0 of card0 was full" in found["cause"], found)
    daemon = scene.again(change(keys, cure(found, "key", "absorb")))
    nothing(scene.explain_udpd(provoke))


CASES = [queue_too_short, lost_upstream, buffer_too_small, buffer_clamped, hot_sender, sink_too_slow, sink_blocks,
         listener_dropped]
