# What is checked in the guest. Each check says "ok" or "not ok" with its reason; the last line counts.
total=0
failed=0
ok() { total=$((total + 1)); echo "ok $*"; }
not_ok() { total=$((total + 1)); failed=$((failed + 1)); echo "not ok $*"; }
# check NAME COMMAND...: the command decides.
check() {
    name=$1
    shift
    if "$@"; then ok "$name"; else not_ok "$name"; fi
}
same() { [ "$1" = "$2" ] || { echo "    found: $1"; echo "    wanted: $2"; false; }; }

# Every value that steering could disturb, as the kernel and the driver show it.
snapshot() {
    # Read by the shell itself: a process for each of a hundred files takes seconds in an emulated machine.
    for file in /proc/irq/*/smp_affinity_list /sys/class/net/eth0/queues/*/[rx]ps_cpus; do
        value=
        { read -r value <"$file"; } 2>/dev/null
        echo "$file $value"
    done
    ethtool -l eth0
    ethtool -g eth0
    ethtool -x eth0
    ethtool -n eth0 rx-flow-hash udp4
    ethtool -n eth0 rx-flow-hash udp6
    ethtool -c eth0
    ethtool -k eth0
}

# Asks the other side for datagrams and waits until they are sent: flows, total, a second, port.
send() {
    echo "SEND $1 $2 $3 $4" >/dev/ttyS1
    read -r answer </dev/ttyS1
    case $answer in "SENT $2"*) true ;; *) echo "    the other side said: $answer"; false ;; esac
}

# One snapshot of the daemon's ledger, a key on each line.
ledger() {
    udpd stats --json --socket /run/control.sock | sed 's/[{,[]/&\n/g; s/[]}]/\n&/g' |
        sed 's/^ *//; s/: */:/' >/tmp/stats
}
# The first value of a key, and those of a key in each lane.
first() { sed -n "s/^\"$1\":\([^,]*\),*$/\1/p" /tmp/stats | head -n 1; }
lanes() { sed -n '/^"lanes":/,$p' /tmp/stats | sed -n "s/^\"$1\":\([^,]*\),*$/\1/p" | tr '\n' ' '; }

stty -F /dev/ttyS1 -echo raw 2>/dev/null
echo "kernel $(uname -r)"
check "two memory nodes" same "$(cat /sys/devices/system/node/online)" 0-1
check "eth0 has four queues" same "$(ls -d /sys/class/net/eth0/queues/rx-* | wc -l)" 4
check "the vmxnet3 stands on node 1" same "$(cat /sys/class/net/eth1/device/numa_node)" 1
ip link set eth1 up
check "the vmxnet3 has a plan with its interrupts by name" \
    sh -c 'udpd steer plan eth1 | grep -q "interrupt of queue 0 on core 2"'
check "a plan needs no privileges" \
    sh -c 'setuidgid 65534 udpd steer plan eth0 >/dev/null 2>&1 || udpd steer plan eth0 >/dev/null'

# What the guest starts from, made uneven on purpose: everything on core 3.
for file in /proc/irq/*/smp_affinity_list; do echo 3 >"$file" 2>/dev/null; done
snapshot >/tmp/before
udpd steer apply eth0 >/tmp/applied
check "apply succeeds" same $? 0
cat /tmp/applied
udpd steer apply eth0 >/tmp/again
check "a second apply changes nothing" same "$(cat /tmp/again)" \
    "nothing to change: all that the plan sets is so already"
check "status agrees" sh -c 'udpd steer status eth0 >/dev/null'

cat >/tmp/udpd.toml <<END
[daemon]
control_socket = "/run/control.sock"
metrics_address = ""
stats_on_exit = "/tmp/ledger.json"
[[listener]]
name = "in"
address = "10.9.0.2:5140"
interface = "eth0"
spread = "cpu"
sinks = ["nothing"]
[sink.nothing]
type = "null"
[steer]
interfaces = ["eth0"]
END
udpd run -c /tmp/udpd.toml 2>/tmp/log &
daemon=$!
for _ in $(seq 100); do grep -q "ready:" /tmp/log && break; usleep 100000; done
cat /tmp/log
check "one lane for each queue" grep -q "ready: 4 lanes receive" /tmp/log

# The pool is a mapping of batches for each lane and one of blocks for each node; whatever else is mapped is smaller
# than these. A node has of each what its lanes are of all lanes. The kernel counts pages, the log says MiB with one
# decimal, and batches are planned with room for rounding: within three parts of a hundred.
lanes_on() { grep -c "lane .*, node $1, receive" /tmp/log; }
# mapped LANES_ON_NODE_0 LANES_ON_NODE_1: fails with what it found where a node has less or more.
mapped() {
    memory=$(sed -n 's/.*memory: \([0-9.]*\) MiB in batches, \([0-9.]*\) MiB for what waits.*/\1 \2/p' /tmp/log)
    awk -v memory="$memory" -v first="$1" -v second="$2" '
        BEGIN {
            split(memory, part, " ")
            lanes[0] = first; lanes[1] = second; all = first + second
            smallest = part[1] / all * 0.97
        }
        !/ anon=/ || / (file|heap|stack)/ { next }
        {
            whole = 0; split("", here); match($0, /kernelpagesize_kB=[0-9]+/)
            page = substr($0, RSTART + 18, RLENGTH - 18) / 1024
            for (field = 1; field <= NF; field++)
                if (match($field, /^N[0-9]+=/)) {
                    here[substr($field, 2, RLENGTH - 2)] = substr($field, RLENGTH + 1) * page
                    whole += substr($field, RLENGTH + 1) * page
                }
            if (whole < smallest) next
            count++; nodes = 0
            for (node in here) { mib[node] += here[node]; nodes++ }
            if (nodes != 1) { print "    on several nodes: " $0; wrong = 1 }
        }
        END {
            if (count != all + 2) { print "    mappings of the pool: " count ", wanted " all + 2; wrong = 1 }
            for (node = 0; node < 2; node++) {
                wanted = (part[1] + part[2]) * lanes[node] / all
                if (mib[node] < wanted * 0.97 || mib[node] > wanted * 1.03) {
                    printf "    node %d: found %.1f MiB of the pool, wanted %.1f\n", node, mib[node], wanted; wrong = 1
                }
            }
            exit wrong
        }' /proc/$daemon/numa_maps
}
check "two lanes on each node" same "$(lanes_on 0) $(lanes_on 1)" "2 2"
check "the pool lies on the nodes of its lanes, and no part of it on two" mapped 2 2
check "that could fail" eval '! mapped 3 1 >/dev/null && ! mapped 1 3 >/dev/null'

check "64 flows are sent" send 64 40000 3000 5140
for _ in $(seq 50); do
    ledger
    [ "$(first arrived)" = 40000 ] && break
    usleep 100000
done
received=$(lanes received)
echo "received by lane: $received"
check "everything arrived" same "$(first arrived)" 40000
check "four lanes are shown" same "$(echo $received | wc -w)" 4
check "every queue is used" sh -c "for count in $received; do [ \$count -gt 1000 ] || exit 1; done"
check "nothing arrived on a wrong core" same "$(lanes wrong_cpu)" "0 0 0 0 "

# Something else moves an interrupt.
number=$(sed -n 's/.*irq\/\([0-9]*\)\/.*/\1/p' /tmp/applied | head -n 1)
was=$(cat /proc/irq/$number/smp_affinity_list)
wrong=$(((was + 1) % 4))
echo $wrong >/proc/irq/$number/smp_affinity_list
udpd steer status eth0 >/tmp/status 2>&1
check "status says that something differs" same $? 1
check "status names the value found and the value wanted" \
    grep -q "interrupt $number .* is $wrong, wanted $was" /tmp/status
for _ in $(seq 100); do grep -q "interrupt $number .* is $wrong, wanted $was" /tmp/log && break; usleep 100000; done
check "the daemon says the same within ten seconds" grep -q "interrupt $number .* is $wrong, wanted $was" /tmp/log
kill $daemon
wait $daemon
check "the ledger closes" grep -q '"residual": 0' /tmp/ledger.json

udpd steer restore >/tmp/restored
check "restore succeeds" same $? 0
snapshot >/tmp/after
check "after restore everything is as before, byte for byte" cmp /tmp/before /tmp/after

# Killed in the middle: at fifty moments from the first that something is saved on.
cat >/tmp/more.toml <<END
[[listener]]
name = "in"
address = "10.9.0.2:5140"
sinks = ["nothing"]
[sink.nothing]
type = "null"
[steer]
interfaces = ["eth0"]
rx_queues = 2
flow_hash_udp = "sd"
END
begun=$(cut -d' ' -f1 /proc/uptime | tr -d .)
udpd steer apply -c /tmp/more.toml >/tmp/applied
check "fewer queues and another hash are applied" same $? 0
cat /tmp/applied
took_us=$((($(cut -d' ' -f1 /proc/uptime | tr -d .) - begun) * 10000))
udpd steer restore >/dev/null
snapshot >/tmp/after
check "and taken back byte for byte" cmp /tmp/before /tmp/after
restored=0
changed=0
for kill_number in $(seq 50); do
    udpd steer apply -c /tmp/more.toml >/dev/null 2>&1 &
    victim=$!
    until ls /run/udpd-steer/eth0.*.saved >/dev/null 2>&1; do :; done
    usleep $((took_us * kill_number / 400))
    kill -9 $victim 2>/dev/null && changed=$((changed + 1))
    wait $victim 2>/dev/null
    udpd steer restore >/dev/null 2>&1
    snapshot >/tmp/after
    cmp -s /tmp/before /tmp/after && restored=$((restored + 1))
done
echo "killed 50 times after something was saved, $changed of them before apply had ended by itself"
check "restored after each of 50 kills" same $restored 50
check "most of the kills came in the middle" test $changed -gt 25
echo "RIG-RESULT $failed failed of $total"
