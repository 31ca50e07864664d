//! The names that the kernel has for drops, where the tracepoints can be read (`CAP_PERFMON`, and root once for their
//! numbers). Where datagrams cannot be counted by port, the firewall is known by nothing else; for `udp_mem` some
//! kernels count nothing but this. Every other case has a counter.

use hostloss::drops::{BlindSpot, DropTally, Tracepoints, Watch};

use crate::explain::evidence::NamedDrops;

/// What is not seen without the names.
pub(super) const FIREWALL: &str =
    "what rules of a firewall (netfilter) dropped: only the kernel's names for drops tell";

/// A watch over the tracepoints, or why there is none.
#[derive(Debug)]
pub(super) struct DropNames {
    watch: Result<Watch, String>,
    /// Why what came later is not in it.
    broken: Option<String>,
}

impl DropNames {
    pub(super) fn open() -> Self {
        let watch = Tracepoints::read().and_then(|tracepoints| Watch::open(&tracepoints));
        Self { watch: watch.map_err(|error| error.to_string()), broken: None }
    }

    /// Takes what the kernel's rings have, which hold a moment's worth. What was taken before an error stays.
    pub(super) fn take(&mut self) {
        if let Ok(watch) = &mut self.watch
            && let Err(error) = watch.read()
        {
            self.broken = Some(error.to_string());
        }
    }

    /// What there is in the rings and was taken before: of a socket by port, of everything else without one. And what
    /// is not in it.
    pub(super) fn close(mut self) -> (Vec<NamedDrops>, Vec<String>) {
        self.take();
        match &self.watch {
            Ok(watch) => {
                let tally = watch.tally();
                let unseen = unseen(&tally).into_iter().chain(self.broken.map(|error| {
                    format!("some of the kernel's names for drops: its rings could not be read: {error}")
                }));
                let unseen = unseen.collect();
                (reasons(tally), unseen)
            }
            Err(refusal) => (Vec::new(), vec![format!("the kernel's names for drops: {refusal}"), FIREWALL.to_owned()]),
        }
    }
}

fn reasons(tally: DropTally) -> Vec<NamedDrops> {
    let by_port =
        tally.by_port.into_iter().map(|it| NamedDrops { name: it.reason, port: Some(it.port), count: it.count });
    let others = tally.by_reason.into_iter().map(|it| NamedDrops { name: it.reason, port: None, count: it.count });
    by_port.chain(others).collect()
}

/// What is worth a line; docs/explain.md has what is never seen.
fn unseen(tally: &DropTally) -> Vec<String> {
    let matters = |it: &&BlindSpot| {
        matches!(it, BlindSpot::Reasons | BlindSpot::Names | BlindSpot::Ports | BlindSpot::PortsOfIpv6)
    };
    let mut words: Vec<String> =
        tally.unseen.iter().filter(matters).map(|it| format!("names of drops: {it}")).collect();
    if tally.unseen.iter().any(|it| matches!(it, BlindSpot::Reasons | BlindSpot::Names)) {
        words.push(FIREWALL.to_owned());
    }
    for (lost, what) in [(tally.lost_reasons, "reasons"), (tally.lost_ports, "ports")] {
        if lost > 0 {
            words.push(format!("the {what} of {lost} drops: there were more than the kernel's rings hold"));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_firewall_are_not_seen_where_the_names_are_not() {
        let says_so = |words: &[String]| words.iter().any(|line| line.contains("firewall (netfilter)"));
        for gap in [BlindSpot::Reasons, BlindSpot::Names] {
            assert!(says_so(&unseen(&DropTally { unseen: vec![gap], ..DropTally::default() })), "{gap:?}");
        }
        assert!(!says_so(&unseen(&DropTally { unseen: vec![BlindSpot::Ports], ..DropTally::default() })));
        let (reasons, words) = DropNames { watch: Err("not allowed".into()), broken: None }.close();
        assert!(reasons.is_empty() && says_so(&words), "{words:?}");
    }

    #[test]
    fn what_the_kernel_does_not_name_and_what_was_lost_of_the_names_is_said() {
        let tally =
            DropTally { lost_ports: 7, unseen: vec![BlindSpot::PortsOfIpv6, BlindSpot::Card], ..DropTally::default() };
        let words = unseen(&tally);
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words[1].contains("the ports of 7 drops"), "{words:?}");
    }
}
