"""The machines, as a table. A case is what is steered on a machine, and what has to come of it."""
import dataclasses

from machine import Card, Machine


@dataclasses.dataclass
class Case:
    """Some of the cards, steered together."""

    name: str
    ports: list[int]
    # Lines of [steer] beside the interfaces, and of each listener beside its address and interface.
    steer: str = ""
    listener: str = 'spread = "cpu"'
    # What an administrator did before.
    prepare: str = ""
    # None: it cannot be known where the datagrams of this card arrive, and the ledger may say so.
    wrong_cpu: int | None = 0
    # How many receivers the daemon makes, where that is not one for each queue; and of what it then has to warn.
    receivers: int | None = None
    warning: str = ""
    flows: int = 64
    datagrams: int = 4000


@dataclasses.dataclass
class Shape:
    """A machine with its cases, and what else is done on it: names of the table in host.py."""

    machine: Machine
    cases: list[Case]
    extra: tuple[str, ...] = ()
    # What has to be true of the machine itself, or the shape shows nothing.
    topology: dict = dataclasses.field(default_factory=dict)


def even(nodes, mib=512):
    """So many nodes with two cores each."""
    return [(mib, f"{2 * node}-{2 * node + 1}") for node in range(nodes)]


UNEVEN = [(0, 1, 15), (0, 2, 31), (1, 2, 21)]
HOLES = [(0, 1, 15), (0, 2, 17), (0, 3, 31), (1, 2, 21), (1, 3, 16), (2, 3, 25)]
CARDS = [Card(queues=8), Card(), Card(), Card(queues=2, vectors=2), Card(vectors=0), Card("vmxnet3"), Card("e1000e")]
ONE_QUEUE = 'spread = "flow"\nlanes = 4'

SHAPES = {
    # Two nodes and four queues: what everything beyond placement is tried on.
    "two-nodes": Shape(
        Machine("4,sockets=2,cores=2", even(2), [Card(queues=4), Card("vmxnet3", node=1)], [(0, 1, 21)]),
        [
            Case("two-nodes", [0], datagrams=12000),
            Case("fewer-queues", [0], steer='rx_queues = 2\nflow_hash_udp = "sd"'),
        ],
        ("privileges", "verdicts", "rivals", "lasting"),
        {"nodes": [0, 1], "memory": [0, 1]},
    ),
    # Every kind of card and of interrupt, and more and fewer queues than cores.
    "cards": Shape(
        Machine("4", [(1024, "0-3")], CARDS),
        [
            Case("two-cards", [1, 2]),
            Case("more-receivers", [1], listener=ONE_QUEUE, receivers=4),
            Case(
                "more-queues", [0], listener="", prepare="ethtool -L port0 combined 8", receivers=4,
                warning="port0 has 8 receive queues and udpd may use 4 cores, so it gets 4 lanes",
            ),
            Case("two-vectors", [3], listener="", wrong_cpu=None),
            Case("shared-line", [4], listener="", wrong_cpu=None),
            Case(
                "all-cards", [1, 3, 4, 5, 6], listener="", wrong_cpu=None, datagrams=1500,
                warning="there are more lanes than cores",
            ),
        ],
    ),
    # All at once: a node without memory, where the card stands, one without cores, siblings, uneven distances.
    "worst": Shape(
        Machine(
            "8,sockets=2,cores=2,threads=2",
            [(384, "0-3"), (0, "4-5"), (384, ""), (384, "6-7")],
            [Card(queues=2, node=1), Card(queues=4, node=3)],
            HOLES,
        ),
        [Case("worst", [0]), Case("worst-two-cards", [0, 1], listener="")],
        topology={"nodes": [0, 1, 2, 3], "memory": [0, 2, 3], "threads": 2},
    ),
    "journal": Shape(Machine("4", [(512, "0-3")], [Card(queues=4)]), [], ("races", "kills")),
    # Whose losses `udpd explain` has to explain.
    "causes": Shape(Machine("4", [(512, "0-3")], [Card(queues=4), Card("vmxnet3")]), [], ("causes",)),
    # Which loses in every layer at once, and has to say where to the datagram.
    "mixes": Shape(Machine("4", [(1024, "0-3")], [Card("vmxnet3"), Card(queues=4)]), [], ("mixes",)),
    "one-core": Shape(Machine("1", [(512, "0")], [Card()]), [Case("one-core", [0])]),
    "six-cores": Shape(
        Machine("6", [(512, "0-5")], [Card(queues=3), Card(queues=4)]),
        [Case("six-cores", [0]), Case("six-cores-four-queues", [1], listener="")],
    ),
    "many-cores": Shape(
        Machine("36,sockets=2,cores=18", [(1024, "0-17"), (1024, "18-35")], [Card(queues=8, node=1)], [(0, 1, 21)]),
        [Case("many-cores", [0])],
        topology={"nodes": [0, 1], "memory": [0, 1]},
    ),
    "uneven": Shape(
        Machine("6,sockets=3,cores=2", even(3), [Card(queues=2, node=1), Card(queues=4, node=0)], UNEVEN),
        [Case("uneven", [0]), Case("uneven-four-queues", [1], listener="")],
        topology={"nodes": [0, 1, 2], "memory": [0, 1, 2]},
    ),
    "no-memory": Shape(
        Machine("4,sockets=2,cores=2", [(512, "0-1"), (0, "2-3"), (512, "")], [Card(queues=1, node=1)], UNEVEN),
        [Case("no-memory", [0])],
        topology={"nodes": [0, 1, 2], "memory": [0, 2]},
    ),
    "siblings": Shape(
        Machine("8,sockets=1,cores=4,threads=2", [(512, "0-7")], [Card(queues=2), Card(queues=4)]),
        [Case("siblings", [0]), Case("siblings-four-queues", [1], listener="")],
        topology={"threads": 2},
    ),
    "one-queue": Shape(Machine("4", [(512, "0-3")], [Card()]), [Case("one-queue", [0])]),
}

# The longest first: others run beside it.
SHORT = ["two-nodes", "cards", "worst", "journal", "causes", "mixes"]
