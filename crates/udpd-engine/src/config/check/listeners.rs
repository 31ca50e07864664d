//! What is checked of listeners beside their own keys: values of one listener that depend on each other or on the host,
//! its sinks, and names and addresses against those of the other listeners.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::multicast;
use crate::config::host_view::HostView;
use crate::config::listener::ListenerConfig;
use udpd_base::ledger::SINKS_PER_LISTENER_MAX;
use udpd_base::settings::{Findings, Located, Section, ValuePlace};
use udpd_base::text::address::{overlap, parse_listener};
use udpd_base::text::advice::nearest;
use udpd_inspect::policy::{KernelFilter, parse_network};

/// The most addresses of one listener, and of all together: each costs at least one lane, and each pair is compared.
const ADDRESSES_MAX: usize = 64;
const ADDRESSES_TOTAL_MAX: usize = 4096;

/// Checks a listener by itself.
pub(super) fn check(section: &mut Section<'_, ListenerConfig>, host: &HostView, findings: &mut Findings<'_>) {
    check_address_count(section, findings);
    if let Some(interface) = section.written.text("interface").filter(|interface| !interface.value.is_empty()) {
        findings.accept(host.check_interface(&interface.value), &interface.place);
    }
    check_networks(section, findings);
    check_proxies(section, findings);
    check_kernel_filter(section, findings);
    check_absorb(section, findings);
    check_sequence(section, findings);
    multicast::check(section, host, findings);
}

/// udpd keeps no more than `max_length` of a datagram, also in a train. The default of `size` is cut to it.
fn check_absorb(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let (size, longest) = (listener.absorb.size_bytes, listener.max_length_bytes);
    let is_known = !written.is_wrong("absorb") && !written.is_wrong("max_length");
    let Some(place) = written.inner("absorb", "size").filter(|_| is_known && size > longest) else { return };
    let what = format!("{size} bytes are more than max_length keeps of a datagram, which is {longest}");
    findings.say(&place, what, format!("write max_length = {size}, or a size of {longest} at most"));
}

/// Every pause of an exporter would be one.
const SILENCES_TOO_SHORT: std::ops::Range<Duration> = Duration::from_nanos(1)..Duration::from_secs(1);

/// A sequence number behind `max_length` would be cut off.
fn check_sequence(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    if listener.sequence.is_none()
        && !written.is_wrong("sequence")
        && let Some(place) = written.place("silence").filter(|_| !listener.silence.is_zero())
    {
        let right = "write sequence = \"netflow\", or the protocol that its exporters speak";
        findings.say(&place, "without sequence no exporter is followed".to_owned(), right.to_owned());
    } else if let Some(place) = written.place("silence").filter(|_| SILENCES_TOO_SHORT.contains(&listener.silence)) {
        let what = format!("{:?} of silence are between any two datagrams", listener.silence);
        findings.say(&place, what, "write at least \"1s\", and several times the longest pause of an exporter");
    }
    let (Some(sequence), longest) = (listener.sequence, listener.max_length_bytes) else { return };
    let needed = sequence.header_bytes() + listener.proxy_header_bytes();
    let is_known = !written.is_wrong("max_length") && needed > longest;
    let Some(place) = written.place("sequence").filter(|_| is_known) else { return };
    let what = format!("the number ends {needed} bytes into a datagram, of which max_length keeps {longest}");
    findings.say(&place, what, format!("write max_length = {needed}, or more"));
}

/// Headers of proxies are read from named networks only, or not at all.
fn check_proxies(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    if written.is_wrong("proxy_protocol") || written.is_wrong("proxy_from") {
        return;
    }
    match (listener.proxies.protocol.is_on(), listener.proxies.from.is_empty()) {
        (true, true) => {
            let Some(place) = written.place("proxy_from").or_else(|| written.place("proxy_protocol")) else { return };
            let what = "proxy_protocol needs to know whose headers are to be believed";
            findings.say(&place, what, "write proxy_from with the addresses of the proxies, such as [\"10.0.0.5/32\"]");
        }
        (false, false) => {
            let Some(place) = written.place("proxy_from") else { return };
            findings.say(&place, "no headers are read", "write proxy_protocol = \"v2\", or remove proxy_from");
        }
        (true, false) if listener.max_length_bytes < listener.proxy_header_bytes() => {
            let place = written.place("max_length").filter(|_| !written.is_wrong("max_length"));
            let (needed, longest) = (listener.proxy_header_bytes(), listener.max_length_bytes);
            let what = format!("{longest} bytes do not hold the header that a proxy puts before a datagram");
            let cure = format!("write {needed} and what the longest datagram has, or more");
            place.into_iter().for_each(|place| findings.say(&place, &what, &cure));
        }
        _ => {}
    }
}

/// The filter in the kernel sees the address of the proxy, not of the sender behind it, and only what comes to a
/// socket.
fn check_kernel_filter(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let Some(place) = written.place("kernel_filter").filter(|_| !written.is_wrong("kernel_filter")) else { return };
    if listener.access.kernel_filter == KernelFilter::Off {
        return;
    }
    let (what, cure) = if listener.proxies.protocol.is_on() {
        ("the kernel sees the proxies as senders, and the lists are of those behind them", "write \"off\"")
    } else if listener.is_past_the_stack() {
        ("what engine = \"af_xdp\" takes does not come to a socket, where the filter would be", "write \"off\"")
    } else if listener.access.is_open() {
        ("there is nothing to refuse", "write deny or allow, or \"off\"")
    } else {
        return;
    };
    findings.say(&place, what, cure);
}

/// The longest prefix decides, so a network that is in both lists is a contradiction.
fn check_networks(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let networks = |key: &str| {
        let texts = section.written.texts(key).into_iter();
        texts.filter_map(|text| Some((parse_network(&text.value).ok()?, text.place)))
    };
    let allowed: BTreeMap<IpNet, ValuePlace> = networks("allow").collect();
    for (network, place) in networks("deny") {
        let Some(other) = allowed.get(&network) else { continue };
        let (line, _) = findings.position(other.offset);
        let what = format!("{network} is in allow already, at line {line}");
        findings.say(&place, what, "write it in one of the two; the longest prefix decides, and these are equal");
    }
}

/// Refuses two listeners of one name.
pub(super) fn check_names(sections: &[Section<'_, ListenerConfig>], findings: &mut Findings<'_>) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for Located { value, place } in sections.iter().filter_map(|section| section.written.text("name")) {
        let (line, _) = findings.position(place.offset);
        if let Some(first) = seen.get(&value) {
            let what = format!("the listener at line {first} is called {value:?}, too");
            findings.say(&place, what, "give each its own name: the ledger and the metrics are kept by name");
        } else {
            seen.insert(value, line);
        }
    }
}

/// The indexes of the sinks that the listener feeds. `complete` says that `defined` are all that the file has.
pub(super) fn resolve_sinks(
    section: &Section<'_, ListenerConfig>,
    defined: &[&str],
    complete: bool,
    findings: &mut Findings<'_>,
) -> Vec<usize> {
    let names = section.written.texts("sinks");
    if let (Some(place), []) = (section.written.place("sinks"), names.as_slice()) {
        let what = "the list is empty: the datagrams would go nowhere";
        findings.say(&place, what, "name a sink; one of type \"null\" counts and forgets");
    }
    if let Some(excess) = names.get(SINKS_PER_LISTENER_MAX) {
        let what = format!("the listener feeds {} sinks", names.len());
        findings.say(&excess.place, what, format!("feed at most {SINKS_PER_LISTENER_MAX} from one listener"));
    }
    let mut indexes = Vec::new();
    for Located { value: name, place } in names.iter().take(SINKS_PER_LISTENER_MAX) {
        match defined.iter().position(|sink| sink == name) {
            Some(index) if indexes.contains(&index) => {
                findings.say(place, format!("sink {name:?} is named twice"), "name it once");
            }
            Some(index) => indexes.push(index),
            None if complete => {
                let cure = match nearest(name, defined.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None if defined.is_empty() => format!("add [sink.{name}]"),
                    None => {
                        let some = defined[..defined.len().min(20)].join(", ");
                        format!("add [sink.{name}], or name one of {some}")
                    }
                };
                findings.say(place, format!("no sink {name:?} is defined"), cure);
            }
            None => {}
        }
    }
    indexes
}

/// The valid addresses of a listener, each with its place.
pub(super) fn addresses(section: &Section<'_, ListenerConfig>) -> impl Iterator<Item = (SocketAddr, ValuePlace)> {
    let texts = section.written.texts("address").into_iter();
    texts.filter_map(|text| Some((parse_listener(&text.value).ok()?, text.place)))
}

/// Refuses a list without an address, and one that is too long.
fn check_address_count(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
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

/// Refuses two addresses that match the same datagram. The kernel divides what comes to two equal addresses by a hash
/// of the sender, and of a wildcard and a specific address it prefers the specific one. Neither is what two listeners
/// are written for.
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
            // The kernel prefers a socket that is bound to an interface, so only those of one interface compete.
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
