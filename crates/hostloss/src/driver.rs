//! Which of a driver's own counters tell of losses, by their names, and of which receive queue.
//!
//! Drivers name their counters as they like, and there are thousands of them. What is taken here is what sounds like a
//! loss on the way in. It explains the interface's own counters and is never added to them: what a driver counts
//! twice under two names only its source tells. The one exception is a driver that leaves it out of the interface's
//! own counters altogether.

use serde::{Deserialize, Serialize};

use super::counter::{CounterUnit, KernelCounter, KernelLayer};

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
    pub name: String,
    /// The receive queue that the name tells.
    pub queue: Option<u32>,
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
