//! Losses of the host ledger that no case explains: reported by their counter, so that "nothing was lost" is said only
//! where nothing was.

use hostloss::Loss;

use super::refused::Refusal;
use crate::explain::evidence::Evidence;
use crate::explain::finding::{Cure, Finding, LossLayer, quote};
use crate::stats::counter_of;

/// Counters whose losses other cases report in full.
const TOLD: &[&str] =
    &["rx_missed_errors", "drop", "reverse_path_filter", "reasm_fails", "in_hdr_errors", "no_ports", "drops"];

pub(super) fn losses(evidence: &Evidence) -> Vec<Finding> {
    let mut in_backlog = super::backlog::lost(evidence).map_or(0, |(_, lost, _)| lost);
    let stack = &evidence.stack;
    let parts = [stack.rcvbuf_errors, stack.mem_errors, stack.checksum_errors];
    // What a filter has denied is no loss: the configuration asks for it.
    let denied: u64 = evidence.listeners.iter().map(|listener| listener.denied_in_kernel).sum();
    let mut at_sockets = parts.iter().flatten().sum::<u64>() + denied;
    let filtered: u64 = super::refused::count(evidence, Refusal::Filter);
    at_sockets += filtered.saturating_sub(denied);
    let at_addresses = [Refusal::Address, Refusal::Source, Refusal::Group, Refusal::Unknown];
    let mut at_addresses: u64 = at_addresses.iter().map(|refusal| super::refused::count(evidence, *refusal)).sum();
    let mut too_long = super::refused::count(evidence, Refusal::TooLong);
    let left = |loss: &Loss| {
        // What another case has told of it is told once.
        let told = match loss.counter.as_str() {
            counter if TOLD.contains(&counter) => loss.count,
            "rx_dropped" => {
                let in_queues = super::daemon::lost_at(evidence, &loss.place).min(loss.count);
                let rest = loss.count - in_queues;
                let long = take(&mut too_long, rest);
                in_queues + long + take(&mut in_backlog, rest - long)
            }
            "in_addr_errors" | "in_no_routes" | "in_discards" => take(&mut at_addresses, loss.count),
            "in_errors" => take(&mut at_sockets, loss.count),
            _ => 0,
        };
        (loss.count > told).then(|| finding(loss, loss.count - told))
    };
    evidence.losses.iter().filter_map(left).collect()
}

fn take(rest: &mut u64, count: u64) -> u64 {
    let taken = count.min(*rest);
    *rest -= taken;
    taken
}

fn finding(loss: &Loss, lost: u64) -> Finding {
    let layer = match loss.layer {
        hostloss::KernelLayer::Nic => LossLayer::Nic,
        hostloss::KernelLayer::Softnet => LossLayer::Backlog,
        hostloss::KernelLayer::Conntrack | hostloss::KernelLayer::Ip => LossLayer::Ip,
        hostloss::KernelLayer::Udp => LossLayer::Udp,
        hostloss::KernelLayer::Socket => LossLayer::Socket,
    };
    let unit = if loss.layer < hostloss::KernelLayer::Udp { "packets of any protocol" } else { "datagrams" };
    let (name, help) = counter_of(loss).map_or((loss.counter.as_str(), ""), |counter| (counter.source, counter.help));
    let cause =
        format!("the kernel counts them as {name} ({}), and udpd explain knows no case of it. {help}", loss.place);
    let cause = cause.trim_end().trim_end_matches('.').replace('`', "");
    let command = match loss.layer {
        hostloss::KernelLayer::Nic => Cure::look(format!("ip -s -s link show dev {}", quote(&loss.place)), NIC),
        _ => Cure::look("nstat -asz", "shows all counters of IP and UDP"),
    };
    let subject = format!("{name} of {}", loss.place);
    Finding::new("unexplained", layer, subject, (lost, unit)).because(cause).cured_by([command])
}

const NIC: &str = "shows what kind of error it was; ethtool -S has the driver's own counters";

#[cfg(test)]
mod tests {
    use hostloss::{HostReading, Losses};

    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{self, first, losing, told};
    use crate::explain::evidence::{CoreEvidence, Evidence, InterfaceEvidence, ListenerEvidence};

    fn lost(reading: &HostReading) -> Evidence {
        Evidence { seconds: 5.0, losses: Losses::of(reading).lost, ..Evidence::default() }
    }

    #[test]
    fn a_loss_that_no_case_knows_is_told_by_its_counter_and_is_no_success() {
        let mut reading = HostReading::default();
        reading.ip.in_discards = Some(7);
        let finding = first(&lost(&reading));
        assert_eq!((finding.case, finding.lost, finding.unit.as_str()), ("unexplained", 7, "packets of any protocol"));
        assert!(finding.cause.contains("InDiscards (ipv4)"), "{finding:?}");
        reading.ip.in_discards = None;
        reading.udp.in_errors = Some(3);
        assert_eq!((first(&lost(&reading)).lost, first(&lost(&reading)).unit.as_str()), (3, "datagrams"));
    }

    #[test]
    fn only_what_the_other_cases_left_over_is_told() {
        let mut reading = HostReading::default();
        reading.udp.in_errors = Some(1000);
        reading.udp.no_ports = Some(5);
        let evidence = Evidence { losses: Losses::of(&reading).lost, ..losing() };
        assert!(diagnose(&evidence).iter().all(|finding| finding.case != "unexplained"), "{:?}", diagnose(&evidence));
        reading.udp.in_errors = Some(1004);
        let evidence = Evidence { losses: Losses::of(&reading).lost, ..losing() };
        assert_eq!(testing::told(&evidence).1, 1000);
        assert!(diagnose(&evidence).iter().any(|finding| (finding.case, finding.lost) == ("unexplained", 4)));
    }

    #[test]
    fn what_a_filter_has_denied_is_no_loss() {
        let mut reading = HostReading::default();
        reading.udp.in_errors = Some(50);
        let listener = ListenerEvidence { denied_in_kernel: 50, ..ListenerEvidence::default() };
        assert!(diagnose(&Evidence { listeners: vec![listener], ..lost(&reading) }).is_empty());
    }

    #[test]
    fn of_what_an_interface_dropped_the_backlog_has_its_part() {
        let mut reading = HostReading::default();
        reading.nic.entry("eth0".into()).or_default().link.rx_dropped = Some(50);
        let mut evidence = lost(&reading);
        assert_eq!(told(&evidence).2, "ip -s -s link show dev eth0");
        evidence.cores.insert(0, CoreEvidence { backlog_dropped: Some(30), ..CoreEvidence::default() });
        evidence.interfaces.push(InterfaceEvidence {
            name: "eth0".into(),
            dropped: Some(50),
            ..InterfaceEvidence::default()
        });
        let told: Vec<_> = diagnose(&evidence).iter().map(|finding| (finding.case, finding.lost)).collect();
        assert_eq!(told, [("backlog_too_short", 30), ("unexplained", 20)]);
    }
}
