//! `[steer]`: which interfaces are set up, and what is asked of them. Whether a device can do it is only known when it
//! is asked, so that is for `udpd steer`, not for here.

use std::collections::BTreeMap;

use steer::ethtool::FlowHash;
use steer::plan::{Amount, Placement, Request, Shares};

use crate::settings::kinds::{Count, Flat, List, Or, Text, Words};
use crate::settings::settings;
use crate::text::advice::Advice;
use crate::text::units;

settings! {
    /// `[steer]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Steer {
        /// The interfaces that `udpd steer` sets up.
        interfaces: Vec<String> = [], List(|name| Ok(name.to_owned()));
        /// What is wished of them. Its cores are those that udpd may use at all.
        request: Request = {}, Flat;
        /// Whether irqbalance is only warned of, or asked to leave the interrupts alone.
        ban_irqbalance as irqbalance: bool = "warn", Words(&[("warn", false), ("ban", true)]);
    }
}

settings! {
    for Request {
        /// How many receive queues.
        rx_queues: Amount = "keep", Or(AMOUNTS, Count(AMOUNT), Amount::Number);
        /// How many datagrams the ring of a receive queue holds.
        ring: Amount = "keep", Or(AMOUNTS, Count(AMOUNT), Amount::Number);
        /// What of a UDP datagram the interface hashes to choose the receive queue.
        flow_hash_udp: Option<FlowHash> = "keep", Words(FLOW_HASHES);
        /// Where a receiver sits, seen from its receive queue's interrupt.
        placement: Placement = "adjacent",
            Words(&[("adjacent", Placement::Adjacent), ("same_core", Placement::SameCore)]);
        /// The cores that udpd may use, such as "0-3,8".
        cores as cpus: Option<Vec<usize>> = "auto", Text(parse_cores), elsewhere "cores";
        .. indirection = Shares::Even;
        .. coalesce = None;
        .. dedicated = Vec::new();
        .. receivers = BTreeMap::new();
        .. seated = BTreeMap::new();
        .. taken = Vec::new();
    }
}

/// More queues or descriptors than any device has.
const AMOUNT: std::ops::RangeInclusive<u64> = 1..=65_536;
const AMOUNTS: &[(&str, Amount)] = &[("keep", Amount::Keep), ("max", Amount::Max)];
const FLOW_HASHES: &[(&str, Option<FlowHash>)] =
    &[("keep", None), ("sd", Some(FlowHash::ADDRESSES)), ("sdfn", Some(FlowHash::ADDRESSES_AND_PORTS))];

fn parse_cores(text: &str) -> Result<Option<Vec<usize>>, Advice> {
    match text {
        "auto" => Ok(None),
        _ => units::parse_cpus(text).map(Some).map_err(or_auto),
    }
}

/// The advice about a list of cores, which may be left to udpd.
pub(crate) fn or_auto(Advice { what, cure }: Advice) -> Advice {
    Advice::new(what, format!("{cure}, or \"auto\" for all"))
}
