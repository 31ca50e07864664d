//! The backlog of a core was full: packets that another core (RPS) or a virtual interface handed to it.
//!
//! The kernel counts them by core, for all network namespaces together, and again among the dropped packets of the
//! interface, for this namespace. The smaller of the two was lost here.

use crate::explain::evidence::Evidence;
use crate::explain::finding::{Cure, Finding, LossLayer};
use crate::explain::sysctl_dropin::{percent, time};
use udpd_base::text::tables::grouped;

/// A core that is so busy gains nothing from a longer queue.
const BUSY: f64 = 0.9;

const MOST: u64 = i32::MAX as u64;

/// How long a queue of packets should last before a core looks at it.
const STALL_SECONDS: f64 = 0.02;

/// The core that dropped the most, how many packets were lost, and how many that core processed.
pub(super) fn lost(evidence: &Evidence) -> Option<(usize, u64, u64)> {
    let by_core = |(core, seen): (&usize, &crate::explain::evidence::CoreEvidence)| {
        Some((*core, seen.backlog_dropped.filter(|dropped| *dropped > 0)?, seen.processed.unwrap_or(0)))
    };
    let (core, _, processed) = evidence.cores.iter().filter_map(by_core).max_by_key(|(_, dropped, _)| *dropped)?;
    let of_interfaces: Option<u64> = evidence.interfaces.iter().map(|interface| interface.dropped).sum();
    let lost = evidence.backlog_dropped()?.min(of_interfaces.unwrap_or(u64::MAX));
    (lost > 0).then_some((core, lost, processed))
}

/// The core has no time for a longer queue: the work has to go to more cores.
pub(super) fn core_at_its_limit(evidence: &Evidence) -> Vec<Finding> {
    let Some((core, lost, processed)) = lost(evidence) else { return Vec::new() };
    let Some(softirq) = evidence.cores.get(&core).and_then(|core| core.softirq).filter(|share| *share >= BUSY) else {
        return Vec::new();
    };
    let cause = format!(
        "core {core} could not take more: its backlog was full, and its softirq took {} of its time, so a longer \
         backlog would be full as well",
        percent(softirq)
    );
    let rate = processed as f64 / evidence.seconds.max(0.001);
    let arithmetic = format!("it took {} packets/s and had {} more", grouped(rate as u64), grouped(lost));
    let note = "gives more cores a part of it: with [steer] interfaces the plan sets rps_cpus of every queue";
    let finding = Finding::new("backlog_core_busy", LossLayer::Backlog, "the host", (lost, "packets"));
    vec![finding.because(cause).with(arithmetic).cured_by([Cure::command(evidence.steer_apply(None), note)])]
}

pub(super) fn backlog_too_short(evidence: &Evidence) -> Vec<Finding> {
    let Some((core, lost, processed)) = lost(evidence) else { return Vec::new() };
    let cause = format!(
        "the backlog of core {core} was full: more packets came at once from a virtual interface or from another core \
         (RPS) than net.core.netdev_max_backlog lets wait"
    );
    let finding = Finding::new("backlog_too_short", LossLayer::Backlog, "the host", (lost, "packets")).because(cause);
    let Some(now) = evidence.settings.backlog_max else {
        let note = "what it is cannot be read here; on the host: sysctl net.core.netdev_max_backlog";
        return vec![finding.cured_by([Cure::sysctl("net.core.netdev_max_backlog", 16_384, note)])];
    };
    let rate = (processed + lost) as f64 / evidence.seconds.max(0.001);
    let needed = needed(now, rate, lost);
    let arithmetic = format!(
        "{} packets are {} at {}/s; {} are {}",
        grouped(now),
        time(now as f64 / rate.max(1.0)),
        grouped(rate as u64),
        grouped(needed),
        time(needed as f64 / rate.max(1.0))
    );
    let note = "for every core of the host, all network namespaces";
    vec![finding.with(arithmetic).cured_by([Cure::sysctl("net.core.netdev_max_backlog", needed, note)])]
}

/// Room for what was lost in a second and for a short stall, in the usual steps.
fn needed(now: u64, rate: f64, lost: u64) -> u64 {
    let stall = (rate * STALL_SECONDS) as u64;
    (now.saturating_mul(2))
        .max(stall)
        .max(now.saturating_add(lost.min(100_000)))
        .clamp(4096, 1 << 30)
        .next_power_of_two()
        .min(MOST)
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::{assert_told, first};
    use crate::explain::evidence::{CoreEvidence, Evidence, InterfaceEvidence, KernelSettings};

    fn full(softirq: f64) -> Evidence {
        let interface = InterfaceEvidence { name: "veth0".into(), dropped: Some(700), ..InterfaceEvidence::default() };
        let core = CoreEvidence {
            processed: Some(50_000),
            backlog_dropped: Some(900),
            softirq: Some(softirq),
            ..CoreEvidence::default()
        };
        Evidence {
            seconds: 5.0,
            interfaces: vec![interface],
            cores: [(1, core)].into(),
            settings: KernelSettings { backlog_max: Some(1000), ..KernelSettings::default() },
            ..Evidence::default()
        }
    }

    #[test]
    fn what_other_namespaces_lost_is_not_charged_to_this_one() {
        assert_told(&full(0.2), "backlog_too_short", 700, "net.core.netdev_max_backlog=4096");
    }

    #[test]
    fn a_core_without_time_is_not_given_a_longer_queue() {
        assert_told(&full(0.95), "backlog_core_busy", 700, "udpd steer apply");
        assert_eq!(first(&full(0.95)).lost, 700);
    }
}
