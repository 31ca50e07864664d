//! Sinks that run on the threads of their receivers. Such a sink must never wait, because a receiver that waits loses
//! datagrams of all its sinks. It has no queue and a consumer of its own in each lane, so the keys of both say nothing.

use crate::config::file::sinks::SinkPart;
use crate::config::sinks::ConsumerCount;
use udpd_base::settings::Findings;

/// What there is no choice of, and why.
const WITHOUT_CHOICE: [(&str, &str); 3] = [
    ("consumers", "an inline sink runs in each lane that feeds it"),
    ("queue_bytes", "nothing waits for an inline sink"),
    ("when_full", "an inline sink has no queue that could be full"),
];

/// Refuses what an inline sink cannot be, and gives each lane its own.
pub(super) fn check(parts: &mut [SinkPart<'_>], findings: &mut Findings<'_>) {
    for SinkPart { sink, written, .. } in parts {
        let Some(sink) = sink.as_mut().filter(|sink| sink.inline) else { continue };
        let place = written.place("inline").unwrap_or_else(|| written.place.clone());
        if !sink.settings.never_waits() {
            let what = "this sink may wait, for a disk or a peer, and its receivers would wait with it";
            let cure = "remove inline; a sink of type \"null\" or \"udp\" can have it, and one of type \"unix\" with \
                        socket = \"datagram\"";
            findings.say(&place, what, cure);
        }
        let is_per_lane = sink.consumers == ConsumerCount::PerLane;
        for (key, why) in WITHOUT_CHOICE.into_iter().filter(|(key, _)| *key != "consumers" || !is_per_lane) {
            if let Some(place) = written.place(key) {
                findings.say(&place, why, format!("remove {key}, or remove inline"));
            }
        }
        sink.consumers = ConsumerCount::PerLane;
    }
}
