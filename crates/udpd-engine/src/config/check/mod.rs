//! What was read, checked one against another and against the host, and turned into a [`Config`].
//!
//! Each listener and sink is checked by itself first, then against the others. Checking goes on after a problem: a part
//! that is wrong is left out, and whatever would only be a consequence of that is not reported.

mod addresses;
mod af_xdp;
mod dedicated;
mod inline;
mod listeners;
mod lists;
mod multicast;
mod own_files;
pub use af_xdp::SLOT_BYTES_MIN;
pub(super) mod relay;
mod spills;
mod writers;

use super::daemon::DaemonConfig;
use super::feeders::LaneFeeds;
use super::file::parts::Parts;
use super::host::HostView;
use super::listener::ListenerConfig;
use super::sinks::SinkConfig;
use super::steer::{SteerConfig, or_auto};
use super::whole::Config;
use udpd_base::os::lookup::local_addresses;
use udpd_base::settings::{Findings, Section, ValuePlace};

/// More of either is a generated mistake, and every one costs threads.
const COUNT_MAX: usize = 1024;

/// Turns the file into a configuration, as far as it is right. Problems go to `findings`; with any of them the result
/// is of no use.
pub(super) fn validate(mut parts: Parts<'_>, host: &HostView, findings: &mut Findings<'_>) -> Config {
    let daemon = parts.daemon.as_ref().map_or_else(DaemonConfig::default, |section| section.settings.clone());
    if let Some(section) = &parts.daemon
        && let Some(place) = section.written.place("user")
    {
        findings.accept(host.check_user(&daemon.user), &place);
    }
    check_counts(&parts, findings);
    inline::check(&mut parts.sinks, findings);
    let names: Vec<&str> = parts.sinks.iter().map(|sink| sink.name.as_str()).collect();
    for section in parts.listeners.iter_mut().take(COUNT_MAX) {
        listeners::check(section, host, findings);
        section.settings.sinks = listeners::resolve_sinks(section, &names, parts.complete, findings);
    }
    lists::read(&mut parts.listeners, host, findings);
    listeners::check_names(&parts.listeners, findings);
    addresses::check_overlaps(&parts.listeners, findings);
    af_xdp::check(&parts.listeners, findings);
    let mut steer =
        parts.steer.as_ref().map_or_else(SteerConfig::default, |section| check_steer(section, host, findings));
    let mut listeners: Vec<ListenerConfig> = parts.listeners.iter().map(|section| section.settings.clone()).collect();
    if let Some(section) = &parts.steer {
        dedicated::resolve(section, &mut steer, &listeners, parts.complete, findings);
    }
    let queues = |interface: &str| ::steer::receive_queues(&host.sys_root, interface);
    let feeders = LaneFeeds::new(&listeners, &steer, queues, host.usable_cores(&steer));
    writers::check(&parts.sinks, &feeders, findings);
    spills::check(&parts.sinks, findings);
    own_files::check(&parts, &daemon, &feeders, findings);
    relay::check_loops(&parts.sinks, &listeners, &local_addresses(), findings);
    relay::check_counts(&parts.sinks, &listeners, findings);
    // With a sink missing the indexes are wrong, and so is the configuration, of which nobody will hear.
    let complete = parts.sinks.iter().all(|part| part.sink.is_some());
    let sinks: Vec<SinkConfig> = parts.sinks.into_iter().filter_map(|part| part.sink).collect();
    let sinks = if complete { relay::expand(sinks, &mut listeners) } else { sinks };
    Config { daemon, listeners, sinks, steer, warnings: Vec::new() }
}

fn check_counts(parts: &Parts<'_>, findings: &mut Findings<'_>) {
    if !parts.complete {
        return;
    }
    let top = |key: &str| ValuePlace { offset: 0, key: key.to_owned() };
    if parts.listeners.is_empty() {
        let cure = "add [[listener]] with name = \"syslog\", address = \"0.0.0.0:514\" and sinks = [\"archive\"]";
        findings.say(&top("listener"), "the file defines no listener", cure);
    }
    if parts.sinks.is_empty() {
        let cure = "add [sink.archive] with type = \"file\" and path = \"/var/log/udpd/{listener}.log\"";
        findings.say(&top("sink"), "the file defines no sink", cure);
    }
    if let Some(excess) = parts.listeners.get(COUNT_MAX) {
        let what = format!("the file defines {} listeners", parts.listeners.len());
        findings.say(&excess.written.place, what, format!("define at most {COUNT_MAX}"));
    }
    if let Some(excess) = parts.sinks.get(COUNT_MAX) {
        let what = format!("the file defines {} sinks", parts.sinks.len());
        findings.say(&excess.written.place, what, format!("define at most {COUNT_MAX}"));
    }
}

/// Cores must be there, and interfaces unless they may come.
fn check_steer(section: &Section<'_, SteerConfig>, host: &HostView, findings: &mut Findings<'_>) -> SteerConfig {
    for interface in section.written.texts("interfaces") {
        findings.accept(host.check_steered(&interface.value), &interface.place);
    }
    if let (Some(cores), Some(place)) = (&section.settings.request.cores, section.written.place("cpus")) {
        findings.accept(host.check_cpus(cores).map_err(or_auto), &place);
    }
    section.settings.clone()
}
