"""The page in a real browser, through load, loss and restarts of the daemon; see page.sh."""
import json
import os
import signal
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser
from lib import check as checks
from lib.check import check, main, passed, same
from lib.daemon import WORK, Daemon, dropped_at
from lib.load import free_port, send as send_all

TOKEN = "0123456789abcdef0123456789abcdef"
METRICS, LISTEN, QUIET = free_port(socket.SOCK_STREAM), free_port(), free_port()
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


LONG_NAME = "a-listener-whose-name-is-as-long-as-a-name-can-be-".ljust(64, "x")
CONFIG = f"""[[listener]]
name = "syslog"
address = "127.0.0.1:{LISTEN}"
lanes = 1
share_port = true
sinks = ["fine", "stuck"]
[[listener]]
name = "{LONG_NAME}"
address = "127.0.0.1:{QUIET}"
sinks = ["fine"]
[sink.fine]
type = "null"
[sink.stuck]
type = "stdout"
format = "lines"
queue_bytes = "256KiB"
"""
# The name of another process is not to be had inside the sandbox.
KEYS = f'sandbox = "off"\nmetrics_address = "127.0.0.1:{METRICS}"\npool_bytes = "4MiB"\nhistory = "1d"\n'


def until(what, test):
    """Waits for longer than any machine needs until a test returns something else than None."""
    found = []

    def look():
        found[:] = [test()]
        return found[0] is not None

    checks.until(what, look, 120, 0.1)
    return found[0]


class Running(Daemon):
    """Its stdout is not read, so the sink that writes there is stuck as soon as the pipe is full."""

    # The one that runs now.
    current = None

    def __init__(self, token=""):
        state = os.environ | {"STATE_DIRECTORY": f"{WORK}/state"}
        super().__init__(CONFIG, daemon=KEYS + token, stdout=subprocess.PIPE, env=state)
        Running.current, self.sent = self, 0

    def stop(self, how):
        self.child.send_signal(how)
        # What the stuck sink holds is let go, so that the end is not waited for.
        self.child.stdout.close()
        self.child.wait()


def send(count):
    """Slowly enough for a receiver that gets its core now and then only."""
    Running.current.sent += count
    send_all(LISTEN, [b"x" * 500] * count, pause=0.01, at_once=10)


def status(path, **fields):
    request = urllib.request.Request(ADDRESS + path, headers=fields)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


def no_errors(browser, when):
    found = browser.console()
    check(not found, f"errors in the console {when}: {found}")


def until_live(browser, words):
    browser.wait_until(words, "return document.getElementById('link-words').textContent === 'live'")


RECEIVED = (
    "return Number([...document.querySelectorAll('#listeners tbody tr')].find((row) => row.firstChild.innerText"
    " === 'syslog')?.children[4].innerText.replaceAll(',', ''))"
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
    # For the record: how fast a machine is decides nothing here.
    painted = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    passed(f"the page shows what was received, to the datagram; first paint after {painted:.0f} ms")


def names_the_loss(browser):
    send(4000)
    seen = browser.wait_until("the loss in the queue", LOSS)
    # A starved receiver may have lost some at its socket before.
    if seen["toned"] == ["queue"]:
        same(seen["title"], "Datagrams are being lost in the sink's queue", seen)
    check("sink stuck" in seen["words"] and "Raise queue_bytes" in seen["words"], seen)
    same(seen["falls"], len(seen["toned"]), seen)
    no_errors(browser, "while datagrams are lost")
    passed("the loss is named in the right layer, and nowhere else")


def of_ledger():
    return Running.current.listener()


def lost_at_rest():
    """What the ledger has lost once everything that was sent is delivered, lost or held by the stuck sink."""

    def look():
        now = of_ledger()
        has_come = now["received"] + now["kernel_dropped"] == Running.current.sent
        is_offered = all(sink["offered"] == now["received"] for sink in now["sinks"])
        if not (has_come and is_offered and now["residual"] == 0):
            return None
        return now["kernel_dropped"] + dropped_at(now) + sum(map(dropped_at, now["sinks"]))

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
    check(seen["name"] == "syslog" and seen["marks"] >= 1, seen)


def until_host_chart_tells_the_history(browser):
    """What the chart says of the host is what the daemon keeps of it: a peak, nothing, or that it is not known."""

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

    # A page that is opened in the middle of it gets the same hour: from the daemon until then, from the stream since.
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
        same(seen, {"found": expected, "told": bounds[-1][0]}, f"{what}: {seen}")
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
        same(seen, sums, f"{what}: {seen}, and not {sums}")
    passed("the hour that the daemon told is joined with the stream: nothing twice, nothing left out")


def fits_every_screen(browser):
    for name, screen in {
        "light": {}, "dark": {"dark": True}, "phone": {"width": 390, "height": 844, "mobile": True},
        "phone-dark": {"width": 390, "height": 844, "mobile": True, "dark": True}, "tablet": {"width": 820},
        "wide": {"width": 1920},
    }.items():  # fmt: skip
        too_wide = browser.look(f"{WORK}/{name}.png", **screen)
        check(too_wide <= 0, f"{name}: {too_wide} pixels too wide")
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    no_errors(browser, "on any screen")
    passed("it fits a desktop, a tablet and a phone, light and dark")


def lasts_through_restarts(browser):
    told = ""
    for how in (signal.SIGTERM, signal.SIGKILL):
        Running.current.stop(how)
        # It waits for longer than a second only after attempts that found no daemon.
        browser.wait_until("attempts in vain", "return /trying again in [2-9] s/"
                                               ".test(document.getElementById('link-words').textContent)")
        Running()
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


def sorts_its_tables(browser):
    names = "return [...document.querySelectorAll('#listeners tbody th')].map((head) => head.innerText)"
    sorting = ("return [...document.querySelectorAll('#listeners thead th')].map((head) => "
               "[head.innerText.split(' ')[0], head.getAttribute('aria-sort')]).filter((head) => head[1])")
    same(browser.run(names), ["syslog", LONG_NAME], "the one that lost something first")
    same(browser.run(sorting), [["Lost", "descending"]], "by what it sorts at first")
    press = "document.querySelector('#listeners thead button').click();"
    same(browser.run(press + names), [LONG_NAME, "syslog"], "by name")
    same(browser.run(sorting), [["Listener", "ascending"]], "as the heading says")
    same(browser.run(press + names), ["syslog", LONG_NAME], "turned round")
    browser.run("document.querySelectorAll('#listeners thead button')[3].click()")
    states = browser.run("return [...document.querySelectorAll('#sinks td[data-tone]')].map((cell) => cell.innerText)")
    check(states[0].startswith("down since ") and "has handed on nothing" in states[0], states)
    check(states[-1].startswith("up since "), states)
    passed("tables sort by the heading that is pressed, the worst first, and a sink says since when it is down and why")


def keys(*names):
    presses = "".join(f"figure.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{name}', bubbles: true }}));"
                      for name in names)
    return "const figure = document.querySelector('figure'); figure.focus();" + presses


def zooms_all_charts_at_once(browser):
    cursors = "return document.querySelectorAll('.cursor:not([hidden])').length"
    same(browser.run(keys("ArrowLeft") + cursors), 5, "charts with the cursor")
    ends = "return [...document.querySelectorAll('.axis')].map((axis) => axis.lastChild.innerText)"
    zoomed = browser.run(keys("+", "+") + ends)
    check(len(set(zoomed)) == 1 and zoomed[0] != "now", zoomed)
    same(browser.run(keys("Escape") + ends), ["now"] * 5, "all of it again")
    # By the pointer: over the last third of one chart.
    browser.run("document.querySelector('.plot').scrollIntoView({ block: 'center' })")
    box = browser.run("const box = document.querySelector('.plot').getBoundingClientRect();"
                      "return [box.left, box.top, box.width, box.height]")
    for kind, share in (("mousePressed", 0.66), ("mouseMoved", 0.8), ("mouseMoved", 0.95), ("mouseReleased", 0.95)):
        place = {"x": box[0] + share * box[2], "y": box[1] + box[3] / 2}
        browser.devtools("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)
    picked = browser.run(ends)
    check(len(set(picked)) == 1 and picked[0] != "now", picked)
    browser.run("document.getElementById('zoom-out').click()")
    same(browser.run(ends), ["now"] * 5, "all of it again")
    passed("one cursor goes through all charts, and keys, pointer and buttons zoom all of them")


def marks_a_reload(browser):
    Running.current.child.send_signal(signal.SIGHUP)
    browser.wait_until("the mark", "return document.querySelector('.mark-reload') !== null"
                                   " && /Configuration read again/.test(document.getElementById('marks').innerText)")
    no_errors(browser, "after a reload")
    passed("a reload is marked in the charts, and said below them")


def says_that_it_drains(browser):
    Running.current.child.send_signal(signal.SIGTERM)
    told = browser.wait_until("that it drains", """
        const title = document.getElementById('verdict-title').innerText;
        return title.startsWith('Draining since ') && { link: document.getElementById('link-words').innerText,
          cure: document.getElementById('verdict-cure').innerText,
          more: document.querySelectorAll('#verdict li').length };
    """)
    same(told, {"link": "draining", "cure": "", "more": 0}, told)
    Running.current.stop(signal.SIGTERM)
    Running()
    until_live(browser, "the stream again")
    passed("while it drains it says so, and advises nothing")


def shows_days(browser):
    """What was seen before a restart and a kill is there after it."""
    send(200)
    lost_at_rest()

    def arrived():
        return sum(json.load(urllib.request.urlopen(f"{ADDRESS}history?span=day"))["series"]["arrived"])

    file = Path(f"{WORK}/state/history-127.0.0.1:{METRICS}")

    def written():
        """What arrived in the minutes of the file: places of 144 bytes, with the first series in their sixth word."""
        places = [file.read_bytes()[at:at + 144] for at in range(0, 207_360, 144)]
        return sum(int.from_bytes(place[40:48], "little") for place in places if place.startswith(b"udpdday1"))

    before = arrived()
    checks.until("what arrived by now is in the file", lambda: written() >= before, 60, 0.1)
    Running.current.stop(signal.SIGKILL)
    Running()
    check(arrived() >= before > 4000, f"{arrived()} of {before}")
    same(file.stat().st_size, 207_360, "bytes of a day")
    browser.open(ADDRESS)
    until_live(browser, "the stream")
    browser.wait_until("the days", "return !document.getElementById('spans').hidden")
    browser.run("document.querySelector('#spans [value=day]').click()")
    browser.wait_until("the day", "return document.getElementById('hour-title').innerText === 'The last day'"
                                  " && /^peak /.test(document.querySelector('[data-chart=arrived] .top').innerText)"
                                  " && document.querySelectorAll('#marks li').length > 1")
    browser.run("document.querySelector('#spans [value=hour]').click()")
    no_errors(browser, "with days")
    passed("days last through a restart and a kill, in a file of one length")


def is_accessible(browser):
    """By axe-core, where npm can fetch it: nothing of it is in the repository."""
    npm = shutil.which("npm")
    if npm:
        subprocess.run([npm, "pack", "axe-core@4"], cwd=WORK, capture_output=True, timeout=120, check=False)
    packs = list(Path(WORK).glob("axe-core-*.tgz"))
    if not packs:
        return checks.skipped("the check of accessibility by axe-core: npm cannot fetch it")
    subprocess.run(["tar", "xzf", packs[0], "package/axe.min.js"], cwd=WORK, check=True)
    axe = Path(WORK, "package/axe.min.js").read_text(encoding="utf-8")
    for dark in (False, True):
        for width in (390, 1280):
            browser.look(f"{WORK}/axe.png", dark=dark, width=width)
            found = browser.run_async(axe + ";axe.run().then((found) => arguments[0]({ passes: found.passes.length, "
                                      "violations: found.violations.map((one) => [one.id, one.help, "
                                      "one.nodes.slice(0, 3).map((node) => node.html)]) }))")
            check(found["passes"] > 20 and not found["violations"], f"dark {dark}, {width}: {found}")
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    browser.console()
    return passed("axe-core finds nothing to object to, light and dark, on a phone and a desktop")


def images(browser):
    return browser.run("return document.querySelectorAll('img').length")


def takes_no_markup(browser):
    sharer = subprocess.Popen([sys.executable, "-c", SHARER, str(LISTEN)], stdin=subprocess.PIPE)
    try:
        browser.wait_until("the name", "return document.body.innerText.includes(arguments[0])", HOSTILE)
        same(images(browser), 0, "images")
    finally:
        sharer.stdin.close()
        sharer.wait()
    refused = browser.run("try { document.body.innerHTML = arguments[0]; return false } catch { return true }", MARKUP)
    check(refused, "markup from a string was taken")
    same(images(browser), 0, "images")
    browser.console()
    passed("a hostile name from the daemon is text, and the policy refuses markup from strings")


def is_for_keyboards(browser):
    unnamed = browser.run(
        "return [...document.querySelectorAll('a,button,select,figure,[tabindex]')].filter((one) => !one.hidden &&"
        " !one.innerText && !one.ariaLabel && !one.labels?.length).length"
    )
    same(unnamed, 0, f"{unnamed} elements without a name")
    browser.run("document.querySelector('figure').focus()")
    told = browser.run(
        "const figure = document.activeElement;"
        "figure.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }));"
        "return figure.querySelector('.told').textContent"
    )
    check(told, "the arrow keys tell nothing")
    passed("every control has a name, and the arrow keys go through the hour")


def asks_for_the_token(browser):
    Running.current.stop(signal.SIGTERM)
    token = Path(WORK, "token")
    token.write_text(TOKEN)
    token.chmod(0o600)
    Running(f'metrics_token_file = "{token}"')
    for path in ("", "metrics", "stream", "history"):
        same(status(path), 401, path)
    same(status("metrics", Authorization=f"Bearer {TOKEN}"), 200, "the answer to a token")
    browser.open("about:blank")
    browser.open(f"http://reader:{TOKEN}@127.0.0.1:{METRICS}/")
    until_live(browser, "the stream with the token")
    same(browser.console(), [], "the console")
    passed("with a token, a browser that has the password sees page and stream, and no other does")


def all_cases():
    Running()
    browser = Browser(WORK)
    try:
        for case in (shows_real_numbers, names_the_loss, shows_where_the_hour_lost, fits_every_screen, is_for_keyboards,
                     sorts_its_tables, zooms_all_charts_at_once, marks_a_reload, is_accessible, takes_no_markup,
                     makes_no_loss_of_bounds, joins_the_hour_with_the_stream):
            case(browser)
        browser.open(ADDRESS)
        until_live(browser, "the stream")
        says_that_it_drains(browser)
        lasts_through_restarts(browser)
        shows_days(browser)
        asks_for_the_token(browser)
    finally:
        browser.close()


main(all_cases)
