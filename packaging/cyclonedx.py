#!/usr/bin/env python3
"""Prints what the static binary is made of as a CycloneDX list: packaging/cyclonedx.py >udpd.cdx.json. It asks cargo
for the crates that are linked, and Cargo.lock for their checksums; `cargo auditable` writes the same crates into the
binary. Written here, because cargo-cyclonedx takes minutes to compile and puts a random number into each list."""
import json
import os
import re
import subprocess
import time
import tomllib

with open("Cargo.lock", "rb") as file:
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.load(file)["package"]}
asked = ["--package", "udpd", "--target", "x86_64-unknown-linux-musl", "--edges", "normal,no-proc-macro"]
tree = subprocess.run(["cargo", "tree", "--locked", "--prefix", "depth", "--format", "\t{p}\t{l}", *asked],
                      check=True, capture_output=True, text=True).stdout
parents, found, needs = [], {}, {}
for line in tree.splitlines():
    depth, package, licence = line.split("\t")
    name, version = re.match(r"(\S+) v(\S+)", package).groups()
    place = f"pkg:cargo/{name}@{version}"
    one = {"type": "library", "name": name, "version": version, "bom-ref": place,
           "licenses": [{"expression": licence.removesuffix(" (*)").replace("/", " OR ")}]}
    # Our own crates are in no registry.
    if checksums[name, version]:
        one["purl"] = place
        one["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    found[place] = one
    del parents[int(depth):]
    if parents:
        needs.setdefault(parents[-1], set()).add(place)
    parents.append(place)
program = found.pop(next(iter(found))) | {"type": "application"}
created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
print(json.dumps({
    "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
    "metadata": {"timestamp": created, "component": program},
    "components": [found[place] for place in sorted(found)],
    "dependencies": [{"ref": one, "dependsOn": sorted(needs[one])} for one in sorted(needs)],
}, indent=1))
