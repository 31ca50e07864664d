//! Which listeners have receive queues of their own, and what a card has to know of them: the names that `[steer]`
//! writes, turned into what these listeners listen to.

use std::net::{Ipv4Addr, SocketAddr};

use steer::plan::Dedication;

use crate::config::listener::ListenerConfig;
use crate::config::steer::SteerConfig;
use udpd_base::settings::{Findings, Section};
use udpd_base::text::suggest::nearest;

/// Adds to the request what the named listeners listen to, in the order of the names.
pub(super) fn resolve(
    section: &Section<'_, SteerConfig>,
    steer: &mut SteerConfig,
    listeners: &[ListenerConfig],
    complete: bool,
    findings: &mut Findings<'_>,
) {
    for (name, queues) in &steer.dedicated_queues {
        let place = section.written.inner("dedicated_queues", name);
        let place = place.unwrap_or_else(|| section.written.place.inner("dedicated_queues"));
        let Some(listener) = listeners.iter().find(|listener| listener.name == *name) else {
            if complete {
                let cure = match nearest(name, listeners.iter().map(|listener| listener.name.as_str())) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => "name a listener of this file".to_owned(),
                };
                findings.say(&place, format!("no listener {name:?} is defined"), cure);
            }
            continue;
        };
        if let Some(interface) = listener.interface.as_ref().filter(|interface| !steer.interfaces.contains(interface)) {
            let what = format!("listener {name:?} receives on {interface}, which is not steered");
            findings.say(&place, what, format!("add {interface:?} to [steer] interfaces"));
        }
        if *queues > 1 {
            let what = format!("listener {name:?} cannot have {queues} receive queues of its own");
            findings.say(&place, what, "write 1: a rule of a card names one queue, and udpd makes no group of several");
        }
        steer.request.dedicated.push(Dedication {
            interface: listener.interface.clone(),
            destinations: listener.addresses.iter().flat_map(|address| destinations(*address)).collect(),
            queues: *queues,
        });
    }
    if let (true, [_, ..], Some(place)) =
        (steer.interfaces.is_empty(), steer.dedicated_queues.as_slice(), section.written.place("dedicated_queues"))
    {
        let what = "queues are to be kept, and no interface is steered";
        findings.say(&place, what, "name the interface in [steer] interfaces");
    }
}

/// A socket on every IPv6 address receives IPv4 too.
fn destinations(address: SocketAddr) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, v6.port())), address]
        }
        SocketAddr::V4(_) | SocketAddr::V6(_) => vec![address],
    }
}
