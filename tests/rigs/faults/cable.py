"""A virtual cable for one trial of the engine past the kernel's stack: the daemon's end is here, the sender's in the
other network namespace."""
from lib import net
from lib.net import OTHER, ip


class Cable:
    def __init__(self, number):
        self.card, self.far = f"c{number:x}", f"d{number:x}"
        network = f"10.66.{number >> 8}"
        self.address, peer = (f"{network}.{(number & 0xFC) + end}" for end in (1, 2))
        net.lay([f"{self.address}/30"], [f"{peer}/30"], self.card, self.far)
        for card, place, neighbour, far, far_place in ((self.card, None, peer, self.far, OTHER),
                                                       (self.far, OTHER, self.address, self.card, None)):
            # No host asks for anything over this cable: what it carries and drops is what the trial sends.
            net.set_proc(f"ipv6/conf/{card}/disable_ipv6", 1, place)
            net.introduce(neighbour, card, place, far, far_place)

    def dropped(self):
        return net.link(self.far, OTHER)["stats64"]["tx"]["dropped"]

    def has_program(self):
        return "xdp" in net.link(self.card)

    def remove(self):
        ip(f"link del {self.card}")
