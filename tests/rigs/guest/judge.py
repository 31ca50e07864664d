"""What a plan may be, decided from what the guest shows and from nothing that udpd says of the machine.

Each function returns what is wrong, in words; nothing is right. Each can fail: host.py has them judge spoiled plans.
"""
import collections
import re

TOPOLOGY = (
    "cd /sys/devices/system; grep -H . cpu/online node/online node/has_memory"
    " cpu/cpu[0-9]*/topology/thread_siblings_list node/node*/cpulist node/node*/distance"
)
INTERRUPTS = "grep -H . /sys/kernel/irq/*/actions /sys/kernel/irq/*/per_cpu_count /proc/irq/*/smp_affinity_list"


def cores_of(text):
    """A list of cores as the kernel writes it."""
    found = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class Topology:
    """Cores, siblings and memory nodes of a guest."""

    def __init__(self, shown):
        files = dict(line.split(":", 1) for line in shown.splitlines() if ":" in line)
        self.cores = cores_of(files["cpu/online"])
        self.nodes = cores_of(files["node/online"])
        self.memory = cores_of(files["node/has_memory"])
        self.siblings = {core: {core} for core in self.cores}
        self.node_of, self.distances = {}, {}
        for path, text in files.items():
            if found := re.fullmatch(r"cpu/cpu(\d+)/topology/thread_siblings_list", path):
                self.siblings[int(found[1])] = set(cores_of(text))
            elif found := re.fullmatch(r"node/node(\d+)/cpulist", path):
                self.node_of |= {core: int(found[1]) for core in cores_of(text)}
            elif found := re.fullmatch(r"node/node(\d+)/distance", path):
                self.distances[int(found[1])] = dict(zip(self.nodes, map(int, text.split())))

    def has_free_beside(self, core):
        """Whether the node of a core has one beyond its siblings; None has none."""
        if core is None:
            return False
        node = self.node_of[core]
        return any(self.node_of[other] == node and other not in self.siblings[core] for other in self.cores)

    def nearest_memory(self, core):
        """The nodes with memory that are nearest to a core."""
        here = self.distances[self.node_of[core]]
        least = min(here[node] for node in self.memory)
        return {node for node in self.memory if here[node] == least}


class Interrupts:
    """What the guest shows of them at one moment."""

    def __init__(self, shown):
        self.actions, self.counts, self.affinity = {}, {}, {}
        for line in shown.splitlines():
            if found := re.match(r"/sys/kernel/irq/(\d+)/(actions|per_cpu_count):(.*)", line):
                into = self.actions if found[2] == "actions" else self.counts
                into[int(found[1])] = found[3] if found[2] == "actions" else [int(n) for n in found[3].split(",")]
            elif found := re.match(r"/proc/irq/(\d+)/smp_affinity_list:(.*)", line):
                self.affinity[int(found[1])] = cores_of(found[2])

    def of_queue(self, port, device, queue):
        """By the names that the drivers of these cards give; None when the card shows none."""
        names = {device, f"{device}-input.{queue}", f"{device}-virtqueues"}
        names |= {f"port{port}-rxtx-{queue}", f"port{port}-rx-{queue}"}
        for number, actions in self.actions.items():
            if set(actions.split(",")) & names:
                return number
        return None


def seats(plan, topology):
    """No receiver shares a core with an interrupt, or has one on its sibling, while a core of its node is free; and no
    two share a core while any is idle. Free is a core with nothing on it and no interrupt on its sibling."""
    wrong = []
    interrupts, receivers = set(), collections.Counter()
    for interface in plan["interfaces"]:
        for seat in interface["seats"]:
            if seat["interrupt_cpu"] is not None:
                interrupts.add(seat["interrupt_cpu"])
        receivers.update(receiver_cores(interface))
    for core in {*interrupts, *receivers} - set(topology.cores):
        return [f"core {core} is not there"]
    noisy = set().union(*(topology.siblings[core] for core in interrupts))
    idle = [core for core in topology.cores if core not in interrupts and core not in receivers]
    for core, count in receivers.items():
        free = [other for other in idle if other not in noisy and topology.node_of[other] == topology.node_of[core]]
        if count > 1 and idle:
            wrong.append(f"{count} receivers on core {core} while {idle} are idle")
        if core in interrupts and free:
            wrong.append(f"a receiver on core {core}, where an interrupt fires, while {free} are free")
        elif core in noisy and free:
            wrong.append(f"a receiver on core {core}, sibling of an interrupt's, while {free} are free")
    return wrong


def receiver_cores(interface):
    """Of all receivers: queues that take turns on one receiver have one seat of it each."""
    found = {}
    for number, seat in enumerate(interface["seats"]):
        found[seat.get("receiver", number)] = seat["receiver_cpu"]
    spare = interface.get("spare_seats", [])
    return [*found.values(), *(seat.get("cpu", seat.get("receiver_cpu")) for seat in spare)]


def applied(plan, devices, interrupts):
    """Each queue's interrupt may fire where the plan has it, and nowhere else."""
    wrong = []
    for interface in plan["interfaces"]:
        port = int(interface["name"].removeprefix("port"))
        for seat in interface["seats"]:
            number = interrupts.of_queue(port, devices[port], seat["queue"])
            if number is None:
                wrong.append(f"{interface['name']} queue {seat['queue']}: no interrupt has its name")
            elif seat["interrupt_cpu"] is not None and interrupts.affinity[number] != [seat["interrupt_cpu"]]:
                where = interrupts.affinity[number]
                wrong.append(f"interrupt {number} may fire on {where}, planned is {seat['interrupt_cpu']}")
    return wrong


def fired(plan, devices, before, after):
    """And that is where it did fire."""
    wrong, firings = [], 0
    for interface in plan["interfaces"]:
        port = int(interface["name"].removeprefix("port"))
        for seat in interface["seats"]:
            number = after.of_queue(port, devices[port], seat["queue"])
            if number is None or seat["interrupt_cpu"] is None:
                continue
            grown = [now - then for then, now in zip(before.counts[number], after.counts[number])]
            firings += sum(grown)
            elsewhere = sum(grown) - grown[seat["interrupt_cpu"]]
            if elsewhere:
                wrong.append(f"interrupt {number} fired {elsewhere} of {sum(grown)} times elsewhere: {grown}")
    return wrong or ([] if firings else ["no interrupt fired at all"])


def memory(planned, shown, topology):
    """The pool lies on the nodes nearest to its lanes, each mapping on one of them, and each node has its share.

    `planned`: what `udpd check --json` says; `shown`: the daemon's numa_maps.
    """
    lanes = collections.Counter()
    for lane in planned["lanes"]:
        lanes[min(topology.nearest_memory(lane["cpu"]))] += 1
    count = sum(lanes.values())
    smallest = planned["batches_bytes"] / count * 0.97
    found, wrong = collections.Counter(), []
    for line in shown.splitlines():
        if " anon=" not in line or re.search(r" (file=|heap|stack)", line):
            continue
        page_kib = int(re.search(r"kernelpagesize_kB=(\d+)", line)[1])
        here = {int(node): int(pages) * page_kib << 10 for node, pages in re.findall(r" N(\d+)=(\d+)", line)}
        if sum(here.values()) < smallest:
            continue
        found.update(here)
        if len(here) > 1:
            wrong.append(f"a part of the pool on several nodes: {line}")
    # What is planned for the rounding of each batch is not taken.
    for node in {*lanes, *found}:
        wanted = (planned["batches_bytes"] + planned["waiting_bytes"]) * lanes[node] / count
        # What belongs to the main thread may count with the pool, in huge pages. A lane that lies on a wrong node is
        # missed on its own.
        mib = 1 << 20
        if not 0.97 * wanted <= found[node] <= 1.03 * wanted + 8 * mib:
            wrong.append(f"node {node} has {found[node] / mib:.1f} MiB of the pool, its lanes make {wanted / mib:.1f}")
    return wrong
