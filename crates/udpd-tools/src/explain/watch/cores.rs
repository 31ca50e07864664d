//! What each core did with its time, from /proc/stat.

use std::collections::BTreeMap;

/// Of the time of a core between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    pub busy: f64,
    pub softirq: f64,
    pub steal: f64,
}

/// Ticks by core, in the kernel's order: user, nice, system, idle, iowait, irq, softirq, steal.
pub type Ticks = BTreeMap<usize, [u64; 8]>;

pub fn parse(stat: &str) -> Ticks {
    let core = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let mut ticks = [0; 8];
        for tick in &mut ticks {
            *tick = words.next()?.parse().ok()?;
        }
        Some((number, ticks))
    };
    stat.lines().filter_map(core).collect()
}

/// Cores that were there at both readings, and for which time has passed.
pub fn since(before: &Ticks, after: &Ticks) -> BTreeMap<usize, Shares> {
    let share = |(core, after): (&usize, &[u64; 8])| {
        let before = before.get(core)?;
        let mut ticks = [0; 8];
        for (place, tick) in ticks.iter_mut().enumerate() {
            *tick = after[place].saturating_sub(before[place]);
        }
        let all = ticks.iter().sum::<u64>();
        let [.., idle, wait, _, softirq, steal] = ticks;
        let part = |ticks: u64| ticks as f64 / all as f64;
        (all > 0).then(|| (*core, Shares { busy: part(all - idle - wait), softirq: part(softirq), steal: part(steal) }))
    };
    after.iter().filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_time_between() {
        let before = parse("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu7 1 1 1 1 1 1 1 1 0 0\nintr 5\n");
        let after = parse("cpu0 10 0 20 40 10 0 15 5 0 0\ncpu8 1 1 1 1 1 1 1 1 0 0\n");
        let shares = since(&before, &after);
        assert_eq!(shares, BTreeMap::from([(0, Shares { busy: 0.5, softirq: 0.15, steal: 0.05 })]));
    }

    #[test]
    fn a_core_for_which_no_time_has_passed_has_no_shares() {
        let ticks = parse("cpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!(since(&ticks, &ticks), BTreeMap::new());
    }
}
