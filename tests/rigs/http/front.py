"""What the servers of this rig that are written here share: requests over HTTP in threads, records on a disk, answers
as they should be, and answers as they should not be.

A server is a process of its own, so that it can be killed. Its folder has `records`, one JSON array a line, `requests`,
what was asked of it, and `behaviour`, which the rig writes while the server runs. A record is in the file before the
answer goes out, and a line that a kill has cut is removed when the server begins again, as a database does with its
log.
"""
import collections
import http.server
import json
import os
import socket
import ssl
import threading
import time
import urllib.parse
import zlib

# A request as an application sees it; `refuses` says of the payload of a record whether it is to be refused.
Request = collections.namedtuple("Request", "path query headers body refuses")
Answer = collections.namedtuple("Answer", "status body headers", defaults=(b"", {}))
BODY_BYTES_MAX = 100 << 20


def json_answer(status, what, **headers):
    return Answer(status, json.dumps(what).encode(), {"Content-Type": "application/json"} | headers)


class Refused(Exception):
    """A request is not as the server wants it; `answer` says so."""

    def __init__(self, answer):
        super().__init__(answer.body)
        self.answer = answer


class Store:
    """Lines of JSON in a file."""

    def __init__(self, path):
        self.file, self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), threading.Lock()
        whole = os.pread(self.file, os.fstat(self.file).st_size, 0)
        os.ftruncate(self.file, whole.rfind(b"\n") + 1)

    def append(self, values):
        """All of them, in as few calls as the kernel allows."""
        data = memoryview("".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values).encode())
        with self.lock:
            while data:
                data = data[os.write(self.file, data):]


def is_tenth(payload):
    """Of a server that refuses every tenth record, by the number that the payload begins with."""
    return payload[:9].isdigit() and int(payload[:9]) % 10 == 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One write for headers and one for the body would wait for an acknowledgement between them.
    disable_nagle_algorithm = True

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        body = self.read_body()
        behaviour = self.server.behaviour()
        mode = behaviour.get("mode")
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        refuses = is_tenth if mode == "refuse" else lambda _: False
        try:
            if mode in ("busy", "redirect"):
                answer = Answer(behaviour["status"], b"not now", behaviour.get("headers", {}))
            else:
                answer = self.server.take(Request(url.path, query, self.headers, decoded(self.headers, body), refuses))
        except Refused as why:
            answer = why.answer
        told = {name: self.headers[name] for name in ("Authorization", "Content-Type", "Content-Encoding")}
        self.server.requests.append([[time.time(), self.command, self.path, len(body), answer.status, mode, told]])
        self.send(answer, mode, behaviour)

    def read_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, answer, mode, behaviour):
        if mode == "garbage":
            self.close_connection = True
            self.wfile.write(b"\0\xff\x16\3\1 this is no answer\r\n\r\n" + os.urandom(100))
            return
        headers = {"Content-Length": len(answer.body)} | answer.headers
        lines = [f"HTTP/1.1 {answer.status} {self.responses.get(answer.status, ('',))[0]}",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        whole = "\r\n".join(lines).encode() + (answer.body if self.command != "HEAD" else b"")
        if mode == "slow":
            time.sleep(behaviour["seconds"])
        elif mode == "cut":
            # In the middle of what comes after the status, whose first line is there.
            self.wfile.write(whole[:len(whole) - max(1, len(answer.body) // 2)])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        elif mode == "drip":
            for place in range(len(whole)):
                self.wfile.write(whole[place:place + 1])
                time.sleep(1)
            return
        self.wfile.write(whole)

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass


def decoded(headers, body):
    """A body as it was before it was compressed."""
    encoding = headers.get("Content-Encoding", "").lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise Refused(Answer(415, f"unsupported Content-Encoding: {encoding}".encode()))
    unpacked, whole = zlib.decompressobj(wbits=31), b""
    while body:
        whole += unpacked.decompress(body, BODY_BYTES_MAX - len(whole))
        if not unpacked.eof or len(whole) >= BODY_BYTES_MAX:
            raise Refused(Answer(400, b"the gzip stream does not end"))
        body = unpacked.unused_data
        unpacked = zlib.decompressobj(wbits=31)
    return whole


class Server(http.server.ThreadingHTTPServer):
    """`take` is the application: a function of a request."""

    request_queue_size = 128

    def __init__(self, port, folder, take):
        super().__init__(("127.0.0.1", port), Handler)
        self.folder, self.take = folder, take
        self.requests = Store(f"{folder}/requests")
        certificate = f"{folder}/certificate.pem"
        if os.path.exists(certificate):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if settings(folder).get("tls") == "weak":
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            # The handshake is a matter of the thread of the connection.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def behaviour(self):
        """How it is to misbehave at present."""
        try:
            with open(f"{self.folder}/behaviour", encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def handle_error(self, request, client_address):
        """Of a client that is gone there is nothing to say, and handshakes fail here on purpose."""


def settings(folder):
    """What the rig has written for this server before it began."""
    try:
        with open(f"{folder}/settings", encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def run(application):
    """The program of a server: PORT FOLDER. `application` makes `take` from its folder."""
    import sys  # pylint: disable=import-outside-toplevel
    port, folder = int(sys.argv[1]), sys.argv[2]
    Server(port, folder, application(folder)).serve_forever()


def lines_of(body):
    """Values of a body of JSON lines, or Refused."""
    try:
        return [json.loads(line) for line in body.split(b"\n") if line]
    except ValueError as error:
        raise Refused(Answer(400, f"no JSON: {error}".encode())) from error


def needs(holds, status, why):
    if not holds:
        raise Refused(Answer(status, why.encode()))


def check_token(headers, scheme, folder):
    """Refuses a request that does not carry the token of this server, where it has one."""
    token = settings(folder).get("token")
    needs(token is None or headers.get("Authorization") == f"{scheme} {token}", 401, "who are you?")
