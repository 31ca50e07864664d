//! What the cases about receive buffers share: each is asked of every port that dropped at its sockets.

use crate::explain::evidence::{Evidence, Port};
use crate::explain::finding::{Finding, Layer};

/// What is said of a port that dropped at its sockets, where the case applies.
pub fn of_ports(
    evidence: &Evidence,
    case: impl Fn(&Port, Finding) -> Option<Finding>,
    name: &'static str,
) -> Vec<Finding> {
    let losing = evidence.ports.iter().filter(|port| port.dropped() > 0);
    losing
        .filter_map(|port| {
            let unit = evidence.listener_on(port.port).map_or("datagrams", |it| it.kernel_dropped_unit.as_str());
            case(port, Finding::new(name, Layer::Socket, subject(evidence, port), (port.dropped(), unit)))
        })
        .collect()
}

/// A port, and who reads it.
fn subject(evidence: &Evidence, port: &Port) -> String {
    let listener = evidence.listener_on(port.port).map(|listener| format!(", listener {}", listener.name));
    let reader = port.reader.as_ref().map(|reader| format!(", {} (pid {})", reader.command, reader.pid));
    format!("port {}{}{}", port.port, listener.unwrap_or_default(), reader.unwrap_or_default())
}
