//! Which destination a datagram goes to: first the group, by the network that its source is in, and then one of the
//! group, by its source or by which one works. Every destination is known here by its place.
//!
//! By source the choice follows from the address and the names of the destinations ([`Shares`]): neither a restart nor
//! another host nor a dead destination changes it, and one destination more or less only as much as it has to.
//!
//! With [`Failover`] the first that works gets everything. UDP tells little of whether a destination works, and late.
//! What counts against one is what the kernel says: there is no route, it refuses to send, or the network has answered
//! with an error (no socket on that port, no host with that address). A destination that is silent counts as working.
//!
//! One that has failed is tried again after a period, by one datagram. When the time in which an answer would come has
//! passed without one, it works again. So while the first of the list is gone, it costs the datagrams that were under
//! way when it went, and one in each period. If none works, the one in use is on trial with all that it gets.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use mmsg::Datagram;
use mmsg::shares::Shares;

use super::destination::RelayDestination;
use super::settings::{Distribute, RelayMode, SourceRoute};
use crate::weights;
use udpd_base::capture::headers;
use udpd_base::seams::clock;
use udpd_base::text::address::PeerAddress;

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
    shares: Shares,
    failover: Option<Failover>,
    /// With a failover, the place of the destination in use for this batch.
    current: usize,
    /// The destination that the next datagram tries.
    tried: Option<usize>,
    /// The same as it was at the last review, by its place in the group: once it is tried, the trial has begun.
    offered: Option<usize>,
    /// What the log has said: which one is in use, by its place in the group, or that none works.
    logged: Option<usize>,
}

impl DestinationGroups {
    /// Groups of these destinations for all sources except those of the routes, whose destinations follow.
    pub(super) fn new(destinations: &[PeerAddress], routes: &[SourceRoute], mode: RelayMode<'_>) -> Self {
        let mut first = 0;
        let mut group = |peers: &[PeerAddress]| {
            let count = peers.len();
            let has_failover = mode.distribute == Distribute::Failover && count > 1;
            let failover = has_failover.then(|| Failover::new(count, mode.probe_every));
            let (current, logged, shares) = (first, Some(0), weights::shares(peers, mode.weights));
            let group =
                DestinationGroup { first, count, shares, failover, current, tried: None, offered: None, logged };
            first += count;
            group
        };
        let groups = std::iter::once(destinations).chain(routes.iter().map(|route| &route.to[..])).map(&mut group);
        let groups = groups.collect();
        let mut networks: Vec<(IpNet, usize)> = routes.iter().map(|route| route.source).zip(1..).collect();
        networks.sort_by_key(|(network, _)| u8::MAX - network.prefix_len());
        Self { networks, groups }
    }

    /// Takes account of failures, before a batch is sent.
    pub(super) fn review(&mut self, sink: &str, destinations: &mut [RelayDestination]) {
        for group in &mut self.groups {
            group.review(sink, destinations);
        }
    }

    /// The place of the destination for a datagram.
    pub(super) fn choose(&mut self, datagram: &Datagram<'_>) -> usize {
        let source = || headers::source(datagram).ip();
        let number = self.number_of(source);
        let group = &mut self.groups[number];
        group.tried.take().unwrap_or_else(|| group.place_of(source))
    }

    /// The place of the destination that this source has now. One that is tried does not count.
    pub(super) fn place_of(&self, source: IpAddr) -> usize {
        self.groups[self.number_of(|| source)].place_of(|| source)
    }

    fn number_of(&self, source: impl FnOnce() -> IpAddr) -> usize {
        if self.networks.is_empty() {
            return 0;
        }
        let source = source();
        self.networks.iter().find(|(network, _)| network.contains(&source)).map_or(0, |(_, number)| *number)
    }
}

impl DestinationGroup {
    fn place_of(&self, source: impl FnOnce() -> IpAddr) -> usize {
        match self.failover {
            Some(_) => self.current,
            None if self.count == 1 => self.first,
            None => self.first + self.shares.place_of(source()),
        }
    }

    fn review(&mut self, sink: &str, destinations: &mut [RelayDestination]) {
        let Some(failover) = &mut self.failover else { return };
        let own = &mut destinations[self.first..self.first + self.count];
        // The clock is not read while the first one works.
        let is_at_rest = failover.is_at_rest();
        if is_at_rest && !own[0].take_failure() {
            return;
        }
        let now = clock::now();
        if let Some(place) = self.offered.take().filter(|_| self.tried.is_none()) {
            failover.begin_trial(place, now);
        }
        // Failures of the others before they were needed tell nothing now.
        failover.review(now, |place| if is_at_rest { place == 0 } else { own[place].take_failure() });
        if std::mem::replace(&mut self.current, self.first + failover.current()) != self.current {
            own[failover.current()].note_new();
        }
        self.offered = failover.tries(now);
        self.tried = self.offered.map(|place| self.first + place);
        let info = failover.works().then_some(failover.current());
        if info != std::mem::replace(&mut self.logged, info) {
            log_current(sink, info, own[failover.current()].peer());
        }
        if is_at_rest {
            own[1..].iter_mut().for_each(|other| _ = other.take_failure());
        }
    }
}

/// Logs which one is in use. While none works they take turns, which is logged once.
fn log_current(sink: &str, works: Option<usize>, peer: &PeerAddress) {
    match works {
        Some(0) => log::info!("sink {sink}: sends to {peer} again, the first of its destinations"),
        Some(_) => log::warn!("sink {sink}: sends to {peer} now, because those before it do not work"),
        None => log::warn!(
            "sink {sink}: none of its destinations works; udpd sends to the one that failed longest ago, {peer} first"
        ),
    }
}

/// How long after a datagram no error may come until the destination counts as working. The kernel gives up a host that
/// does not answer on its own network after three seconds.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(4);

/// Chooses among destinations, which it knows by their places only.
#[derive(Debug)]
struct Failover {
    /// When each failed last, while it counts as failed.
    failed: Vec<Option<Instant>>,
    /// The place of the one in use.
    current: usize,
    /// The place of one that was sent to although it counts as failed, and since when.
    trial: Option<(usize, Instant)>,
    /// After how long a failed one is tried.
    every: Duration,
}

impl Failover {
    fn new(destinations: usize, every: Duration) -> Self {
        Self { failed: vec![None; destinations], current: 0, trial: None, every }
    }

    fn current(&self) -> usize {
        self.current
    }

    /// Whether the one in use counts as working. Otherwise none does.
    fn works(&self) -> bool {
        self.failed[self.current].is_none()
    }

    /// Whether the first works and nothing is on trial, so that only the first can have failed.
    fn is_at_rest(&self) -> bool {
        self.current == 0 && self.works() && self.trial.is_none()
    }

    /// Takes account of those that have failed since the last call, and chooses.
    fn review(&mut self, now: Instant, mut has_failed: impl FnMut(usize) -> bool) {
        if self.is_at_rest() {
            // Only the first was sent to, so nothing is known of the others.
            self.failed.fill(None);
        }
        for (place, failed) in self.failed.iter_mut().enumerate() {
            if has_failed(place) {
                *failed = Some(now);
                self.trial.take_if(|trial| trial.0 == place);
            }
        }
        if let Some((place, _)) = self.trial.take_if(|trial| now.duration_since(trial.1) >= ANSWER_TIME) {
            self.failed[place] = None;
        }
        let working = self.failed.iter().position(Option::is_none);
        // If none works, the one that failed longest ago: it is the likeliest to be back.
        let chosen = working.or_else(|| (0..self.failed.len()).min_by_key(|&place| self.failed[place]));
        self.current = chosen.unwrap_or(0);
    }

    /// The place that the next datagram is to try: the one in use if that has failed, or one before it after its
    /// period. The result stays the same until the trial has begun.
    fn tries(&self, now: Instant) -> Option<usize> {
        if self.trial.is_some() {
            return None;
        }
        let is_due = |failed: &Option<Instant>| failed.is_some_and(|failed| now.duration_since(failed) >= self.every);
        let own = (!self.works()).then_some(self.current);
        own.or_else(|| self.failed[..self.current].iter().position(is_due))
    }

    /// A datagram goes to the one that was to be tried: errors from now on count against it.
    fn begin_trial(&mut self, place: usize, now: Instant) {
        self.trial = Some((place, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failover among three, and a clock.
    fn three() -> (Failover, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (Failover::new(3, Duration::from_secs(10)), move |seconds| start + Duration::from_secs(seconds))
    }

    /// Reviews, and says which is in use then.
    fn review(failover: &mut Failover, now: Instant, has_failed: impl FnMut(usize) -> bool) -> usize {
        failover.review(now, has_failed);
        failover.current()
    }

    /// Begins the next trial, and returns the place that is tried.
    fn try_one(failover: &mut Failover, now: Instant) -> Option<usize> {
        let place = failover.tries(now)?;
        failover.begin_trial(place, now);
        Some(place)
    }

    #[test]
    fn the_next_one_takes_over_and_the_first_has_it_back_when_a_trial_is_not_answered_with_an_error() {
        let (mut failover, at) = three();
        assert_eq!((review(&mut failover, at(0), |_| false), failover.is_at_rest()), (0, true));
        assert_eq!(review(&mut failover, at(1), |place| place == 0), 1);
        assert_eq!((try_one(&mut failover, at(10)), failover.is_at_rest()), (None, false), "not before its period");
        assert_eq!([at(11), at(11)].map(|now| try_one(&mut failover, now)), [Some(0), None], "one datagram");
        assert_eq!(review(&mut failover, at(12), |place| place == 0), 1, "it is answered with an error");
        assert_eq!(try_one(&mut failover, at(21)), None);
        assert_eq!(try_one(&mut failover, at(22)), Some(0));
        assert_eq!(review(&mut failover, at(25), |_| false), 1, "an answer may still come");
        assert_eq!(review(&mut failover, at(26), |_| false), 0);
        assert!(failover.is_at_rest());
    }

    #[test]
    fn one_that_nothing_was_sent_to_is_not_back_however_long_it_is_silent() {
        let (mut failover, at) = three();
        review(&mut failover, at(1), |place| place == 0);
        for seconds in 11..40 {
            assert_eq!(failover.tries(at(seconds)), Some(0), "until it is tried");
            assert_eq!(review(&mut failover, at(seconds), |_| false), 1);
        }
    }

    #[test]
    fn the_first_that_works_is_in_use_and_where_none_does_the_one_that_failed_longest_ago() {
        let (mut failover, at) = three();
        assert_eq!(review(&mut failover, at(1), |place| place == 0), 1);
        assert_eq!(review(&mut failover, at(2), |place| place == 1), 2);
        assert_eq!(review(&mut failover, at(3), |place| place == 2), 0);
        assert!(!failover.works() && !failover.is_at_rest(), "the first is in use because all have failed");
        assert_eq!(review(&mut failover, at(4), |place| place == 0), 1);
        // The second is tried from the third once it is its turn, and the first before it.
        let (mut failover, at) = three();
        assert_eq!(review(&mut failover, at(1), |place| place < 2), 2);
        assert_eq!(try_one(&mut failover, at(20)), Some(0));
        review(&mut failover, at(21), |place| place == 0);
        assert_eq!(try_one(&mut failover, at(21)), Some(1), "the first has just failed again");
        assert_eq!(review(&mut failover, at(30), |_| false), 1);
    }

    #[test]
    fn if_none_works_the_one_in_use_is_on_trial_until_it_fails_or_was_silent_for_long_enough() {
        let (mut failover, at) = three();
        review(&mut failover, at(1), |_| true);
        assert_eq!((try_one(&mut failover, at(1)), failover.works()), (Some(0), false));
        assert_eq!(review(&mut failover, at(2), |place| place == 0), 1, "the others failed before it");
        assert_eq!(try_one(&mut failover, at(2)), Some(1));
        assert_eq!(review(&mut failover, at(6), |_| false), 1);
        assert!(failover.works(), "it has had datagrams for four seconds, and nothing was heard");
        assert_eq!(try_one(&mut failover, at(12)), Some(0), "and those before it are tried again");
    }
}
