"""Peers of a TCP sink that come and go, and a judge of what they have; see tcp_streams.sh."""
import glob
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

from lib.check import LONG, Failed, check, main, passed, same, setting, skipped, until
from lib.daemon import WORK, Daemon, dropped_at, listening, start
from lib.host import read_bytes, write
from lib.load import Paced, free_port

RATE, ROUNDS = setting("RATE", 5000), 6 if LONG else 3
# What a killed peer may have had in its kernel, unread: its buffer for received bytes, which Linux doubles.
PEER_BUFFER = 64 << 10
LENGTH = 60
CERTIFICATES = "crates/udpd-sinks/src/tcp/testing"


def payload(number):
    return f"<13>1 - - udpd - - - {number:09d} ".ljust(LENGTH, "x").encode()


def number_of(record):
    return int(record.split(b" - - - ", 1)[1][:9])


def octets(data):
    """The whole records of a stream, and how many bytes follow them."""
    place, records = 0, []
    while (space := data.find(b" ", place, place + 8)) > 0:
        end = space + 1 + int(data[place:space])
        if end > len(data):
            break
        records.append(data[space + 1:end])
        place = end
    return records, len(data) - place


class Peer(threading.Thread):
    """Accepts connections, one after the other, and keeps what comes. `ends` says how the one in use ends."""

    def __init__(self, port, tls=None):
        super().__init__(daemon=True)
        self.tls = tls
        self.port, self.connections, self.stream, self.goes_on = port, [], None, True
        self.may_read = threading.Event()
        self.may_read.set()
        self.listen()
        self.start()

    def listen(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PEER_BUFFER)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen()

    def run(self):
        while self.goes_on:
            try:
                stream, _ = self.listener.accept()
                if self.tls:
                    stream = self.tls.wrap_socket(stream, server_side=True)
            except OSError:
                time.sleep(0.01)
                continue
            data = bytearray()
            self.connections.append(data)
            self.stream = stream
            try:
                while part := stream.recv(65536):
                    data += part
                    self.may_read.wait()
            except OSError:
                pass

    def end_in_order(self):
        """Says that it ends, and reads what is on its way."""
        # Not that of a stream with TLS, which would go on in plain text.
        socket.socket.shutdown(self.stream, socket.SHUT_WR)

    def reset(self):
        """Ends as a process that is killed: what it had not read is gone, and so is its port for a while."""
        self.may_read.clear()
        # Longer than its buffer lasts, so some is unread here, and some is not acknowledged.
        time.sleep(4 * PEER_BUFFER / RATE / LENGTH)
        self.listener.close()
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.stream.close()
        self.may_read.set()
        time.sleep(0.2)
        self.listen()


def judge(what, streams, sent, sink, lost_at_most):
    """What came at all, and what came more than once."""
    found = [number_of(record) for records in streams for record in records]
    for records in streams:
        numbers = [number_of(record) for record in records]
        same(numbers, sorted(set(numbers)), f"{what}: the order within a connection")
    missing = sorted(set(range(sent)) - set(found))
    check(len(missing) <= lost_at_most, lambda: f"{what}: {len(missing)} are missing, first {missing[:5]}")
    twice, told = len(found) - len(set(found)), sink["stream_repeats_at_most"]
    check(twice <= told, lambda: f"{what}: {twice} came twice, {told} were told")
    same(sink["delivered"] + dropped_at(sink), sent, f"{what}: delivered and dropped")
    same(dropped_at(sink), 0, f"{what}: dropped")
    passed(f"{what}: {sent} sent, {len(set(found))} there in {len(streams)} connections, {len(missing)} lost unread by "
           f"peers that were killed ({lost_at_most} at most), {twice} twice ({told} told)")


def server_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{CERTIFICATES}/server.pem")
    context.load_verify_locations(f"{CERTIFICATES}/ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def tcp_sink(port, framing, spill, tls=False):
    keys = ['type = "tcp"', f'destinations = ["127.0.0.1:{port}"]', f'framing = "{framing}"']
    if tls:
        keys += ["tls = true"] + [f'tls_{key}_file = "{os.getcwd()}/{CERTIFICATES}/{name}.pem"' for key, name in
                                  (("ca", "ca"), ("certificate", "client"), ("key", "client"))]
    return "\n".join(keys + (['spill = { path = "DIR/spill", bytes = "1GiB" }'] if spill else []))


def own_peer(spill, ends, lost_each, tls=False):
    port, udp = free_port(socket.SOCK_STREAM), free_port()
    peer = Peer(port, server_context() if tls else None)
    sink = tcp_sink(port, "octet_counting", spill, tls)
    daemon = Daemon(listening(f'address = "127.0.0.1:{udp}"', out=sink))
    sender = Paced(udp, RATE, payload)
    for turn in range(ROUNDS):
        until("a connection brings datagrams", lambda turn=turn: len(peer.connections) > turn and
              len(peer.connections[-1]) > 20000)
        ends(peer)
    until("the last connection", lambda: len(peer.connections) > ROUNDS and len(peer.connections[-1]) > 20000)
    sent = sender.end()
    daemon.await_arrived(sent)
    sink = daemon.end()["sinks"][0]
    peer.goes_on = False
    until("the stream ends", lambda: not octets(peer.connections[-1])[1])
    streams = [octets(bytes(data))[0] for data in peer.connections]
    what = f"{ends.__name__.replace('_', ' ')}{', with a spill' if spill else ''}{', by TLS' if tls else ''}"
    judge(what, streams, sent, sink,
          lost_each * ROUNDS)


DRIVER = f"""global(defaultNetstreamDriver="ossl"
    defaultNetstreamDriverCAFile="{os.getcwd()}/{CERTIFICATES}/ca.pem"
    defaultNetstreamDriverCertFile="{os.getcwd()}/{CERTIFICATES}/server.pem"
    defaultNetstreamDriverKeyFile="{os.getcwd()}/{CERTIFICATES}/server.pem")"""
MODE = ' StreamDriver.Name="ossl" StreamDriver.Mode="1" StreamDriver.AuthMode="anon"'


def relp_input(port, tls):
    """rsyslog answers for a record when its action is done: it has no queue between."""
    files = {"caCert": "ca", "myCert": "server", "myPrivKey": "server"}
    keys = "".join(f' tls.{key}="{os.getcwd()}/{CERTIFICATES}/{name}.pem"' for key, name in files.items())
    secured = f' tls="on" tls.authMode="certvalid"{keys}' if tls else ""
    return f"""module(load="imrelp"{' tls.tlslib="openssl"' if tls else ""})
            input(type="imrelp" port="{port}" address="127.0.0.1" ruleset="all"{secured})"""


class Rsyslog:
    def __init__(self, port, tls, relp=False):
        driver = DRIVER if tls and not relp else ""
        stream = f"""module(load="imtcp"{MODE if tls else ""})
            input(type="imtcp" port="{port}" address="127.0.0.1" ruleset="all")"""
        self.folder = f"{WORK}/rsyslog-{port}"
        os.makedirs(self.folder)
        self.out, self.child = f"{self.folder}/out", None
        write(f"{self.folder}/conf", f"""
            global(workDirectory="{self.folder}")
            {driver}
            template(name="whole" type="string" string="%msg%\\n")
            {relp_input(port, tls) if relp else stream}
            ruleset(name="all"{' queue.type="Direct"' if relp else ""}) {{ action(type="omfile" file="{self.out}" template="whole" asyncWriting="off") }}
        """)

    def begin(self):
        command = ["rsyslogd", "-n", "-f", f"{self.folder}/conf", "-i", f"{self.folder}/pid"]
        self.child = start(command, stderr=subprocess.DEVNULL)

    def end(self, number):
        self.child.send_signal(number)
        self.child.wait(60)

    def numbers(self):
        lines = read_bytes(self.out).split(b"\n") if os.path.exists(self.out) else []
        return [int(line.split()[0]) for line in lines[:-1]]


def rsyslog(framing, tls=False):
    """With a stop between two parts, when all is acknowledged and read, nothing may be missing or there twice."""
    port, udp = free_port(socket.SOCK_STREAM), free_port()
    peer = Rsyslog(port, tls)
    daemon = Daemon(listening(f'address = "127.0.0.1:{udp}"', out=tcp_sink(port, framing, True, tls)))
    sent = 0
    for _ in range(ROUNDS):
        # A third of a part comes while rsyslog is not there, and waits in the spill.
        part = Paced(udp, RATE, lambda number, first=sent: payload(first + number), count=RATE)
        until("some come without it", lambda part=part: part.sent >= RATE // 3)
        peer.begin()
        part.join()
        sent += part.sent
        try:
            until("rsyslog has them", lambda: len(set(peer.numbers())) >= sent)
        except Failed as error:
            raise Failed(f"{error}: {len(set(peer.numbers()))} of {sent}; {daemon.sink()}") from error
        peer.end(signal.SIGTERM)
    sink = daemon.end()["sinks"][0]
    what = f"rsyslog, {framing}{', by TLS' if tls else ''}"
    same(sorted(peer.numbers()), list(range(sent)), f"{what}: what is in its file")
    same((sink["delivered"], dropped_at(sink)), (sent, 0), f"{what}: delivered, dropped")
    passed(f"{what}: {sent} sent in {ROUNDS} parts, each in its file once")


def relp(spill, tls=False):
    """rsyslog is killed while datagrams come: what it has answered for is in its file, and what it has not comes again."""
    port, udp = free_port(socket.SOCK_STREAM), free_port()
    peer = Rsyslog(port, tls, relp=True)
    peer.begin()
    daemon = Daemon(listening(f'address = "127.0.0.1:{udp}"', out=tcp_sink(port, "relp", spill, tls)))
    # A payload of several lines is one record.
    sender = Paced(udp, RATE, lambda number: payload(number) + b"\n\tand more")
    for turn in range(1, ROUNDS + 1):
        until("rsyslog writes", lambda turn=turn: len(peer.numbers()) > turn * RATE)
        peer.end(signal.SIGKILL)
        peer.begin()
    sent = sender.end()
    daemon.await_arrived(sent)
    until("all are answered", lambda: daemon.sink()["delivered"] == sent)
    sink = daemon.end()["sinks"][0]
    found = peer.numbers()
    peer.end(signal.SIGTERM)
    what = f"rsyslog by RELP, killed{', with a spill' if spill else ''}{', by TLS' if tls else ''}"
    same(sorted(set(found)), list(range(sent)), f"{what}: what is in its file")
    same((sink["delivered"], dropped_at(sink)), (sent, 0), f"{what}: delivered, dropped")
    twice, told = len(found) - sent, sink["stream_repeats_at_most"]
    check(twice <= told, lambda: f"{what}: {twice} came twice, {told} were told")
    passed(f"{what}: {sent} sent through {ROUNDS} kills, all in its file, {twice} twice ({told} told)")


def all_peers():
    for spill in (False, True):
        own_peer(spill, Peer.end_in_order, 0)
        own_peer(spill, Peer.reset, 2 * PEER_BUFFER // LENGTH)
    own_peer(True, Peer.end_in_order, 0, tls=True)
    if not shutil.which("rsyslogd"):
        return skipped("the part with rsyslog: needs rsyslogd (Debian package rsyslog)")
    for framing in ("newline", "octet_counting"):
        rsyslog(framing)
    if not glob.glob("/usr/lib*/*/rsyslog/imrelp.so") + glob.glob("/usr/lib*/rsyslog/imrelp.so"):
        skipped("the part with rsyslog by RELP: needs its module (Debian package rsyslog-relp)")
    else:
        for spill, tls in ((False, False), (True, False), (True, True)):
            relp(spill, tls)
    if not glob.glob("/usr/lib*/*/rsyslog/lmnsd_ossl.so") + glob.glob("/usr/lib*/rsyslog/lmnsd_ossl.so"):
        return skipped("the part with rsyslog by TLS: needs its driver (Debian package rsyslog-openssl)")
    return rsyslog("octet_counting", tls=True)


main(all_peers)
