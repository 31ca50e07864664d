//! The interfaces of the network namespace: the kernel's counters of each, those of their receive queues, and what
//! their drivers tell beside them.
//!
//! Names and drivers are asked for when an interface is seen for the first time, and from time to time, because one may
//! be renamed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use steer::ethtool::{DriverStatistics, Ethtool, Ioctl};
use steer::{LinkStatistics, Statistics};

use super::reading::{HostReading, InterfaceReading};
use super::tables::{CounterUnit, KernelCounter, KernelLayer};
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
            if known.counters.is_none() && keeps_missed(&known.driver) {
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
            if let Some(missed) = missed(&known.driver, &interface.driver_counters) {
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
        let losses = losses(statistics.names());
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

// Which of a driver's own counters tell of losses, by their names, and of which receive queue.
//
// Drivers name their counters as they like, and there are thousands of them. What is taken here is what sounds like a
// loss on the way in. It explains the interface's own counters and is never added to them: what a driver counts
// twice under two names only its source tells. The one exception is a driver that leaves it out of the interface's
// own counters altogether.

/// What a name of a loss has in it.
const LOSSES: [&str; 14] = [
    "drop",
    "discard",
    "miss",
    "no_buf",
    "nobuf",
    "no_dma",
    "out_of_buf",
    "overrun",
    "oom",
    "oob",
    "fifo",
    "alloc_fail",
    "alloc_err",
    "allowance_exceeded",
];

/// A counter by the name that a driver gives it (`ethtool -S`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCounter {
    /// Its name, as the driver has it.
    pub name: String,
    /// The receive queue that the name tells.
    pub queue: Option<u32>,
    /// Its value; `None` where it was not read.
    pub value: Option<u64>,
}

/// What the counters of drivers have in common.
pub(super) const DRIVERS: KernelCounter = KernelCounter::of_all(KernelLayer::Nic, CounterUnit::Packets);

/// The most that are read of one interface.
pub(super) const COUNTERS_MAX: usize = 256;

/// The places of the counters that tell of losses, with their queues.
pub(super) fn losses(names: &[String]) -> Vec<(usize, Option<u32>)> {
    let mut found = Vec::new();
    // vmxnet3 writes a heading before the counters of each queue, which have the same names.
    let mut headings: u32 = 0;
    for (place, name) in names.iter().enumerate() {
        if name == "Rx Queue#" {
            headings += 1;
        } else if is_loss(name) && found.len() < COUNTERS_MAX {
            found.push((place, queue(name).or(headings.checked_sub(1))));
        }
    }
    found
}

/// What a ring had no room for, of a driver that keeps that from the kernel: vmxnet3 leaves `rx_missed_errors` at 0,
/// and counts by queue what came while no buffer was free. `None` of every other driver.
pub(super) fn missed(driver: &str, counters: &[DriverCounter]) -> Option<Option<u64>> {
    keeps_missed(driver).then(|| summed(by_queue(counters).map(|(_, value)| value)))
}

/// The same between two readings, queue by queue: queues come and go with `ethtool -L`, and a new one has counted
/// from 0. So has one that went back, by however little: the card sets them all to 0 when it is set up anew, and each
/// is read in one piece.
pub(super) fn missed_since(driver: &str, earlier: &[DriverCounter], later: &[DriverCounter]) -> Option<Option<u64>> {
    let was_read = by_queue(earlier).next().is_some();
    let since = by_queue(later).map(|(queue, value)| {
        let before = by_queue(earlier).find(|(other, _)| *other == queue).map_or(Some(0), |(_, value)| value);
        value.zip(before).filter(|_| was_read).map(|(later, earlier)| later.checked_sub(earlier).unwrap_or(later))
    });
    keeps_missed(driver).then(|| summed(since))
}

/// Whether a driver leaves out of the interface's own counters what its rings had no room for.
pub(super) fn keeps_missed(driver: &str) -> bool {
    driver == "vmxnet3"
}

fn by_queue(counters: &[DriverCounter]) -> impl Iterator<Item = (Option<u32>, Option<u64>)> {
    let missed = counters.iter().filter(|counter| counter.name == "pkts rx OOB");
    missed.map(|counter| (counter.queue, counter.value))
}

/// Not known where one of them is not, and without any: then it has not been read.
fn summed(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.reduce(|sum, next| Some(sum?.saturating_add(next?))).flatten()
}

fn is_loss(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_of = |way: &str| words(&name).any(|word| word.trim_end_matches(|end: char| end.is_ascii_digit()) == way);
    let is_sent = is_of("tx") && !is_of("rx");
    !is_sent && (LOSSES.iter().any(|loss| name.contains(loss)) || is_of("rx") && name.contains("err"))
}

/// The number of the queue: in brackets, or behind the word for it.
fn queue(name: &str) -> Option<u32> {
    if let Some((_, rest)) = name.split_once('[') {
        return rest.split_once(']')?.0.parse().ok();
    }
    let name = name.to_ascii_lowercase();
    let mut before = "";
    for word in words(&name) {
        let behind = ["rxq", "queue", "rx"].iter().find_map(|noun| word.strip_prefix(noun));
        if let Some(number) = behind.and_then(|digits| digits.parse().ok()) {
            return Some(number);
        }
        if matches!(before, "queue" | "rxq" | "rx" | "q")
            && let Ok(number) = word.parse()
        {
            return Some(number);
        }
        before = word;
    }
    None
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Vec<(usize, Option<u32>)> {
        losses(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_loss_is_known_by_its_name_and_so_is_its_queue() {
        for (name, queue) in [
            ("rx_queue_3_drops", Some(3)),
            ("rx0_drops", Some(0)),
            ("rx12_wqe_err", Some(12)),
            ("rx_out_of_buffer", None),
            ("rx_no_dma_resources", None),
            ("port.rx_discards", None),
            ("rx_queue_drop_cnt[7]", Some(7)),
            ("[4]: rx_discards", Some(4)),
            ("queue_2_rx_page_alloc_fail", Some(2)),
            ("pps_allowance_exceeded", None),
            ("rx_missed_errors", None),
        ] {
            assert_eq!(found(&[name]), [(0, queue)], "{name}");
        }
    }

    #[test]
    fn what_was_sent_or_is_no_loss_is_left_alone() {
        let names = ["tx_queue_0_drops", "tx0_xdp_tx_drops", "tx_dropped", "rx_queue_0_packets", "rx_bytes"];
        assert_eq!(found(&names), []);
    }

    #[test]
    fn counters_of_the_same_name_belong_to_the_queue_whose_heading_is_before_them() {
        let names = ["Tx Queue#", "drv dropped tx total", "Rx Queue#", "pkts rx OOB", "Rx Queue#", "pkts rx OOB"];
        assert_eq!(found(&names), [(3, Some(0)), (5, Some(1))]);
    }

    #[test]
    fn what_vmxnet3_had_no_buffer_for_is_missed_and_not_known_before_it_has_told() {
        let counter = |queue, value| DriverCounter { name: "pkts rx OOB".into(), queue: Some(queue), value };
        let told = [counter(0, Some(3)), counter(1, Some(4))];
        assert_eq!(missed("vmxnet3", &told), Some(Some(7)));
        assert_eq!(missed("vmxnet3", &[counter(0, Some(3)), counter(1, None)]), Some(None));
        assert_eq!(missed("vmxnet3", &[]), Some(None));
        assert_eq!(missed("ixgbe", &told), None);
    }

    #[test]
    fn what_was_missed_between_two_readings_is_that_of_each_queue_also_when_queues_come_and_go() {
        let of = |values: &[u64]| -> Vec<DriverCounter> {
            let counter = |(queue, value): (u32, &u64)| DriverCounter {
                name: "pkts rx OOB".into(),
                queue: Some(queue),
                value: Some(*value),
            };
            (0..).zip(values).map(counter).collect()
        };
        let since = |earlier: &[u64], later: &[u64]| missed_since("vmxnet3", &of(earlier), &of(later));
        assert_eq!(since(&[100, 50], &[103, 54]), Some(Some(7)));
        assert_eq!(since(&[100, 50], &[103]), Some(Some(3)), "a queue that is gone takes nothing back");
        assert_eq!(since(&[100], &[103, 8]), Some(Some(11)), "a new one has counted from 0");
        assert_eq!(since(&[100, 50], &[3, 49]), Some(Some(52)), "all began anew");
        assert_eq!((since(&[], &[3]), since(&[3], &[])), (Some(None), Some(None)), "one of the two was not read");
        assert_eq!(missed_since("ixgbe", &of(&[1]), &of(&[2])), None);
    }

    #[test]
    fn a_card_with_a_thousand_queues_is_read_up_to_a_bound() {
        let names: Vec<String> = (0..1000).map(|queue| format!("rx_queue_{queue}_drops")).collect();
        assert_eq!(losses(&names).len(), COUNTERS_MAX);
    }
}
