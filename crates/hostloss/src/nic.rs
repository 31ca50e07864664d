//! The interfaces of the network namespace: the kernel's counters of each, those of their receive queues, and what
//! their drivers tell beside them.
//!
//! Names and drivers are asked for when an interface is seen for the first time, and from time to time, because one may
//! be renamed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use steer::ethtool::{DriverStatistics, Ethtool, Ioctl};
use steer::{LinkStatistics, Statistics};

use super::counter::KernelLayer;
use super::driver::{self, DriverCounter};
use super::reading::{HostReading, InterfaceReading};
use super::tables::{LinkCounters, QueueCounters};

/// The most interfaces that are read: those that have been there longest.
const INTERFACES_MAX: usize = 128;

/// How many readings a name is believed.
const READINGS_PER_LISTING: u32 = 10;

/// Reads the interfaces.
#[derive(Debug, Default)]
pub(super) struct NicReader {
    open: Option<Open>,
    readings: u32,
    is_sparing: bool,
}

/// What is kept open.
#[derive(Debug)]
struct Open {
    statistics: Statistics,
    ioctl: Ioctl,
    known: BTreeMap<u32, KnownInterface>,
    left_out: u64,
    /// Of the pass, in the order of the kernel.
    links: Vec<(u32, LinkStatistics)>,
}

/// An interface that has been seen.
#[derive(Debug)]
struct KnownInterface {
    name: String,
    driver: String,
    repeats_others: bool,
    counters: Option<EthtoolCounters>,
}

#[derive(Debug)]
struct EthtoolCounters {
    statistics: DriverStatistics,
    /// Where the losses are, and of which queue.
    losses: Vec<(usize, Option<u32>)>,
}

impl NicReader {
    /// Asks the drivers with every tenth reading only.
    pub(super) fn spare(&mut self) {
        self.is_sparing = true;
    }

    pub(super) fn read(&mut self, reading: &mut HostReading) {
        if let Err(error) = self.try_read(reading) {
            // Sockets that failed once are made anew.
            self.open = None;
            reading.nic.clear();
            let line = format!("the counters of all interfaces: netlink: {error}");
            reading.unread.push((KernelLayer::Nic, line));
        }
    }

    fn try_read(&mut self, reading: &mut HostReading) -> io::Result<()> {
        let open = match &mut self.open {
            Some(open) => open,
            empty => empty.insert(Open::new()?),
        };
        let lists = self.readings.is_multiple_of(READINGS_PER_LISTING);
        if lists {
            open.list()?;
        }
        let asks_drivers = lists || !self.is_sparing;
        self.readings = self.readings.wrapping_add(1);
        open.links.clear();
        let links = &mut open.links;
        open.statistics.each_link(|index, counts| links.push((index, counts)))?;
        if open.has_unknown() {
            open.list()?;
        }
        open.fill(reading, asks_drivers)
    }
}

impl Open {
    fn new() -> io::Result<Self> {
        let (statistics, ioctl) = (Statistics::new()?, Ioctl::new()?);
        Ok(Self { statistics, ioctl, known: BTreeMap::new(), left_out: 0, links: Vec::new() })
    }

    /// An interface that was not known, while there is room for it.
    fn has_unknown(&self) -> bool {
        self.known.len() < INTERFACES_MAX && self.links.iter().any(|(index, _)| !self.known.contains_key(index))
    }

    /// Learns which interfaces there are, and of the new ones their drivers.
    fn list(&mut self) -> io::Result<()> {
        let mut listed = self.statistics.links()?;
        listed.sort_by_key(|link| link.index);
        self.left_out = listed.len().saturating_sub(INTERFACES_MAX) as u64;
        let mut before = std::mem::take(&mut self.known);
        for link in listed.into_iter().take(INTERFACES_MAX) {
            let same = before.remove(&link.index).filter(|known| known.name == link.name);
            let mut known = same.unwrap_or_else(|| {
                // What has no driver, or none that answers, has no name for it either.
                let driver = self.ioctl.driver(&link.name).unwrap_or_default();
                let repeats_others = link.kind == "bond" || driver == "net_failover";
                // To ask holds a lock of the whole network, which what the cables of containers tell is not worth.
                let has_device = Path::new("/sys/class/net").join(&link.name).join("device").exists();
                let counters = has_device.then(|| EthtoolCounters::of(&self.ioctl, &link.name)).flatten();
                KnownInterface { counters, name: link.name, driver, repeats_others }
            });
            // One that did not answer while it was set up anew, and whose losses only its own counters tell.
            if known.counters.is_none() && driver::keeps_missed(&known.driver) {
                known.counters = EthtoolCounters::of(&self.ioctl, &known.name);
            }
            self.known.insert(link.index, known);
        }
        Ok(())
    }

    fn fill(&mut self, reading: &mut HostReading, asks_drivers: bool) -> io::Result<()> {
        let Self { statistics, ioctl, known, links, left_out } = self;
        let is_there = |interface: &InterfaceReading| links.iter().any(|(index, _)| *index == interface.index);
        reading.nic.retain(|name, interface| {
            is_there(interface) && known.get(&interface.index).is_some_and(|known| known.name == *name)
        });
        reading.interfaces_left_out = *left_out;
        for (index, counts) in links.iter() {
            let Some(known) = known.get_mut(index) else { continue };
            if !reading.nic.contains_key(&known.name) {
                reading.nic.insert(known.name.clone(), InterfaceReading::default());
            }
            let interface = reading.nic.get_mut(&known.name).expect("just inserted");
            interface.index = *index;
            interface.driver.clone_from(&known.driver);
            interface.repeats_others = known.repeats_others;
            interface.link = link(counts);
            interface.queues.clear();
            if asks_drivers && known.read_driver(ioctl, &mut interface.driver_counters) {
                known.read_driver(ioctl, &mut interface.driver_counters);
            }
            if let Some(missed) = driver::missed(&known.driver, &interface.driver_counters) {
                interface.link.rx_missed_errors = missed;
            }
        }
        let told = statistics.each_queue(|index, queue, counts| {
            let interface = known.get(&index).and_then(|known| reading.nic.get_mut(&known.name));
            let steer::QueueStatistics { packets, alloc_fail, hw_drops, hw_drop_overruns } = counts;
            if let Some(interface) = interface {
                interface.queues.insert(queue, QueueCounters { packets, alloc_fail, hw_drops, hw_drop_overruns });
            }
        });
        if told.is_err() {
            // Few drivers tell of their queues: without them the interfaces are known all the same. The rest of the
            // answer goes with its socket.
            reading.nic.values_mut().for_each(|interface| interface.queues.clear());
            *statistics = Statistics::new()?;
        }
        Ok(())
    }
}

impl KnownInterface {
    /// Reads the driver's own counters over those of the last time. True when it has learnt others instead, which are
    /// to be read now.
    fn read_driver(&mut self, ioctl: &Ioctl, into: &mut Vec<DriverCounter>) -> bool {
        let Some(EthtoolCounters { statistics, losses }) = &mut self.counters else {
            into.clear();
            return false;
        };
        if !statistics.read(ioctl).is_ok_and(|is_same| is_same) {
            // It has other counters by now.
            self.counters = EthtoolCounters::of(ioctl, &self.name);
            into.clear();
            return self.counters.is_some();
        }
        let is_same = into.len() == losses.len()
            && into.iter().zip(&*losses).all(|(counter, (place, _))| counter.name == statistics.names()[*place]);
        if !is_same {
            into.clear();
            let names = losses.iter().map(|(place, queue)| (statistics.names()[*place].clone(), *queue));
            into.extend(names.map(|(name, queue)| DriverCounter { name, queue, value: None }));
        }
        for (counter, (place, _)) in into.iter_mut().zip(&*losses) {
            counter.value = Some(statistics.value(*place));
        }
        false
    }
}

impl EthtoolCounters {
    fn of(ioctl: &Ioctl, name: &str) -> Option<Self> {
        let statistics = DriverStatistics::new(ioctl, name).ok()?;
        let losses = driver::losses(statistics.names());
        (!losses.is_empty()).then_some(Self { statistics, losses })
    }
}

fn link(counts: &LinkStatistics) -> LinkCounters {
    LinkCounters {
        rx_packets: counts.rx_packets,
        rx_bytes: counts.rx_bytes,
        rx_missed_errors: counts.rx_missed_errors,
        rx_dropped: counts.rx_dropped,
        rx_errors: counts.rx_errors,
        rx_crc_errors: counts.rx_crc_errors,
        rx_length_errors: counts.rx_length_errors,
        rx_over_errors: counts.rx_over_errors,
        rx_frame_errors: counts.rx_frame_errors,
        rx_fifo_errors: counts.rx_fifo_errors,
        rx_nohandler: counts.rx_nohandler,
        multicast: counts.multicast,
    }
}
