//! What the cards are set to: rings, the core of each receive queue, the hash, and what differs from the steering plan.
//! Read once, at the end, because nothing of it is a count.

use std::collections::BTreeMap;

use ::steer::Setting;
use ::steer::ethtool::FlowHash;
use ::steer::model::{self, Kind};

use crate::explain::evidence::{Drift, Interface};
use crate::steer;
use udpd_engine::config::Config;
use udpd_engine::plan::interfaces::Kernel;

/// The settings of each of these interfaces that has a device, and what could not be read.
pub fn read(names: &[String], config: Option<&Config>) -> (BTreeMap<String, Interface>, Vec<String>) {
    let mut unseen = Vec::new();
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(failure) => return (BTreeMap::new(), vec![format!("rings, queues and interrupts: {failure}")]),
    };
    let mut found = BTreeMap::new();
    // One by one: a card that is taken out meanwhile costs the others nothing.
    for name in names {
        match kernel.reader().read(std::slice::from_ref(name)) {
            Ok(host) => found.extend(host.interfaces.iter().filter_map(settings)),
            Err(error) => unseen.push(format!("rings, queues and interrupts of {name}: {error}")),
        }
    }
    if let Some(config) = config.filter(|config| !config.steer.interfaces.is_empty()) {
        match steer::drifts(config) {
            Ok(drifts) => {
                for drift in drifts {
                    if let Some(interface) = found.get_mut(&drift.change.interface) {
                        let is_of_the_ring = matches!(drift.change.setting, Setting::Rings | Setting::Coalescing);
                        interface.drifts.push(Drift { what: drift.to_string(), is_of_the_ring });
                    }
                }
            }
            Err(failure) => unseen.push(format!("whether the cards are as the steering plan has them: {failure}")),
        }
    }
    (found, unseen)
}

/// Virtual interfaces have no rings, and their queues no interrupts.
fn settings(interface: &model::Interface) -> Option<(String, Interface)> {
    if interface.kind != Kind::Physical {
        return None;
    }
    let core = |queue: &model::Queue| match queue.work.get()?.cores.as_slice() {
        [core] => Some(*core),
        _ => None,
    };
    let settings = Interface {
        name: interface.name.clone(),
        driver: interface.driver.get().cloned().unwrap_or_default(),
        ring: interface.rings.get().map(|rings| (rings.rx, rings.rx_max)),
        queue_cores: interface.queues.iter().map(core).collect(),
        hashes_addresses_only: interface.flow_hash_v4.get().map(|hash| *hash == FlowHash::ADDRESSES),
        ..Interface::default()
    };
    Some((interface.name.clone(), settings))
}
