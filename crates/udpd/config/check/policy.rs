//! Stage two for what a listener refuses (`allow`, `deny`, `rate_limit`), what it joins (`multicast_groups`,
//! `multicast_interface`, `sources`) and how it waits (`busy_poll`).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use super::listener::duration_within;
use super::{accept, within};
use super::{address, networks};
use crate::config::file::raw::RawListener;
use crate::config::file::reader::{Located, Report, Setting};
use crate::config::host::Host;
use crate::config::{Lanes, Listener, Multicast, RateLimit, Spread};
use crate::text::advice::Advice;

/// More cannot come from one address, and below it the arithmetic is exact enough.
const RATE_MAX: u64 = 10_000_000;
/// Spinning longer than this is a receiver that never sleeps.
const BUSY_POLL_MAX: Duration = Duration::from_millis(10);
/// The kernel joins fewer per socket unless told otherwise, see docs/operating.md.
const GROUPS_MAX: usize = 1024;

/// Fills in what `raw` says. The addresses and lanes of the listener stand already.
pub(crate) fn validate(raw: &RawListener, listener: &mut Listener, host: &Host, report: &mut Report<'_>) {
    listener.access = networks::validate(&raw.allow, &raw.deny, report);
    listener.rate_limit = rate_limit(raw, report);
    if let Some(busy_poll) = raw.busy_poll.get() {
        let hint = "\"0us\" is the default";
        listener.busy_poll = duration_within(busy_poll, Duration::ZERO, BUSY_POLL_MAX, hint, report);
    }
    listener.multicast = multicast(raw, listener, host, report);
    if !listener.multicast.groups.is_empty() {
        check_lanes(raw, listener, report);
    }
    check_group_addresses(raw, listener, report);
}

fn rate_limit(raw: &RawListener, report: &mut Report<'_>) -> Option<RateLimit> {
    let number = |setting: &Setting<u64>, report: &mut Report<'_>| {
        setting.get().map_or(0, |written| within(written, 0, RATE_MAX, 0, report) as u64)
    };
    let (per_source, burst) = (number(&raw.rate_per_source, report), number(&raw.rate_burst, report));
    if let Some(written) = raw.rate_burst.get()
        && per_source == 0
        && burst > 0
        && !matches!(raw.rate_per_source, Setting::Wrong)
    {
        let what = format!("a burst of {burst} without a rate limits nothing");
        report.say(&written.place, what, format!("write rate_limit = {{ per_source = 1000, burst = {burst} }}"));
    }
    // Written as 0, the burst is what a second brings.
    let burst = if burst == 0 { per_source } else { burst };
    (per_source > 0).then_some(RateLimit { per_source, burst })
}

fn multicast(raw: &RawListener, listener: &Listener, host: &Host, report: &mut Report<'_>) -> Multicast {
    let mut multicast = Multicast::default();
    let groups = addresses(&raw.multicast_groups, check_group, report);
    let sources = addresses(&raw.sources, check_source, report);
    if let Some(excess) = groups.get(GROUPS_MAX) {
        let what = format!("the listener joins {} groups", groups.len());
        report.say(&excess.place, what, format!("join at most {GROUPS_MAX}, and the others in another listener"));
    }
    if let Some(interface) = raw.multicast_interface.get().filter(|interface| !interface.value.is_empty()) {
        accept(host.check_interface(&interface.value), &interface.place, report);
        if groups.is_empty() && !matches!(raw.multicast_groups, Setting::Wrong) {
            report.say(&interface.place, "nothing is joined on it", "write multicast_groups, or remove it");
        }
        multicast.interface = Some(interface.value.clone());
    } else {
        multicast.interface = listener.interface.clone();
    }
    for group in &groups {
        let received = listener.addresses.iter().any(|address| receives(address, group.value));
        if !received && !listener.addresses.is_empty() {
            let what = format!("no address of the listener receives datagrams sent to {}", group.value);
            let cure = match group.value {
                IpAddr::V4(_) => "listen on \"0.0.0.0:PORT\", or on the group itself",
                IpAddr::V6(_) => "listen on \"[::]:PORT\", or on the group itself",
            };
            report.say(&group.place, what, cure);
        }
        if !sources.is_empty() && !sources.iter().any(|source| source.value.is_ipv4() == group.value.is_ipv4()) {
            let what = format!("{} is of another family than every source", group.value);
            report.say(&group.place, what, "name a source of its family in sources, or join it in another listener");
        }
    }
    for source in &sources {
        if !groups.iter().any(|group| source.value.is_ipv4() == group.value.is_ipv4()) {
            let what = format!("no group of the family of {} is joined", source.value);
            report.say(
                &source.place,
                what,
                "write the group in multicast_groups; to filter unicast by source write allow",
            );
        }
    }
    multicast.groups = groups.into_iter().map(|group| group.value).collect();
    multicast.sources = sources.into_iter().map(|source| source.value).collect();
    multicast
}

/// The addresses of a list, each once.
fn addresses(
    setting: &Setting<Vec<Located<String>>>,
    check: fn(&str) -> Result<IpAddr, Advice>,
    report: &mut Report<'_>,
) -> Vec<Located<IpAddr>> {
    let mut list: Vec<Located<IpAddr>> = Vec::new();
    for text in setting.get().into_iter().flat_map(|list| &list.value) {
        let Some(value) = accept(check(&text.value), &text.place, report) else { continue };
        match list.iter().any(|other| other.value == value) {
            true => report.say(&text.place, format!("{value} is named twice"), "name it once"),
            false => list.push(Located { value, place: text.place.clone() }),
        }
    }
    list
}

fn check_group(text: &str) -> Result<IpAddr, Advice> {
    let right = "write a group from 224.0.0.0 to 239.255.255.255, or one that begins with ff, such as \"239.1.1.1\"";
    match text.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(group) if group.is_multicast() => Ok(group),
        Ok(_) => Err(Advice::new(format!("{text:?} is not a multicast group"), right)),
        Err(_) => Err(Advice::new(format!("{text:?} is not an IP address"), format!("{right}, without a port"))),
    }
}

fn check_source(text: &str) -> Result<IpAddr, Advice> {
    let right = "write the unicast address of a sender, such as \"10.0.0.9\"";
    match text.parse::<IpAddr>() {
        Ok(source) if source.is_multicast() || source.is_unspecified() => {
            Err(Advice::new(format!("{text:?} cannot be the address of a sender"), right))
        }
        Ok(source) => Ok(source),
        Err(_) => Err(Advice::new(format!("{text:?} is not an IP address"), right)),
    }
}

/// Whether a socket on `address` can be given what is sent to `group`.
pub(crate) fn receives(address: &SocketAddr, group: IpAddr) -> bool {
    match address.ip() {
        own if own == group => true,
        IpAddr::V4(own) => own.is_unspecified() && group.is_ipv4(),
        // A socket on [::] takes IPv4 as well.
        IpAddr::V6(own) => own.is_unspecified(),
    }
}

/// The kernel gives a copy of a multicast datagram to every socket that joined, so a group belongs to one lane.
fn check_lanes(raw: &RawListener, listener: &mut Listener, report: &mut Report<'_>) {
    let groups = listener.multicast.groups.len();
    match listener.lanes {
        Lanes::Auto => listener.lanes = Lanes::Count(NonZeroUsize::MIN),
        Lanes::Count(lanes) if lanes.get() > groups => {
            if let Some(written) = raw.lanes.get() {
                let what = format!("{lanes} lanes are more than the groups, of which there are {groups}");
                let cure = format!(
                    "write lanes = {groups} or less: only one lane receives each group, or its datagrams would come \
                     twice"
                );
                report.say(&written.place, what, cure);
            }
        }
        Lanes::Count(_) => {}
    }
    if let Some(spread) = raw.spread.get().filter(|spread| spread.value != Spread::Flow) {
        let what = "does not decide who gets a multicast datagram: every socket that joined its group does";
        report.say(&spread.place, what, "write spread = \"flow\"; lanes = N deals the groups out to N lanes");
    }
}

/// An address that is a group must be joined, or nothing would ever come.
fn check_group_addresses(raw: &RawListener, listener: &Listener, report: &mut Report<'_>) {
    if matches!(raw.multicast_groups, Setting::Wrong) {
        return;
    }
    for text in raw.address.get().into_iter().flat_map(|list| &list.value) {
        let Ok(address) = address::parse_listener(&text.value) else { continue };
        if address.ip().is_multicast() && !listener.multicast.groups.contains(&address.ip()) {
            let what = format!("{} is a multicast group that the listener does not join", address.ip());
            report.say(&text.place, what, format!("write multicast_groups = [\"{}\"]", address.ip()));
        }
    }
}
