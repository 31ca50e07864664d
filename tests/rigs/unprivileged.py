"""udpd of an ordinary user; see unprivileged.sh."""
from lib.check import check, main, passed, same, skipped
from lib.daemon import UDPD, WORK, Daemon, all_delivered, file_sink, listening
from lib.host import ends, read
from lib.load import free_port, send
from lib.net import UNPRIVILEGED


def low_port():
    """Exit 77, the capability and the line that grants it."""
    first = int(read("/proc/sys/net/ipv4/ip_unprivileged_port_start"))
    if first <= 514:
        skipped(f"this host lets every user bind port 514 (net.ipv4.ip_unprivileged_port_start = {first})")
        return
    ends(77, *UNPRIVILEGED, "env", "-i", f"XDG_RUNTIME_DIR={WORK}", UDPD, "run", "--listen", "127.0.0.1:514", "--to",
         "null:", says="AmbientCapabilities=CAP_NET_BIND_SERVICE")
    passed("a low port without the capability is exit 77 and names the cure")


def high_port():
    """Works; the clamped receive buffer is said once, with its cure."""
    port = free_port()
    keys = f'address = "127.0.0.1:{port}"\nreceive_buffer = "256MiB"\nbusy_poll = "50us"'
    daemon = Daemon(listening(keys, file=file_sink("DIR/in.log")), before=UNPRIVILEGED, owner=65534, env={})
    daemon.await_arrived(send(port, [b"line 1", b"line 2", b"line 3"]))
    all_delivered(daemon.end(), 3)
    same(read(f"{daemon.directory}/in.log"), "line 1\nline 2\nline 3\n", "the file")
    check(daemon.said("sysctl -w net.core.rmem_max=") == 1, "the clamped buffer is not said exactly once")
    # Newer kernels let every user poll; where it is refused it is said, and in no case is it a reason not to start.
    check(daemon.said("SO_BUSY_POLL") <= 1, "refused busy polling is said more than once")
    passed("an ordinary user receives on loopback, and a clamped buffer is said once with its cure")


main(low_port, high_port)
