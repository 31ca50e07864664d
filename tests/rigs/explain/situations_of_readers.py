"""Sockets of other programs that had no room, or refuse: what the reader does decides."""
import socket
import sys

from lib import net
from lib.check import until
from situations import Flow, Situation, as_case

PORT = 5941
# So that nothing else that runs here takes the core of a reader.
FIRST_IN_LINE = ["chrt", "--rr", "10"]
SMALL = "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)"
PAUSE = "time.sleep(0.001)"
WORK = "end = time.perf_counter() + 0.001\n    while time.perf_counter() < end: pass"
# A filter that refuses all, and one that refuses what is longer than 100 bytes of payload.
REFUSE = ("import ctypes, struct\nF = struct.pack('HBBI', 6, 0, 0, 0)\nB = ctypes.create_string_buffer(F)\n"
          "s.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HL', 1, ctypes.addressof(B)))")
REFUSE_LONG = ("import ctypes, struct\n"
               "F = b''.join(struct.pack('HBBI', *i) for i in ((0x80, 0, 0, 0), (0x25, 0, 1, 108), (6, 0, 0, 0), "
               "(6, 0, 0, 65535)))\nB = ctypes.create_string_buffer(F)\n"
               "s.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HL', 4, ctypes.addressof(B)))")

at_socket = lambda case: lambda situation: {case: situation.at_socket}


def program(scene, text, port=PORT):
    """Another program, of any form; it says `ready`."""
    head = (f"import os, socket, threading, time\nPORT = {port}\ndef made(kind=socket.AF_INET):\n"
            "    s = socket.socket(kind, socket.SOCK_DGRAM)\n"
            "    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n    return s\n")
    process = scene.start([*FIRST_IN_LINE, sys.executable, "-c", head + text], stdout=-1)
    process.stdout.readline()
    return process


def instead(scene, *arguments, port=PORT, **options):
    """Starts another reader in the place of what was started."""
    def cured():
        scene.stop_all()
        until("the port is free", lambda: not any(own == port for own, _ in net.bound_sockets()))
        scene.reader(port, *arguments, before=FIRST_IN_LINE, **options)
    return cured


def burst_into_the_default(scene):
    scene.reader(PORT, before=FIRST_IN_LINE)
    larger = "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)"
    return Situation(PORT, Flow(PORT, 3000, burst=1500), truth=at_socket("buffer_too_small"),
                     cured=instead(scene, "pass", larger))


def burst_into_a_small_one(scene):
    scene.reader(PORT, options=SMALL, before=FIRST_IN_LINE)
    larger = SMALL.replace("16384", "1 << 20")
    return Situation(PORT, Flow(PORT, 3000, burst=300), truth=at_socket("buffer_too_small"),
                     cured=instead(scene, "pass", larger), allowed=["rmem_max"])


def pauses_for_each(scene):
    """4,500 a second, of which it takes less than 1,000."""
    scene.reader(PORT, PAUSE, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 4500), truth=at_socket("reader_does_not_read"), cured=instead(scene))


def pauses_for_a_part_of_the_watch(scene):
    scene.reader(PORT, PAUSE, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 4500, ends=1), truth=at_socket("reader_does_not_read"), seconds=1,
                     watched=3, cured=instead(scene))


def never_reads(scene):
    program(scene, "s = made(); s.bind(('', PORT)); print('ready', flush=True); time.sleep(99)")
    return Situation(PORT, Flow(PORT, 1500), truth=at_socket("reader_does_not_read"), cured=instead(scene))


def one_of_two_never_reads(scene):
    """Two processes share a port, 32 equal senders."""
    loop = "s = made(); s.bind(('', PORT)); print('ready', flush=True)\n"
    program(scene, loop + "while True: s.recv(2000)")
    stuck = program(scene, loop + "time.sleep(99)")
    flows = [Flow(PORT, 100, name=str(number)) for number in range(32)]

    def cured():
        stuck.kill()
        stuck.wait()

    return Situation(PORT, *flows, truth=at_socket("reader_does_not_read"), cured=cured)


def one_of_two_threads_never_reads(scene):
    program(scene, "a, b = made(), made()\nfor s in (a, b): s.bind(('', PORT))\nprint('ready', flush=True)\n"
                   "threading.Thread(target=lambda: time.sleep(99), daemon=True).start()\nwhile True: a.recv(2000)")
    flows = [Flow(PORT, 100, name=str(number)) for number in range(32)]
    return Situation(PORT, *flows, truth=at_socket("reader_does_not_read"), cured=instead(scene))


def workers_inherit_the_socket(scene):
    """The parent only waits; its child is the one that is slow."""
    program(scene, "parent = os.getpid()\ns = made(); s.bind(('', PORT)); s.settimeout(0.1)\n"
                   "print('ready', flush=True)\nif os.fork(): os.wait()\nwhile os.getppid() == parent:\n"
                   "    try: s.recv(2000)\n    except OSError: pass\n    time.sleep(0.002)")
    return Situation(PORT, Flow(PORT, 2500), truth=at_socket("reader_does_not_read"), cured=instead(scene))


def waits_for_a_full_pipe(scene):
    program(scene, "r, w = os.pipe()\ns = made(); s.bind(('', PORT)); print('ready', flush=True)\n"
                   "while True: os.write(w, s.recv(2000) * 20)")
    return Situation(PORT, Flow(PORT, 1500), truth=at_socket("reader_does_not_read"), cured=instead(scene))


def works_too_long(scene):
    scene.reader(PORT, WORK, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 3000), truth=at_socket("reader_at_its_limit"), cured=instead(scene))


def stopped(scene):
    scene.reader(PORT, before=FIRST_IN_LINE).send_signal(19)
    return Situation(PORT, Flow(PORT, 1500), truth=at_socket("reader_stopped"))


def filter_refuses_all(scene):
    scene.reader(PORT, options=REFUSE, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 900), truth=at_socket("socket_filter"), cured=instead(scene))


def filter_refuses_what_is_long(scene):
    scene.reader(PORT, options=REFUSE_LONG, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 500, "long", size=200), Flow(PORT, 500, "short"),
                     truth=lambda it: {"socket_filter": it.sent["long"]}, cured=instead(scene))


def filter_and_pauses(scene):
    scene.reader(PORT, PAUSE, REFUSE_LONG, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 500, "long", size=200), Flow(PORT, 3000, "short"),
                     truth=lambda it: {"socket_filter": it.sent["long"],
                                       "reader_does_not_read": it.at_socket - it.sent["long"]}, cured=instead(scene))


def pauses_and_then_bursts(scene):
    """Slow for a second, then quick, and then more comes at once than fits."""
    scene.reader(PORT, "now = time.monotonic(); began = globals().setdefault('began', now)\n"
                       "    if now - began < 1: time.sleep(0.001)", before=FIRST_IN_LINE)
    counted = {}

    class Counting(Flow):
        def send(self, now, sent):
            if now >= 1.8 and "slow" not in counted:
                counted["slow"] = net.dropped_at_port(PORT)
            return super().send(now, sent)

    def truth(situation):
        return {"reader_does_not_read": counted["slow"], "buffer_too_small": situation.at_socket - counted["slow"]}

    return Situation(PORT, Flow(PORT, 4500, "slow", ends=0.9), Counting(PORT, 4000, "burst", burst=2000, begins=1.8),
                     truth=truth, seconds=3.2)


def connected_to_another(scene):
    program(scene, "s = made(); s.bind(('', PORT)); s.connect(('10.9.0.4', 4444)); print('ready', flush=True)\n"
                   "while True: s.recv(2000)")
    return Situation(PORT, Flow(PORT, 400), truth=lambda it: {"socket_takes_others": it.sent["flow"]},
                     cured=instead(scene))


def takes_ipv6_alone(scene):
    program(scene, "s = made(socket.AF_INET6); s.setsockopt(41, 26, 1); s.bind(('::', PORT))\n"
                   "print('ready', flush=True)\nwhile True: s.recv(2000)")
    return Situation(PORT, Flow(PORT, 400), truth=lambda it: {"socket_takes_others": it.sent["flow"]},
                     cured=instead(scene))


def bound_to_another_interface(scene):
    scene.reader(PORT, options="s.setsockopt(socket.SOL_SOCKET, 25, b'lo')", before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 400), truth=lambda it: {"socket_takes_others": it.sent["flow"]},
                     cured=instead(scene))


def bound_to_another_address(scene):
    program(scene, "s = made(); s.bind(('127.0.0.1', PORT)); print('ready', flush=True)\nwhile True: s.recv(2000)")
    return Situation(PORT, Flow(PORT, 400), truth=lambda it: {"socket_takes_others": it.sent["flow"]},
                     cured=instead(scene))


def nothing_is_lost(scene):
    scene.reader(PORT, before=FIRST_IN_LINE)
    return Situation(PORT, Flow(PORT, 1000), truth=lambda it: {})


def unread_when_it_closes(scene):
    """Nothing is lost by the kernel: it waits in the buffer of a program that reads nothing, and has room."""
    program(scene, "s = made(); s.bind(('', PORT)); print('ready', flush=True); time.sleep(99)")
    return Situation(PORT, Flow(PORT, 100), truth=lambda it: {})


def answers_that_are_not_sent(scene):
    """A program that answers more than its send buffer holds, on an interface that is slow."""
    net.run("tc", "qdisc", "add", "dev", "card0", "root", "tbf", "rate", "200kbit", "burst", "2000", "limit", "900000")
    scene.undo.append(lambda: net.run("tc", "qdisc", "del", "dev", "card0", "root"))
    counts = lambda: net.udp_counters()["Udp:SndbufErrors"]
    begun = counts()
    text = ("s = made(); s.bind(('', PORT)); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)\n"
            "print('ready', flush=True)\nwhile True:\n    data, peer = s.recvfrom(2000)\n"
            "    try: s.sendto(b'y' * 1000, socket.MSG_DONTWAIT, peer)\n    except OSError: pass")
    program(scene, text)

    def cured():
        scene.stop_all()
        program(scene, text.replace("socket.MSG_DONTWAIT", "0"))
        return ["send_buffer"]

    return Situation(PORT, Flow(PORT, 300), truth=lambda it: {"send_buffer": counts() - begun}, cured=cured)


SITUATIONS = [as_case(make) for make in (
    burst_into_the_default, pauses_for_each, one_of_two_never_reads, filter_refuses_all, filter_and_pauses,
    connected_to_another, nothing_is_lost,
    burst_into_a_small_one, pauses_for_a_part_of_the_watch, never_reads, one_of_two_threads_never_reads,
    workers_inherit_the_socket, waits_for_a_full_pipe, works_too_long, stopped, filter_refuses_what_is_long,
    pauses_and_then_bursts, takes_ipv6_alone, bound_to_another_interface, bound_to_another_address,
    unread_when_it_closes, answers_that_are_not_sent)]
