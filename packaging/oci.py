#!/usr/bin/env python3
"""Writes the directory of packaging/container.sh as an image that docker, podman and containerd load, without any of
them: packaging/oci.py DIRECTORY amd64|arm64 NAME FILE. What the image runs is read from the Containerfile.

With a daemon, times and the order of files would be the daemon's own. Here the same directory gives the same bytes."""
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import time

directory, architecture, name, to = sys.argv[1:]
epoch = int(os.environ["SOURCE_DATE_EPOCH"])


def add(tar, path, mode, user, data=None):
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.mtime, entry.uid, entry.gid = tarfile.DIRTYPE, mode, epoch, user, user
    if data is not None:
        entry.type, entry.size = tarfile.REGTYPE, len(data)
    tar.addfile(entry, data and io.BytesIO(data))


def layer():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for part, user in (("system", 0), ("own", 65532)):
            root = os.path.join(directory, part)
            for folder, folders, files in os.walk(root):
                folders.sort()
                inside = os.path.relpath(folder, root)
                if inside != ".":
                    add(tar, inside, 0o755, user)
                for file in sorted(files):
                    path = os.path.join(folder, file)
                    with open(path, "rb") as data:
                        place = os.path.normpath(os.path.join(inside, file))
                        add(tar, place, os.stat(path).st_mode & 0o777, user, data.read())
    return out.getvalue()


def run_by():
    """The instructions of the Containerfile as the configuration of an image."""
    with open(os.path.join(directory, "Containerfile")) as file:
        lines = re.sub(r"\\\n\s*", "", "".join(line for line in file if not line.startswith("#"))).splitlines()
    said = dict(line.split(" ", 1) for line in lines if line)
    options, test = said["HEALTHCHECK"].split("CMD ")
    seconds = {key: int(value) * 10**9 for key, value in re.findall(r"--([a-z-]+)=(\d+)s", options)}
    return {
        "User": said["USER"],
        "ExposedPorts": {said["EXPOSE"]: {}},
        "Volumes": {said["VOLUME"]: {}},
        "Entrypoint": json.loads(said["ENTRYPOINT"]),
        "Cmd": json.loads(said["CMD"]),
        "Healthcheck": {
            "Test": ["CMD", *json.loads(test)],
            "Interval": seconds["interval"],
            "Timeout": seconds["timeout"],
            "StartPeriod": seconds["start-period"],
        },
    }


blobs = {}


def blob(media, data):
    if not isinstance(data, bytes):
        data = json.dumps(data, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = data
    return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}


layers = [blob("layer.v1.tar", layer())]
created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
config = {"created": created, "architecture": architecture, "os": "linux", "config": run_by(),
          "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]}}
manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("config.v1+json", config), "layers": layers}
image = blob("manifest.v1+json", manifest) | {
    "platform": {"architecture": architecture, "os": "linux"},
    "annotations": {"io.containerd.image.name": f"docker.io/library/{name}",
                    "org.opencontainers.image.ref.name": name.split(":")[1]}}
blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [image]}, sort_keys=True).encode()
blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
with tarfile.open(to, "w", format=tarfile.USTAR_FORMAT) as tar:
    for folder in ("blobs", "blobs/sha256"):
        add(tar, folder, 0o755, 0)
    for path, data in sorted(blobs.items()):
        add(tar, path, 0o644, 0, data)
