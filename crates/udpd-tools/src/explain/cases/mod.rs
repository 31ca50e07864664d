//! What `explain` knows: a function each, from evidence alone, in the order from the most specific cause of a loss to
//! the least. docs/explain.md has a line for each.

pub mod backlog;
pub mod buffer;
pub mod core;
pub mod daemon;
pub mod ip;
pub mod memory;
pub mod nic;
pub mod no_listener;
pub mod ports;
pub mod queue;
pub mod reader;
pub mod steering;
#[cfg(test)]
pub mod testing;
pub mod unexplained;

use super::evidence::Evidence;
use super::finding::{Finding, rank};

/// Looks at the evidence in one respect.
type Case = fn(&Evidence) -> Vec<Finding>;

/// Of several causes of one loss the first is told.
const CASES: &[Case] = &[
    daemon::lost_upstream,
    steering::interrupts_on_one_core,
    steering::hashed_by_addresses_only,
    steering::drifted,
    nic::ring_too_small,
    backlog::core_at_its_limit,
    backlog::backlog_too_short,
    ip::bad_fragments,
    ip::reverse_path_filter,
    ip::conntrack_full,
    ip::firewall,
    no_listener::no_listener,
    ip::bad_checksums,
    memory::udp_mem_reached,
    reader::stopped,
    queue::too_short,
    reader::throttled,
    daemon::sink_blocks,
    core::starved,
    core::shared_with_the_softirq,
    reader::hot_sender,
    reader::at_its_limit,
    reader::silent,
    buffer::clamped,
    buffer::too_small,
    memory::of_other_sockets,
    daemon::dropped_by_rule,
    daemon::sink_too_slow,
    daemon::sink_refuses,
    unexplained::losses,
];

/// All that can be said of it, worst first and nothing twice.
pub fn diagnose(evidence: &Evidence) -> Vec<Finding> {
    rank(CASES.iter().flat_map(|case| case(evidence)).collect())
}
