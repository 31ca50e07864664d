//! Warnings and notes about a plan, for `udpd check` and for the first lines of the log.

use steer::plan::InterfacePlan;

use super::PipelinePlan;
use super::buffers::Buffers;
use super::memory::Bytes;
use super::seating::PlacementInput;
use super::xdp;
use crate::config::{Config, Lanes, ListenerConfig, Spread};
use udpd_inspect::policy::KernelFilter;

/// What will not work fully on this machine, each with its cure.
pub fn warnings(config: &Config, plan: &PipelinePlan) -> Vec<String> {
    let mut warnings = known_at_start(config, plan);
    warnings.extend(Buffers::of(plan).clamped());
    let unfed = config.sinks.iter().zip(&plan.sinks).filter(|(_, plan)| plan.consumers == 0);
    warnings.extend(
        unfed.map(|(sink, _)| {
            format!("no listener feeds sink {}; name it in a listener's sinks or remove it", sink.name)
        }),
    );
    warnings
}

/// The part of it that would not show later, when sockets and sinks are opened.
fn known_at_start(config: &Config, plan: &PipelinePlan) -> Vec<String> {
    let mut known: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    known.extend(plan.remarks.iter().cloned());
    known.extend(idle_queue_lanes(config, plan));
    known.extend(Buffers::of(plan).uncovered());
    if plan.shared_cores {
        known.push(
            "receivers share cores: there are more lanes than cores, or several listeners or addresses on one steered \
             interface, which take the same cores; lower lanes, widen [steer] cpus or join those listeners"
                .into(),
        );
    }
    known
}

/// Lanes of interfaces whose number of receive queues does not suit the cores or the spread.
pub(super) fn lanes_of_cores(config: &Config, input: &PlacementInput<'_>) -> Vec<String> {
    let feeders = input.feeders(config);
    let cores = input.usable().len();
    let mut lines = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let Some(name) = &listener.interface else { continue };
        let engines = feeders.lanes_past_the_stack(index);
        if engines > cores {
            lines.push(format!(
                "listener {}: {name} has {engines} receive queues, each of which has a lane past the kernel's stack, \
                 and udpd may use {cores} cores, so lanes take turns; give {name} {cores} queues (ethtool -L, or \
                 rx_queues of [steer]), or widen [steer] cpus",
                listener.name
            ));
        }
        if config.steer.dedicated_to(listener).is_some() || engines > 0 {
            continue;
        }
        let found = config.steer.queues_asked(name).or_else(|| input.interfaces.queues.get(name).copied());
        let kept = config.steer.dedicated_on(name);
        let Some(queues) = found.map(|queues| queues.saturating_sub(kept).max(1)) else { continue };
        let beside = if kept > 0 { format!(" beside {kept} kept for others") } else { String::new() };
        let (lanes, who) = (feeders.lanes_on_address(index), &listener.name);
        if listener.lanes == Lanes::Auto && lanes < queues {
            lines.push(format!(
                "listener {who}: {name} has {queues} receive queues{beside} and udpd may use {cores} cores, so it gets \
                 {lanes} lanes, and each takes several of the queues"
            ));
        }
        let has_interrupts = input.interfaces.around.get(name).is_some_and(|around| !around.fires_on.is_empty());
        if listener.spread == Spread::Cpu && has_interrupts && lanes > queues {
            lines.push(format!(
                "listener {who}: the datagrams of {name} arrive on as many cores as it has receive queues, which is \
                 {queues}, so spread = \"cpu\" feeds no more of its {lanes} lanes; name {name} in [steer] interfaces \
                 and run `udpd steer apply`, or write spread = \"flow\""
            ));
        }
    }
    lines
}

/// Listeners whose dedicated receive queue a card cannot keep, so that they have fewer lanes than it has queues.
pub(super) fn queues_not_kept(config: &Config, input: &PlacementInput<'_>) -> Vec<String> {
    let feeders = input.feeders(config);
    let mut lines = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate().filter(|(_, found)| found.lanes == Lanes::Auto) {
        let Some((place, _)) = config.steer.dedicated_to(listener) else { continue };
        let is_meant = |part: &&InterfacePlan| listener.interface.as_ref().is_none_or(|name| *name == part.name);
        for part in input.interfaces.steered.iter().filter(is_meant) {
            if part.dedicated.iter().any(|kept| kept.dedication == place) {
                continue;
            }
            let (name, who, lanes) = (&part.name, &listener.name, feeders.lanes_on_address(index));
            let lanes = if lanes == 1 { "one lane".to_owned() } else { format!("{lanes} lanes") };
            lines.push(format!(
                "interface {name} keeps no receive queue: listener {who} has {lanes} for what arrives on all queues; \
                 write lanes = {} for it, or take it out of [steer] dedicated_queues",
                part.seats.len()
            ));
        }
    }
    lines
}

/// An interface may change its number of queues, so fewer queues than lanes are a warning and no error.
fn idle_queue_lanes<'a>(config: &'a Config, plan: &'a PipelinePlan) -> impl Iterator<Item = String> + use<'a> {
    plan.idle_lanes(config, Spread::Queue).map(|lane| {
        let listener = &config.listeners[lane.listener];
        format!(
            "listener {}: lane {} has no receive queue of {} to itself and stays idle; lower lanes, or give the \
             interface more receive queues with ethtool -L and restart udpd",
            listener.name,
            lane.number,
            listener.interface.as_deref().unwrap_or("its interface")
        )
    })
}

/// The source filters that udpd will attach to sockets: a line for each listener.
pub fn kernel_filters(config: &Config) -> Vec<String> {
    let line = |listener: &ListenerConfig| {
        let list = listener.access.list.as_ref().filter(|_| listener.access.kernel_filter != KernelFilter::Off)?;
        Some(format!(
            "listener {}: filters refuse sources in the kernel; memory of the kernel for their table: {}",
            listener.name,
            Bytes(list.ranges().table_bytes())
        ))
    };
    config.listeners.iter().filter_map(line).collect()
}

/// The XDP programs that udpd will attach to interfaces, and what they bypass: a line for each listener.
pub fn attachments(config: &Config, plan: &PipelinePlan) -> Vec<String> {
    let listeners = config.listeners.iter().enumerate();
    let line = |(index, listener): (usize, &ListenerConfig)| {
        let own = plan.lanes.iter().filter(|lane| lane.listener == index && lane.xdp.is_some());
        let (queues, bytes) = own.fold((0, 0), |(queues, bytes), lane| (queues + 1, bytes + lane.locked_bytes()));
        let interface = listener.interface.as_deref().filter(|_| queues > 0)?;
        Some(format!(
            "listener {}: an XDP program ({} mode) goes to {interface} and hands over what comes to port {}; receive \
             queues: {queues}; locked memory: {}, and as much again for a moment when a reload or the interface makes \
             the engines anew; these datagrams bypass nftables, iptables, the reverse path filter, tcpdump, and every \
             option and filter of the sockets",
            listener.name,
            xdp::mode_name(listener.xdp_mode),
            listener.addresses[0].port(),
            Bytes(bytes)
        ))
    };
    listeners.filter_map(line).collect()
}

/// Logs the start-up lines: warnings, and the memory.
pub fn log(config: &Config, plan: &PipelinePlan) {
    known_at_start(config, plan).iter().for_each(|line| log::warn!("{line}"));
    log::info!("memory: {}, fixed from now on", plan.memory());
}
