#!/usr/bin/env bash
# A thousand listeners in one process: every port is bound, ten numbered datagrams to each from a sender of its own are
# counted by listener, in `stats --json` and in /metrics, scrapes beside a load on one listener lose nothing, and the
# end is clean with closed books. Prints, as figures and not as promises: resident memory, the time until READY, CPU
# when idle, and what a scrape and a reading take. Needs no root, but python3 and the limits for a thousand threads and
# sockets; skips with its reason otherwise. Takes an own program as UDPD=PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED many_listeners.sh: $1"
    exit 0
}
command -v python3 >/dev/null || skip "needs python3"
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 4096 ] || skip "needs 4096 open files (ulimit -Hn)"
processes=$(bash -c 'ulimit -Hu')
[ "$processes" = unlimited ] || [ "$processes" -ge 2048 ] || skip "needs 2048 threads (ulimit -Hu)"
available=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
[ "$available" -ge 1048576 ] || skip "needs 1 GiB of free memory"

if [ -z "${UDPD:-}" ]; then
    cargo build --release --bin udpd
    UDPD=$PWD/${CARGO_TARGET_DIR:-target}/release/udpd
fi
exec python3 - "$UDPD" <<'END'
import http.client, json, os, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time

PROGRAM, LISTENERS, EACH, LOAD, RATE = sys.argv[1], 1000, 10, 100_000, 50_000
work = tempfile.mkdtemp()
daemon = None


def fail(why):
    print("FAILED:", why)
    try:
        print(open(work + "/log").read()[-4000:])
    except OSError:
        pass
    sys.exit(1)


def check(condition, why):
    if not condition:
        fail(why)


def free_ports(kind, count, first):
    found = []
    for port in range(first, 32700):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
        if len(found) == count:
            return found
    fail(f"no {count} free ports on loopback")


def main():
    global daemon
    ports = free_ports(socket.SOCK_DGRAM, LISTENERS, 20000)
    (metrics,) = free_ports(socket.SOCK_STREAM, 1, 32000)
    head = f'[daemon]\ncontrol_socket = "{work}/control.sock"\nmetrics_address = "127.0.0.1:{metrics}"\n'
    head += f'stats_on_exit = "{work}/ledger.json"\n[sink.all]\ntype = "null"\n'
    one = '[[listener]]\nname = "customer{}"\naddress = "127.0.0.1:{}"\nsinks = ["all"]\n'
    with open(work + "/udpd.toml", "w") as file:
        file.write(head + "".join(one.format(*pair) for pair in enumerate(ports)))
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(work + "/notify")
    notify.settimeout(60)
    begun = time.monotonic()
    daemon = subprocess.Popen(
        [PROGRAM, "run", "-c", work + "/udpd.toml"],
        stderr=open(work + "/log", "w"),
        env={**os.environ, "NOTIFY_SOCKET": work + "/notify"},
    )
    while b"READY=1" not in notify.recv(4096):
        pass
    ready = time.monotonic() - begun

    def status(field):
        with open(f"/proc/{daemon.pid}/status") as file:
            return int(re.search(rf"^{field}:\s+(\d+)", file.read(), re.M).group(1))

    def cpu():
        # The CPU clock of another process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~daemon.pid << 3) | 2)

    def stats():
        begun = time.monotonic()
        answer = subprocess.run(
            [PROGRAM, "stats", "--json", "--socket", work + "/control.sock"], capture_output=True, check=True
        )
        return json.loads(answer.stdout), time.monotonic() - begun

    def scrape():
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", metrics, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return text, time.monotonic() - begun

    def bound():
        with open("/proc/net/udp") as table:
            return {int(line.split()[1].split(":")[1], 16) for line in table.readlines()[1:]}

    check(set(ports) <= bound(), "not every port is bound")
    resident = status("VmRSS")
    before, idle_begun = cpu(), time.monotonic()
    time.sleep(5)
    idle = (cpu() - before) / (time.monotonic() - idle_begun)

    for number, port in enumerate(ports):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for datagram in range(EACH):
                sender.sendto(b"%d %d" % (number, datagram), ("127.0.0.1", port))

    def delivered(ledger):
        return [listener["sinks"][0]["delivered"] for listener in ledger["listeners"]]

    def settled(expected):
        deadline = time.monotonic() + 30
        while True:
            ledger, took = stats()
            if delivered(ledger) == expected:
                return ledger, took
            check(time.monotonic() < deadline, f"delivered {sum(delivered(ledger))}, expected {sum(expected)}")

    ledger, reading = settled([EACH] * LISTENERS)
    text, scraped = scrape()
    sample = r'^udpd_sink_delivered_datagrams_total\{listener="customer(\d+)",[^}]*\} (\d+)$'
    counted = dict(re.findall(sample, text, re.M))
    check(counted == {str(number): str(EACH) for number in range(LISTENERS)}, "/metrics counts differently")

    # A load on the last listener, and scrapes and readings beside it for as long as it lasts.
    sent = [0]

    def load():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.connect(("127.0.0.1", ports[-1]))
        begun = time.monotonic()
        for datagram in range(LOAD):
            sender.send(b"%010d" % datagram)
            sent[0] += 1
            ahead = datagram / RATE - (time.monotonic() - begun)
            if ahead > 0.001:
                time.sleep(ahead)

    thread = threading.Thread(target=load)
    thread.start()
    beside = []
    while thread.is_alive():
        beside.append(scrape()[1])
        stats()
    thread.join()
    ledger, _ = settled([EACH] * (LISTENERS - 1) + [EACH + sent[0]])
    check(ledger["listeners"][-1]["kernel_dropped"] == 0, "the kernel dropped datagrams beside the scrapes")
    daemon.send_signal(signal.SIGTERM)
    end_begun = time.monotonic()
    check(daemon.wait(timeout=60) == 0, f"udpd ended with {daemon.returncode}")
    end = time.monotonic() - end_begun
    ledger = json.load(open(work + "/ledger.json"))
    for listener in ledger["listeners"]:
        (sink,) = listener["sinks"]
        check(listener["residual"] == 0, f"residual of {listener['name']}: {listener['residual']}")
        check(listener["arrived"] == sink["delivered"] + sum(sink["dropped"].values()), listener["name"])
    check(sum(delivered(ledger)) == LISTENERS * EACH + sent[0], "the last reading has other counts")
    check(not set(ports) & bound(), "a port is still bound")
    print(f"{LISTENERS} listeners: {resident / 1024:.0f} MiB resident, ready after {ready:.2f} s, idle "
          f"{idle * 100:.2f} % of a core, a reading {reading * 1000:.0f} ms, a scrape {scraped * 1000:.0f} ms "
          f"(beside the load at most {max(beside) * 1000:.0f} ms, {len(beside)} scrapes), the end {end:.2f} s")


try:
    main()
finally:
    if daemon and daemon.poll() is None:
        daemon.kill()
        daemon.wait()
    shutil.rmtree(work, ignore_errors=True)
print("many_listeners.sh: passed")
END
