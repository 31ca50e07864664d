//! The addresses of the listeners against each other: how many there may be, and which two would take each other's
//! datagrams.

use std::net::SocketAddr;

use crate::config::listener::ListenerConfig;
use udpd_base::settings::{Findings, Section, ValuePlace};
use udpd_base::text::address::{overlap, parse_listener};

/// Addresses of one listener, and of all of them: each costs at least one lane, and each pair is compared.
const ADDRESSES_MAX: usize = 64;
const ADDRESSES_TOTAL_MAX: usize = 4096;

/// The addresses of a listener that are right, each with its place.
pub(super) fn addresses(section: &Section<'_, ListenerConfig>) -> impl Iterator<Item = (SocketAddr, ValuePlace)> {
    let texts = section.written.texts("address").into_iter();
    texts.filter_map(|text| Some((parse_listener(&text.value).ok()?, text.place)))
}

/// Refuses a list without an address, and one that is too long.
pub(super) fn check_count(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Some(place) = section.written.place("address") else { return };
    match section.written.texts("address").len() {
        0 => findings.say(&place, "the list is empty", "write at least one, such as \"0.0.0.0:514\""),
        count if count > ADDRESSES_MAX => {
            let cure = format!("write at most {ADDRESSES_MAX}, or 0.0.0.0 for all of this host");
            findings.say(&place, format!("{count} addresses in one listener"), cure);
        }
        _ => {}
    }
}

/// Refuses two addresses that would match the same datagram. Equal ones would share what comes by a hash of its sender,
/// and a wildcard beside one that is named gets nothing of what is sent to that one: the kernel prefers the narrower.
/// Neither is what two listeners are written for.
pub(super) fn check_overlaps(sections: &[Section<'_, ListenerConfig>], findings: &mut Findings<'_>) {
    let written: Vec<_> = sections
        .iter()
        .flat_map(|section| addresses(section).map(|(address, place)| (address, place, &section.settings.interface)))
        .collect();
    if let Some((_, excess, _)) = written.get(ADDRESSES_TOTAL_MAX) {
        let what = format!("the file names {} addresses", written.len());
        findings.say(excess, what, format!("name at most {ADDRESSES_TOTAL_MAX}"));
        return;
    }
    for (index, (address, place, interface)) in written.iter().enumerate() {
        let earlier = written[..index].iter().find(|(taken, _, other)| {
            // A socket on an interface is preferred by the kernel to one on none, so only equals compete.
            other == interface && overlap(taken, address)
        });
        let Some((taken, taken_place, _)) = earlier else { continue };
        let (line, _) = findings.position(taken_place.offset);
        match taken == address {
            true => {
                let what = format!("line {line} listens on {address} already");
                findings.say(place, what, "listen once on an address; lanes = N opens N sockets on it");
            }
            false => {
                let (wide, narrow) = if taken.ip().is_unspecified() { (taken, address) } else { (address, taken) };
                let what = format!(
                    "{address} overlaps {taken} of line {line}: {wide} would get nothing of what is sent to {narrow}"
                );
                findings.say(place, what, "listen on one of the two, or give the listeners different interfaces");
            }
        }
    }
}
