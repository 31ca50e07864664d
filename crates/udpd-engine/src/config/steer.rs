//! `[steer]`: which interfaces are set up, and how. Whether a device can do it is known only when it is asked, which is
//! for `udpd steer`.

use std::time::Duration;

use steer::ethtool::FlowHash;
use steer::plan::{Amount, Dedication, Placement, Request, Shares};

use super::listener::ListenerConfig;
use udpd_base::settings::kinds::{Flat, List, OneOf, Or, QuotedText, TimeSpan, WholeNumber};
use udpd_base::settings::{
    Field, Findings, KeyDeclaration, KeyFacts, Located, TableSettings, TomlTable, ValueKind, settings,
};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;

settings! {
    /// `[steer]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SteerConfig {
        /// The interfaces that `udpd steer` sets up.
        interfaces: Vec<String> = [], List(|name| Ok(name.to_owned()));
        /// What is wished of them. Its cores are those that udpd may use at all.
        request: Request = {}, FlatRequest;
        // By the names of the listeners, in order; the request has what they listen to in the same order.
        /// How many receive queues the card keeps for what each of these listeners receives.
        dedicated_queues: Vec<(String, usize)> = {} like { netflow = 1 }, DedicatedQueueCounts;
        /// Whether irqbalance is only warned of, or asked to leave the interrupts alone.
        ban_irqbalance as irqbalance: bool = "warn", OneOf(&[("warn", false), ("ban", true)]);
    }
}

settings! {
    /// The keys of a [`Request`], which the crate `steer` declares and therefore cannot be read from TOML itself.
    struct RequestKeys {
        /// How many receive queues.
        rx_queues: Amount = "keep", Or(AMOUNTS, WholeNumber(AMOUNT), Amount::Number);
        /// How many datagrams the ring of a receive queue holds.
        ring: Amount = "keep", Or(AMOUNTS, WholeNumber(AMOUNT), Amount::Number);
        /// What of a UDP datagram the interface hashes to choose the receive queue.
        flow_hash_udp: Option<FlowHash> = "keep", OneOf(FLOW_HASHES);
        /// Which share of the flows each receive queue gets.
        indirection: Shares = "even", OneOf(&[("even", Shares::Even), ("keep", Shares::Keep)]);
        /// How long the card waits before it announces what it received.
        coalesce: Option<Duration> = "keep" like "50us", Or(&[("keep", None)], TimeSpan(COALESCE), Some);
        /// Where a receiver sits, seen from its receive queue's interrupt.
        placement: Placement = "adjacent",
            OneOf(&[
                ("adjacent", Placement::Adjacent),
                ("same_core", Placement::SameCore),
                ("node", Placement::Node),
            ]);
        /// The cores that udpd may use, such as "0-3,8".
        cores as cpus: Option<Vec<usize>> = "auto", QuotedText(parse_cores), elsewhere "cores";
    }
}

/// Reads [`RequestKeys`] from the table of `[steer]` itself.
struct FlatRequest;

impl ValueKind<Request> for FlatRequest {
    fn read(&self, _: &Field<'_>, _: &mut Findings<'_>) -> Option<Request> {
        None
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        ValueKind::<RequestKeys>::keys(&Flat, own)
    }

    fn take(&self, _: &KeyFacts, table: &mut TomlTable<'_>, findings: &mut Findings<'_>) -> Request {
        let RequestKeys { rx_queues, ring, flow_hash_udp, indirection, coalesce, placement, cores } =
            RequestKeys::read(table, findings);
        Request { rx_queues, ring, flow_hash_udp, indirection, coalesce, placement, cores, ..Request::default() }
    }
}

/// A longer wait for an interrupt loses what the ring does not hold.
const COALESCE: std::ops::RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(10);

/// More queues or descriptors than any device has.
const AMOUNT: std::ops::RangeInclusive<u64> = 1..=65_536;
const AMOUNTS: &[(&str, Amount)] = &[("keep", Amount::Keep), ("max", Amount::Max)];
const FLOW_HASHES: &[(&str, Option<FlowHash>)] =
    &[("keep", None), ("sd", Some(FlowHash::ADDRESSES)), ("sdfn", Some(FlowHash::ADDRESSES_AND_PORTS))];

fn parse_cores(text: &str) -> Result<Option<Vec<usize>>, ValueAdvice> {
    match text {
        "auto" => Ok(None),
        _ => units::parse_cpus(text).map(Some).map_err(or_auto),
    }
}

/// The advice about a list of cores, which may be left to udpd.
pub(super) fn or_auto(ValueAdvice { what, cure }: ValueAdvice) -> ValueAdvice {
    ValueAdvice::new(what, format!("{cure}, or \"auto\" for all"))
}

impl SteerConfig {
    /// Which of the requests for receive queues of their own is this listener's, and how many it asks for.
    pub fn dedicated_to(&self, listener: &ListenerConfig) -> Option<(usize, usize)> {
        let place = self.dedicated_queues.iter().position(|(name, _)| *name == listener.name)?;
        Some((place, self.dedicated_queues[place].1))
    }

    /// How many receive queues are kept for it: on its interface, or on each that is steered.
    pub fn own_queues(&self, listener: &ListenerConfig) -> usize {
        let each = self.dedicated_to(listener).map_or(0, |(_, queues)| queues);
        let interfaces = if listener.interface.is_some() { 1 } else { self.interfaces.len().max(1) };
        each * interfaces
    }

    /// How many receive queues of an interface are kept for listeners.
    pub fn dedicated_on(&self, interface: &str) -> usize {
        let is_steered = self.interfaces.iter().any(|name| name == interface);
        let is_here = |wish: &&Dedication| wish.interface.as_ref().is_none_or(|name| name == interface);
        let kept = self.request.dedicated.iter().filter(is_here).map(|wish| wish.queues);
        kept.filter(|_| is_steered).sum()
    }

    /// How many receive queues an interface is to have, where a number is written for it.
    pub fn queues_asked(&self, interface: &str) -> Option<usize> {
        match self.request.rx_queues {
            Amount::Number(number) if self.interfaces.iter().any(|name| name == interface) => Some(number as usize),
            _ => None,
        }
    }
}

/// A number of receive queues for each listener that is named, in the order of the names.
struct DedicatedQueueCounts;

impl ValueKind<Vec<(String, usize)>> for DedicatedQueueCounts {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<(String, usize)>> {
        let table = TomlTable::open(field, findings, "a table")?;
        let mut count = |(name, field): (Located<String>, Field<'_>)| {
            Some((name.value, ValueKind::<usize>::read(&WholeNumber(1..=64), &field, findings)?))
        };
        Some(table.fields().into_iter().filter_map(&mut count).collect())
    }

    fn bounds(&self) -> String {
        "1 for each listener".to_owned()
    }
}
