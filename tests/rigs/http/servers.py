"""The servers of this rig as processes: begun, killed, begun again on what they had, and asked what they have."""
import base64
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import clickhouse
import stored
from lib.check import check, evidence, until
from lib.daemon import WORK, start
from lib.host import read, write
from lib.load import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
# Folders of what http.sh has fetched; empty where it could not.
CHDB, COLLECTOR, OPENSEARCH = (os.environ.get(name, "") for name in ("HTTP_CHDB", "HTTP_COLLECTOR", "HTTP_OPENSEARCH"))
numbers = itertools.count(1)


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """One that is written here, `name`.py. `settings` are its own."""

    patience = 60
    # What it is, for those who read what has passed.
    told = "a double"
    environment = {}
    # Whether it knows a batch again by its id.
    takes_once = False

    def __init__(self, name, port=None, certificate=None, **settings):
        self.name, self.port = name, port or free_port(socket.SOCK_STREAM)
        self.child, self.last_taken = None, 0
        self.folder = f"{WORK}/{name}-{next(numbers)}"
        os.makedirs(self.folder)
        write(f"{self.folder}/settings", json.dumps(settings))
        if certificate:
            os.symlink(os.path.abspath(certificate), f"{self.folder}/certificate.pem")
        evidence.append(lambda: f"---- {self.folder}/log\n{read(f'{self.folder}/log')[-3000:]}")

    def command(self):
        return [sys.executable, f"{HERE}/{self.name}.py", self.port, self.folder]

    def begin(self):
        with open(f"{self.folder}/log", "a", encoding="utf-8") as log:
            self.child = start(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               env=os.environ | self.environment)
        until(f"{self.name} accepts connections", self.is_up, self.patience)
        return self

    def is_up(self):
        check(self.child.poll() is None, lambda: f"{self.name} has ended: {read(f'{self.folder}/log')[-3000:]}")
        return answers(self.port)

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def behave(self, mode="", **how):
        """From the next request on."""
        write(f"{self.folder}/new", json.dumps({"mode": mode} | how if mode else {}))
        os.rename(f"{self.folder}/new", f"{self.folder}/behaviour")

    def requests(self):
        """What it was asked: time, method, path, bytes, status, how it behaved, headers."""
        path = f"{self.folder}/requests"
        return [json.loads(line) for line in read(path).splitlines()] if os.path.exists(path) else []

    def taken(self):
        """A measure of what it has, which grows while it takes any."""
        self.last_taken = self.measured()
        return self.last_taken

    def measured(self):
        path = f"{self.folder}/records"
        return os.path.getsize(path) if os.path.exists(path) else 0

    def stored(self):
        return getattr(stored, self.name)(self.folder)

    def keys(self):
        """The lines of a sink that sends to it."""
        scheme = "https" if os.path.exists(f"{self.folder}/certificate.pem") else "http"
        url = f"{scheme}://127.0.0.1:{self.port}{self.path()}"
        return ['type = "http"', f'profile = "{self.profile()}"', f'url = "{url}"']

    def profile(self):
        return self.name

    def path(self):
        return "/"


class Ndjson(Server):
    def __init__(self, **options):
        super().__init__("ndjson", **options)


class Splunk(Server):
    TOKEN = "8f0b0f6c-0000-4000-8000-0123456789ab"

    def __init__(self, **options):
        super().__init__("splunk", token=self.TOKEN, index="udpd", **options)
        self.know(self.TOKEN)

    def know(self, token):
        """What the sink knows as the token."""
        write(f"{self.folder}/token", token + "\n", mode=0o600)

    def profile(self):
        return "splunk_hec"

    def path(self):
        return "/services/collector/event"

    def keys(self):
        return [*super().keys(), f'token_file = "{self.folder}/token"', 'index = "udpd"', 'source_type = "syslog"']


class Loki(Server):
    def __init__(self, **options):
        super().__init__("loki", tenant="rig", **options)

    def path(self):
        return "/loki/api/v1/push"

    def keys(self):
        return [*super().keys(), 'labels = ["job=udpd"]', 'headers = ["X-Scope-OrgID: rig"]']


class Elasticsearch(Server):
    takes_once = True

    def __init__(self, **options):
        super().__init__("elasticsearch", **options)

    def stored(self):
        return stored.elasticsearch(stored.lines(self.folder))

    def keys(self):
        return [*super().keys(), 'index = "udpd"']


class Otlp(Server):
    def __init__(self, **options):
        super().__init__("otlp", **options)

    def path(self):
        return "/v1/logs"

    def keys(self):
        return [*super().keys(), 'labels = ["job=udpd"]']


class ClickHouse(Server):
    """The engine of ClickHouse; a window of so many tokens lets each batch in once."""

    TABLE = """CREATE TABLE IF NOT EXISTS datagrams (time DateTime64(9, 'UTC'), source String, source_port UInt16,
        destination String, destination_port UInt16, listener LowCardinality(String), truncated Bool,
        length UInt32, message String, message_base64 String) ENGINE = MergeTree ORDER BY time
        SETTINGS non_replicated_deduplication_window = 10000"""
    told = "the engine of ClickHouse 26.9"
    environment = {"PYTHONPATH": f"{CHDB}:{os.environ['PYTHONPATH']}"}
    takes_once = True
    PASSWORD = "a-password"
    COLUMNS = "toUnixTimestamp64Nano(time), source, message, message_base64"

    def __init__(self, **options):
        super().__init__("clickhouse", **options)

    def begin(self):
        super().begin()
        self.ask(self.TABLE)
        return self

    def know(self, password):
        """What the sink knows as the password."""
        write(f"{self.folder}/password", password + "\n", mode=0o600)

    def ask(self, text):
        return clickhouse.ask(self.port, text, self.PASSWORD)

    def measured(self):
        return int(self.ask("SELECT count() FROM datagrams"))
    def stored(self):
        # A part at a time, so that neither of the two has to hold everything.
        rows, first, part = self.measured(), 0, 100_000
        while first < rows:
            text = self.ask(f"SELECT {self.COLUMNS} FROM datagrams ORDER BY time, message, message_base64 "
                            f"LIMIT {part} OFFSET {first} FORMAT JSONCompactEachRow")
            for line in text.splitlines():
                time, source, message, encoded = json.loads(line)
                payload = base64.b64decode(encoded, validate=True) if encoded else message.encode()
                yield stored.Stored(payload, not encoded, int(time), source)
            first += part

    def keys(self):
        return [*super().keys(), 'table = "datagrams"']


class Collector(Server):
    """OpenTelemetry's own, which keeps nothing: it hands each request on to a judge and answers what that answers."""

    told = "OpenTelemetry's Collector 0.165"

    CONFIG = """
        receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
        exporters:
          otlp_http: {{endpoint: "http://127.0.0.1:{judge}", encoding: json, compression: none,
                      sending_queue: {{enabled: false}}, retry_on_failure: {{enabled: false}}}}
        service:
          telemetry: {{metrics: {{level: none}}}}
          pipelines: {{logs: {{receivers: [otlp], exporters: [otlp_http]}}}}
    """

    def __init__(self):
        super().__init__("otlp")
        self.judge = Otlp().begin()
        write(f"{self.folder}/config.yaml", self.CONFIG.format(port=self.port, judge=self.judge.port))

    def command(self):
        return [f"{COLLECTOR}/collector", f"--config={self.folder}/config.yaml"]

    def path(self):
        return "/v1/logs"

    def behave(self, mode="", **how):
        self.judge.behave(mode, **how)

    def measured(self):
        return self.judge.measured()

    def stored(self):
        return self.judge.stored()

    def keys(self):
        return [*super().keys(), 'labels = ["job=udpd"]']


class OpenSearch(Server):
    """Its runner takes the first free port above 9200."""

    patience = 180
    told = "OpenSearch 2.19.1"
    takes_once = True

    def __init__(self):
        super().__init__("elasticsearch", port=9201)

    def command(self):
        return ["java", "-Xms512m", "-Xmx1g", "-cp", f"{OPENSEARCH}/*",
                "org.codelibs.opensearch.runner.OpenSearchRunner", "-basePath", f"{self.folder}/node", "-numOfNode", 1,
                "-baseHttpPort", 9200]

    def ask(self, path, **body):
        data = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def is_up(self):
        if not super().is_up():
            return False
        try:
            return self.ask("/_cluster/health?wait_for_status=yellow")["status"] != "red"
        except OSError:
            return False

    def measured(self):
        try:
            self.ask("/_refresh")
            return self.ask("/udpd/_count?ignore_unavailable=true")["count"]
        except urllib.error.HTTPError:
            # It answers before it has found what it had.
            return self.last_taken
    def stored(self):
        self.ask("/_refresh")
        found = self.ask("/udpd/_search?scroll=1m", size=10_000, sort=["_doc"])
        while hits := found["hits"]["hits"]:
            yield from stored.elasticsearch(hit["_source"] for hit in hits)
            found = self.ask("/_search/scroll", scroll="1m", scroll_id=found["_scroll_id"])

    def keys(self):
        return [*super().keys(), 'index = "udpd"']
