//! The seats of its lanes as a running daemon tells them to commands and to other daemons.

use std::process;

use super::interfaces::Interfaces;
use super::lane::LanePlan;
use super::neighbours::{network_namespace, seat};
use super::whole::PipelinePlan;
use crate::config::Config;
use udpd_endpoint::control::{InterfaceSeats, LaneSeat, Seats};

/// What the daemon of this plan tells.
pub fn of(config: &Config, plan: &PipelinePlan) -> Seats {
    let interface_of = |lane: &LanePlan| config.listeners[lane.listener].interface.as_deref();
    let lanes = |name: Option<&str>| {
        let own = plan.lanes.iter().filter(|lane| interface_of(lane) == name);
        own.map(|lane| lane_seat(config, lane)).collect()
    };
    let Interfaces { steered, around, indexes, .. } = &plan.interfaces;
    let steered = steered.iter().map(|part| InterfaceSeats {
        name: part.name.clone(),
        index: indexes.get(&part.name).copied(),
        is_steered: true,
        queues: part.seats.len(),
        seats: part.all_seats().iter().map(seat).collect(),
        lanes: lanes(Some(&part.name)),
    });
    let others = around.keys().map(|name| InterfaceSeats {
        name: name.clone(),
        index: indexes.get(name).copied(),
        lanes: lanes(Some(name)),
        ..InterfaceSeats::default()
    });
    Seats {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: process::id(),
        network_namespace: network_namespace(),
        interfaces: steered.chain(others).collect(),
        lanes: lanes(None),
    }
}

/// The same with the cores on which the receivers really run: `core_of` knows them by listener and lane.
pub fn now(mut seats: Seats, core_of: impl Fn(&str, usize) -> Option<Option<usize>>) -> Seats {
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
