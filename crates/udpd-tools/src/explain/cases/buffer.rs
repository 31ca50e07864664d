//! The receive buffer held less than arrived between two reads: it is what remains when the reader, its core and the
//! spread over lanes are no cause. Either the kernel granted less than was asked for, or too little was asked for, or
//! all UDP sockets together had as much memory as the kernel gives them.

use super::of_ports;
use super::shares::Part;
use crate::explain::evidence::{Evidence, KernelSettings, Port};
use crate::explain::finding::{Cure, Finding, LossLayer};
use crate::explain::sysctl_dropin::{Buffer, STALL_SECONDS, megabytes, percent};
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_size;

/// The most that is asked for one socket.
const MOST_BYTES: u64 = 1 << 30;

/// The highest advice for sockets that request no size.
const DEFAULT_MOST_BYTES: u64 = 16 << 20;

/// The buffer that a port needs, and the one that its worst socket has.
struct Need {
    buffer: Buffer,
    bytes: u64,
    words: String,
}

fn need(evidence: &Evidence, port: &Port) -> Option<Need> {
    let worst = port.worst()?;
    let bytes = worst.buffer_bytes?;
    let rate = evidence.rate(port) / port.sharing() as f64;
    let buffer = Buffer { bytes, payload_bytes: evidence.payload_bytes(port.port), rate };
    let stall = evidence.listener_on(port.port).and_then(|listener| listener.stall_seconds).unwrap_or(STALL_SECONDS);
    let needed = buffer.needed(stall, worst.dropped_at_once);
    Some(Need { buffer, bytes: needed, words: buffer.words(stall, worst.dropped_at_once) })
}

/// The kernel granted as much as rmem_max allows, and more was requested or is needed.
pub(super) fn clamped(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let need = need(evidence, port)?;
        let rmem_max = evidence.settings.rmem_max?;
        let asked = evidence.listener_on(port.port).and_then(|listener| listener.asked_buffer_bytes);
        let is_clamped = need.buffer.bytes == 2 * rmem_max && asked.is_none_or(|asked| asked > rmem_max);
        let needed = (need.bytes / 2).max(asked.unwrap_or(0)).next_multiple_of(1024);
        (is_clamped && needed > rmem_max).then(|| {
            let cause = format!(
                "the receive buffer was full, and it is as large as net.core.rmem_max = {} lets a program without \
                 CAP_NET_ADMIN have it (the kernel accounts twice that)",
                grouped(rmem_max)
            );
            let restart = restart(evidence, port);
            let sysctl = Cure::sysctl("net.core.rmem_max", needed, format!("then {restart}"));
            let mut cures = vec![sysctl];
            if let Some(listener) = evidence.listener_on(port.port) {
                cures.push(Cure::elsewhere(
                    "or grant udpd CAP_NET_ADMIN (AmbientCapabilities= and CapabilityBoundingSet= in the unit file)",
                ));
                let value = format!("\"{}\"", print_size(needed));
                let note = "if what it asks for is no more than it has";
                cures.push(Cure::listener(&listener.name, "receive_buffer", value, note));
            }
            finding.because(cause).with(need.words).cured_by(cures)
        })
    };
    of_ports(evidence, Part::Burst, case, "buffer_clamped")
}

/// The program requested less than is needed.
pub(super) fn too_small(evidence: &Evidence) -> Vec<Finding> {
    let case = |port: &Port, finding: Finding| {
        let Some(need) = need(evidence, port) else {
            let cause = "the receive buffer was full; how large it is could not be read";
            return Some(finding.because(cause));
        };
        let is_default = evidence.settings.rmem_default == Some(need.buffer.bytes);
        let why = if is_default { ", and it has the kernel's default size" } else { "" };
        let cause = format!("the receive buffer was full: more came at once than fits{why}");
        let mut cures = Vec::new();
        // What is full has to become at least twice as large.
        let needed = (need.bytes / 2).max(need.buffer.bytes).min(MOST_BYTES).next_multiple_of(1024);
        if let Some(listener) = evidence.listener_on(port.port) {
            let value = format!("\"{}\"", print_size(needed));
            let note = "or absorb, from which udpd computes it; restart udpd";
            cures.push(Cure::listener(&listener.name, "receive_buffer", value, note));
        } else {
            let beyond = evidence.settings.rmem_max.filter(|rmem_max| is_default && needed > *rmem_max);
            let beyond = beyond.map_or(String::new(), |rmem_max| {
                format!(
                    "; without CAP_NET_ADMIN it gets no more than net.core.rmem_max, which is {}",
                    grouped(rmem_max)
                )
            });
            let note = format!(
                "let the program ask for {needed} bytes (its setting for SO_RCVBUF, such as rcvbufSize of rsyslog's \
                 imudp), and {}{beyond}",
                restart(evidence, port)
            );
            cures.push(Cure::elsewhere(note));
        }
        // To a socket that asks for nothing the limit does not matter.
        let limit = evidence.settings.rmem_max.filter(|rmem_max| !is_default && needed > *rmem_max);
        if let Some(rmem_max) = limit {
            let note = format!("as it is {}, a program without CAP_NET_ADMIN gets no more", grouped(rmem_max));
            cures.push(Cure::sysctl("net.core.rmem_max", needed, note));
        }
        if is_default && evidence.listener_on(port.port).is_none() {
            let note = format!(
                "where it has no such setting: for every socket of this host that asks for nothing; then {}",
                restart(evidence, port)
            );
            let default = (2 * needed).min(DEFAULT_MOST_BYTES).max(need.buffer.bytes);
            cures.push(Cure::sysctl("net.core.rmem_default", default, note));
        }
        Some(finding.because(cause).with(need.words).cured_by(cures))
    };
    of_ports(evidence, Part::Burst, case, "buffer_too_small")
}

fn restart(evidence: &Evidence, port: &Port) -> String {
    match (&port.reader, evidence.listener_on(port.port)) {
        (_, Some(_)) => "restart udpd".to_owned(),
        (Some(reader), _) => format!("restart {}", reader.command),
        _ => "restart the program".to_owned(),
    }
}

/// From this share on the pool of pages counts as full: a look between two allocations sees a little less.
const FULL: f64 = 0.95;

/// UDP should have at most one of so many parts of the machine's memory.
const MOST_OF_MEMORY: u64 = 4;

/// The limit, how many pages were used at most, and whether that is all of them.
fn pages(settings: &KernelSettings) -> Option<([u64; 3], u64)> {
    settings.udp_mem_pages.zip(settings.udp_pages_max)
}

/// Of what a port lost, what was refused because all UDP sockets had as much memory as they may have: exactly, where
/// the kernel's reasons are known by port, and otherwise all or nothing.
pub(super) fn without_memory(evidence: &Evidence, port: &Port) -> u64 {
    let lost = port.dropped();
    if let Some(datagrams) = &evidence.datagrams {
        let refused = datagrams.iter().filter(|it| it.port == port.port && it.reason == "PROTO_MEM");
        return refused.map(|it| it.count).sum::<u64>().min(lost);
    }
    let is_full = pages(&evidence.settings).is_some_and(|(limit, used)| used as f64 >= limit[2] as f64 * FULL);
    let dropped: u64 = evidence.ports.iter().map(Port::dropped).sum();
    let counted = counted(evidence);
    // A few among many: the buffers of the sockets are the cause of the others, and these are in their number.
    if is_full || (counted > 0 && counted.saturating_mul(2) >= dropped) { lost } else { 0 }
}

fn counted(evidence: &Evidence) -> u64 {
    let is_ours = |port: Option<u16>| port.is_some_and(|port| evidence.ports.iter().any(|ours| ours.port == port));
    let refused = evidence.reasons.iter().filter(|reason| reason.name == "PROTO_MEM" && is_ours(reason.port));
    let named: u64 = refused.map(|reason| reason.count).sum();
    evidence.stack.mem_errors.unwrap_or(0).max(named)
}

pub(super) fn udp_mem_reached(evidence: &Evidence) -> Vec<Finding> {
    let case = |_: &Port, finding: Finding| Some(told(evidence, finding));
    let found = of_ports(evidence, Part::Memory, case, "udp_mem_reached");
    let counted = counted(evidence);
    if !found.is_empty() || counted == 0 {
        return found;
    }
    let of_ours = evidence.ports.iter().any(|port| port.dropped() > 0);
    let lost = if of_ours { 0 } else { counted };
    vec![told(evidence, Finding::new("udp_mem_reached", LossLayer::Udp, "all sockets", (lost, "datagrams")))]
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
pub(super) fn of_other_sockets(evidence: &Evidence) -> Vec<Finding> {
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
        let cure = Cure::look("ss -uamn", "shows them (d in skmem is what they dropped); udpd explain --port N");
        let finding = Finding::new("other_sockets", LossLayer::Udp, "sockets on other ports", (0, "datagrams"));
        return vec![finding.because(cause).cured_by([cure])];
    }
    let cause = "their receive buffers were full, and the sockets were closed before the last reading";
    let cure = Cure::elsewhere("watch again; a longer --seconds does not help where a program opens one for each task");
    let finding = Finding::new("sockets_gone", LossLayer::Udp, "sockets that are gone", (lost, "datagrams"));
    vec![finding.because(cause).cured_by([cure])]
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::diagnose;
    use crate::explain::cases::testing::{assert_told, first, losing, losing_listener, told};
    use crate::explain::evidence::NamedDrops;
    use crate::explain::finding::Cure;

    fn same(cure: &Cure, other: &Cure) -> bool {
        let value = |cure: &Cure| match cure {
            Cure::Sysctl { name, value, .. } => Some((name.clone(), value.clone())),
            _ => None,
        };
        value(cure) == value(other)
    }

    #[test]
    fn a_buffer_that_is_full_becomes_twice_as_large_in_a_unit_that_the_configuration_takes() {
        let mut evidence = losing_listener();
        evidence.ports[0].sockets[0].buffer_bytes = Some(64_000_001);
        assert_eq!(told(&evidence).2, "listener.syslog.receive_buffer = \"62501KiB\"");
    }

    #[test]
    fn a_buffer_of_the_default_size_is_named_with_the_sum_and_the_sysctl() {
        let mut evidence = losing();
        evidence.ports[0].sockets[0].buffer_bytes = Some(212_992);
        let (case, lost, cure) = told(&evidence);
        assert_eq!((case, lost), ("buffer_too_small", 1000));
        assert!(cure.starts_with("let the program ask for "), "{cure}");
        evidence.ports[0].sockets[0].dropped_at_once = 1_000_000;
        let cures = first(&evidence).cures;
        let default = Cure::sysctl("net.core.rmem_default", 16 << 20, "");
        assert!(cures.iter().any(|cure| same(cure, &default)), "{cures:?}");
        evidence.ports[0].sockets[0].dropped_at_once = 100;
        let sum = first(&evidence).arithmetic;
        assert!(sum.starts_with("212,992 bytes hold 166 datagrams"), "{sum}");
    }

    #[test]
    fn a_buffer_that_rmem_max_clamps_is_named_with_the_value_that_would_do() {
        let mut evidence = losing();
        evidence.settings.rmem_max = Some(150_000);
        assert_eq!(told(&evidence).0, "buffer_clamped");
        assert!(told(&evidence).2.starts_with("net.core.rmem_max="), "{:?}", told(&evidence));
    }

    #[test]
    fn of_a_listener_of_udpd_the_key_is_the_cure() {
        let (case, lost, cure) = told(&losing_listener());
        assert_eq!((case, lost), ("buffer_too_small", 1000));
        assert!(cure.starts_with("listener.syslog.receive_buffer = \""), "{cure}");
    }

    #[test]
    fn a_buffer_whose_size_nobody_tells_is_no_guess() {
        let mut evidence = losing();
        evidence.ports[0].sockets[0].buffer_bytes = None;
        let finding = first(&evidence);
        assert!(finding.cause.contains("could not be read") && finding.cures.is_empty(), "{finding:?}");
    }

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
            evidence.reasons.push(NamedDrops { name: "PROTO_MEM".into(), port: Some(514), count: 600 });
            evidence
        };
        for evidence in [by_counter, by_level, by_reason] {
            assert_told(&evidence, "udp_mem_reached", 1000, "net.ipv4.udp_mem=200000 300000 400000");
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
