//! The relations between the counters: each container is there, nothing contains itself, and only losses are related.

use std::collections::BTreeMap;

use super::*;
use crate::KernelTable;

/// Every counter by `layer.name`.
fn all() -> BTreeMap<String, &'static KernelCounter> {
    let tables = [
        LinkCounters::COUNTERS,
        QueueCounters::COUNTERS,
        Softnet::COUNTERS,
        Conntrack::COUNTERS,
        Ip::COUNTERS,
        Udp::COUNTERS,
        UdpMemory::COUNTERS,
        SocketCounts::COUNTERS,
        SocketDrops::COUNTERS,
    ];
    let mut all = BTreeMap::new();
    for counter in tables.into_iter().flatten() {
        let path = counter.path();
        assert!(all.insert(path.clone(), counter).is_none(), "{path} is declared twice");
    }
    all
}

#[test]
fn what_a_counter_is_contained_in_is_a_loss_as_well_and_never_the_counter_itself() {
    let all = all();
    for (path, counter) in &all {
        let mut ways: Vec<Vec<&str>> = vec![vec![path]];
        while let Some(way) = ways.pop() {
            for container in all[*way.last().expect("a place")].contained_in {
                assert!(all.get(*container).is_some_and(|outer| outer.is_loss), "{container} of {way:?} is no loss");
                assert!(!way.contains(container), "{container} is contained in itself: {way:?}");
                assert!(counter.is_loss, "{path} is no loss and has a container");
                ways.push([way.as_slice(), &[*container]].concat());
            }
        }
    }
}

#[test]
fn every_counter_says_what_it_is_and_what_is_lost_has_a_unit_that_can_be_lost() {
    for (path, counter) in all() {
        assert!(counter.help.ends_with('.') && !counter.source.is_empty(), "{path}");
        let can_be_lost = matches!(
            counter.unit,
            CounterUnit::Packets | CounterUnit::Buffers | CounterUnit::Datagrams | CounterUnit::Fragments
        );
        assert!(!counter.is_loss || can_be_lost && !counter.is_gauge, "{path} counts {}", counter.unit.name());
    }
}
