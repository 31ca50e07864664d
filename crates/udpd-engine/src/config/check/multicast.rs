//! What is checked of the multicast groups of a listener: its addresses, its lanes and the senders that it names.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use super::listeners::addresses;
use crate::config::host_view::HostView;
use crate::config::listener::{Lanes, ListenerConfig, Spread, receives};
use udpd_base::settings::{Findings, Section};

/// The kernel joins fewer per socket unless told otherwise, see docs/multicast.md.
const GROUPS_MAX: usize = 1024;

/// Checks the groups, and sets the lanes and the interface of the listener that follow from them.
pub(super) fn check(section: &mut Section<'_, ListenerConfig>, host: &HostView, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    if let Some(excess) = written.texts("multicast_groups").get(GROUPS_MAX) {
        let what = format!("the listener joins {} groups", listener.multicast.groups.len());
        findings.say(&excess.place, what, format!("join at most {GROUPS_MAX}, and the others in another listener"));
    }
    match written.text("multicast_interface").filter(|interface| !interface.value.is_empty()) {
        Some(interface) => {
            findings.accept(host.check_interface(&interface.value), &interface.place);
            if listener.multicast.groups.is_empty() && !written.is_wrong("multicast_groups") {
                findings.say(&interface.place, "nothing is joined on it", "write multicast_groups, or remove it");
            }
        }
        None => listener.multicast.interface = listener.interface.clone(),
    }
    if !written.is_wrong("multicast_groups") {
        check_groups(section, findings);
        check_group_addresses(section, findings);
    }
    if !section.settings.multicast.groups.is_empty() {
        check_lanes(section, findings);
    }
}

/// Every group needs an address that receives it and, where there are sources, one of its family.
fn check_groups(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let (groups, sources) = (&listener.multicast.groups, &listener.multicast.sources);
    let has_one_like = |list: &[IpAddr], one: &IpAddr| list.iter().any(|other| other.is_ipv4() == one.is_ipv4());
    for (group, text) in groups.iter().zip(written.texts("multicast_groups")) {
        let received = listener.addresses.iter().any(|address| receives(address, *group));
        if !received && !listener.addresses.is_empty() {
            let cure = match group {
                IpAddr::V4(_) => "listen on \"0.0.0.0:PORT\", or on the group itself",
                IpAddr::V6(_) => "listen on \"[::]:PORT\", or on the group itself",
            };
            findings.say(&text.place, format!("no address of the listener receives datagrams sent to {group}"), cure);
        }
        if !sources.is_empty() && !has_one_like(sources, group) {
            let cure = "name a source of its family in sources, or join it in another listener";
            findings.say(&text.place, format!("{group} is of another family than every source"), cure);
        }
    }
    if written.is_wrong("sources") {
        return;
    }
    for (source, text) in sources.iter().zip(written.texts("sources")) {
        if !has_one_like(groups, source) {
            let cure = "write the group in multicast_groups; to filter unicast by source write allow";
            findings.say(&text.place, format!("no group of the family of {source} is joined"), cure);
        }
    }
}

/// The kernel gives a copy of a multicast datagram to every socket that joined, so a group belongs to one lane.
fn check_lanes(section: &mut Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let groups = listener.multicast.groups.len();
    match listener.lanes {
        Lanes::Auto => listener.lanes = Lanes::Count(NonZeroUsize::MIN),
        Lanes::Count(lanes) if lanes.get() > groups => {
            if let Some(place) = written.place("lanes") {
                let what = format!("{lanes} lanes are more than the groups, of which there are {groups}");
                let cure = format!(
                    "write lanes = {groups} or less: only one lane receives each group, or its datagrams would come \
                     twice"
                );
                findings.say(&place, what, cure);
            }
        }
        Lanes::Count(_) => {}
    }
    if let Some(place) = written.place("spread").filter(|_| listener.spread != Spread::Flow) {
        let what = "does not decide who gets a multicast datagram: every socket that joined its group does";
        findings.say(&place, what, "write spread = \"flow\"; lanes = N deals the groups out to N lanes");
    }
}

/// An address that is a group must be joined, or nothing ever arrives.
fn check_group_addresses(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let listener = &section.settings;
    let is_missing =
        |address: &SocketAddr| address.ip().is_multicast() && !listener.multicast.groups.contains(&address.ip());
    for (address, place) in addresses(section).filter(|(address, _)| is_missing(address)) {
        let what = format!("{} is a multicast group that the listener does not join", address.ip());
        findings.say(&place, what, format!("write multicast_groups = [\"{}\"]", address.ip()));
    }
}
