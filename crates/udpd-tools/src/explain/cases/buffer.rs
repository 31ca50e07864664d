//! The receive buffer held less than came while nobody read: it is what remains when the reader, its core and the
//! spread over lanes are no cause. Either the kernel granted less than was asked for, or too little was asked for.

use super::ports::of_ports;
use crate::explain::evidence::{Evidence, Port};
use crate::explain::finding::{Cure, Finding};
use crate::explain::sums::{Buffer, STALL_SECONDS};
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_size;

/// The most that is asked for one socket.
const MOST_BYTES: u64 = 1 << 30;

/// The most that every socket of the host is given that asks for nothing.
const DEFAULT_MOST_BYTES: u64 = 16 << 20;

/// What a port needs, beside what its worst socket has.
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

/// The kernel gave as much as rmem_max allows, and more was asked for or is needed.
pub fn clamped(evidence: &Evidence) -> Vec<Finding> {
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
    of_ports(evidence, case, "buffer_clamped")
}

/// Less was asked for than is needed.
pub fn too_small(evidence: &Evidence) -> Vec<Finding> {
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
            let note = format!(
                "let the program ask for {needed} bytes (its setting for SO_RCVBUF, such as rcvbufSize of rsyslog's \
                 imudp), and {}",
                restart(evidence, port)
            );
            cures.push(Cure::elsewhere(note));
        }
        if let Some(rmem_max) = evidence.settings.rmem_max.filter(|rmem_max| needed > *rmem_max) {
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
    of_ports(evidence, case, "buffer_too_small")
}

fn restart(evidence: &Evidence, port: &Port) -> String {
    match (&port.reader, evidence.listener_on(port.port)) {
        (_, Some(_)) => "restart udpd".to_owned(),
        (Some(reader), _) => format!("restart {}", reader.command),
        _ => "restart the program".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::explain::cases::testing::{first, losing, losing_listener, told};
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
}
