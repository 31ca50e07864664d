//! The listeners: each by itself, as far as one value of it depends on another or on the host, and their names and
//! sinks.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::{addresses, multicast};
use crate::config::host::HostView;
use crate::config::listener::ListenerConfig;
use udpd_base::ledger::SINKS_PER_LISTENER_MAX;
use udpd_base::settings::{Findings, Located, Section, ValuePlace};
use udpd_base::text::suggest::nearest;
use udpd_inspect::policy::{KernelFilter, parse_network};

/// Checks a listener by itself.
pub(super) fn check(section: &mut Section<'_, ListenerConfig>, host: &HostView, findings: &mut Findings<'_>) {
    addresses::check_count(section, findings);
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

/// Nothing longer than `max_length` is kept, also of the datagrams in a train. The default of `size` is cut to it.
fn check_absorb(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let (size, longest) = (listener.absorb.size_bytes, listener.max_length_bytes);
    let is_known = !written.is_wrong("absorb") && !written.is_wrong("max_length");
    let Some(place) = written.inner("absorb", "size").filter(|_| is_known && size > longest) else { return };
    let what = format!("{size} bytes are more than max_length keeps of a datagram, which is {longest}");
    findings.say(&place, what, format!("write max_length = {size}, or a size of {longest} at most"));
}

/// A number that is cut off is in no datagram.
fn check_sequence(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let (Some(sequence), longest) = (listener.sequence, listener.max_length_bytes) else { return };
    let needed = sequence.header_bytes() + listener.proxy_header_bytes();
    let is_known = !written.is_wrong("max_length") && needed > longest;
    let Some(place) = written.place("sequence").filter(|_| is_known) else { return };
    let what = format!("the number ends {needed} bytes into a datagram, of which max_length keeps {longest}");
    findings.say(&place, what, format!("write max_length = {needed}, or more"));
}

/// Headers are believed of somebody, or not read at all.
fn check_proxies(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    if written.is_wrong("proxy_protocol") || written.is_wrong("proxy_from") {
        return;
    }
    match (listener.proxies.protocol, listener.proxies.from.is_empty()) {
        (true, true) => {
            let Some(place) = written.place("proxy_from").or_else(|| written.place("proxy_protocol")) else { return };
            let what = "proxy_protocol = \"v2\" needs to know whose headers are to be believed";
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

/// The kernel sees the source of the packet, before and not behind proxies, and only what comes to a socket.
fn check_kernel_filter(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) {
    let Section { settings: listener, written } = section;
    let Some(place) = written.place("kernel_filter").filter(|_| !written.is_wrong("kernel_filter")) else { return };
    if listener.access.kernel_filter == KernelFilter::Off {
        return;
    }
    let (what, cure) = if listener.proxies.protocol {
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

/// The longest prefix decides, so a network that is in both lists decides nothing.
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
