"""Take-overs under a load that the receive buffers do not hold, where the old process is killed at a random moment
from the first question of the new one on. What was sent has to be in the files, in the ledgers, or within what the
new process says that the dead one may have lost.

Neither is believed: the files are read by their numbers, and what the ledgers say of the kernel's drops has to be what
the kernel counted in this namespace. Where the old process dies before it has passed its sockets, what was in them is
gone, and the new one has to say so: null in its ledger, and a line in its log. Such a row is told apart.
"""
import collections
import random
import signal
import time

from lib import net
from lib.check import LONG, Failed, check, main, passed, setting
from lib.daemon import PATIENCE
from lib.service import Terms
from successive import Successive

RATE, KILLS = setting("RATE", 60_000 if LONG else 20_000), setting("KILLS", 100 if LONG else 6)
SEED = setting("SEED", random.randrange(1 << 32))
# So many on one sender, so that one that cannot be known leaves the others exact.
IN_A_ROW = 5
UNKNOWN = "before its sockets were passed"
# How far the two were when the old one died, by words in the log of the new one.
STAGES = {
    "has ended before it had passed its sockets": UNKNOWN,
    "has died before it could be taken over from": "while it received on or stopped",
    "has died before it had written its last ledger": "while it ended",
    "was killed after it had handed over": "before its last ledger",
    "nothing to take over": "before it was asked",
}


def stage(new):
    return next((name for words, name in STAGES.items() if new.said(words)), "after all")


def kernel_counts():
    """What the kernel dropped at all sockets of this namespace, and what found no socket."""
    counts = net.udp_counters()
    return counts["Udp:InErrors"], counts["Udp:NoPorts"]


def take(terms, old, new):
    """Adds what is known of the old process; whether all of it is."""
    ledger = new.ledger()
    before = ledger["before"]
    if stage(new) == UNKNOWN:
        check(before["kernel_dropped"] is None and before["lost_datagrams_at_most"] is None,
              f"this cannot be known: {before}")
        return False
    check(before and before["pid"] == old.child.pid, f"before is {before}, and {old.child.pid} was killed")
    if before["ended"]:
        terms.take_last(old.last())
    else:
        terms.take_before(ledger)
        check(all(one["kernel_dropped_between"] is not None for one in ledger["listeners"]), f"not known: {ledger}")
    return True


def end(service, is_known):
    """A sender is refused when the sockets are gone with their process."""
    try:
        service.end_sending()
    except Failed:
        if is_known or service.running.child.poll() is not None:
            raise
    service.end_running()


def row(times, chance, stages, longest):
    """One sender; returns whether all is known, and the terms."""
    service, terms, is_known = Successive(f"kills, row {stages.total()}", rate=RATE, buffer="256KiB"), Terms(), True
    begun, no_port = kernel_counts()
    service.begin(file="0")
    for number in range(1, times + 1):
        old, new = service.running, service.next(lanes=chance.choice([1, 2, 2, 3]), file=number)
        new.await_log("asking process")
        asked = time.monotonic()
        time.sleep(chance.uniform(0, longest[0]))
        old.child.send_signal(signal.SIGKILL)
        code = old.child.wait(PATIENCE)
        service.goes_on_with(new)
        # A little more than it takes, so that some die after all.
        if code == 0:
            longest[0] = min(longest[0], 1.2 * (time.monotonic() - asked))
        stages[stage(new)] += 1
        is_known = take(terms, old, new) and is_known
        service.pause()
    end(service, is_known)
    terms.take_last(service.running.last())
    sent, in_files, _ = service.count()
    lost = sent - in_files - terms.by_kernel - terms.own
    ended, no_port_now = kernel_counts()
    what = (f"{sent} sent = {in_files} in the files + {terms.by_kernel} dropped by the kernel + {terms.own} by udpd + "
            f"{lost} lost, of {terms.at_most} at most; the kernel counted {ended - begun}, and {no_port_now - no_port} "
            "without a socket")
    check(lost >= 0 and (not is_known or (lost <= terms.at_most and terms.by_kernel == ended - begun and
                                          no_port_now == no_port)), f"SEED={SEED}: {what}")
    return is_known, sent, in_files, terms.by_kernel, terms.own, lost, terms.at_most


def kills():
    stages, longest, rows, chance = collections.Counter(), [0.4], [], random.Random(SEED)
    while stages.total() < KILLS:
        rows.append(row(min(IN_A_ROW, KILLS - stages.total()), chance, stages, longest))
    sums = [sum(one[place] for one in rows if one[0]) for place in range(1, 7)]
    told = ", ".join(f"{count} {name}" for name, count in sorted(stages.items()))
    passed(f"the old process of a take-over killed at {KILLS} random moments ({told}) at {RATE}/s, SEED={SEED}; "
           f"{sum(one[0] for one in rows)} of {len(rows)} senders with all terms known: %d sent = %d in the files + %d "
           "dropped by the kernel, which counted the same, + %d by udpd + %d lost, of %d at most; of the others it is "
           "said what is not known" % tuple(sums))


main(kills)
