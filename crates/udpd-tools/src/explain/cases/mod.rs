//! What `explain` knows: a function for each case, from evidence alone, in the order from the most specific cause of a
//! loss to the least. docs/explain.md has a line for each.

mod backlog;
mod buffer;
pub(super) mod card;
mod daemon;
mod ip;
mod reader;
mod refused;
mod shares;
#[cfg(test)]
pub(super) mod testing;
mod unexplained;

use self::shares::{Part, shares};
use super::evidence::{Evidence, Port};
use super::finding::{Finding, LossLayer, rank};

/// Looks at the evidence in one respect.
type Case = fn(&Evidence) -> Vec<Finding>;

/// Of several causes of one loss the first is told.
const CASES: &[Case] = &[
    daemon::lost_upstream,
    card::interrupts_on_one_core,
    card::hashed_by_addresses_only,
    card::drifted,
    card::ring_too_small,
    backlog::core_at_its_limit,
    backlog::backlog_too_short,
    ip::bad_fragments,
    ip::reverse_path_filter,
    ip::conntrack_full,
    ip::header_errors,
    refused::firewall,
    ip::firewall_of_any_port,
    refused::ingress_program,
    refused::wrong_mac,
    refused::martian_source,
    refused::wrong_address,
    refused::group_not_joined,
    refused::longer_than_mtu,
    refused::socket_takes_others,
    refused::socket_filter,
    refused::unknown_reason,
    ip::no_listener,
    ip::send_buffer,
    ip::bad_checksums,
    buffer::udp_mem_reached,
    reader::stopped,
    daemon::too_short,
    reader::throttled,
    daemon::sink_blocks,
    reader::starved,
    reader::shared_with_the_softirq,
    reader::hot_sender,
    reader::at_its_limit,
    reader::silent,
    reader::unknown_reader,
    buffer::clamped,
    buffer::too_small,
    buffer::of_other_sockets,
    daemon::dropped_by_rule,
    daemon::sink_too_slow,
    daemon::sink_refuses,
    unexplained::losses,
];

/// All that can be said of it, worst first and nothing twice.
pub(super) fn diagnose(evidence: &Evidence) -> Vec<Finding> {
    rank(CASES.iter().flat_map(|case| case(evidence)).collect())
}

/// What is said of a port that dropped at its sockets, for this part of it, where the case applies.
fn of_ports(
    evidence: &Evidence,
    part: Part,
    case: impl Fn(&Port, Finding) -> Option<Finding>,
    name: &'static str,
) -> Vec<Finding> {
    let losing = evidence.ports.iter().filter(|port| port.dropped() > 0);
    losing
        .filter_map(|port| {
            let lost = *shares(evidence, port).get(&part)?;
            let unit = evidence.listener_on(port.port).map_or("datagrams", |it| it.kernel_dropped_unit.as_str());
            let mut finding = Finding::new(name, LossLayer::Socket, subject(evidence, port), (lost, unit));
            finding.part = part.name();
            case(port, finding)
        })
        .collect()
}

/// A port, and who reads it.
fn subject(evidence: &Evidence, port: &Port) -> String {
    let listener = evidence.listener_on(port.port).map(|listener| format!(", listener {}", listener.name));
    let reader = port.reader.as_ref().map(|reader| format!(", {} (pid {})", reader.command, reader.pid));
    format!("port {}{}{}", port.port, listener.unwrap_or_default(), reader.unwrap_or_default())
}
