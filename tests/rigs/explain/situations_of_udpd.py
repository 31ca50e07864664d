"""What udpd's own sockets and sinks lose. The printed key is written into its configuration."""
import json

from lib import net
from lib.daemon import UDPD
from scene import change, listening
from situations import Flow, Situation, as_case

PORT = 5943


def of_daemon(scene, keys, *flows, truth, **options):
    scene.daemon(keys)

    def with_key(found):
        scene.again(change(keys, found))

    return Situation(PORT, *flows, truth=truth, keys=with_key, asked=False, **options)


def stuck_sink_that_blocks(scene):
    """udpd writes into a pipe, which is never read. The key that is printed lets the sink lose instead of the socket,
    so nothing is lost at the socket then."""
    keys = listening(PORT, 'type = "stdout"', receive_buffer='"256KiB"')
    keys["[sink.out]"].update(queue_bytes='"64KiB"', when_full='"block"')
    scene.daemon(keys, stdout=-1)

    def with_key(found):
        scene.stop_all()
        scene.daemon(change(keys, found), stdout=-1)

    return Situation(PORT, Flow(PORT, 3500, size=400), truth=lambda it: {"sink_blocks": it.at_socket}, asked=False,
                     keys=with_key)


def stuck_sink_that_blocks_without_its_file(scene):
    """The same where explain is not told the configuration."""
    made = stuck_sink_that_blocks(scene)
    made.arguments = lambda: ["--port", str(PORT), "--socket", scene.config.socket]
    return made


def stuck_sink_that_drops(scene):
    keys = listening(PORT, 'type = "stdout"')
    keys["[sink.out]"]["queue_bytes"] = '"64KiB"'
    scene.daemon(keys, stdout=-1)

    def truth(situation):
        said = json.loads(net.run(UDPD, "stats", "--json", "-c", scene.config.config))
        return {"sink_too_slow": said["listeners"][0]["sinks"][0]["dropped"]["queue_full"]}

    return Situation(PORT, Flow(PORT, 2500, size=400), truth=truth, asked=False)


def buffer_too_small(scene):
    keys = listening(PORT, receive_buffer='"8KiB"')
    return of_daemon(scene, keys, Flow(PORT, 2000, burst=100),
                     truth=lambda it: {"buffer_too_small": it.at_socket}, allowed=["rmem_max"])


def denied_by_its_own_list(scene):
    """What `deny` refuses in the kernel is asked for, and no loss."""
    keys = listening(PORT, deny='["10.9.0.3/32"]')
    return of_daemon(scene, keys, Flow(PORT, 500), Flow(PORT, 500, "denied", source="10.9.0.3"), truth=lambda it: {})


def cut_at_max_length(scene):
    keys = listening(PORT, max_length='"512B"', on_truncate='"drop"')
    return of_daemon(scene, keys, Flow(PORT, 300, size=1000),
                     truth=lambda it: {"listener_dropped": it.sent["flow"]})


SITUATIONS = [as_case(make) for make in (
    stuck_sink_that_blocks, buffer_too_small, denied_by_its_own_list, stuck_sink_that_blocks_without_its_file,
    stuck_sink_that_drops, cut_at_max_length)]
