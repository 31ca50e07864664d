"""VLAN tags beside the frame, as an interface of a VLAN gives them, on a kernel that may have no such interfaces."""
import contextlib
import ctypes
import os
import platform
import socket
import struct

from lib import net
from lib.net import OTHER

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(number, command, buffer, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def tag_what_is_marked(card):
    """Has what leaves with a mark get a tag of that VLAN beside the frame, as an interface of a VLAN would give it."""
    def instruction(code, destination, source, offset, immediate):
        return struct.pack("<BBhi", code, source << 4 | destination, offset, immediate)

    program = b"".join([
        instruction(0xBF, 6, 1, 0, 0),
        instruction(0x61, 3, 6, 8, 0),  # the mark
        instruction(0x15, 3, 0, 4, 0),
        instruction(0x57, 3, 0, 0, 0xFFF),
        instruction(0xB7, 2, 0, 0, socket.htons(0x8100)),
        instruction(0xBF, 1, 6, 0, 0),
        instruction(0x85, 0, 0, 0, 18),  # bpf_skb_vlan_push
        instruction(0xB7, 0, 0, 0, -1),  # TCX_NEXT
        instruction(0x95, 0, 0, 0, 0),
    ])
    code, license = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    at_egress = 47  # BPF_TCX_EGRESS
    loaded = bpf(5, struct.pack("<IIQQIIQII16sII", 3, len(program) // 8, ctypes.addressof(code),
                                ctypes.addressof(license), 0, 0, 0, 0, 0, b"rig_tags", 0, at_egress))
    return bpf(28, struct.pack("<IIII", loaded, socket.if_nametoindex(card), at_egress, 0) + bytes(32))


@contextlib.contextmanager
def tags_of_marks():
    """What leaves card1 with a mark in this block has a tag; the end of the descriptor is the end of that."""
    with net.inside(OTHER):
        link = tag_what_is_marked("card1")
    try:
        yield
    finally:
        os.close(link)
