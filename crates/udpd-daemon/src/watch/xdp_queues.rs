//! Receive queues past the kernel's stack that have no engine, and when they are to get one again: their interface was
//! removed and is back, or it has more queues than there are lanes.
//!
//! Only decides. An attempt costs every listener a change of receivers, so nothing is tried before the interface has
//! looked the same twice, and what fails is tried again after a pause that doubles each time, a few times in all.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::QueueState;
use udpd_engine::pipeline::XdpQueues;

/// How often it is tried for one and the same interface: some four minutes.
const ATTEMPTS: u32 = 8;

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// `IFF_UP`
const IFF_UP: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    pub index: u32,
    pub queues: usize,
    /// Whether anything can come from it.
    pub is_up: bool,
}

/// Looks at an interface; `None` where there is none of this name.
pub fn card(interface: &str) -> Option<Card> {
    let index = nix::net::if_::if_nametoindex(interface).ok()?;
    let queues = steer::receive_queues(Path::new("/sys"), interface)?;
    let flags = fs::read_to_string(format!("/sys/class/net/{interface}/flags")).ok()?;
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
    Some(Card { index, queues, is_up: flags & IFF_UP != 0 })
}

/// Remembers what was seen, tried and said, by listener.
#[derive(Debug, Default)]
pub struct QueueWatch {
    listeners: BTreeMap<String, QueueAttempts>,
}

#[derive(Debug, Default)]
struct QueueAttempts {
    /// As of the last look.
    card: Option<Card>,
    failures: u32,
    not_before: Option<Instant>,
    /// They were without engines, and the log does not say yet that they have some again.
    was_without: bool,
}

impl QueueWatch {
    /// Once a second. `card` looks at an interface. Returns the listeners whose queues are to get engines now, and
    /// notes how each fares.
    pub fn look(
        &mut self,
        queues: &[XdpQueues],
        now: Instant,
        card: impl Fn(&str) -> Option<Card>,
        mut note: impl FnMut(&str, QueueState),
    ) -> Vec<String> {
        self.listeners.retain(|name, _| queues.iter().any(|own| own.listener == *name));
        let mut due = Vec::new();
        for own in queues {
            let seen = self.listeners.entry(own.listener.clone()).or_default();
            let found = card(&own.interface);
            if seen.look(own, found, now) {
                due.push(own.listener.clone());
            }
            if own.running < own.lanes {
                note(&own.listener, seen.state());
            }
        }
        due
    }

    /// An attempt for this listener has failed.
    pub fn note_failure(&mut self, listener: &str, failure: &Failure, now: Instant) {
        if let Some(seen) = self.listeners.get_mut(listener) {
            seen.fail(listener, failure, now);
        }
    }
}

impl QueueAttempts {
    /// Whether they are to get engines now.
    fn look(&mut self, own: &XdpQueues, found: Option<Card>, now: Instant) -> bool {
        let is_same = found == self.card;
        self.card = found;
        let Some(card) = found else {
            self.was_without = true;
            return false;
        };
        if own.attached_to == Some(card.index) && own.running == own.lanes && card.queues == own.lanes {
            if std::mem::take(&mut self.was_without) {
                let (listener, interface, lanes) = (&own.listener, &own.interface, own.lanes);
                log::info!("listener {listener}: AF_XDP receives from {interface} again, queues: {lanes}");
            }
            (self.failures, self.not_before) = (0, None);
            return false;
        }
        self.was_without = true;
        if !is_same {
            // Another interface, or other queues of it: what failed before says nothing about it.
            (self.failures, self.not_before) = (0, None);
            return false;
        }
        // The sockets come first: they receive what passes.
        let has_sockets = own.bound_to == Some(card.index);
        has_sockets && card.is_up && self.failures < ATTEMPTS && self.not_before.is_none_or(|moment| now >= moment)
    }

    fn fail(&mut self, listener: &str, failure: &Failure, now: Instant) {
        // Rights do not come back.
        let is_final = failure.code == ExitCode::Permission || self.failures + 1 == ATTEMPTS;
        let is_first = self.failures == 0;
        self.failures = if is_final { ATTEMPTS } else { self.failures + 1 };
        self.not_before = now.checked_add(FIRST_PAUSE * (1 << self.failures.min(ATTEMPTS)));
        if is_final {
            log::warn!(
                "listener {listener}: AF_XDP cannot be had for every queue: {failure}; udpd tries no more until the \
                 interface changes, and the sockets of the listener receive what comes to the others: restart udpd"
            );
        } else if is_first {
            log::warn!(
                "listener {listener}: AF_XDP cannot be had for every queue yet: {failure}; the sockets of the listener \
                 receive what comes to the others, and udpd tries again, with longer and longer pauses"
            );
        }
    }

    fn state(&self) -> QueueState {
        match self.card {
            None => QueueState::NoInterface,
            Some(_) if self.failures >= ATTEMPTS => QueueState::GivenUp,
            Some(_) => QueueState::Retrying,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host {
        watch: QueueWatch,
        queues: XdpQueues,
        card: Option<Card>,
        now: Instant,
        state: Option<QueueState>,
    }

    impl Host {
        fn new() -> Self {
            let queues = XdpQueues {
                listener: "in".to_owned(),
                interface: "eth1".to_owned(),
                attached_to: Some(7),
                bound_to: Some(7),
                lanes: 2,
                running: 2,
            };
            let card = Some(Card { index: 7, queues: 2, is_up: true });
            Self { watch: QueueWatch::default(), queues, card, now: Instant::now(), state: None }
        }

        /// A second later: whether an attempt is due.
        fn look(&mut self) -> bool {
            self.now += Duration::from_secs(1);
            self.state = None;
            let Self { watch, queues, card, now, state } = self;
            let found = *card;
            !watch.look(std::slice::from_ref(queues), *now, |_| found, |_, found| *state = Some(found)).is_empty()
        }

        fn fail(&mut self, code: ExitCode) {
            self.watch.note_failure("in", &Failure::new(code, "no"), self.now);
        }

        /// What an attempt comes to that works.
        fn has_engines(&mut self) {
            let card = self.card.expect("an interface");
            let (attached_to, lanes) = (Some(card.index), card.queues);
            self.queues = XdpQueues { attached_to, lanes, running: lanes, ..self.queues.clone() };
        }
    }

    #[test]
    fn an_interface_that_is_back_gets_engines_when_it_has_looked_the_same_twice_and_its_sockets_are_bound() {
        let mut host = Host::new();
        assert!(!host.look() && !host.look() && host.state.is_none(), "nothing to do");
        (host.card, host.queues.running) = (None, 0);
        assert!(!host.look());
        assert_eq!(host.state, Some(QueueState::NoInterface));
        host.card = Some(Card { index: 9, queues: 2, is_up: true });
        assert!(!host.look() && !host.look(), "the sockets come first");
        assert_eq!(host.state, Some(QueueState::Retrying));
        (host.queues.bound_to, host.card) = (Some(9), Some(Card { index: 9, queues: 2, is_up: false }));
        assert!(!host.look() && !host.look(), "it is down");
        host.card = Some(Card { index: 9, queues: 2, is_up: true });
        assert!(!host.look() && host.look());
        host.has_engines();
        assert!(!host.look() && host.state.is_none());
    }

    #[test]
    fn queues_that_were_added_get_engines_when_no_more_are_added() {
        let mut host = Host::new();
        assert!(!host.look());
        for queues in [3, 4] {
            host.card = Some(Card { index: 7, queues, is_up: true });
            assert!(!host.look(), "they still change");
        }
        assert!(host.look());
        host.has_engines();
        assert!(!host.look());
    }

    #[test]
    fn what_fails_is_tried_a_few_times_with_longer_and_longer_pauses_until_the_interface_changes() {
        let mut host = Host::new();
        host.queues.running = 1;
        host.look();
        let mut attempts = Vec::new();
        for second in 0..3600 {
            if host.look() {
                attempts.push(second);
                host.fail(ExitCode::Unavailable);
            }
        }
        assert_eq!(attempts.len(), ATTEMPTS as usize);
        assert!(attempts.windows(3).all(|three| three[2] - three[1] > three[1] - three[0]), "{attempts:?}");
        assert_eq!(host.state, Some(QueueState::GivenUp));
        (host.card, host.queues.bound_to) = (Some(Card { index: 8, queues: 2, is_up: true }), Some(8));
        assert!(!host.look() && host.look(), "another interface");
    }

    #[test]
    fn a_right_that_is_gone_is_not_asked_for_twice() {
        let mut host = Host::new();
        host.queues.running = 0;
        assert!(!host.look() && host.look());
        host.fail(ExitCode::Permission);
        assert!((0..3600).all(|_| !host.look()));
        assert_eq!(host.state, Some(QueueState::GivenUp));
    }
}
