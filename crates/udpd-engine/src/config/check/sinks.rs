//! What is checked of a sink beside its own keys: that an inline sink never waits, that a relay sends nothing back to
//! udpd, and that a listener feeds no more sinks than the ledger can count. Each destination of a relay to all becomes
//! a sink of its own here.

use std::net::{IpAddr, SocketAddr};

use crate::config::file::SinkInFile;
use crate::config::listener::{ListenerConfig, receives};
use crate::config::sinks::{ConsumerCount, SinkConfig};
use udpd_base::ledger::SINKS_PER_LISTENER_MAX;
use udpd_base::settings::Findings;
use udpd_base::sink::settings::SinkTarget;
use udpd_base::text::address;

/// The keys that mean nothing for an inline sink, and why.
const MEANINGLESS_INLINE: [(&str, &str); 3] = [
    ("consumers", "an inline sink runs in each lane that feeds it"),
    ("queue_bytes", "nothing waits for an inline sink"),
    ("when_full", "an inline sink has no queue that could be full"),
];

/// Checks the sinks that run on the threads of their receivers, and gives each lane a consumer of its own. Such a sink
/// must never wait, because a receiver that waits loses datagrams of all its sinks.
pub(super) fn check_inline(sections: &mut [SinkInFile<'_>], findings: &mut Findings<'_>) {
    for SinkInFile { sink, written, .. } in sections {
        let Some(sink) = sink.as_mut().filter(|sink| sink.inline) else { continue };
        if !sink.settings.never_waits() {
            let place = written.place("inline").unwrap_or_else(|| written.place.clone());
            let what = "this sink may wait, for a disk or a peer, and its receivers would wait with it";
            let cure = "remove inline; a sink of type \"null\" or \"udp\" can have it, and one of type \"unix\" with \
                        socket = \"datagram\"";
            findings.say(&place, what, cure);
        }
        let is_per_lane = sink.consumers == ConsumerCount::PerLane;
        for (key, why) in MEANINGLESS_INLINE.into_iter().filter(|(key, _)| *key != "consumers" || !is_per_lane) {
            if let Some(place) = written.place(key) {
                findings.say(&place, why, format!("remove {key}, or remove inline"));
            }
        }
        sink.consumers = ConsumerCount::PerLane;
    }
}

/// Refuses to send to an address on which udpd itself listens: each datagram would come back for ever.
pub(super) fn check_loops(
    sections: &[SinkInFile<'_>],
    listeners: &[ListenerConfig],
    local: &[IpAddr],
    findings: &mut Findings<'_>,
) {
    for SinkInFile { sink, written, .. } in sections {
        let Some(SinkTarget::Peers(peers)) = sink.as_ref().map(|sink| sink.settings.target()) else { continue };
        let own = written.texts("destinations");
        for destination in peers {
            // A host name is checked when it is looked up.
            let Ok(destination) = address::parse_destination(&destination.to_string()) else { continue };
            let reached = listeners.iter().find_map(|listener| {
                let comes_back = |address: &&SocketAddr| {
                    address::reaches(destination, **address, local) || joins(listener, **address, destination)
                };
                Some((listener, listener.addresses.iter().find(comes_back)?))
            });
            let same = own.iter().find(|text| address::parse_destination(&text.value) == Ok(destination));
            let place = same.map(|text| text.place.clone()).or_else(|| written.place("routes"));
            if let (Some((listener, address)), Some(place)) = (reached, place) {
                let what = format!(
                    "listener {:?} receives on {destination} ({address}): each datagram would come back forever",
                    listener.name
                );
                findings.say(&place, what, "send it elsewhere");
            }
        }
    }
}

/// Whether the listener receives on this address what is sent to this multicast group: the kernel gives a copy to the
/// sender's own host too.
fn joins(listener: &ListenerConfig, address: SocketAddr, destination: SocketAddr) -> bool {
    destination.port() == address.port()
        && listener.multicast.groups.contains(&destination.ip())
        && receives(&address, destination.ip())
}

/// Refuses a listener that feeds more sinks than the ledger has counters for once each destination is a sink.
pub(super) fn check_fan_out(sections: &[SinkInFile<'_>], listeners: &[ListenerConfig], findings: &mut Findings<'_>) {
    let width = |index: &usize| sections[*index].sink.as_ref().map_or(1, |sink| sink.settings.split().len().max(1));
    for listener in listeners {
        let fed: usize = listener.sinks.iter().map(width).sum();
        let relays = listener.sinks.iter().filter(|index| width(index) > 1);
        let place = relays.filter_map(|&index| sections[index].written.place("destinations")).next_back();
        let Some(place) = place.filter(|_| fed > SINKS_PER_LISTENER_MAX) else { continue };
        let what = format!("each destination is a sink of its own, so listener {:?} feeds {fed}", listener.name);
        let cure =
            format!("feed at most {SINKS_PER_LISTENER_MAX} from one listener, or write distribute = \"by_source\"");
        findings.say(&place, what, cure);
    }
}

/// Gives every destination of a relay to all a sink of its own, and the listeners those sinks.
pub(super) fn expand_relays(sinks: Vec<SinkConfig>, listeners: &mut [ListenerConfig]) -> Vec<SinkConfig> {
    let mut expanded = Vec::with_capacity(sinks.len());
    let mut ranges = Vec::with_capacity(sinks.len());
    for sink in sinks {
        let first = expanded.len();
        let parts = sink.settings.split();
        match parts.is_empty() {
            true => expanded.push(sink),
            false => expanded.extend(parts.into_iter().map(|(suffix, settings)| SinkConfig {
                name: format!("{}{suffix}", sink.name),
                settings,
                ..sink.clone()
            })),
        }
        ranges.push(first..expanded.len());
    }
    for listener in listeners {
        listener.sinks = listener.sinks.iter().flat_map(|&sink| ranges[sink].clone()).collect();
    }
    expanded
}
