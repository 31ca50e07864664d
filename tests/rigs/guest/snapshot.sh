# Every value that steering could disturb, as the kernel and the driver show it. Arguments: the interfaces.
# Read by the shell itself: a process for each of a hundred files takes seconds in an emulated machine.
show() {
    value=
    { read -r value <"$1"; } 2>/dev/null
    echo "$1 $value"
}
for file in /proc/irq/*/smp_affinity_list; do show "$file"; done
for interface; do
    for file in /sys/class/net/"$interface"/queues/*/[rx]ps_cpus /sys/class/net/"$interface"/threaded; do
        show "$file"
    done
    for question in -l -g -x -c -k "-u" "-n $interface rx-flow-hash udp4" "-n $interface rx-flow-hash udp6"; do
        case $question in
        -n*) ethtool $question ;;
        *) ethtool $question "$interface" ;;
        esac
    done
done 2>&1
