"""The page in a real browser, through load, loss and restarts of the daemon.

Arguments: program, folder for its files.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser, free_port

UDPD, WORK = sys.argv[1], Path(sys.argv[2])
TOKEN = "0123456789abcdef0123456789abcdef"
METRICS = free_port()
ADDRESS = f"http://127.0.0.1:{METRICS}/"
# What would be a script if the page took it for markup.
MARKUP = "<img src=x onerror=alert(1)>"
# A process that shares the port, with a name that would be an element. The kernel keeps 15 letters of it.
HOSTILE = "<img src=x>"
SHARER = f"""
import socket, sys
open("/proc/self/comm", "w").write("{HOSTILE}")
sharer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sharer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sharer.bind(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LISTEN = free_udp_port()
# The name of another process is not to be had inside the sandbox.
CONFIG = f"""
[daemon]
sandbox = "off"
control_socket = "{WORK}/control.sock"
metrics_address = "127.0.0.1:{METRICS}"
TOKEN
pool_bytes = "4MiB"
[[listener]]
name = "syslog"
address = "127.0.0.1:{LISTEN}"
lanes = 1
share_port = true
sinks = ["fine", "stuck"]
[sink.fine]
type = "null"
[sink.stuck]
type = "stdout"
format = "lines"
queue_bytes = "256KiB"
"""


def until(what, test):
    """Waits for longer than any machine needs until a test returns something else than None."""
    deadline = time.monotonic() + 120
    while (found := test()) is None:
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(0.1)
    return found


class Daemon:
    """Nobody reads its stdout, so the sink that writes there is stuck as soon as the pipe is full."""

    # The one that runs now, if any does.
    current = None

    def __init__(self, token=""):
        (WORK / "udpd.toml").write_text(CONFIG.replace("TOKEN", token))
        self.log = open(WORK / "log", "w+")
        self.process = subprocess.Popen(
            [UDPD, "run", "-c", WORK / "udpd.toml"], stdout=subprocess.PIPE, stderr=self.log
        )
        Daemon.current = self
        global sent
        sent = 0
        deadline = time.monotonic() + 60
        while "ready" not in (WORK / "log").read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, (WORK / "log").read_text()
            time.sleep(0.05)

    def end(self, how):
        self.process.send_signal(how)
        # What the stuck sink holds is let go, so that the end is not waited for.
        self.process.stdout.close()
        self.process.wait()


# How many datagrams the daemon that runs now was sent.
sent = 0


def send(count):
    """Slowly enough for a receiver that gets its core now and then only."""
    global sent
    sent += count
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(count):
            sender.sendto(b"x" * 500, ("127.0.0.1", LISTEN))
            if number % 10 == 9:
                time.sleep(0.01)


def status(path, **fields):
    request = urllib.request.Request(ADDRESS + path, headers=fields)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


def passed(what):
    print(f"passed: {what}", flush=True)


def no_errors(browser, when):
    found = browser.console()
    assert not found, f"errors in the console {when}: {found}"


def until_live(browser, words):
    browser.wait_until(words, "return document.getElementById('link-words').textContent === 'live'")


RECEIVED = (
    "return Number(document.querySelector('.sums')?.innerText"
    ".match(/since the start ([\\d,]+)/)?.[1].replaceAll(',', ''))"
)
# All that the page says of a loss, at one moment: between two questions a reading may come.
LOSS = """
const toned = [...document.querySelectorAll('#way li[data-tone=loss]')].map((card) => card.dataset.stage);
if (!toned.includes('queue')) return null;
return { toned, title: document.getElementById('verdict-title').textContent,
  words: document.getElementById('verdict').innerText, falls: document.querySelectorAll('.falls.loss').length };
"""


def shows_real_numbers(browser):
    browser.open(ADDRESS)
    until_live(browser, "the stream")
    browser.wait_until("no loss", "return /Nothing/.test(document.getElementById('verdict-title').textContent)")
    send(200)
    browser.wait_until("200 received", RECEIVED + " === 200")
    no_errors(browser, "at first")
    passed("the page shows what was received, to the datagram")


def names_the_loss(browser):
    send(4000)
    seen = browser.wait_until("the loss in the queue", LOSS)
    # A starved receiver may have lost some at its socket before.
    if seen["toned"] == ["queue"]:
        assert seen["title"] == "Datagrams are being lost in the sink's queue", seen
    assert "sink stuck" in seen["words"] and "Raise queue_bytes" in seen["words"], seen
    assert seen["falls"] == len(seen["toned"]), seen
    no_errors(browser, "while datagrams are lost")
    passed("the loss is named in the right layer, and nowhere else")


def of_ledger():
    told = subprocess.run([UDPD, "stats", "--json", "-c", WORK / "udpd.toml"], check=True, stdout=subprocess.PIPE)
    return json.loads(told.stdout)["listeners"][0]


def lost_at_rest():
    """What the ledger has lost once everything that was sent is delivered, lost or held by the stuck sink."""

    def look():
        now = of_ledger()
        has_come = now["received"] + now["kernel_dropped"] == sent
        is_offered = all(sink["offered"] == now["received"] for sink in now["sinks"])
        if not (has_come and is_offered and now["residual"] == 0):
            return None
        at_sinks = sum(sum(sink["dropped"].values()) for sink in now["sinks"])
        return now["kernel_dropped"] + sum(now["dropped"].values()) + at_sinks

    return until("the ledger at rest", look)


# The strip of the one listener, as soon as it says that this many were lost, to the datagram.
STRIP = """
SOURCE
const [lost, ...others] = document.querySelectorAll('#strips li span');
if (others.length || !lost?.textContent.startsWith(`lost ${short(arguments[0])}, last`)) return null;
return lost.title === count(arguments[0]) && {
  name: lost.parentElement.firstElementChild.textContent, marks: lost.parentElement.querySelectorAll('.mark').length };
"""
PAGE_PARTS = Path(__file__).parents[3] / "crates/udpd-endpoint/src/metrics/page"


def until_strip_tells(browser, lost):
    source = STRIP.replace("SOURCE", (PAGE_PARTS / "words.js").read_text())
    seen = browser.wait_until(f"the {lost} that the ledger lost in the strip", source, lost)
    assert seen["name"] == "syslog" and seen["marks"] >= 1, seen


def until_host_chart_tells_the_history(browser):
    """What the chart says of the host is what the daemon keeps of it: a peak, nothing, or that nobody knows."""

    def look():
        series = json.load(urllib.request.urlopen(ADDRESS + "history", timeout=60))["series"]
        counts = series["host_nic"] + series["host_kernel"]
        known = [one for one in counts if one is not None]
        nothing = "nothing dropped" if len(known) == len(counts) else "nothing dropped, as far as known"
        expected = "not known" if not known else "peak " if any(known) else nothing
        told = browser.text("[data-chart=host] .top")
        return told if told == expected or expected == "peak " and told.startswith(expected) else None

    return until("what the host dropped, as the history has it", look)


def loses_while(browser, act):
    """Does something while datagrams are lost, before, in between and after."""
    before, done = of_ledger()["sinks"], threading.Event()
    sender = threading.Thread(target=lambda: [send(100) for _ in iter(done.is_set, True)])
    sender.start()
    try:
        until("the next loss", lambda: True if of_ledger()["sinks"] != before else None)
        act()
    finally:
        done.set()
        sender.join()


def shows_where_the_hour_lost(browser):
    until_strip_tells(browser, lost_at_rest())
    peak = "return /^peak /.test(document.querySelector('[data-chart=residence] .top')?.textContent)"
    browser.wait_until("how long datagrams stayed", peak)
    until_host_chart_tells_the_history(browser)

    # Whoever comes in the middle of it gets the same hour: from the daemon until then, and from the stream since.
    def reload():
        browser.open(ADDRESS)
        until_live(browser, "the stream")
        browser.wait_until("the hour as the daemon keeps it", "return document.querySelector('#strips li') !== null")

    loses_while(browser, reload)
    until_strip_tells(browser, lost_at_rest())
    browser.open(ADDRESS)
    until_live(browser, "the stream")
    until_strip_tells(browser, lost_at_rest())
    browser.wait_until("how long datagrams stayed", peak)
    until_host_chart_tells_the_history(browser)
    no_errors(browser, "with the hour")
    passed("the hour shows which listener lost something, to the datagram, how long datagrams stayed and what the "
           "host dropped")


# Readings of a listener, as bounds of what is missing upstream, and what is lost between each and the next.
BOUNDS = """
document.body.innerHTML = '<script type="application/json" id="reasons">[]</script>';
SOURCE
const reading = ([least, most]) => ({ listeners: [{ name: 'a', sinks: [], dropped: {}, lanes: [],
  upstream: { missing: least === most ? least : null, missing_at_least: least, missing_at_most: most } }] });
let before = null;
const found = [];
for (const bounds of arguments[0]) {
  const now = reading(bounds);
  sumCertain(before, now);
  if (before) found.push(lostSince(lossesOf(before, null), lossesOf(now, null)).map((loss) => loss.lost));
  before = now;
}
const told = [...lossesOf(before, null).values()].find((loss) => loss.stage === 'upstream').lost;
return { found, told };
"""


def makes_no_loss_of_bounds(browser):
    source = "".join((PAGE_PARTS / name).read_text() for name in ("words.js", "reading.js"))
    browser.open("about:blank")
    for what, bounds, expected in [
        ("exact losses", [(0, 0), (5, 5), (5, 5), (9, 9)], [[5], [], [4]]),
        ("a loss below an earlier high", [(9, 9), (4, 4), (7, 7), (12, 12)], [[], [3], [5]]),
        ("a loss across what was not known", [(9, 9), (2, 30), (12, 12)], [[], [3]]),
        ("everything late after all", [(0, 0), (5, 5), (0, 0)], [[5], []]),
        ("bounds that move apart and together", [(9, 9), (2, 30), (9, 9), (2, 40)], [[], [], []]),
        ("a bound that falls and rises again", [(10, 20), (6, 20), (10, 20)], [[], []]),
        ("a ledger that learns", [(10, 40), (30, 40), (40, 40)], [[], []]),
        ("losses beside what is not known", [(10, 40), (15, 45), (20, 50)], [[5], [5]]),
    ]:
        seen = browser.run(BOUNDS.replace("SOURCE", source), bounds)
        # Since the start, what the ledger says now is told, and not the highest that it ever said.
        assert seen == {"found": expected, "told": bounds[-1][0]}, f"{what}: {seen}"
    passed("bounds that shrink or come back are no loss, and no negative one; a loss below an earlier high is one")


# The hour as a daemon tells it, joined with readings of the stream, of which it has told some; and what it adds up to.
JOINED = """
document.body.innerHTML = '<script type="application/json" id="reasons">[]</script>';
SOURCE
const [now, told, uptimes] = [1e9, arguments[0], arguments[1]];
const readings = uptimes.map(([uptime_seconds, arrived, kernel_dropped]) => ({ uptime_seconds,
  takenAt: now - (told.uptime_seconds - uptime_seconds) * 1000,
  listeners: [{ name: 'a', arrived, received: arrived, kernel_dropped, dropped: {}, sinks: [], lanes: [] }] }));
takeHour(told, now, readings);
const isAfterAll = hasGap;
// Asked for once more, nothing may stand in it twice.
if (arguments[2]) takeHour(told, now, readings);
const of = (key) => Math.round(hour.reduce((total, step) => total + step.span * step[key], 0));
const strip = hour.reduce((total, step) => total + (step.by.get('a') ?? 0), 0);
return { arrived: of('arrived'), lost: of('lost_socket'), strip, hasGap: isAfterAll };
"""


def joins_the_hour_with_the_stream(browser):
    source = "".join((PAGE_PARTS / name).read_text() for name in ("words.js", "reading.js", "hour.js"))
    browser.open("about:blank")
    others = ("delivered", "lost_listener", "lost_queue", "lost_sink", "host_nic", "host_kernel")
    known = {key: [0, 0] for key in others}
    told = {
        "uptime_seconds": 17.25, "end_seconds": [10, 20], "seen_seconds": [9.0, 7.25],
        "series": known | {"arrived": [900, 100], "lost_socket": [50, 7], "residence_p99_micros": [None, 700_000_000],
                           "buffer_fill_permille": [0, 0], "queue_fill_permille": [0, 0]},
        "by_listener": {"end_seconds": [10, 20], "listeners": [{"name": "a", "lost": [50, 7]}], "left_out": 0},
    }  # fmt: skip
    # Those up to the 17th second stand in what was told; after it 30 arrived and 4 were lost.
    stream = [(15.25, 980, 53), (16.25, 990, 55), (17.25, 1000, 57), (18.25, 1020, 60), (19.25, 1030, 61)]
    expected = {"arrived": 1030, "lost": 61, "strip": 61, "hasGap": False}
    for what, uptimes, twice, sums in [
        ("joined", stream, False, expected),
        ("joined twice", stream, True, expected),
        ("nothing new by the stream", stream[:3], False, expected | {"arrived": 1000, "lost": 57, "strip": 57}),
        ("with a gap that only the daemon can fill", [*stream, (26.25, 1100, 70)], False, expected | {"hasGap": True}),
    ]:
        seen = browser.run(JOINED.replace("SOURCE", source), told, uptimes, twice)
        assert seen == sums, f"{what}: {seen}, and not {sums}"
    passed("the hour that the daemon told is joined with the stream: nothing twice, nothing left out")


def fits_every_screen(browser):
    for name, screen in {
        "light": {}, "dark": {"dark": True}, "phone": {"width": 390, "height": 844, "mobile": True},
        "phone-dark": {"width": 390, "height": 844, "mobile": True, "dark": True}, "tablet": {"width": 820},
    }.items():  # fmt: skip
        too_wide = browser.look(WORK / f"{name}.png", **screen)
        assert too_wide <= 0, f"{name}: {too_wide} pixels too wide"
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    no_errors(browser, "on any screen")
    passed("it fits a desktop, a tablet and a phone, light and dark")


def lasts_through_restarts(browser):
    told = ""
    for how in (signal.SIGTERM, signal.SIGKILL):
        Daemon.current.end(how)
        browser.wait_until("the end", "return /trying again/.test(document.getElementById('link-words').textContent)")
        # Long enough for attempts that find nobody.
        time.sleep(3)
        Daemon()
        until_live(browser, "the stream again")
        # The notice of the restart before would not do.
        told = browser.wait_until(
            "the notice",
            "const t = document.getElementById('notice').textContent;"
            "return /started anew/.test(t) && t !== arguments[0] && t",
            told,
        )
        send(30)
        browser.wait_until("counters that began anew", RECEIVED + " === 30")
        no_errors(browser, f"through a restart by {how.name}")
    passed("ended and killed, it says so, comes back, begins anew, and the console stays empty")


def takes_no_markup(browser):
    sharer = subprocess.Popen([sys.executable, "-c", SHARER, str(LISTEN)], stdin=subprocess.PIPE)
    try:
        browser.wait_until("the name", "return document.body.innerText.includes(arguments[0])", HOSTILE)
        assert browser.run("return document.querySelectorAll('img').length") == 0
    finally:
        sharer.stdin.close()
        sharer.wait()
    refused = browser.run("try { document.body.innerHTML = arguments[0]; return false } catch { return true }", MARKUP)
    assert refused, "markup from a string was taken"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.console()
    passed("a hostile name from the daemon is text, and the policy refuses markup from strings")


def is_for_keyboards(browser):
    unnamed = browser.run(
        "return [...document.querySelectorAll('a,button,select,figure,[tabindex]')].filter((one) => !one.hidden &&"
        " !one.innerText && !one.ariaLabel && !one.labels?.length).length"
    )
    assert unnamed == 0, f"{unnamed} elements without a name"
    browser.run("document.querySelector('figure').focus()")
    told = browser.run(
        "const figure = document.activeElement;"
        "figure.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }));"
        "return figure.querySelector('.told').textContent"
    )
    assert told, "the arrow keys tell nothing"
    passed("every control has a name, and the arrow keys go through the hour")


def asks_for_the_token(browser):
    Daemon.current.end(signal.SIGTERM)
    token = WORK / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    Daemon(f'metrics_token_file = "{token}"')
    for path in ("", "metrics", "stream", "history"):
        assert status(path) == 401, path
    assert status("metrics", Authorization=f"Bearer {TOKEN}") == 200
    browser.open("about:blank")
    browser.open(f"http://anybody:{TOKEN}@127.0.0.1:{METRICS}/")
    until_live(browser, "the stream with the token")
    assert browser.console() == []
    passed("with a token, a browser that has the password sees page and stream, and nobody else does")


def main():
    browser = None
    try:
        Daemon()
        browser = Browser(WORK)
        shows_real_numbers(browser)
        names_the_loss(browser)
        shows_where_the_hour_lost(browser)
        fits_every_screen(browser)
        is_for_keyboards(browser)
        takes_no_markup(browser)
        makes_no_loss_of_bounds(browser)
        joins_the_hour_with_the_stream(browser)
        browser.open(ADDRESS)
        until_live(browser, "the stream")
        lasts_through_restarts(browser)
        asks_for_the_token(browser)
    finally:
        if browser:
            browser.close()
        if Daemon.current and Daemon.current.process.poll() is None:
            Daemon.current.end(signal.SIGKILL)


if __name__ == "__main__":
    os.chdir(WORK)
    main()
