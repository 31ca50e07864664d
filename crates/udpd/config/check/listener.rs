//! Stage two for `[[listener]]`: each by itself, then its addresses against those of the others.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::address;
use super::policy;
use super::{accept, check_name, within};
use crate::config::file::raw::RawListener;
use crate::config::file::reader::{Located, Report, Setting};
use crate::config::file::values::WordOr;
use crate::config::host::Host;
use crate::config::{Absorb, Lanes, Listener, ReceiveBuffer};
use crate::text::units::{print_duration, print_size};

/// Every lane is a thread, a socket and a pool.
const LANES_MAX: u64 = 1024;
/// Addresses of one listener, and of all of them: each costs at least one lane, and each pair is compared.
const ADDRESSES_MAX: usize = 64;
const ADDRESSES_TOTAL_MAX: usize = 4096;
/// The kernel accounts twice what it is given, and beyond 1 GiB of that kernels have had their sums wrong.
const RECEIVE_BUFFER_MAX: u64 = 512 << 20;
const RECEIVE_BUFFER_MIN: u64 = 4 << 10;
const GATHER_MAX: Duration = Duration::from_millis(10);

/// A listener with whatever is right of it, and no sinks yet.
pub(crate) fn validate(raw: &RawListener, host: &Host, report: &mut Report<'_>) -> Listener {
    if raw.name.is_absent() {
        let what = "is missing: the ledger and the metrics are kept by name";
        report.say(&raw.place.inner("name"), what, "write name = \"syslog\", for example");
    }
    if let Some(name) = raw.name.get() {
        accept(check_name(&name.value), &name.place, report);
    }
    let mut listener = Listener::new(raw.name.or(String::new()), addresses(raw, report));
    if let Some(interface) = raw.interface.get().filter(|interface| !interface.value.is_empty()) {
        accept(host.check_interface(&interface.value), &interface.place, report);
        listener.interface = Some(interface.value.clone());
    }
    listener.lanes = lanes(&raw.lanes, report);
    listener.spread = raw.spread.or(listener.spread);
    listener.engine = raw.engine.or(listener.engine);
    listener.share_port = raw.share_port.or(listener.share_port);
    listener.gro = raw.gro.or(listener.gro);
    if let Some(batch_size) = raw.batch_size.get() {
        listener.batch_size = within(batch_size, 1, 1024, 64, report);
    }
    if let Some(max_length) = raw.max_length.get() {
        let problem = match max_length.value {
            0 => Some("0 would keep nothing of a datagram".to_owned()),
            1..=65_535 => None,
            bytes => Some(format!("no datagram is as long as {}", print_size(bytes))),
        };
        if let Some(what) = problem {
            report.say(&max_length.place, what, "write 1 to 65535 bytes; \"2KiB\" is the default");
        }
        listener.max_length_bytes = usize::try_from(max_length.value).unwrap_or(listener.max_length_bytes);
    }
    listener.on_truncate = raw.on_truncate.or(listener.on_truncate);
    if let Some(gather) = raw.gather.get() {
        listener.gather = duration_within(gather, Duration::ZERO, GATHER_MAX, "\"0ms\" is the default", report);
    }
    listener.receive_buffer = receive_buffer(&raw.receive_buffer, report);
    listener.absorb = absorb(raw, report);
    listener.timestamps = raw.timestamps.or(listener.timestamps);
    policy::validate(raw, &mut listener, host, report);
    listener
}

fn addresses(raw: &RawListener, report: &mut Report<'_>) -> Vec<std::net::SocketAddr> {
    if raw.address.is_absent() {
        report.say(&raw.place.inner("address"), "is missing", "write address = \"0.0.0.0:514\", for example");
    }
    let Some(list) = raw.address.get() else { return Vec::new() };
    if list.value.is_empty() {
        report.say(&list.place, "the list is empty", "write at least one, such as \"0.0.0.0:514\"");
    }
    if list.value.len() > ADDRESSES_MAX {
        let what = format!("{} addresses in one listener", list.value.len());
        report.say(&list.place, what, format!("write at most {ADDRESSES_MAX}, or 0.0.0.0 for all of this host"));
    }
    let parse = |text: &Located<String>| accept(address::parse_listener(&text.value), &text.place, report);
    list.value.iter().filter_map(parse).collect()
}

fn lanes(raw: &Setting<WordOr<u64>>, report: &mut Report<'_>) -> Lanes {
    match raw.get() {
        Some(Located { value: WordOr::Amount(count), place }) => {
            let out_of_range = *count == 0 || *count > LANES_MAX;
            if out_of_range {
                let cure = format!("write a number from 1 to {LANES_MAX}, or \"auto\"");
                report.say(place, format!("{count} is outside 1 to {LANES_MAX}"), cure);
            }
            usize::try_from(*count).ok().and_then(NonZeroUsize::new).map_or(Lanes::Auto, Lanes::Count)
        }
        _ => Lanes::Auto,
    }
}

fn receive_buffer(raw: &Setting<WordOr<u64>>, report: &mut Report<'_>) -> ReceiveBuffer {
    match raw.get() {
        Some(Located { value: WordOr::Amount(bytes), place }) => {
            if !(RECEIVE_BUFFER_MIN..=RECEIVE_BUFFER_MAX).contains(bytes) {
                let range = format!("{} to {}", print_size(RECEIVE_BUFFER_MIN), print_size(RECEIVE_BUFFER_MAX));
                let what = format!("{} is outside {range}, which is what the kernel can grant", print_size(*bytes));
                report.say(place, what, format!("write {range}, or \"auto\" to compute it from absorb"));
            }
            usize::try_from(*bytes).map_or(ReceiveBuffer::Auto, ReceiveBuffer::Bytes)
        }
        _ => ReceiveBuffer::Auto,
    }
}

fn absorb(raw: &RawListener, report: &mut Report<'_>) -> Absorb {
    let mut absorb = Absorb::default();
    if let Some(rate) = raw.absorb_rate.get() {
        absorb.rate = within(rate, 1, 1_000_000_000, absorb.rate, report) as u64;
    }
    if let Some(stall) = raw.absorb_stall.get() {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(60));
        absorb.stall = duration_within(stall, least, most, "\"250ms\" is the default", report);
    }
    absorb
}

/// Reports a duration outside its range.
pub(crate) fn duration_within(
    located: &Located<Duration>,
    least: Duration,
    most: Duration,
    hint: &str,
    report: &mut Report<'_>,
) -> Duration {
    if !(least..=most).contains(&located.value) {
        let range = format!("{:?} to {:?}", print_duration(least), print_duration(most));
        let what = format!("{} is outside {range}", print_duration(located.value));
        report.say(&located.place, what, format!("write {range}; {hint}"));
    }
    located.value
}

/// Refuses two addresses that would match the same datagram: which socket gets it would depend on which was bound last.
pub(crate) fn check_overlaps(raw: &[RawListener], listeners: &[Listener], report: &mut Report<'_>) {
    let written: Vec<_> = raw
        .iter()
        .zip(listeners)
        .flat_map(|(raw, listener)| {
            raw.address.get().into_iter().flat_map(|list| &list.value).map(move |one| (one, listener))
        })
        .filter_map(|(text, listener)| Some((text, listener, address::parse_listener(&text.value).ok()?)))
        .collect();
    if let Some((excess, ..)) = written.get(ADDRESSES_TOTAL_MAX) {
        let what = format!("the file names {} addresses", written.len());
        report.say(&excess.place, what, format!("name at most {ADDRESSES_TOTAL_MAX}"));
        return;
    }
    for (index, (text, listener, address)) in written.iter().enumerate() {
        let earlier = written[..index].iter().find(|(_, other, taken)| {
            // A socket on an interface is preferred by the kernel to one on none, so only equals compete.
            other.interface == listener.interface && address::overlap(taken, address)
        });
        let Some((other_text, _, taken)) = earlier else { continue };
        let (line, _) = report.position(other_text.place.offset);
        match taken == address {
            true => {
                let what = format!("line {line} listens on {address} already");
                report.say(&text.place, what, "listen once on an address; lanes = N opens N sockets on it");
            }
            false => {
                let (wide, narrow) = if taken.ip().is_unspecified() { (taken, address) } else { (address, taken) };
                let what =
                    format!("{address} overlaps {taken} of line {line}: {wide} also takes what is sent to {narrow}");
                report.say(&text.place, what, "listen on one of the two, or give the listeners different interfaces");
            }
        }
    }
}
