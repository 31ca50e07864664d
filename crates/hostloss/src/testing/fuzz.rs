//! Fuzz targets: the kernel's tables below /proc and /sys, names of a driver's counters, and records of drops.

use crate::nic;
use crate::reader::{lines, numbers, pairs, parse_conntrack, parse_softnet, sections};
use crate::tables::{Conntrack, KernelTable, Softnet};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("kernel_tables", tables), ("driver_counters", counters), ("drop_records", crate::drops::fuzz::records)]
}

/// Each reader visits no more than words are there; what was counted since is never more than what is counted.
fn tables(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let words = text.split_ascii_whitespace().count();
    let mut visited = 0;
    sections(text, |section, name, _| {
        assert!(text.contains(section) && text.contains(name));
        visited += 1;
    });
    assert!(visited <= words);
    lines(text, |name, _| assert!(text.contains(name)));
    pairs(text, |section, name, _| assert!(text.contains(section) && text.contains(name)));
    assert!(numbers(text).count() <= words);
    let mut cores: Vec<Softnet> = Vec::new();
    parse_softnet(text, |_, counts| cores.push(counts));
    assert!(cores.len() <= text.lines().count());
    for pair in cores.windows(2) {
        let since = pair[1].since(&pair[0]);
        let mut sum = pair[0];
        sum.count_on(&since);
        assert!(
            since
                .values()
                .all(|(counter, value)| counter.bits > 32 || value <= Some(u32::MAX.into()) || counter.is_gauge)
        );
    }
    let mut conntrack = Conntrack::default();
    parse_conntrack(text, &mut conntrack);
    assert!(conntrack.values().all(|(counter, value)| counter.bits > 32 || value <= Some(u32::MAX.into())));
}

/// A line is the name of a counter; of each at most one loss is made, and what was missed is a sum of them.
fn counters(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    let losses = nic::losses(&names);
    assert!(losses.len() <= names.len() && losses.is_sorted_by_key(|(place, _)| *place));
    let counter = |(place, queue): &(usize, Option<u32>)| crate::DriverCounter {
        name: names[*place].clone(),
        queue: *queue,
        value: (*place % 3 > 0).then_some(u64::MAX / (1 + *place as u64)),
    };
    let counters: Vec<crate::DriverCounter> = losses.iter().map(counter).collect();
    let (earlier, later) = counters.split_at(counters.len() / 2);
    let _ = (nic::missed("vmxnet3", &counters), nic::missed_since("vmxnet3", earlier, later));
    assert_eq!(nic::missed("ixgbe", &counters), None);
}
