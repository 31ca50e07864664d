//! Sinks that send to addresses: the loops they could make, and one sink for each of several destinations.

use std::net::{IpAddr, SocketAddr};

use crate::config::file::sinks::SinkPart;
use crate::config::listener::ListenerConfig;
use crate::config::multicast::receives;
use crate::config::sinks::SinkConfig;
use udpd_base::ledger::SINKS_PER_LISTENER_MAX;
use udpd_base::settings::Findings;
use udpd_base::sink::settings::SinkTarget;
use udpd_base::text::address;

/// Refuses to send to where udpd itself listens: each datagram would come back, for ever.
pub(crate) fn check_loops(
    parts: &[SinkPart<'_>],
    listeners: &[ListenerConfig],
    local: &[IpAddr],
    findings: &mut Findings<'_>,
) {
    for SinkPart { sink, written, .. } in parts {
        let Some(SinkTarget::Peers(peers)) = sink.as_ref().map(|sink| sink.settings.target()) else { continue };
        let own = written.texts("destinations");
        for destination in peers {
            // A name is judged where it is looked up.
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

/// Whether this address of a listener is given what is sent to a group: the kernel gives a sender's own host its copy
/// too.
fn joins(listener: &ListenerConfig, address: SocketAddr, destination: SocketAddr) -> bool {
    destination.port() == address.port()
        && listener.multicast.groups.contains(&destination.ip())
        && receives(&address, destination.ip())
}

/// Gives every destination of a relay to all a sink of its own, and the listeners those.
pub(crate) fn expand(sinks: Vec<SinkConfig>, listeners: &mut [ListenerConfig]) -> Vec<SinkConfig> {
    let mut expanded = Vec::with_capacity(sinks.len());
    let mut places = Vec::with_capacity(sinks.len());
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
        places.push(first..expanded.len());
    }
    for listener in listeners {
        listener.sinks = listener.sinks.iter().flat_map(|&sink| places[sink].clone()).collect();
    }
    expanded
}

/// Refuses a listener that feeds more sinks than the ledger has counters for once every destination is one.
pub(crate) fn check_counts(parts: &[SinkPart<'_>], listeners: &[ListenerConfig], findings: &mut Findings<'_>) {
    let width = |index: &usize| parts[*index].sink.as_ref().map_or(1, |sink| sink.settings.split().len().max(1));
    for listener in listeners {
        let fed: usize = listener.sinks.iter().map(width).sum();
        let relays = listener.sinks.iter().filter(|index| width(index) > 1);
        let place = relays.filter_map(|&index| parts[index].written.place("destinations")).next_back();
        let Some(place) = place.filter(|_| fed > SINKS_PER_LISTENER_MAX) else { continue };
        let what = format!("each destination is a sink of its own, so listener {:?} feeds {fed}", listener.name);
        let cure =
            format!("feed at most {SINKS_PER_LISTENER_MAX} from one listener, or write distribute = \"by_source\"");
        findings.say(&place, what, cure);
    }
}
