//! All UDP sockets together had as much memory as the kernel gives them; and what sockets lost that are gone by now.

use super::ports::of_ports;
use crate::explain::evidence::{Evidence, Port, Settings};
use crate::explain::finding::{Cure, Finding, Layer};
use crate::explain::sums::{megabytes, percent};
use udpd_base::text::tables::grouped;

/// So near to its limit the pool of pages counts as full: a look between two allocations sees a little less.
const FULL: f64 = 0.95;

/// Of the machine's memory one part of so many is the most that UDP should have.
const MOST_OF_MEMORY: u64 = 4;

/// The limit, how many pages were used at most, and whether that is all of them.
fn pages(settings: &Settings) -> Option<([u64; 3], u64)> {
    settings.udp_mem_pages.zip(settings.udp_pages_max)
}

pub fn udp_mem_reached(evidence: &Evidence) -> Vec<Finding> {
    let is_ours = |port: Option<u16>| port.is_some_and(|port| evidence.ports.iter().any(|ours| ours.port == port));
    let refused = evidence.reasons.iter().filter(|reason| reason.name == "PROTO_MEM" && is_ours(reason.port));
    let named: u64 = refused.map(|reason| reason.count).sum();
    let counted = evidence.stack.mem_errors.unwrap_or(0).max(named);
    let is_full = pages(&evidence.settings).is_some_and(|(limit, used)| used as f64 >= limit[2] as f64 * FULL);
    let dropped: u64 = evidence.ports.iter().map(Port::dropped).sum();
    if !is_full && (counted == 0 || counted.saturating_mul(2) < dropped) {
        // A few among many: the buffers of the sockets are the cause of the others, and these are in their number.
        let few = Finding::new("udp_mem_reached", Layer::Udp, "all sockets", (0, "datagrams"));
        return (counted > 0).then(|| told(evidence, few)).into_iter().collect();
    }
    let case = |_: &Port, finding: Finding| Some(told(evidence, finding));
    let found = of_ports(evidence, case, "udp_mem_reached");
    if found.is_empty() && counted > 0 {
        return vec![told(
            evidence,
            Finding::new("udp_mem_reached", Layer::Udp, "all sockets", (counted, "datagrams")),
        )];
    }
    found
}

fn told(evidence: &Evidence, finding: Finding) -> Finding {
    let settings = &evidence.settings;
    let cause = "all UDP sockets of this host together had as much memory as net.ipv4.udp_mem allows, so even a socket \
                 with room dropped";
    let Some((limit, used)) = pages(settings) else { return finding.because(cause) };
    let page = settings.page_bytes.max(1);
    let sum: u64 = evidence.ports.iter().flat_map(|port| &port.sockets).filter_map(|it| it.buffer_bytes).sum();
    let bytes = limit[2].saturating_mul(page);
    let memory = settings.memory_bytes.filter(|memory| *memory > 0);
    let most = memory.map_or(u64::MAX, |memory| memory / MOST_OF_MEMORY / page);
    let needed = (sum / page).max(limit[2]).saturating_mul(2).min(most);
    let arithmetic = format!(
        "{} of {} pages were used ({}); the receive buffers of these sockets together may take {}, and udp_mem lets \
         all sockets have {}",
        grouped(used),
        grouped(limit[2]),
        percent(used as f64 / limit[2].max(1) as f64),
        megabytes(sum),
        megabytes(bytes)
    );
    let finding = finding.because(cause).with(arithmetic);
    if needed <= limit[2] {
        let note = "udp_mem has a quarter of this machine's memory already: lower the receive buffers, or add memory";
        return finding.cured_by([Cure::elsewhere(note)]);
    }
    let value = format!("{} {} {needed}", limit[0].max(needed / 2), limit[1].max(needed / 4 * 3));
    let share = memory.map_or(String::new(), |memory| {
        format!("; that is {} of this machine's memory", percent(needed.saturating_mul(page) as f64 / memory as f64))
    });
    let note = format!("for all network namespaces{share}; or lower the receive buffers of the others");
    finding.cured_by([Cure::sysctl("net.ipv4.udp_mem", value, note)])
}

/// The namespace counts more full buffers than the sockets that were watched. Only where those were all of them the
/// others have been closed.
pub fn of_other_sockets(evidence: &Evidence) -> Vec<Finding> {
    let Some(errors) = evidence.stack.rcvbuf_errors else { return Vec::new() };
    let seen: u64 = evidence.ports.iter().map(Port::dropped).sum();
    let lost = errors.saturating_sub(seen);
    if lost == 0 {
        return Vec::new();
    }
    if !evidence.has_all_ports {
        let cause = format!(
            "sockets on other ports of this network namespace lost {} datagrams, because their receive buffers \
             were full",
            grouped(lost)
        );
        let cure = Cure::command("ss -uamn", "shows them (d in skmem is what they dropped); udpd explain --port N");
        let finding = Finding::new("other_sockets", Layer::Udp, "sockets on other ports", (0, "datagrams"));
        return vec![finding.because(cause).cured_by([cure])];
    }
    let cause = "their receive buffers were full, and the sockets were closed before the last reading";
    let cure = Cure::elsewhere("watch again; a longer --seconds does not help where a program opens one for each task");
    let finding = Finding::new("sockets_gone", Layer::Udp, "sockets that are gone", (lost, "datagrams"));
    vec![finding.because(cause).cured_by([cure])]
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{losing, told};
    use crate::explain::evidence::Reason;

    #[test]
    fn udp_mem_is_named_by_its_counter_by_its_fill_level_and_by_the_tracepoint() {
        let by_counter = {
            let mut evidence = losing();
            evidence.stack.mem_errors = Some(500);
            evidence
        };
        let by_level = {
            let mut evidence = losing();
            evidence.settings.udp_pages_max = Some(199_990);
            evidence
        };
        let by_reason = {
            let mut evidence = losing();
            evidence.reasons.push(Reason { name: "PROTO_MEM".into(), port: Some(514), count: 600 });
            evidence
        };
        for evidence in [by_counter, by_level, by_reason] {
            let cure = "net.ipv4.udp_mem=200000 300000 400000".to_owned();
            assert_eq!(told(&evidence), ("udp_mem_reached", 1000, cure));
        }
    }

    #[test]
    fn one_datagram_without_memory_is_not_the_cause_of_a_thousand() {
        let mut evidence = losing();
        evidence.stack.mem_errors = Some(1);
        assert_eq!(told(&evidence).0, "buffer_too_small");
        assert!(diagnose(&evidence).iter().any(|it| (it.case, it.lost) == ("udp_mem_reached", 0)));
    }

    #[test]
    fn udp_gets_no_more_than_a_part_of_the_machines_memory() {
        let mut evidence = losing();
        evidence.settings.udp_pages_max = Some(199_990);
        evidence.settings.memory_bytes = Some(250_000 * 4 * 4096);
        assert_eq!(told(&evidence).2, "net.ipv4.udp_mem=125000 187500 250000");
        evidence.settings.memory_bytes = Some(1 << 20);
        assert!(told(&evidence).2.contains("lower the receive buffers"), "{:?}", told(&evidence));
    }

    #[test]
    fn what_closed_sockets_lost_is_what_the_others_did_not() {
        let mut evidence = losing();
        evidence.stack.rcvbuf_errors = Some(5000);
        assert!(
            diagnose(&evidence).iter().any(|it| (it.case, it.lost) == ("other_sockets", 0)),
            "others were not seen"
        );
        assert!(diagnose(&evidence).iter().all(|it| it.case != "sockets_gone"));
        evidence.has_all_ports = true;
        let (case, lost, _) = told(&evidence);
        assert_eq!((case, lost), ("sockets_gone", 4000));
    }
}
