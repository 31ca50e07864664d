//! Which destination a datagram goes to: first the group, by the network that its source is in, and then one of the
//! group, by its source or by which one works. Every destination has a place, by which it is known here.

use std::time::Instant;

use ipnet::IpNet;
use mmsg::Datagram;

use super::choice;
use super::destination::RelayDestination;
use super::failover::Failover;
use super::mode::{Distribute, RelayMode, Route};
use udpd_base::capture::headers;
use udpd_base::text::peer::PeerAddress;

/// Chooses for all datagrams of a relay.
#[derive(Debug)]
pub(super) struct DestinationGroups {
    /// The networks that have a group of their own, the longest first.
    networks: Vec<(IpNet, usize)>,
    /// The first is for all others.
    groups: Vec<DestinationGroup>,
}

/// Destinations of which one gets a datagram.
#[derive(Debug)]
struct DestinationGroup {
    first: usize,
    count: usize,
    failover: Option<Failover>,
    /// With a failover, the place of the one in use for this batch.
    current: usize,
    /// One that the next datagram tries.
    tried: Option<usize>,
    /// The same as it was at the last review, by its place in the group: once it is tried, the trial has begun.
    offered: Option<usize>,
    /// What the log has said: which one is in use, by its place in the group, or that none works.
    said: Option<usize>,
}

impl DestinationGroups {
    /// So many destinations for all sources but those of the routes, whose destinations come behind them.
    pub(super) fn new(destinations: usize, routes: &[Route], mode: RelayMode) -> Self {
        let mut first = 0;
        let mut group = |count: usize| {
            let has_failover = mode.distribute == Distribute::Failover && count > 1;
            let failover = has_failover.then(|| Failover::new(count, mode.probe_every));
            let (current, said) = (first, Some(0));
            let group = DestinationGroup { first, count, failover, current, tried: None, offered: None, said };
            first += count;
            group
        };
        let groups = std::iter::once(destinations).chain(routes.iter().map(|route| route.to.len())).map(&mut group);
        let groups = groups.collect();
        let mut networks: Vec<(IpNet, usize)> = routes.iter().map(|route| route.source).zip(1..).collect();
        networks.sort_by_key(|(network, _)| u8::MAX - network.prefix_len());
        Self { networks, groups }
    }

    /// Looks at what has failed, before a batch is handed out.
    pub(super) fn review(&mut self, sink: &str, destinations: &mut [RelayDestination]) {
        for group in &mut self.groups {
            group.review(sink, destinations);
        }
    }

    /// The place of the destination for a datagram.
    pub(super) fn choose(&mut self, datagram: &Datagram<'_>) -> usize {
        let source = || headers::source(datagram).ip();
        let number = if self.networks.is_empty() {
            0
        } else {
            let source = source();
            self.networks.iter().find(|(network, _)| network.contains(&source)).map_or(0, |(_, number)| *number)
        };
        let group = &mut self.groups[number];
        match group.failover {
            Some(_) => group.tried.take().unwrap_or(group.current),
            None if group.count == 1 => group.first,
            None => group.first + choice::of_source(source(), group.count),
        }
    }
}

impl DestinationGroup {
    fn review(&mut self, sink: &str, destinations: &mut [RelayDestination]) {
        let Some(failover) = &mut self.failover else { return };
        let own = &mut destinations[self.first..self.first + self.count];
        // The clock is not read while the first one works.
        let is_at_rest = failover.is_at_rest();
        if is_at_rest && !own[0].take_failure() {
            return;
        }
        let now = Instant::now();
        if let Some(place) = self.offered.take().filter(|_| self.tried.is_none()) {
            failover.begin_trial(place, now);
        }
        // What was wrong with the others before they were needed says nothing of now.
        failover.review(now, |place| if is_at_rest { place == 0 } else { own[place].take_failure() });
        self.current = self.first + failover.current();
        self.offered = failover.tries(now);
        self.tried = self.offered.map(|place| self.first + place);
        let info = failover.works().then_some(failover.current());
        if info != std::mem::replace(&mut self.said, info) {
            say(sink, info, own[failover.current()].peer());
        }
        if is_at_rest {
            own[1..].iter_mut().for_each(|other| _ = other.take_failure());
        }
    }
}

/// What the log hears of which one is in use. While none works they take turns, which is not said of each.
fn say(sink: &str, works: Option<usize>, peer: &PeerAddress) {
    match works {
        Some(0) => log::info!("sink {sink}: sends to {peer} again, the first of its destinations"),
        Some(_) => log::warn!("sink {sink}: sends to {peer} now, because those before it do not work"),
        None => log::warn!(
            "sink {sink}: none of its destinations works; udpd sends to the one that failed longest ago, {peer} first"
        ),
    }
}
