"""Rules, dashboard and metrics, read by promtool; see promtool.sh."""
import json
import re
import urllib.request

from lib.check import check, main, passed, until
from lib.daemon import NULL, WORK, Daemon, listening
from lib.host import ends, read, write
from lib.load import free_port, send


def promtool(*arguments, text=""):
    """What promtool says, which must find nothing wrong."""
    return ends(0, "promtool", *arguments, input=text)


def rules():
    promtool("check", "rules", "config/prometheus/udpd.rules.yml")
    promtool("test", "rules", "config/prometheus/udpd.rules.test.yml")
    passed("the rules are valid and alert where they should")


def dashboard():
    """Each query of the dashboard as a rule, with what Grafana puts in place of its variables."""
    board = json.loads(read("config/grafana/udpd.json"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [note["expr"] for note in board["annotations"]["list"]]
    check(len(queries) > 15, f"too few queries: {queries}")
    named = [{"record": f"query:{number}", "expr": query.replace("$__rate_interval", "1m")}
             for number, query in enumerate(queries)]
    write(f"{WORK}/dashboard.yml", json.dumps({"groups": [{"name": "dashboard", "rules": named}]}))
    promtool("check", "rules", f"{WORK}/dashboard.yml")
    passed("every query of the dashboard is valid")


def metrics():
    port = free_port()
    numbered = 'sequence = { offset = 0, bytes = 4, order = "big" }'
    Daemon(listening(f'address = "127.0.0.1:{port}"\n{numbered}', nothing=NULL,
                     file='type = "file"\npath = "DIR/in.log"', relay='type = "udp"\ndestinations = ["127.0.0.1:9"]'),
           daemon=f'metrics_address = "127.0.0.1:{port}"')
    send(port, [number.to_bytes(4, "big") + b"x" * 96 for number in range(100)])

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    # The histograms and what the senders' own numbers tell are to be looked at as well.
    for line in ("udpd_received_bytes_total.* 10000", "udpd_residence_seconds_count.* [1-9]",
                 "^udpd_upstream_.* [1-9]"):
        until(f"the metrics have: {line}", lambda pattern=line: re.search(pattern, scrape(), re.M), pause=0.1)
    said = promtool("check", "metrics", text=scrape())
    check(not said, f"promtool has advice on the metrics: {said}")
    passed("promtool finds nothing in the metrics of a running udpd")


main(rules, dashboard, metrics)
