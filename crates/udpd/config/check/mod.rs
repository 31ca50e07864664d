//! Stage two: what was written, checked and turned into [`Config`].
//!
//! Each listener and sink is checked by itself first (`validate_listener`, `validate_sink`), then against the others.
//! Checking goes on after a problem: a part that is wrong is left out, and whatever would only be a consequence of that
//! is not reported.

pub(crate) mod address;
pub(crate) mod listener;
mod networks;
mod own_files;
pub(crate) mod paths;
mod policy;
pub(crate) mod relay;
mod sink;
mod steer;
mod writers;

use std::collections::BTreeMap;

use super::feeds::Feeds;
use super::file::raw::{RawConfig, RawDaemon, RawListener};
use super::file::reader::{Located, Place, Report};
use super::host::Host;
use super::{Chosen, Config, Daemon, Sink, Steer};
use crate::text::advice::Advice;
use crate::text::suggest::nearest;

/// More of either is a generated mistake, and every one costs threads.
const COUNT_MAX: usize = 1024;

/// How many sinks one listener can feed; the ledger of a lane has a counter for each.
pub const SINKS_PER_LISTENER_MAX: usize = 16;

/// Names as they appear in metrics, paths and thread names.
const NAME_LENGTH_MAX: usize = 64;

/// Turns the raw file into a configuration, as far as it is right. Problems go to `report`; with any of them the result
/// is of no use.
pub(crate) fn validate(raw: &RawConfig, host: &Host, report: &mut Report<'_>) -> Config {
    let daemon = raw.daemon.as_ref().map_or_else(Daemon::default, |daemon| validate_daemon(daemon, report));
    check_counts(raw, report);
    let sinks: Vec<Option<Sink>> = raw.sinks.iter().map(|sink| sink::validate(sink, host, report)).collect();
    let mut listeners = Vec::new();
    for listener in raw.listeners.iter().take(COUNT_MAX) {
        let mut checked = listener::validate(listener, host, report);
        checked.sinks = resolve_sinks(listener, raw, report);
        listeners.push(checked);
    }
    check_listener_names(&raw.listeners, report);
    listener::check_overlaps(&raw.listeners, &listeners, report);
    let steer = raw.steer.as_ref().map_or_else(Steer::default, |steer| steer::validate(steer, host, report));
    let feeds = Feeds::new(&listeners, |interface| ::steer::receive_queues(&host.sys_root, interface));
    writers::check(&raw.sinks, &sinks, &feeds, report);
    own_files::check(raw, &daemon, &sinks, &feeds, report);
    relay::check_loops(&raw.sinks, &sinks, &listeners, &host.addresses(), report);
    relay::check_counts(&sinks, &listeners, &raw.sinks, report);
    // With a sink missing the indexes are wrong, and so is the configuration, of which nobody will hear.
    let complete = sinks.iter().all(Option::is_some);
    let sinks: Vec<Sink> = sinks.into_iter().flatten().collect();
    let sinks = if complete { relay::expand(sinks, &mut listeners) } else { sinks };
    Config { daemon, listeners, sinks, steer }
}

fn check_counts(raw: &RawConfig, report: &mut Report<'_>) {
    if !raw.complete {
        return;
    }
    let top = |key: &str| Place { offset: 0, key: key.to_owned() };
    if raw.listeners.is_empty() {
        let cure = "add [[listener]] with name = \"syslog\", address = \"0.0.0.0:514\" and sinks = [\"archive\"]";
        report.say(&top("listener"), "the file defines no listener", cure);
    }
    if raw.sinks.is_empty() {
        let cure = "add [sink.archive] with type = \"file\" and path = \"/var/log/udpd/{listener}.log\"";
        report.say(&top("sink"), "the file defines no sink", cure);
    }
    if let Some(excess) = raw.listeners.get(COUNT_MAX) {
        let what = format!("the file defines {} listeners", raw.listeners.len());
        report.say(&excess.place, what, format!("define at most {COUNT_MAX}"));
    }
    if let Some(excess) = raw.sinks.get(COUNT_MAX) {
        let what = format!("the file defines {} sinks", raw.sinks.len());
        report.say(&excess.place, what, format!("define at most {COUNT_MAX}"));
    }
}

fn validate_daemon(raw: &RawDaemon, report: &mut Report<'_>) -> Daemon {
    let mut daemon = Daemon::default();
    if let Some(socket) = raw.control_socket.get() {
        let value = optional(socket, report, paths::check_socket);
        daemon.control_socket = Chosen { value, written: true };
    }
    if let Some(metrics) = raw.metrics_address.get() {
        let value = optional(metrics, report, address::parse_metrics);
        daemon.metrics_address = Chosen { value, written: true };
    }
    if let Some(stats) = raw.stats_on_exit.get() {
        daemon.stats_on_exit = optional(stats, report, paths::check_replaced);
    }
    daemon.log_level = raw.log_level.or(daemon.log_level);
    daemon.log_format = raw.log_format.or(daemon.log_format);
    daemon
}

/// `None` for "", which means off.
fn optional<T>(
    written: &Located<String>,
    report: &mut Report<'_>,
    check: impl FnOnce(&str) -> Result<T, Advice>,
) -> Option<T> {
    match written.value.as_str() {
        "" => None,
        text => accept(check(text), &written.place, report),
    }
}

/// The value, or `None` with the advice reported.
pub(crate) fn accept<T>(outcome: Result<T, Advice>, place: &Place, report: &mut Report<'_>) -> Option<T> {
    outcome.map_err(|advice| report.refuse(place, advice)).ok()
}

/// Reports a number outside its range.
pub(crate) fn within(located: &Located<u64>, least: u64, most: u64, default: u64, report: &mut Report<'_>) -> usize {
    if (least..=most).contains(&located.value) {
        // Every range ends far below what an address can count.
        return usize::try_from(located.value).unwrap_or(usize::MAX);
    }
    let what = format!("{} is outside {least} to {most}", located.value);
    report.say(&located.place, what, format!("write a number from {least} to {most}; {default} is the default"));
    usize::try_from(default).unwrap_or(usize::MAX)
}

/// Refuses a name that could not stand in a metric, a path or a thread name.
pub(crate) fn check_name(name: &str) -> Result<(), Advice> {
    let right = "write 1 to 64 letters, digits, dots, dashes or underscores";
    if name.is_empty() {
        return Err(Advice::new("the name is empty", right));
    }
    if name.len() > NAME_LENGTH_MAX {
        return Err(Advice::new(format!("the name is {} bytes long", name.len()), right));
    }
    if let Some(odd) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_.-".contains(*c)) {
        return Err(Advice::new(format!("{odd:?} cannot stand in a name"), right));
    }
    if name.bytes().all(|byte| byte == b'.') {
        return Err(Advice::new(format!("{name:?} would be a directory when filled into a path"), right));
    }
    Ok(())
}

fn resolve_sinks(raw: &RawListener, config: &RawConfig, report: &mut Report<'_>) -> Vec<usize> {
    let defined = || config.sinks.iter().map(|sink| sink.name.value.as_str());
    if raw.sinks.is_absent() {
        let first = defined().next().unwrap_or("archive");
        let what = "is missing: the datagrams would go nowhere";
        report.say(&raw.place.inner("sinks"), what, format!("write sinks = [{first:?}]"));
    }
    let Some(list) = raw.sinks.get() else { return Vec::new() };
    if list.value.is_empty() {
        let what = "the list is empty: the datagrams would go nowhere";
        report.say(&list.place, what, "name a sink; one of type \"null\" counts and forgets");
    }
    if let Some(excess) = list.value.get(SINKS_PER_LISTENER_MAX) {
        let what = format!("the listener feeds {} sinks", list.value.len());
        report.say(&excess.place, what, format!("feed at most {SINKS_PER_LISTENER_MAX} from one listener"));
    }
    let mut indexes = Vec::new();
    for name in list.value.iter().take(SINKS_PER_LISTENER_MAX) {
        match defined().position(|sink| sink == name.value) {
            Some(index) if indexes.contains(&index) => {
                report.say(&name.place, format!("sink {:?} is named twice", name.value), "name it once");
            }
            Some(index) => indexes.push(index),
            None if config.complete => {
                let cure = match nearest(&name.value, defined()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None if config.sinks.is_empty() => format!("add [sink.{}]", name.value),
                    None => {
                        let names: Vec<_> = defined().take(20).collect();
                        format!("add [sink.{}], or name one of {}", name.value, names.join(", "))
                    }
                };
                report.say(&name.place, format!("no sink {:?} is defined", name.value), cure);
            }
            None => {}
        }
    }
    indexes
}

fn check_listener_names(raw: &[RawListener], report: &mut Report<'_>) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for listener in raw {
        let Some(name) = listener.name.get() else { continue };
        let (line, _) = report.position(name.place.offset);
        match seen.get(name.value.as_str()) {
            Some(first) => {
                let what = format!("the listener at line {first} is called {:?}, too", name.value);
                report.say(&name.place, what, "give each its own name: the ledger and the metrics are kept by name");
            }
            None => {
                seen.insert(&name.value, line);
            }
        }
    }
}
