//! The seats of lanes, as running daemons tell them to each other and to commands: what this daemon tells, and what the
//! seats of others mean for a plan made here. A command takes them as they are; a second daemon plans around them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

use steer::model::Host;
use steer::plan::{InterfacePlan, Plan, QueueSeat};

use super::{Interfaces, LanePlan, PipelinePlan};
use crate::config::Config;
use udpd_endpoint::control::{LaneSeat, Neighbours, QueueCores, Seats, SteeredInterface};

/// The seats that the daemon of this plan tells commands and other daemons.
pub fn own_seats(config: &Config, plan: &PipelinePlan) -> Seats {
    let interface_of = |lane: &LanePlan| config.listeners[lane.listener].interface.as_deref();
    let lanes = |name: Option<&str>| {
        let own = plan.lanes.iter().filter(|lane| interface_of(lane) == name);
        own.map(|lane| lane_seat(config, lane)).collect()
    };
    let Interfaces { steered, around, indexes, .. } = &plan.interfaces;
    let steered = steered.iter().map(|part| SteeredInterface {
        name: part.name.clone(),
        index: indexes.get(&part.name).copied(),
        is_steered: true,
        queues: part.seats.len(),
        seats: part.all_seats().iter().map(seat).collect(),
        lanes: lanes(Some(&part.name)),
    });
    let others = around.keys().map(|name| SteeredInterface {
        name: name.clone(),
        index: indexes.get(name).copied(),
        lanes: lanes(Some(name)),
        ..SteeredInterface::default()
    });
    Seats {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: process::id(),
        network_namespace: network_namespace(),
        interfaces: steered.chain(others).collect(),
        lanes: lanes(None),
    }
}

/// The same with the cores on which the receivers run now: `core_of` tells them by listener and lane.
pub fn with_current_cores(mut seats: Seats, core_of: impl Fn(&str, usize) -> Option<Option<usize>>) -> Seats {
    for seat in seats.lanes_mut() {
        if let Some(core) = core_of(&seat.listener, seat.lane) {
            seat.cpu = core;
        }
    }
    seats
}

fn lane_seat(config: &Config, lane: &LanePlan) -> LaneSeat {
    LaneSeat {
        listener: config.listeners[lane.listener].name.clone(),
        lane: lane.number,
        queues: lane.queues.clone(),
        cpu: lane.core,
        node: lane.node,
        arrival_cpus: lane.intake.expected_cores().to_vec(),
    }
}

/// Every core that a neighbour uses.
pub fn cores(neighbours: &Neighbours) -> Vec<usize> {
    let mut cores: Vec<usize> = neighbours.daemons.iter().flat_map(|daemon| daemon.seats.cores()).collect();
    cores.sort_unstable();
    cores.dedup();
    cores
}

/// The seats that running daemons have at these interfaces, by the names that the interfaces have now: those of the
/// first daemon that steers each.
pub fn seated(
    names: &[String],
    index_of: impl Fn(&str) -> Option<u32>,
    neighbours: &Neighbours,
) -> BTreeMap<String, Vec<QueueSeat>> {
    let own = network_namespace();
    let here = neighbours.daemons.iter().filter(|daemon| daemon.seats.network_namespace == own);
    let parts: Vec<&SteeredInterface> =
        here.flat_map(|daemon| &daemon.seats.interfaces).filter(|part| part.is_steered).collect();
    // A name may have moved to another card; an index never does.
    let is_it = |part: &SteeredInterface, name: &str| match (part.index, index_of(name)) {
        (Some(theirs), Some(index)) => theirs == index,
        _ => part.name == name,
    };
    let seats = |name: &String| {
        let part = parts.iter().find(|part| is_it(part, name))?;
        Some((name.clone(), part.seats.iter().map(queue_seat).collect()))
    };
    names.iter().filter_map(seats).collect()
}

/// For the interfaces that neighbours steer too: the seats of our plan with the interrupts where the neighbours put
/// them. The receivers are our own, but an interrupt cannot be in two places.
pub(super) fn merge(host: &Host, plan: &Plan, neighbours: &Neighbours) -> BTreeMap<String, Vec<QueueSeat>> {
    let names: Vec<String> = plan.interfaces.iter().map(|part| part.name.clone()).collect();
    let found = |name: &str| host.interfaces.iter().find(|interface| interface.name == name);
    let mut seated = seated(&names, |name| found(name).map(|interface| interface.index), neighbours);
    for (name, theirs) in &mut seated {
        let part = plan.interfaces.iter().find(|part| part.name == *name);
        let own: Vec<QueueSeat> = part.map(InterfacePlan::all_seats).unwrap_or_default();
        *theirs = own.into_iter().map(|seat| with_interrupt_of(seat, theirs)).collect();
    }
    seated
}

fn with_interrupt_of(own: QueueSeat, theirs: &[QueueSeat]) -> QueueSeat {
    match theirs.iter().find(|seat| seat.queue == own.queue) {
        Some(other) => QueueSeat {
            interrupt_core: other.interrupt_core,
            rps_cores: other.rps_cores.clone(),
            why: "another udpd has the interrupt there".to_owned(),
            ..own
        },
        None => own,
    }
}

/// The network namespace of this process, by the inode that stands for it.
fn network_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

/// The number of an interface of this namespace.
pub fn index_of(name: &str) -> Option<u32> {
    fs::read_to_string(Path::new("/sys/class/net").join(name).join("ifindex")).ok()?.trim().parse().ok()
}

/// A seat as daemons exchange it.
fn seat(seat: &QueueSeat) -> QueueCores {
    QueueCores {
        queue: seat.queue,
        receiver: seat.receiver,
        interrupt_cpu: seat.interrupt_core,
        receiver_cpu: seat.receiver_core,
        receiver_cpus: seat.receiver_cores.clone(),
        rps_cpus: seat.rps_cores.clone(),
        node: seat.node,
    }
}

/// A seat that another daemon told.
fn queue_seat(seat: &QueueCores) -> QueueSeat {
    QueueSeat {
        queue: seat.queue,
        receiver: seat.receiver,
        interrupt_core: seat.interrupt_cpu,
        receiver_core: seat.receiver_cpu,
        receiver_cores: if seat.receiver_cpus.is_empty() {
            vec![seat.receiver_cpu]
        } else {
            seat.receiver_cpus.clone()
        },
        rps_cores: seat.rps_cpus.clone(),
        node: seat.node,
        why: "as the running udpd has it".to_owned(),
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
