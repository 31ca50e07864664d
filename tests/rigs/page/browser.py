"""Chromium without a window, driven over the REST interface of chromedriver: nothing but the standard library."""
import base64
import json
import socket
import subprocess
import time
import urllib.request

from lib.check import check, until
from lib.daemon import start
from lib.host import write
from lib.load import free_port


class Browser:
    def __init__(self, work):
        self.port = free_port(socket.SOCK_STREAM)
        self.session = ""
        self.driver = start(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
        until("chromedriver answers", self.driver_answers, pause=0.05)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--window-size=1280,900", f"--user-data-dir={work}/profile"]
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                  "goog:chromeOptions": {"args": arguments}}
        # The first start of a browser on a busy machine takes its time.
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, timeout=300)
        self.session = "/session/" + made["sessionId"]

    def driver_answers(self):
        check(self.driver.poll() is None, "chromedriver has ended")
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5)
        except OSError:
            return None

    def call(self, method, path, body=None, timeout=60):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{self.session}{path}", method=method, data=data,
                                         headers={"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=timeout))["value"]

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script):
        """Of a script that calls its last argument with the result."""
        return self.call("POST", "/execute/async", {"script": script, "args": []}, timeout=300)

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait_until(self, what, script, *arguments):
        """Waits until a script returns something true, for longer than any machine needs."""
        return until(lambda: f"seen: {what}; the page says: {self.text('body')[:2000]}",
                     lambda: self.run(script, *arguments), 120, 0.1)

    def console(self):
        """What the console has got since it was last asked, but for what is merely information."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] not in ("INFO", "DEBUG")]

    def look(self, path, dark=False, width=1280, height=900, mobile=False):
        """A picture of the whole page as a screen of this kind shows it; returns how far it is too wide."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.devtools("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        time.sleep(0.5)
        picture = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        write(path, base64.b64decode(picture))
        return self.run("return document.documentElement.scrollWidth - innerWidth")

    def close(self):
        try:
            self.call("DELETE", "")
        except OSError:
            pass
        self.driver.terminate()
        self.driver.wait()
