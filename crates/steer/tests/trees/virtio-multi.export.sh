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
# combined channels 4, because the request asks for 4 queues
try ethtool -L eth0 combined 4
# rx ring 1024, because the request asks for 1024 descriptors
try ethtool -G eth0 rx 1024
# indirection table of 128 entries over 4 queues, because each of 4 queues should get its share of the flows
try ethtool -X eth0 equal 4
# hash of UDP over IPv4 "sdfn", because the request asks for "sdfn"
try ethtool -N eth0 rx-flow-hash udp4 sdfn
# hash of UDP over IPv6 "sdfn", because the request asks for "sdfn"
try ethtool -N eth0 rx-flow-hash udp6 sdfn
# interrupt of queue 0 on core 0, because the receiver of queue 0 runs on core 0
interrupt /sys/class/net/eth0/device/../msi_irqs virtio0-input.0 0
# interrupt of queue 1 on core 1, because the receiver of queue 1 runs on core 1
interrupt /sys/class/net/eth0/device/../msi_irqs virtio0-input.1 1
# interrupt of queue 2 on core 2, because the receiver of queue 2 runs on core 2
interrupt /sys/class/net/eth0/device/../msi_irqs virtio0-input.2 2
# interrupt of queue 3 on core 3, because the receiver of queue 3 runs on core 3
interrupt /sys/class/net/eth0/device/../msi_irqs virtio0-input.3 3
# XPS of send queue 0 for core 0, because relays and answers of queue 0 leave through the queue of their own core
put 00000001 /sys/class/net/eth0/queues/tx-0/xps_cpus
# XPS of send queue 1 for core 1, because relays and answers of queue 1 leave through the queue of their own core
put 00000002 /sys/class/net/eth0/queues/tx-1/xps_cpus
# XPS of send queue 2 for core 2, because relays and answers of queue 2 leave through the queue of their own core
put 00000004 /sys/class/net/eth0/queues/tx-2/xps_cpus
# XPS of send queue 3 for core 3, because relays and answers of queue 3 leave through the queue of their own core
put 00000008 /sys/class/net/eth0/queues/tx-3/xps_cpus

exit "$failed"
