//! The sections of a file, checked one against another and against the host, and turned into a [`Config`].
//!
//! Each listener and sink is checked by itself first, then against the others. Checking goes on after a problem: what
//! is wrong is left out, and a problem that only follows from another is not reported.

mod af_xdp;
mod files;
mod listeners;
mod lists;
mod multicast;
mod sinks;

use std::net::{Ipv4Addr, SocketAddr};

use ::steer::plan::Dedication;

pub use self::af_xdp::SLOT_BYTES_MIN;
use super::Config;
use super::daemon::DaemonConfig;
use super::feeders::LaneFeeds;
use super::feeds;
use super::file::Sections;
use super::host_view::HostView;
use super::listener::ListenerConfig;
use super::sinks::SinkConfig;
use super::steer::{SteerConfig, or_auto};
use udpd_base::os::lookup::local_addresses;
use udpd_base::settings::{Findings, Section, ValuePlace};
use udpd_base::text::advice::nearest;

/// More listeners or sinks than this are the mistake of a generator, and each costs threads.
const COUNT_MAX: usize = 1024;

/// Turns the sections into a configuration, as far as they are right. Problems go to `findings`; with any of them the
/// result is of no use.
pub(super) fn validate(mut file: Sections<'_>, host: &HostView, findings: &mut Findings<'_>) -> Config {
    let daemon = file.daemon.as_ref().map_or_else(DaemonConfig::default, |section| section.settings.clone());
    if let Some(place) = file.daemon.as_ref().and_then(|section| section.written.place("user")) {
        findings.accept(host.check_user(&daemon.user), &place);
    }
    check_counts(&file, findings);
    sinks::check_inline(&mut file.sinks, findings);
    let names: Vec<&str> = file.sinks.iter().map(|sink| sink.name.as_str()).collect();
    for section in file.listeners.iter_mut().take(COUNT_MAX) {
        listeners::check(section, host, findings);
        section.settings.sinks = listeners::resolve_sinks(section, &names, file.complete, findings);
    }
    lists::read(&mut file.listeners, host, findings);
    listeners::check_names(&file.listeners, findings);
    listeners::check_overlaps(&file.listeners, findings);
    af_xdp::check(&file.listeners, findings);
    feeds::check(&file.listeners, findings);
    let mut listeners: Vec<ListenerConfig> = file.listeners.iter().map(|section| section.settings.clone()).collect();
    let steer = file.steer.as_ref().map_or_else(SteerConfig::default, |section| {
        let mut steer = check_steer(section, host, findings);
        resolve_dedicated_queues(section, &mut steer, &listeners, file.complete, findings);
        steer
    });
    let queues = |interface: &str| ::steer::receive_queues(&host.sys_root, interface);
    let feeders = LaneFeeds::new(&listeners, &steer, queues, host.usable_cores(&steer));
    files::check_writers(&file.sinks, &feeders, findings);
    files::check_spills(&file.sinks, findings);
    files::check_own_files(&file, &daemon, &feeders, findings);
    sinks::check_loops(&file.sinks, &listeners, &local_addresses(), findings);
    sinks::check_fan_out(&file.sinks, &listeners, findings);
    // Where a sink is missing, the indexes of sinks are wrong, and the configuration is refused anyway.
    let complete = file.sinks.iter().all(|section| section.sink.is_some());
    let sinks: Vec<SinkConfig> = file.sinks.into_iter().filter_map(|section| section.sink).collect();
    let sinks = if complete { sinks::expand_relays(sinks, &mut listeners) } else { sinks };
    Config { daemon, listeners, sinks, steer, warnings: Vec::new() }
}

fn check_counts(file: &Sections<'_>, findings: &mut Findings<'_>) {
    if !file.complete {
        return;
    }
    let top = |key: &str| ValuePlace { offset: 0, key: key.to_owned() };
    if file.listeners.is_empty() {
        let cure = "add [[listener]] with name = \"syslog\", address = \"0.0.0.0:514\" and sinks = [\"archive\"]";
        findings.say(&top("listener"), "the file defines no listener", cure);
    }
    if file.sinks.is_empty() {
        let cure = "add [sink.archive] with type = \"file\" and path = \"/var/log/udpd/{listener}.log\"";
        findings.say(&top("sink"), "the file defines no sink", cure);
    }
    let excess_listener = file.listeners.get(COUNT_MAX).map(|section| &section.written);
    let excess_sink = file.sinks.get(COUNT_MAX).map(|section| &section.written);
    for (excess, count, noun) in
        [(excess_listener, file.listeners.len(), "listeners"), (excess_sink, file.sinks.len(), "sinks")]
    {
        if let Some(excess) = excess {
            let what = format!("the file defines {count} {noun}");
            findings.say(&excess.place, what, format!("define at most {COUNT_MAX}"));
        }
    }
}

/// Cores must exist, and interfaces must unless they may still come.
fn check_steer(section: &Section<'_, SteerConfig>, host: &HostView, findings: &mut Findings<'_>) -> SteerConfig {
    for interface in section.written.texts("interfaces") {
        findings.accept(host.check_steered(&interface.value), &interface.place);
    }
    if let (Some(cores), Some(place)) = (&section.settings.request.cores, section.written.place("cpus")) {
        findings.accept(host.check_cpus(cores).map_err(or_auto), &place);
    }
    section.settings.clone()
}

/// Adds to the steering request the addresses of the listeners that `dedicated_queues` names, in the order of the
/// names.
fn resolve_dedicated_queues(
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

/// The destinations that a card has to match for a socket on `address`: one on every IPv6 address receives IPv4 too.
fn destinations(address: SocketAddr) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, v6.port())), address]
        }
        SocketAddr::V4(_) | SocketAddr::V6(_) => vec![address],
    }
}
