"""Whatever happens to an apply or a restore on the way: each setting is the original or the plan's, and while any is
the plan's, a journal says what was before."""
from placement import configuration
from shapes import Case

CASE = Case("journal", [0], steer='rx_queues = 2\nflow_hash_udp = "sd"')

# Lines of neither snapshot would be a setting that no plan wanted.
FOREIGN = "grep -vxF -f /tmp/before -f /tmp/planned /tmp/after"
SAVED = "ls /run/udpd-steer/port0*.saved >/dev/null 2>&1"
RANDOM = """
seed=%d
# Leaves it in $chance: a substitution would begin with the same seed each time.
random() { seed=$(((seed * 1103515245 + 12345) %% 2147483648)); chance=$((seed / 65536 * 256 %% $1)); }
"""

RACE = RANDOM + """
for trial in $(seq %d); do
    random %d; (usleep $chance; exec udpd steer apply -c /tmp/more.toml) >/tmp/first 2>&1 & first=$!
    random %d; (usleep $chance; exec udpd steer apply -c /tmp/more.toml) >/tmp/second 2>&1 & second=$!
    random %d; (usleep $chance; exec udpd steer restore) >/tmp/third 2>&1 & third=$!
    for stop in 1 2 3 4 5 6; do
        random 150; usleep $((chance * 1000))
        random 3; case $chance in 0) victim=$first ;; 1) victim=$second ;; *) victim=$third ;; esac
        kill -STOP $victim 2>/dev/null
        random 150; usleep $((chance * 1000))
        kill -CONT $victim 2>/dev/null
    done
    wait $first; wait $second; wait $third
    sh /snapshot.sh port0 >/tmp/after
    if cmp -s /tmp/before /tmp/after; then state=original
    elif cmp -s /tmp/planned /tmp/after; then state=planned
    else state=between; fi
    %s && echo "trial $trial: a setting of no plan" && cat /tmp/first /tmp/second /tmp/third
    [ $state = original ] || %s || echo "trial $trial: $state, and no journal says so"
    echo "trial $trial ended $state" >&2
    udpd steer restore >/tmp/third 2>&1 || cat /tmp/third
    sh /snapshot.sh port0 >/tmp/after
    cmp -s /tmp/before /tmp/after || { echo "trial $trial: not restored"; diff /tmp/before /tmp/after; }
done 2>/tmp/ends
exit 0
"""

KILL = """
changed=0
for kill_number in $(seq %d); do
    udpd steer apply -c /tmp/more.toml >/dev/null 2>&1 & victim=$!
    until set -- /run/udpd-steer/port0*.saved && [ -e "$1" ]; do kill -0 $victim 2>/dev/null || break; done
    usleep $((%d * kill_number / %d))
    kill -9 $victim 2>/dev/null && changed=$((changed + 1))
    wait $victim 2>/dev/null
    udpd steer restore >/tmp/said 2>&1 || cat /tmp/said
    sh /snapshot.sh port0 >/tmp/after
    cmp -s /tmp/before /tmp/after || { echo "kill $kill_number: not restored"; diff /tmp/before /tmp/after; }
done
echo "$changed in the middle" >&2
"""


def prepare(stage):
    """What it was and what it shall be, as the guest shows it; how long an apply takes, in microseconds."""
    guest = stage.guest
    guest.write("/tmp/more.toml", configuration(CASE))
    stage.uneven()
    guest.run("sh /snapshot.sh port0 >/tmp/before")
    said = guest.run(
        "begun=$(cut -d' ' -f1 /proc/uptime | tr -d .); udpd steer apply -c /tmp/more.toml >/tmp/applied || exit 1\n"
        "echo $((($(cut -d' ' -f1 /proc/uptime | tr -d .) - begun) * 10000)); sh /snapshot.sh port0 >/tmp/planned"
    )
    stage.report.check("an apply to be disturbed succeeds", said.code == 0)
    said_back = guest.run("udpd steer restore; sh /snapshot.sh port0 >/tmp/after; diff /tmp/before /tmp/after")
    stage.report.check("and is taken back byte for byte", [] if said_back.code == 0 else said_back.text)
    return int(said.lines()[-1]) if said.code == 0 else 1_000_000


def races(stage, whole):
    count = 200 if whole else 10
    latest = prepare(stage)
    said = stage.guest.run(RACE % (20261122, count, latest, latest, 3 * latest, FOREIGN, SAVED), 60 * count)
    stage.report.check(f"two applies and a restore at once, stopped and continued {count} times", said.text)
    ends = stage.guest.run("cut -d' ' -f4 /tmp/ends | sort | uniq -c").text
    stage.report.fact("ends of the races", " ".join(ends.split()))
    stage.report.check("not all of them ended alike", len(ends.splitlines()) > 1)


def kills(stage, whole):
    count = 50 if whole else 12
    took = prepare(stage)
    said = stage.guest.run(KILL % (count, took // 8, count), 60 * count)
    stage.report.check(f"restored after each of {count} kills", "\n".join(
        line for line in said.lines() if not line.endswith("in the middle")))
    middle = int(next(line for line in said.lines() if line.endswith("in the middle")).split()[0])
    stage.report.fact("kills before the apply had ended by itself", middle)
    # In the short form the guest shares its machine with other rigs, which make the length of an apply a guess.
    stage.report.check("kills came in the middle", middle > (count // 2 if whole else 0))
