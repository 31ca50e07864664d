//! Evidence for the tests of cases: a port with one socket that lost something, and its reader.

use super::diagnose;
use crate::explain::evidence::{
    Evidence, InterfaceEvidence, KernelSettings, LaneEvidence, ListenerEvidence, Port, ReaderEvidence, SinkEvidence,
    SocketEvidence, Stack,
};
use crate::explain::finding::{Cure, Finding};

/// Five seconds in which the socket on port 514 of a foreign program lost 1,000 of 11,000 datagrams of 60 bytes, and
/// its reader had nothing to complain of.
pub(crate) fn losing() -> Evidence {
    let socket = SocketEvidence {
        address: "0.0.0.0:514".into(),
        dropped: 1000,
        dropped_at_once: 100,
        buffer_bytes: Some(300_000),
        full: 0.1,
        ..SocketEvidence::default()
    };
    let reader = ReaderEvidence {
        pid: 812,
        command: "rsyslogd".into(),
        cores: vec![0, 1],
        ran: Some(0.3),
        waited: Some(0.01),
        ..ReaderEvidence::default()
    };
    Evidence {
        seconds: 5.0,
        stack: Stack { received: Some(10_000), rcvbuf_errors: Some(1000), ..Stack::default() },
        settings: KernelSettings {
            rmem_max: Some(4_194_304),
            rmem_default: Some(212_992),
            page_bytes: 4096,
            udp_mem_pages: Some([100_000, 150_000, 200_000]),
            udp_pages_max: Some(100),
            has_default_route: true,
            ..KernelSettings::default()
        },
        ports: vec![Port { port: 514, sockets: vec![socket], reader: Some(reader), of_others: vec![] }],
        ..Evidence::default()
    }
}

/// The same of a listener of udpd, `syslog`.
pub(crate) fn losing_listener() -> Evidence {
    let mut evidence = losing();
    if let Some(reader) = &mut evidence.ports[0].reader {
        reader.command = "udpd".into();
    }
    evidence.listeners.push(ListenerEvidence {
        name: "syslog".into(),
        ports: vec![514],
        arrived: Some(11_000),
        received: 10_000,
        bytes: 600_000,
        kernel_dropped_unit: "datagrams".into(),
        lanes: vec![LaneEvidence { lane: 0, arrived: Some(11_000), dropped: Some(1000), ..LaneEvidence::default() }],
        sinks: vec![SinkEvidence {
            name: "archive".into(),
            offered: 10_000,
            delivered: 10_000,
            ..SinkEvidence::default()
        }],
        ..ListenerEvidence::default()
    });
    evidence
}

pub(crate) fn first(evidence: &Evidence) -> Finding {
    diagnose(evidence).into_iter().next().expect("a finding")
}

/// The reader of the first port.
pub(crate) fn reader(evidence: &mut Evidence) -> &mut ReaderEvidence {
    evidence.ports[0].reader.as_mut().expect("a reader")
}

/// A listener of udpd whose sockets lost nothing.
pub(crate) fn listening() -> Evidence {
    let mut evidence = losing_listener();
    evidence.ports[0].sockets[0].dropped = 0;
    evidence.stack.rcvbuf_errors = Some(0);
    evidence
}

/// Recorded, because no card of this machine has two receive queues: `eth0` missed so many of 900,000 packets.
pub(crate) fn missing(missed: u64, ring: Option<(u32, u32)>) -> Evidence {
    let interface = InterfaceEvidence {
        name: "eth0".into(),
        packets: Some(900_000),
        missed: Some(missed),
        ring,
        queue_cores: vec![Some(0), Some(1)],
        ..InterfaceEvidence::default()
    };
    Evidence { seconds: 5.0, interfaces: vec![interface], ..Evidence::default() }
}

/// The finding that is told first has this case, this loss, and this first cure.
#[track_caller]
pub(crate) fn assert_told(evidence: &Evidence, case: &str, lost: u64, cure: &str) {
    let found = told(evidence);
    assert_eq!((found.0, found.1, found.2.as_str()), (case, lost, cure));
}

/// Case, number, and the first cure in a line.
pub(crate) fn told(evidence: &Evidence) -> (&'static str, u64, String) {
    let finding = first(evidence);
    let cure = match finding.cures.first() {
        Some(Cure::Command { command, .. } | Cure::Look { command, .. }) => command.clone(),
        Some(Cure::Sysctl { name, value, .. }) => format!("{name}={value}"),
        Some(Cure::Key { table, name, key, value, .. }) => format!("{table}.{name}.{key} = {value}"),
        Some(Cure::Elsewhere { note }) => note.clone(),
        None => String::new(),
    };
    (finding.case, finding.lost, cure)
}
