"""Outages of an interface and of an address under load. The kernel's own counts of this network namespace, in which
udpd is the only one that receives, say what could be delivered: what reached UDP is what udpd has received, what found
its socket full, and what found no socket at all. The numbers in the file say which datagrams those are: between two
outages none may be missing. See outages.sh.
"""
import collections
import json
import time

from lib import net
from lib.check import check, main, passed, same, setting
from lib.daemon import Daemon, engines, file_sink, listening
from lib.load import Bench
from lib.net import OTHER, cut, ip
from lib.records import bench_numbers

RATE = setting("RATE", 50000)
FLOWS, TURNS, BACK_S = 8, 3, 2
ADDRESS, PORT = "10.8.0.1", 5140


def lay():
    net.lay([f"{ADDRESS}/24"], ["10.8.0.2/24"])
    # Nothing that waits for ARP is lost, and no answer is waited for.
    net.introduce(ADDRESS, "card1", OTHER, "card0", None)


def take_address():
    ip(f"address del {ADDRESS}/24 dev card0")


def give_address():
    ip(f"address add {ADDRESS}/24 dev card0")


def kernel():
    """What happened to datagrams at UDP, in this namespace."""
    counts = net.udp_counters()
    return {name: counts[f"Udp:{name}"] for name in ("InDatagrams", "InErrors", "NoPorts", "RcvbufErrors")}


def holes(path):
    """How often the numbers of a flow do not go on, for the flow in which that happens most often, how many datagrams
    there are, and of how many flows."""
    numbers, is_cut = bench_numbers(path)
    check(not is_cut, "the file ends within a line")
    flows = collections.defaultdict(list)
    for flow, sequence in numbers:
        flows[flow].append(sequence)
    most = 0
    for sequences in flows.values():
        sequences.sort()
        same(len(set(sequences)), len(sequences), "a datagram is there twice")
        most = max(most, sum(after != before + 1 for before, after in zip(sequences, sequences[1:])))
    return most, len(numbers), len(flows)


def outages(what, keys, away, back):
    lay()
    before = kernel()
    daemon = Daemon(listening(f'absorb = {{ rate = {RATE}, stall = "5s", size = 64 }}\n{keys}',
                              out=file_sink("DIR/out.log")))
    sender = Bench(f"{ADDRESS}:{PORT}", RATE, "--flows", FLOWS, place=OTHER)

    def hears(more_than, seconds=60):
        daemon.await_listener(f"more than {more_than} arrive", lambda now: now["arrived"] > more_than, seconds)

    hears(RATE // 2)
    longest = 0
    for _ in range(TURNS):
        away()
        time.sleep(0.3)
        heard = daemon.listener()["arrived"]
        back()
        began = time.monotonic()
        hears(heard, BACK_S)
        longest = max(longest, time.monotonic() - began)
        hears(heard + RATE // 2)
    report = sender.end(may_be_refused=True)
    listener = daemon.end()
    counted = {name: value - before[name] for name, value in kernel().items()}
    judge(what, report, listener, counted, holes(f"{daemon.directory}/out.log"), longest)
    cut()


def judge(what, report, listener, counted, found, longest):
    most, in_file, flows = found
    full, nowhere, sent = counted["RcvbufErrors"], counted["NoPorts"], report["sent"]
    told = (listener["received"], listener["sinks"][0]["delivered"], listener["kernel_dropped"])
    same(told, (in_file, in_file, full),
         lambda: f"{what}: received, delivered, dropped by the kernel: {counted}, {json.dumps(listener)}")
    same((counted["InDatagrams"], counted["InErrors"]), (in_file, full), f"{what}: the kernel's own counts")
    # One hole an outage; a machine that is too slow for its receive buffers makes more, and the kernel counts those.
    check(most <= TURNS or full, f"{what}: the numbers of a flow have {most} holes, {TURNS} outages made them")
    check(flows == FLOWS and sent >= in_file, f"{what}: {flows} of {FLOWS} flows, {in_file} of {sent} sent")
    passed(f"{what}, {TURNS} times: receives again after {1000 * longest:.0f} ms at the most; {in_file} in the file "
           f"are what the kernel delivered; {full} found the socket full, {nowhere} none; the other "
           f"{sent - in_file - full - nowhere} of {sent} were sent while there was no way")


def all_outages():
    for engine in engines():
        keys = f'engine = "{engine}"\nlanes = 2'
        outages(f"an interface, {engine}", f'address = "0.0.0.0:{PORT}"\ninterface = "card0"\n{keys}', cut, lay)
        outages(f"an address, {engine}", f'address = "{ADDRESS}:{PORT}"\n{keys}', take_address, give_address)


main(all_outages)
