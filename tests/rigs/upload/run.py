"""Uploads of finished files, through what happens to servers and to udpd; see upload.sh. front.py is what is killed in
place of the server, which has its objects in memory."""
import base64
import gzip
import hashlib
import hmac
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.parse

from lib.check import LONG, check, check_the_judge, evidence, main, passed, same, setting, skipped, until
from lib.daemon import WORK, Daemon, listening, start
from lib.host import read, read_bytes, write
from lib.load import Paced, free_port

MOTO = os.environ["UPLOAD_MOTO"]
sys.path.insert(0, MOTO)
import boto3  # noqa: E402  pylint: disable=wrong-import-position,import-error

HERE = os.path.dirname(os.path.abspath(__file__))
# Files of three parts each, and some of them.
DATAGRAMS, RATE, LENGTH = setting("DATAGRAMS", 1_000_000 if LONG else 120_000), setting("RATE", 8_000), 1000
# Uploads have the lowest priority, and other work may keep the cores busy.
PATIENCE = 400
NOISE = base64.b64encode(random.Random(1).randbytes(1 << 20))
SECRET, BUCKET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "logs"
KEYS = f"[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = {SECRET}\n"


class Server:
    """moto, and a front that udpd connects to."""

    def __init__(self, name, **environment):
        self.port, self.own_port = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
        self.folder, self.front = f"{WORK}/{name}", None
        os.makedirs(self.folder)
        self.log = f"{self.folder}/log"
        paths = {"PYTHONPATH": MOTO}
        with open(self.log, "w", encoding="utf-8") as log:
            start([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.own_port], stdout=log, stderr=log,
                  env=os.environ | paths | environment)
        evidence.append(lambda: f"---- {self.log}\n{read(self.log)[-2000:]}")
        self.rate(0)
        until("the server answers", lambda: self.answers(self.own_port))
        self.begin()
        url = f"http://127.0.0.1:{self.own_port}"
        self.client = boto3.client("s3", endpoint_url=url, aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
                                   aws_secret_access_key=SECRET, region_name="us-east-1")

    @staticmethod
    def answers(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def rate(self, bytes_a_second):
        """How fast it takes anything from now on; 0 = as it comes, "hold" = not at all."""
        write(f"{self.folder}/new", str(bytes_a_second))
        os.rename(f"{self.folder}/new", f"{self.folder}/rate")

    def begin(self):
        self.front = start([sys.executable, f"{HERE}/front.py", self.port, self.own_port, f"{self.folder}/rate"])
        until("the front listens", lambda: self.answers(self.port))

    def kill(self):
        self.front.send_signal(signal.SIGKILL)
        self.front.wait()

    def objects(self, prefix):
        """What the bucket has, by the name behind the prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return {key.removeprefix(f"{prefix}/"): self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                for key in keys}

    def begun(self):
        """The uploads that were begun and not ended: name, id, and how many parts there are."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        parts = [self.client.list_parts(Bucket=BUCKET, Key=one["Key"], UploadId=one["UploadId"]) for one in found]
        return [(one["Key"], one["UploadId"], len(of.get("Parts", []))) for one, of in zip(found, parts)]


def file_sink(server, name, *keys, bucket=BUCKET, rotate="20MiB", more=""):
    """The lines of a sink with a folder of its own."""
    write(f"{WORK}/keys", KEYS, mode=0o600)
    upload = f'url = "http://127.0.0.1:{server.port}/{bucket}/{name}", credentials_file = "{WORK}/keys"{more}'
    return "\n".join(['type = "file"', f'path = "DIR/{name}/{{listener}}.log"',
                      f'rotate = {{ bytes = "{rotate}", every = "0s" }}', 'queue_bytes = "64MiB"',
                      f"upload = {{ {upload} }}", *keys])


def payload(number):
    """A line that hardly gets shorter by compression."""
    place = number * 7919 % (len(NOISE) - LENGTH)
    return f"{number:012} ".encode() + NOISE[place:place + LENGTH - 13]


def judge(what, texts, count):
    """Each datagram is in one of the texts, once, as it was sent."""
    lines = [line for text in texts for line in text.splitlines()]
    wrong = [line[:40] for line in lines if line != payload(int(line[:12]))]
    check(not wrong, lambda: f"{what}: not as it was sent: {wrong[:3]}")
    numbers = sorted(int(line[:12]) for line in lines)
    check(numbers == list(range(count)), lambda: f"{what}: {len(numbers)} lines, {len(set(numbers))} of {count}")


def the_judge_sees():
    right = [b"".join(payload(number) + b"\n" for number in numbers) for numbers in (range(5), range(5, 10))]
    judge("right", right, 10)
    check_the_judge(judge, {"one is missing": ("", right[1:], 10), "one is there twice": ("", right + right[:1], 10),
                            "one is changed": ("", [right[0].replace(b"00 ", b"00 x", 1), right[1]], 10)})


def check_signatures(server):
    """Each request that came through the front has the signature that its URL and the secret give, by the rules of S3."""
    lines = re.findall(r'"(GET|PUT|POST) (/\S*X-Amz-Signature=\S*) HTTP', read(server.log))
    check(len(lines) > 10, lambda: f"requests in the log: {len(lines)}")

    def by(key, text):
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    for method, target in lines:
        path, query = target.split("?", 1)
        told = dict(pair.split("=", 1) for pair in query.split("&"))
        # The log has it decoded.
        pairs = sorted(f"{name}={urllib.parse.quote(value, safe='-_.~')}" for name, value in told.items()
                       if name != "X-Amz-Signature")
        canonical = "\n".join([method, urllib.parse.quote(path), "&".join(pairs), f"host:127.0.0.1:{server.port}", "", "host",
                               "UNSIGNED-PAYLOAD"])
        day, region = told["X-Amz-Date"][:8], "us-east-1"
        scope = f"{day}/{region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", told["X-Amz-Date"], scope,
                          hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{SECRET}".encode()
        for part in (day, region, "s3", "aws4_request"):
            key = by(key, part)
        same(told["X-Amz-Signature"], by(key, text).hex(), lambda: f"the signature of {method} {target}")
    return len(lines)


def names_in(folder):
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def texts_of(folder):
    return {name: read_bytes(f"{folder}/{name}") for name in names_in(folder)}


def files_of(daemon, name):
    """What a sink counts of its files."""
    return next(sink["files"] for sink in daemon.listener()["sinks"] if sink["name"] == name)


def through_kills():
    """The server goes away under load and comes back, is slow, and udpd is killed while a file has got there in part."""
    server, port, half = Server("server"), free_port(), DATAGRAMS // 2
    server.client.create_bucket(Bucket=BUCKET)
    text = listening(f'address = "127.0.0.1:{port}"\nlanes = 1\nreceive_buffer = "16MiB"',
                     removed=file_sink(server, "removed", more=", remove = true"),
                     kept=file_sink(server, "kept", 'compress = "gzip"', "compress_level = 1"))
    first = Daemon(text)
    sender = Paced(port, RATE, payload, count=half)
    server.rate(20_000_000)
    first.until("a file goes in parts", server.begun)
    server.kill()
    sender.join()
    first.await_arrived(half)
    first.until("a try fails", lambda: files_of(first, "removed")["upload_failures"])
    server.rate(4_000_000)
    server.begin()
    sent = {"removed/": None}

    def is_in_part():
        sent["found"] = [one for one in server.begun() if one[0].startswith("removed/") and one[2]]
        return sent["found"]

    first.until("some parts of a file are there", is_in_part)
    before = first.listener()
    first.kill()
    key, upload_id, _ = sent["found"][0]
    server.rate(0)

    second = Daemon(text, directory=first.directory)
    Paced(port, RATE, lambda number: payload(half + number), count=half).join()
    second.await_arrived(half)
    counts = {}

    def all_are_there():
        counts.update({name: files_of(second, name) for name in ("removed", "kept")})
        waits = [count["not_uploaded"] + count["uncompressed"] for count in counts.values()]
        folders = [os.listdir(f"{first.directory}/{name}") for name in counts]
        plain = [len([file for file in folder if "log.2" in file and not file.endswith(".gz")]) for folder in folders]
        return waits + plain == [0] * 4 and len(server.objects("kept")) == len(folders[1]) - 2

    second.until(lambda: f"everything is uploaded: {counts}", all_are_there, PATIENCE)
    for told, count in (before, half), (second.end(), half):
        same((told["arrived"], told["kernel_dropped"] or 0), (count, 0), "arrived, dropped by the kernel")

    left = {name: texts_of(f"{first.directory}/{name}") for name in counts}
    objects = {name: server.objects(name) for name in counts}
    same(list(left["removed"]), ["in.log"], "what is left of the files that were to be removed")
    judge("removed", [*objects["removed"].values(), *left["removed"].values()], DATAGRAMS)
    finished = {name: text for name, text in left["kept"].items() if name != "in.log"}
    check(objects["kept"] == finished, lambda: f"kept: {sorted(objects['kept'])}, files {sorted(finished)}")
    judge("kept", [*map(gzip.decompress, finished.values()), left["kept"]["in.log"]], DATAGRAMS)
    same(server.begun(), [], "uploads that were begun and not ended")
    ended = [line for line in read(server.log).splitlines() if '"POST ' in line and f"uploadId={upload_id}" in line]
    check(any('" 200 ' in line for line in ended), lambda: f"{key} was not taken up: {ended}")
    shown = first.log() + second.log() + json.dumps([before, second.last()])
    check(SECRET not in shown and "X-Amz" not in shown, "a secret is in the log or the ledger")
    signatures = check_signatures(server)
    passed(f"{len(objects['removed'])} and {len(objects['kept'])} objects are as their files were, and each of "
           f"{DATAGRAMS} datagrams is there once, after two kills; the upload that udpd was killed in went on; "
           f"{signatures} signatures are right")


def trouble(what, server, words, cure, bucket=BUCKET):
    """A trouble is one line with cause and cure and a state; when it is over, everything is there."""
    port, count = free_port(), 2000
    daemon = Daemon(listening(f'address = "127.0.0.1:{port}"\nlanes = 1',
                              archive=file_sink(server, what.replace(" ", "-"), bucket=bucket, rotate="256KiB",
                                                more=", remove = true")))
    Paced(port, RATE, payload, count=count).join()
    daemon.await_arrived(count)
    daemon.until("tries fail", lambda: files_of(daemon, "archive")["upload_failures"] >= 2)
    lines = [line for line in daemon.log().splitlines() if "archive" in line and "finished files wait" in line]
    check(len(lines) == 1 and all(word in lines[0] for word in words), lambda: f"{what}: {lines}")
    check(SECRET not in daemon.log(), f"{what}: a secret is in the log")
    daemon.until("the sink is shown as slow", lambda: (daemon.sink().get("state") or {}).get("name") == "slow")
    cure()
    daemon.until("everything is uploaded", lambda: files_of(daemon, "archive")["not_uploaded"] == 0 and
                 names_in(f"{daemon.directory}/{what.replace(' ', '-')}") == ["in.log"], PATIENCE)
    daemon.end()
    texts = [*server.objects(what.replace(" ", "-")).values(),
             *texts_of(f"{daemon.directory}/{what.replace(' ', '-')}").values()]
    judge(what, texts, count)
    passed(f"{what}: {lines[0][:160]}...")


def troubled():
    server = Server("troubled")
    trouble("no bucket", server, ["NoSuchBucket", "make the bucket"],
            lambda: server.client.create_bucket(Bucket=BUCKET))
    server.kill()
    trouble("no server", server, ["cannot be reached", "start what listens there"], server.begin)
    skipped("wrong keys: moto knows no keys in URLs; the signatures of all requests are checked here, and what a server "
            "says of wrong ones in the unit tests")


def the_end_does_not_wait():
    """A server that takes nothing and may take an hour does not hold up the end, and the next start has the rest."""
    server, port, count = Server("silent"), free_port(), 2000
    server.client.create_bucket(Bucket=BUCKET)
    text = listening(f'address = "127.0.0.1:{port}"\nlanes = 1',
                     archive=file_sink(server, "silent", rotate="256KiB", more=', remove = true, timeout = "1h"'))
    server.rate("hold")
    first = Daemon(text)
    Paced(port, RATE, payload, count=count).join()
    first.await_arrived(count)
    first.until("files wait", lambda: files_of(first, "archive")["not_uploaded"] > 1)
    first.end()
    same(server.objects("silent"), {}, "what a server has that was told nothing")
    server.rate(0)
    second = Daemon(text, directory=first.directory)
    second.until("everything is uploaded", lambda: names_in(f"{first.directory}/silent") == ["in.log"], PATIENCE)
    second.end()
    judge("silent", [*server.objects("silent").values(), *texts_of(f"{first.directory}/silent").values()], count)
    passed("a server that never answers does not hold up the end, and the next start uploads what it has left")


def check_shows_the_plan():
    """What `udpd check` says of uploads."""
    folder = f"{WORK}/checked"
    os.makedirs(folder)
    write(f"{folder}/keys", KEYS, mode=0o600)
    good = f'url = "https://s3.example/logs/host", credentials_file = "{folder}/keys"'

    def told(upload):
        sink = "\n".join(['type = "file"', f'path = "{folder}/in.log"', f"upload = {{ {upload} }}"])
        write(f"{folder}/udpd.toml", listening('address = "127.0.0.1:1"', archive=sink))
        done = subprocess.run([os.environ["UDPD"], "check", "-c", f"{folder}/udpd.toml"], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr

    code, text = told(good)
    check((code, "uploaded to https://s3.example/logs/host" in text) == (0, True), text)
    for wrong, words in {good.replace("/keys", "/none"): "No such file", good.replace("/logs/host", ""): "bucket",
                         'remove = true': "names no bucket", 'url = "https://s3.example/logs"': "credentials_file"}.items():
        code, text = told(wrong)
        check(code == 78 and words in text and SECRET not in text, lambda: f"{wrong}: {code}, {text}")
    passed("udpd check shows where files go, and refuses what cannot be")


main(the_judge_sees, check_shows_the_plan, through_kills, troubled, the_end_does_not_wait)
