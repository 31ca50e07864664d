"""The page in a real browser, through load, loss and restarts of the daemon. Arguments: program, folder for its files."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser, free_port

UDPD, WORK = sys.argv[1], Path(sys.argv[2])
TOKEN = "0123456789abcdef0123456789abcdef"
METRICS = free_port()
ADDRESS = f"http://127.0.0.1:{METRICS}/"
# A name that would be a script if the page took it for markup. Names of listeners are letters; paths are not.
MARKUP = "<img src=x onerror=alert(1)>"


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LISTEN = free_udp_port()
CONFIG = f"""
[daemon]
control_socket = "{WORK}/control.sock"
metrics_address = "127.0.0.1:{METRICS}"
TOKEN
pool_bytes = "4MiB"
[[listener]]
name = "syslog"
address = "127.0.0.1:{LISTEN}"
lanes = 1
sinks = ["fine", "stuck"]
[sink.fine]
type = "null"
[sink.stuck]
type = "stdout"
format = "lines"
queue_bytes = "256KiB"
"""


class Daemon:
    """Nobody reads its stdout, so the sink that writes there is stuck as soon as the pipe is full."""

    def __init__(self, token=""):
        (WORK / "udpd.toml").write_text(CONFIG.replace("TOKEN", token))
        self.log = open(WORK / "log", "w+")
        self.process = subprocess.Popen(
            [UDPD, "run", "-c", WORK / "udpd.toml"], stdout=subprocess.PIPE, stderr=self.log
        )
        deadline = time.monotonic() + 60
        while "ready" not in (WORK / "log").read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, (WORK / "log").read_text()
            time.sleep(0.05)

    def end(self, how):
        self.process.send_signal(how)
        # What the stuck sink holds is let go, so that the end is not waited for.
        self.process.stdout.close()
        self.process.wait()


def send(count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(count):
            sender.sendto(b"x" * 500, ("127.0.0.1", LISTEN))
            if number % 20 == 19:
                time.sleep(0.002)


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


RECEIVED = "return Number(document.querySelector('.sums')?.innerText.match(/since the start ([\\d,]+)/)?.[1].replaceAll(',', ''))"


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
    title = browser.wait_until(
        "the loss", "const t = document.getElementById('verdict-title').textContent; return /^Datagrams/.test(t) && t"
    )
    assert title == "Datagrams are being lost in the sink's queue", title
    words = browser.text("#verdict")
    assert "sink stuck" in words and "Raise queue_bytes" in words, words
    toned = browser.run(
        "return [...document.querySelectorAll('#way li[data-tone=loss]')].map((card) => card.dataset.stage)"
    )
    assert toned == ["queue"], toned
    assert browser.run("return document.querySelectorAll('.falls.loss').length") == 1
    no_errors(browser, "while datagrams are lost")
    passed("the loss is named in the right layer, and nowhere else")


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


def lasts_through_restarts(browser, daemon):
    for how in (signal.SIGTERM, signal.SIGKILL):
        daemon.end(how)
        browser.wait_until("the end", "return /trying again/.test(document.getElementById('link-words').textContent)")
        # Long enough for attempts that find nobody.
        time.sleep(3)
        daemon = Daemon()
        until_live(browser, "the stream again")
        browser.wait_until("the notice", "return /started anew/.test(document.getElementById('notice').textContent)")
        send(30)
        browser.wait_until("counters that began anew", RECEIVED + " === 30")
        no_errors(browser, f"through a restart by {how.name}")
    passed("ended and killed, it says so, comes back, begins anew, and the console stays empty")
    return daemon


def takes_no_markup(browser):
    browser.run(
        "const r = {version: arguments[0]}; document.getElementById('about').textContent = r.version", MARKUP
    )
    refused = browser.run("try { document.body.innerHTML = arguments[0]; return false } catch { return true }", MARKUP)
    assert refused, "markup from a string was taken"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.console()
    passed("the policy refuses markup from strings")


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


def asks_for_the_token(browser, daemon):
    daemon.end(signal.SIGTERM)
    token = WORK / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    daemon = Daemon(f'metrics_token_file = "{token}"')
    for path in ("", "metrics", "stream", "history"):
        assert status(path) == 401, path
    assert status("metrics", Authorization=f"Bearer {TOKEN}") == 200
    browser.open("about:blank")
    browser.open(f"http://anybody:{TOKEN}@127.0.0.1:{METRICS}/")
    until_live(browser, "the stream with the token")
    assert browser.console() == []
    passed("with a token, a browser that has the password sees page and stream, and nobody else does")
    return daemon


def main():
    daemon = Daemon()
    browser = Browser(WORK)
    try:
        shows_real_numbers(browser)
        names_the_loss(browser)
        fits_every_screen(browser)
        is_for_keyboards(browser)
        takes_no_markup(browser)
        browser.open(ADDRESS)
        until_live(browser, "the stream")
        daemon = lasts_through_restarts(browser, daemon)
        daemon = asks_for_the_token(browser, daemon)
    finally:
        browser.close()
        if daemon.process.poll() is None:
            daemon.end(signal.SIGKILL)


if __name__ == "__main__":
    os.chdir(WORK)
    main()
