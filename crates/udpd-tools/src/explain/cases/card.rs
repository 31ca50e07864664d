//! The card had no free buffer in its receive ring, and what keeps its receive queues from sharing the work: all
//! interrupts on one core, a hash that leaves out the ports, or a plan that was undone. Where the card lost packets
//! these are the cause, elsewhere a risk.

use crate::explain::evidence::{Evidence, InterfaceEvidence};
use crate::explain::finding::{Cure, Finding, LossLayer, quote};
use crate::explain::sysctl_dropin::{percent, time};
use udpd_base::text::tables::grouped;

pub(super) fn ring_too_small(evidence: &Evidence) -> Vec<Finding> {
    let losing = evidence.interfaces.iter().filter(|interface| interface.missed.unwrap_or(0) > 0);
    let told = losing.map(|interface| {
        let (name, word) = (&interface.name, quote(&interface.name));
        let queues = interface.queue_cores.len().max(1) as f64;
        let rate = interface.packets.unwrap_or(0).saturating_add(interface.missed.unwrap_or(0)) as f64;
        let rate = (rate / evidence.seconds.max(0.001) / queues).max(1.0);
        let finding = lost_at("ring_too_small", interface);
        let cause = format!("the receive ring of {name} was full: the kernel took packets out too late or too slowly");
        match interface.ring {
            Some((now, max)) if now < max => {
                let arithmetic = format!(
                    "{} buffers a queue are {} at {}/s; {} are {}",
                    grouped(now.into()),
                    time(f64::from(now) / rate),
                    grouped(rate as u64),
                    grouped(max.into()),
                    time(f64::from(max) / rate)
                );
                let note = format!(
                    "the driver can go up to {max}; most reset the link for it; for good: ring = \"max\" in [steer]"
                );
                let cure = Cure::command(format!("ethtool -G {word} rx {max}"), note);
                finding.because(cause).with(arithmetic).cured_by([cure])
            }
            Some((now, _)) => {
                let arithmetic = format!(
                    "{} buffers a queue are {}, and the driver has no more",
                    grouped(now.into()),
                    time(f64::from(now) / rate)
                );
                let note = "spreads the receive queues over cores of their own, and the receivers beside them";
                let cure = Cure::command(evidence.steer_apply(Some(name)), note);
                finding.because(cause).with(arithmetic).cured_by([cure])
            }
            None => {
                let note = "the driver does not tell how long its ring is, so whether it can be longer is not known";
                finding.because(cause).cured_by([Cure::look(format!("ethtool -g {word}"), note)])
            }
        }
    });
    told.collect()
}

/// The card waits for a core whose softirq takes this share of its time.
const BUSY: f64 = 0.5;

/// A queue that gets this share of the packets has more than its part.
const MOST: f64 = 0.6;

/// A finding about what an interface missed, which may be 0.
pub(super) fn lost_at(case: &'static str, interface: &InterfaceEvidence) -> Finding {
    Finding::new(case, LossLayer::Nic, &interface.name, (interface.missed.unwrap_or(0), "packets"))
}

/// The same where this is the cause of what was missed; otherwise it is a risk, and another case has the loss.
fn lost_at_if(is_cause: bool, case: &'static str, interface: &InterfaceEvidence) -> Finding {
    let finding = lost_at(case, interface);
    if is_cause { finding } else { Finding { lost: 0, ..finding } }
}

fn is_busy(evidence: &Evidence, core: usize) -> bool {
    evidence.cores.get(&core).and_then(|core| core.softirq).is_some_and(|share| share >= BUSY)
}

/// One queue or one core has more than its part of an interface's work.
fn is_uneven(evidence: &Evidence, interface: &InterfaceEvidence) -> bool {
    interface.busiest_queue.is_some_and(|share| share >= MOST)
        || interface.queue_cores.iter().flatten().any(|core| is_busy(evidence, *core))
}

pub(super) fn interrupts_on_one_core(evidence: &Evidence) -> Vec<Finding> {
    if evidence.cores.len() == 1 {
        return Vec::new();
    }
    let on_one = |interface: &&InterfaceEvidence| {
        let [Some(first), rest @ ..] = interface.queue_cores.as_slice() else { return false };
        !rest.is_empty() && rest.iter().all(|core| *core == Some(*first))
    };
    let told = evidence.interfaces.iter().filter(on_one).map(|interface| {
        let core = interface.queue_cores[0].unwrap_or(0);
        let name = &interface.name;
        let cause = format!(
            "all {} receive queues of {name} are worked on by core {core}: the card spreads the load, and one core \
             takes all of it",
            interface.queue_cores.len()
        );
        let softirq = evidence.cores.get(&core).and_then(|core| core.softirq);
        let arithmetic =
            softirq.map_or(String::new(), |share| format!("its softirq took {} of its time", percent(share)));
        let command = evidence.steer_apply(Some(name));
        let note = "gives each queue a core; `udpd steer plan` shows it first, `udpd steer restore` takes it back";
        let finding = lost_at_if(is_busy(evidence, core), "interrupts_on_one_core", interface);
        finding.because(cause).with(arithmetic).cured_by([Cure::command(command, note)])
    });
    told.collect()
}

/// The command that lets the hash of a card take in the ports.
pub(in crate::explain) fn hash_ports(interface: &InterfaceEvidence) -> String {
    let name = quote(&interface.name);
    // virtio_net passes a new hash on to the card only while `rxhash` is on.
    let first = if interface.driver == "virtio_net" { format!("ethtool -K {name} rxhash on; ") } else { String::new() };
    format!("{first}ethtool -N {name} rx-flow-hash udp4 sdfn")
}

pub(super) fn hashed_by_addresses_only(evidence: &Evidence) -> Vec<Finding> {
    if evidence.cores.len() == 1 {
        return Vec::new();
    }
    let addresses_only = |interface: &&InterfaceEvidence| {
        interface.hashes_addresses_only == Some(true) && interface.queue_cores.len() > 1
    };
    let told = evidence.interfaces.iter().filter(addresses_only).map(|interface| {
        let name = &interface.name;
        let cause = format!(
            "{name} spreads UDP over its {} receive queues by addresses alone: all of a sender, whatever its ports, \
             goes to one queue",
            interface.queue_cores.len()
        );
        let note = "adds the ports; fragments of one datagram may then come out of order; for good: flow_hash_udp = \
                    \"sdfn\" in [steer]";
        let cure = Cure::command(hash_ports(interface), note);
        lost_at_if(is_uneven(evidence, interface), "hashed_by_addresses_only", interface)
            .because(cause)
            .cured_by([cure])
    });
    told.collect()
}

pub(super) fn drifted(evidence: &Evidence) -> Vec<Finding> {
    let drifted = evidence.interfaces.iter().filter(|interface| !interface.drifts.is_empty());
    let told = drifted.map(|interface| {
        let found: Vec<&str> = interface.drifts.iter().map(|drift| drift.what.as_str()).collect();
        let cause = format!("the host is not as the steering plan has it: {}", found.join("; "));
        let command = evidence.steer_apply(Some(&interface.name));
        let note = "sets again what differs; irqbalance = \"ban\" in [steer] keeps irqbalance off";
        // A core that has time and a ring of the planned length lose nothing, wherever their interrupts are.
        let is_cause = interface.drifts.iter().any(|drift| drift.is_of_the_ring) || is_uneven(evidence, interface);
        lost_at_if(is_cause, "drifted_from_plan", interface).because(cause).cured_by([Cure::command(command, note)])
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{assert_told, first, missing, told};
    use crate::explain::evidence::{CoreEvidence, Evidence, PlanDrift};

    #[test]
    fn a_ring_that_can_be_longer_is_named_with_its_maximum() {
        assert_told(&missing(5000, Some((512, 4096))), "ring_too_small", 5000, "ethtool -G eth0 rx 4096");
    }

    #[test]
    fn a_ring_at_its_maximum_leaves_steering() {
        assert_eq!(told(&missing(5000, Some((4096, 4096)))).2, "udpd steer apply eth0");
        assert_eq!(told(&missing(5000, None)).2, "ethtool -g eth0");
    }

    fn two_queues(missed: u64) -> Evidence {
        missing(missed, Some((256, 4096)))
    }

    fn drift() -> PlanDrift {
        PlanDrift { what: "interrupt 24 is 1, wanted 0".into(), ..PlanDrift::default() }
    }

    #[test]
    fn interrupts_on_one_core_are_the_cause_before_the_ring() {
        let mut evidence = two_queues(5000);
        evidence.interfaces[0].queue_cores = vec![Some(3), Some(3)];
        evidence.cores.insert(0, CoreEvidence::default());
        evidence.cores.insert(3, CoreEvidence { softirq: Some(0.97), ..CoreEvidence::default() });
        assert_told(&evidence, "interrupts_on_one_core", 5000, "udpd steer apply eth0");
        let finding = first(&evidence);
        assert_eq!(finding.arithmetic, "its softirq took 97 % of its time");
        assert!(finding.also[0].contains("ring of eth0 was full"), "{finding:?}");
    }

    #[test]
    fn a_core_that_has_time_is_no_cause_and_a_host_with_one_core_no_risk() {
        let mut evidence = two_queues(5000);
        evidence.interfaces[0].queue_cores = vec![Some(0), Some(0)];
        evidence.cores.insert(0, CoreEvidence { softirq: Some(0.1), ..CoreEvidence::default() });
        evidence.cores.insert(1, CoreEvidence::default());
        assert_eq!(told(&evidence).0, "ring_too_small");
        assert!(diagnose(&evidence).iter().any(|it| (it.case, it.lost) == ("interrupts_on_one_core", 0)));
        evidence.cores.remove(&1);
        assert_eq!(diagnose(&evidence).len(), 1);
    }

    #[test]
    fn a_hash_without_ports_is_the_cause_before_the_ring() {
        let mut evidence = two_queues(5000);
        evidence.interfaces[0].hashes_addresses_only = Some(true);
        assert_eq!(told(&evidence).0, "ring_too_small", "nothing says that one queue got more than the others");
        evidence.interfaces[0].busiest_queue = Some(0.9);
        assert_told(&evidence, "hashed_by_addresses_only", 5000, "ethtool -N eth0 rx-flow-hash udp4 sdfn");
        evidence.interfaces[0].driver = "virtio_net".into();
        assert_eq!(told(&evidence).2, "ethtool -K eth0 rxhash on; ethtool -N eth0 rx-flow-hash udp4 sdfn");
    }

    #[test]
    fn a_drift_that_has_cost_nothing_is_a_risk() {
        let mut evidence = two_queues(0);
        evidence.interfaces[0].drifts = vec![drift()];
        assert_told(&evidence, "drifted_from_plan", 0, "udpd steer apply eth0");
        evidence.config_path = Some("/etc/my udpd.toml".into());
        assert_eq!(told(&evidence).2, "udpd steer apply -c '/etc/my udpd.toml' eth0", "the plan is that file's");
    }

    #[test]
    fn a_drift_is_the_cause_of_what_was_missed_where_it_is_of_the_ring_or_a_core_has_too_much() {
        let mut evidence = two_queues(5000);
        evidence.interfaces[0].drifts = vec![drift()];
        evidence.cores =
            [(0, CoreEvidence { softirq: Some(0.1), ..CoreEvidence::default() }), (1, CoreEvidence::default())].into();
        assert_eq!(told(&evidence).0, "ring_too_small");
        assert!(diagnose(&evidence).iter().any(|it| (it.case, it.lost) == ("drifted_from_plan", 0)));
        evidence.cores.insert(1, CoreEvidence { softirq: Some(0.9), ..CoreEvidence::default() });
        assert_eq!(told(&evidence).0, "drifted_from_plan");
        evidence.cores.insert(1, CoreEvidence::default());
        evidence.interfaces[0].drifts[0].is_of_the_ring = true;
        assert_eq!(told(&evidence).0, "drifted_from_plan");
    }
}
