#!/bin/sh
# Commands, written from a plan. To be run as root while the interfaces are up.
# It keeps nothing of what was before, so nothing can put that back.
# Nothing sets it again when a driver resets the card.
failed=0

# Some versions of ethtool fail when a setting is so already.
try() {
    "$@" || { echo "failed, or set already: $*" >&2; failed=1; }
}
put() {
    echo "$1" >"$2" || { echo "cannot write $1 to $2" >&2; failed=1; }
}
# The interrupt of this name, among those in a folder, gets these cores.
interrupt() {
    for path in "$1"/*; do
        number=${path##*/}
        case ,$(cat "/sys/kernel/irq/$number/actions" 2>/dev/null), in
        *,"$2",*)
            put "$3" "/proc/irq/$number/smp_affinity_list"
            return
            ;;
        esac
    done
    echo "no interrupt is called $2" >&2
    failed=1
}

# eth0
# Left out: interrupt of queue 8 on core 0. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 9 on core 1. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 10 on core 2. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 11 on core 3. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 12 on core 8. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 13 on core 9. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 14 on core 10. There is no command for it yet; export again once the rest is set.
# Left out: interrupt of queue 15 on core 11. There is no command for it yet; export again once the rest is set.
# combined channels 16, because the request asks for 16 queues
try ethtool -L eth0 combined 16
# rx ring 4096, because the request asks for 4096 descriptors
try ethtool -G eth0 rx 4096
# indirection table of 128 entries over 16 queues, because each of 16 queues should get its share of the flows
try ethtool -X eth0 equal 16
# hash of UDP over IPv4 "sdfn", because the request asks for "sdfn"
try ethtool -N eth0 rx-flow-hash udp4 sdfn
# hash of UDP over IPv6 "sdfn", because the request asks for "sdfn"
try ethtool -N eth0 rx-flow-hash udp6 sdfn
# interrupt of queue 0 on core 4, because the receiver of queue 0 runs on core 4
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-0 4
# interrupt of queue 1 on core 5, because the receiver of queue 1 runs on core 5
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-1 5
# interrupt of queue 2 on core 6, because the receiver of queue 2 runs on core 6
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-2 6
# interrupt of queue 3 on core 7, because the receiver of queue 3 runs on core 7
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-3 7
# interrupt of queue 4 on core 12, because the receiver of queue 4 runs on core 12
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-4 12
# interrupt of queue 5 on core 13, because the receiver of queue 5 runs on core 13
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-5 13
# interrupt of queue 6 on core 14, because the receiver of queue 6 runs on core 14
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-6 14
# interrupt of queue 7 on core 15, because the receiver of queue 7 runs on core 15
interrupt /sys/class/net/eth0/device/msi_irqs eth0-TxRx-7 15
# XPS of send queue 0 for core 4, because relays and answers of queue 0 leave through the queue of their own core
put 00000010 /sys/class/net/eth0/queues/tx-0/xps_cpus
# XPS of send queue 1 for core 5, because relays and answers of queue 1 leave through the queue of their own core
put 00000020 /sys/class/net/eth0/queues/tx-1/xps_cpus
# XPS of send queue 2 for core 6, because relays and answers of queue 2 leave through the queue of their own core
put 00000040 /sys/class/net/eth0/queues/tx-2/xps_cpus
# XPS of send queue 3 for core 7, because relays and answers of queue 3 leave through the queue of their own core
put 00000080 /sys/class/net/eth0/queues/tx-3/xps_cpus
# XPS of send queue 4 for core 12, because relays and answers of queue 4 leave through the queue of their own core
put 00001000 /sys/class/net/eth0/queues/tx-4/xps_cpus
# XPS of send queue 5 for core 13, because relays and answers of queue 5 leave through the queue of their own core
put 00002000 /sys/class/net/eth0/queues/tx-5/xps_cpus
# XPS of send queue 6 for core 14, because relays and answers of queue 6 leave through the queue of their own core
put 00004000 /sys/class/net/eth0/queues/tx-6/xps_cpus
# XPS of send queue 7 for core 15, because relays and answers of queue 7 leave through the queue of their own core
put 00008000 /sys/class/net/eth0/queues/tx-7/xps_cpus

exit "$failed"
