"""A daemon whose clocks go forward or back while it writes lines; see local_time.sh."""
import datetime
import glob
import os
import re
import shutil
import subprocess
import time
import zoneinfo

from lib.check import Skipped, check, main, passed, same, skipped
from lib.daemon import WORK, Daemon, listening
from lib.host import execute, read, write
from lib.load import free_port, send

# From the start of a daemon until the clocks change, as a rule, and for how long it has to have lines before and after.
AHEAD, AROUND = 4, 2
# How many seconds later than it came a line may be written.
WRITTEN = range(-1, 10)
NAME = "%Y-%m-%dT%H%M%S"
UTC = datetime.timezone.utc


def rules(change, before, after, names=("AAA", "BBB")):
    """What TZ holds where clocks that are `before` seconds ahead of UTC are `after` seconds ahead from `change` on."""
    def offset(seconds):
        # POSIX counts westward.
        sign, seconds = ("-" if seconds > 0 else ""), abs(seconds)
        return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def day(moment):
        return moment.timetuple().tm_yday - 1

    then = datetime.datetime.fromtimestamp(change + before, UTC)
    at = f"{day(then)}/{then:%H:%M:%S}"
    other = f"{(day(then) + 180) % 365}/2"
    # The standard time is the one that is less ahead.
    begin, end = (at, other) if after > before else (other, at)
    return f"{names[0]}{offset(min(before, after))}{names[1]}{offset(max(before, after))},{begin},{end}"


def compiled(change, before, after):
    """The same as a file of zic; its path, which TZ may hold."""
    names = {before: "AAA", after: "BBB"}
    then = datetime.datetime.fromtimestamp(change + before, UTC)
    write(f"{WORK}/zone", f"Zone Rig {before // 60 // 60}:{before // 60 % 60:02}:{before % 60:02} - {names[before]} "
                          f"{then:%Y %b %d %H:%M:%S}\n"
                          f"    {after // 60 // 60}:{after // 60 % 60:02}:{after % 60:02} - {names[after]}\n")
    done = execute("zic", "-d", f"{WORK}/zones", f"{WORK}/zone")
    same(done.returncode, 0, done.stderr)
    return f"{WORK}/zones/Rig"


def told_by_date(zone, seconds):
    """What `date` says of each of these seconds since 1970: the name of a file, and how far local time is ahead."""
    seconds = sorted(seconds)
    write(f"{WORK}/seconds", "".join(f"@{one}\n" for one in seconds))
    told = subprocess.run(["date", "-f", f"{WORK}/seconds", f"+{NAME} %:z"], env=os.environ | {"TZ": zone}, check=True,
                          capture_output=True, text=True).stdout.splitlines()
    return dict(zip(seconds, [tuple(line.split()) for line in told], strict=True))


def told_by_zoneinfo(file, seconds):
    with open(file, "rb") as opened:
        zone = zoneinfo.ZoneInfo.from_file(opened)

    def told(second):
        shown = datetime.datetime.fromtimestamp(second, zone)
        ahead = shown.strftime("%z")
        return shown.strftime(NAME), f"{ahead[:3]}:{ahead[3:5]}"

    return {second: told(second) for second in seconds}


def moment(text):
    """The seconds since 1970 of a time with its distance from UTC."""
    return int(datetime.datetime.fromisoformat(text).timestamp())


def lines_of(pattern):
    """By file: of each line its time, how far that says it is ahead, and what was sent."""
    found = {}
    for path in glob.glob(pattern):
        parts = [re.fullmatch(r"(\S+\.\d{9}|\S+\.\d{6})([+-]\d\d:\d\d) (\d+) (\d+)", line)
                 for line in read(path).splitlines()]
        check(all(parts), f"a line of {path} is none: {read(path)[:300]}")
        found[path] = [(part[1][:19] + part[2], part[2], int(part[3]), int(part[4])) for part in parts]
    return found


def judge(name, before, after, zone_of, told_by):
    """What the lines and the names say, against what `told_by` says of the same moments."""
    daemon, port, zone, change = start(name, lambda change: zone_of(change, before, after))
    sent = 0
    while time.time() < change + AROUND:
        send(port, [f"{sent} {time.time_ns()}".encode()])
        sent += 1
        time.sleep(0.02)
    listener = daemon.end()
    same([sink["delivered"] for sink in listener["sinks"]], [sent] * 2, listener)

    dated, kept = lines_of(f"{daemon.directory}/dated-*"), lines_of(f"{daemon.directory}/plain.log*")
    for lines in (dated, kept):
        same(sorted(line[2] for found in lines.values() for line in found), list(range(sent)), "each line once")
    moments = {moment(line[0]) for found in [*dated.values(), *kept.values()] for line in found}
    # A line is written a little after it came, under the name that files have then; the batch may have begun earlier.
    told = told_by(zone, {second + away for second in moments for away in WRITTEN})
    offsets = []
    for path, found in dated.items():
        for text, ahead, _, nanoseconds in found:
            second = moment(text)
            same(ahead, told[second][1], f"{text} in {path}")
            names = [f"dated-{told[second + away][0]}.log" for away in WRITTEN]
            check(os.path.basename(path) in names, f"{text} is in {path}, and not in one of {names}")
            # As far as a starved machine may need; a wrong distance from UTC would be half an hour at least.
            check(abs(second - nanoseconds // 10**9) < 600, f"{text} came at {nanoseconds}")
            offsets.append((second >= change, ahead))
    # Clocks have one distance from UTC up to the change and another from then on.
    same(len(set(offsets)), 2, sorted(set(offsets)))
    check(len({ahead for _, ahead in offsets}) == 2, sorted(set(offsets)))

    # What is renamed when it is finished has the time and its distance in its name.
    finished = [re.fullmatch(r"plain\.log\.(\d{8}T\d{6})([+-]\d{4})(\.\d+)?", os.path.basename(path))
                for path in kept if not path.endswith("/plain.log")]
    check(finished and all(finished), f"{sorted(kept)}")
    ends = [moment(f"{part[1]}{part[2]}") for part in finished]
    of_ends = told_by(zone, set(ends))
    for part, end in zip(finished, ends):
        same(part[2][:3] + ":" + part[2][3:], of_ends[end][1], part[0])
    same(len({part[2] for part in finished}), 2, f"{sorted(kept)}")
    passed(f"{name}: {sent} lines in {len(dated)} dated and {len(kept)} renamed files are all where and as they "
           f"should be, from {min(offsets)[1]} to {max(offsets)[1]}")


def start(name, zone_of):
    """A daemon in whose zone the clocks change soon; the machine may be so slow that it takes more than one attempt."""
    keys = 'type = "file"\nformat = "lines"\nprefix = "time"\ntime = "local"\n'
    for attempt in range(1, 6):
        folder, port = f"{WORK}/{name}-{attempt}", free_port()
        text = listening(
            f'address = "127.0.0.1:{port}"',
            dated=f'{keys}path = "{folder}/dated-{NAME}.log"\nrotate = {{ bytes = 0, every = "0s" }}',
            plain=f'{keys}path = "{folder}/plain.log"\nrotate = {{ bytes = 0, every = "1s" }}')
        change = int(time.time()) + AHEAD * attempt
        zone = zone_of(change)
        daemon = Daemon(text, directory=folder, env=os.environ | {"TZ": zone})
        if time.time() < change - AROUND:
            return daemon, port, zone, change
        daemon.end()
    raise Skipped("a daemon takes more than 18 s to start here")


def changes():
    for name, before, after in [("forward", 0, 3600), ("back", 7200, 3600), ("half_an_hour", 39_600, 37_800),
                                ("west", -18_000, -14_400)]:
        judge(name, before, after, rules, told_by_date)
    if shutil.which("zic"):
        judge("file_of_zic", 7200, 3600, compiled, told_by_zoneinfo)
    else:
        skipped("the part with a file of rules: needs zic (Debian package libc-bin)")


main(changes)
