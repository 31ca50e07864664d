//! The texts of the kernel's files as numbers. What a kernel does not have is passed over and stays unknown, and so is
//! what a later one has more.

use super::counter::KernelTable;
use super::tables::{Conntrack, Softnet};

/// `/proc/net/snmp` and `/proc/net/netstat`: a line of names and a line of values, both behind the name of their
/// section.
pub(super) fn sections(text: &str, mut visit: impl FnMut(&str, &str, u64)) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((section, names)), Some((same, values))) = (names.split_once(':'), values.split_once(':')) else {
            return;
        };
        if section != same {
            return;
        }
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            // Some are negative, none of which is a counter.
            if let Ok(value) = value.parse() {
                visit(section, name, value);
            }
        }
    }
}

/// `/proc/net/snmp6`: a name and a value in each line.
pub(super) fn lines(text: &str, mut visit: impl FnMut(&str, u64)) {
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            visit(name, value);
        }
    }
}

/// `/proc/net/sockstat`: the name of a section, and names and values by turns.
pub(super) fn pairs(text: &str, mut visit: impl FnMut(&str, &str, u64)) {
    for (section, rest) in text.lines().filter_map(|line| line.split_once(':')) {
        let mut words = rest.split_ascii_whitespace();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            if let Ok(value) = value.parse() {
                visit(section, name, value);
            }
        }
    }
}

/// The numbers of a setting, as in `/proc/sys/net/ipv4/udp_mem`.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_ascii_whitespace().map_while(|word| word.parse().ok())
}

/// `/proc/net/softnet_stat`: a line for each core that is online, in hexadecimal. Kernels before 5.10 do not say of
/// which, and then the place of the line does, which is right as long as no core is off.
pub(super) fn softnet(text: &str, mut visit: impl FnMut(u32, Softnet)) {
    const CORE_AT: usize = 12;
    for (place, line) in (0..).zip(text.lines()) {
        let column = |number: usize| {
            let word = line.split_ascii_whitespace().nth(number)?;
            u64::from_str_radix(word, 16).ok()
        };
        let counts = Softnet {
            processed: column(0),
            dropped: column(1),
            time_squeeze: column(2),
            received_rps: column(9),
            flow_limit: column(10),
            backlog: column(11),
        };
        if counts.processed.is_some() {
            visit(column(CORE_AT).and_then(|core| u32::try_from(core).ok()).unwrap_or(place), counts);
        }
    }
}

/// `/proc/net/stat/nf_conntrack`: names, and a line of hexadecimal values for each core. The sum over the cores is
/// cut to 32 bits as each of them is, so that a difference is right whichever of them has wrapped.
pub(super) fn conntrack(text: &str, counts: &mut Conntrack) {
    let mut lines = text.lines();
    let Some(names) = lines.next() else { return };
    // Linux before 5.15 drops nothing for a long chain, and so has no such column.
    counts.chain_too_long = Some(0);
    for line in lines {
        for (name, value) in names.split_ascii_whitespace().zip(line.split_ascii_whitespace()) {
            let Ok(value) = u64::from_str_radix(value, 16) else { continue };
            if let Some((counter, cell)) = counts.cells().find(|(counter, _)| counter.source == name)
                && counter.bits == 32
            {
                *cell = Some((cell.unwrap_or(0) + value) & u64::from(u32::MAX));
            }
        }
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
