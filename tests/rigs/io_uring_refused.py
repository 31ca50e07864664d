"""What `udpd check` says of a kernel that refuses io_uring; see io_uring_refused.sh."""
import ctypes
import errno
import os
import struct

from lib.check import check, main, passed
from lib.daemon import NULL, UDPD, WORK, listening
from lib.host import ends, write

IO_URING_SETUP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 425, 38, 22, 2


def refuse(error):
    """Has the kernel answer io_uring_setup of this process with an error from now on."""
    load_number, else_skip = (0x20, 0, 0, 0), (0x15, 0, 1, IO_URING_SETUP)
    answer, go_on = (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)
    program = b"".join(struct.pack("HBBI", *one) for one in (load_number, else_skip, answer, go_on))
    instructions = ctypes.create_string_buffer(program)
    description = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, description, 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def answers(engine, error, code, *words):
    """`check` of a listener with this engine ends with a code and says these words."""
    write(f"{WORK}/udpd.toml",
          listening(f'address = "127.0.0.1:45171"\nengine = "{engine}"\ngather = "1ms"', nothing=NULL))
    said = ends(code, UDPD, "check", "--json", "-c", f"{WORK}/udpd.toml", preexec_fn=lambda: refuse(error))
    for word in words:
        check(any(one in said for one in word.split("|")),
              f"{engine} and {os.strerror(error)}: {word} is not in {said}")


def refusals():
    answers("io_uring", errno.EPERM, 77, "kernel.io_uring_disabled|seccomp", 'engine = "auto"')
    passed("a forbidden io_uring is exit 77 with cause and cure")
    answers("io_uring", errno.ENOSYS, 69, "CONFIG_IO_URING")
    passed("an absent io_uring is exit 69 with its cause")
    answers("auto", errno.EPERM, 0, '"engine": "recvmmsg"', "auto; ")
    passed("auto needs no ring and says what it took")


main(refusals)
