//! Sending what is in the spill, a frame at a time and in its order.
//!
//! A destination that tells at once whether it has a datagram is simply tried. One that does not, such as a port of
//! UDP, gets a single datagram first, which stays in the spill until it is known that nobody has refused it: so looking
//! for a destination that is gone costs nothing.

use std::time::{Duration, Instant};

use super::attempt::Attempt;
use super::sink::Spilling;
use super::way::{Held, Way, Work};
use crate::Frame;
use udpd_base::ledger::{Counters as _, Table as _, Tallies, Tally};
use udpd_base::sink::fail;

/// The least that one turn sends, where there is as much.
const TURN_BYTES_MIN: u64 = 1 << 20;

/// How long a turn takes at most: meanwhile what comes for the sink waits in its queue.
const TURN: Duration = Duration::from_millis(50);

impl<S: Attempt> Spilling<S> {
    /// The destination has not taken all that it should.
    pub(super) fn has_left(&mut self) {
        match self.inner.goes_on() {
            true => self.way = Way::Draining,
            false => self.goes_down(),
        }
    }

    /// The destination does not take what it should.
    pub(super) fn goes_down(&mut self) {
        self.way = Way::Down { retry: Instant::now() + self.retry };
    }

    /// One turn: sends from the spill for as long as the destination takes it, but not for long.
    pub(super) fn drain(&mut self, tallies: &mut Tallies) {
        if self.way == Way::Well || self.store.is_none() {
            return;
        }
        let begun = Instant::now();
        let mut left_bytes = TURN_BYTES_MIN.max(2 * std::mem::take(&mut self.added_bytes));
        while left_bytes > 0 && begun.elapsed() < TURN {
            let Some(bytes) = self.step(begun, tallies) else { break };
            left_bytes = left_bytes.saturating_sub(bytes.max(1));
        }
    }

    /// Sends one frame, or the one datagram of a trial. `None` when there is nothing to do now.
    fn step(&mut self, now: Instant, tallies: &mut Tallies) -> Option<u64> {
        match self.way {
            Way::Well => return None,
            Way::Down { retry } if now < retry => return None,
            Way::Trial { .. } if self.inner.has_refused() => {
                self.scratch_of_work();
                self.goes_down();
                self.give_up_orphan(tallies);
                return None;
            }
            Way::Trial { until } if now < until => return None,
            Way::Trial { .. } => {
                self.way = Way::Draining;
                self.settle(tallies);
                self.keep_from(1);
                return Some(0);
            }
            Way::Down { .. } | Way::Draining => {}
        }
        if self.work.is_none() && !self.read() {
            return None;
        }
        let answer_time = self.inner.answer_time();
        let is_trial = matches!(self.way, Way::Down { .. }) && !answer_time.is_zero();
        if is_trial {
            // What was refused before is known.
            self.inner.has_refused();
        }
        let bytes = self.attempt(is_trial, tallies)?;
        if !self.left.is_empty() {
            self.has_left();
            return (self.way == Way::Draining).then_some(bytes);
        }
        if is_trial {
            self.way = Way::Trial { until: now + answer_time };
            return None;
        }
        self.way = Way::Draining;
        Some(bytes)
    }

    /// Has the next frame at hand. False when there is none, or none can be had now.
    fn read(&mut self) -> bool {
        let Some(store) = &mut self.store else { return false };
        match store.read() {
            Ok(Some(frame)) => {
                let todo = frame.skipped..frame.skipped + usize::try_from(frame.datagrams).unwrap_or(0);
                let held = if frame.is_unwritten { Held::InMemory } else { Held::OnDisk };
                self.work = Some(Work { frame, held, todo: todo.collect() });
                true
            }
            Ok(None) if store.unwritten_bytes() == 0 => {
                self.way = Way::Well;
                self.voice.is_empty();
                false
            }
            Ok(None) => {
                // What comes next waits behind something that is neither sent nor given up.
                self.goes_down();
                false
            }
            Err(trouble) => {
                self.voice.stuck(store.directory(), &trouble);
                self.goes_down();
                false
            }
        }
    }

    /// Nobody can read the frame that is being sent.
    fn give_up_work(&mut self, tallies: &mut Tallies) {
        let (Some(Work { frame, todo, held }), Some(store)) = (self.work.take(), &mut self.store) else { return };
        if held != Held::OnDisk {
            // Nothing was added that cannot be read.
            fail(&mut tallies[frame.listener], todo.len() as u64);
            return store.keep_unwritten(|_| false);
        }
        store.give_up(frame.segment, frame.listener, todo.len() as u64, |listener, datagrams| {
            tallies[listener].spilled -= datagrams;
            tallies[listener].dropped.spill_torn += datagrams;
        });
        store.acknowledge(frame.segment, frame.end);
        self.voice.damaged(store.directory(), todo.len() as u64);
    }

    /// Hands what is to be sent to the sink below, or only the first of it, and counts what became of it unless that is
    /// open. Returns how many bytes that were.
    fn attempt(&mut self, only_first: bool, tallies: &mut Tallies) -> Option<u64> {
        self.left.clear();
        let (Some(work), Some(store)) = (&self.work, &self.store) else { return None };
        let count = if only_first { 1 } else { work.todo.len() };
        let mut wanted = work.todo[..count.min(work.todo.len())].iter().peekable();
        let (listener, lane) = (work.frame.listener, work.frame.lane);
        let is_wanted = |place: usize| wanted.next_if_eq(&&place).is_some();
        let is_readable = !work.frame.is_damaged;
        if !(is_readable && self.batch.unpack((listener, lane), store.datagrams(), is_wanted)) {
            self.give_up_work(tallies);
            return Some(0);
        }
        let summary = *self.batch.datagrams.summary();
        self.scratch[listener] = Tally { pending: summary.datagrams, ..Tally::default() };
        self.inner.attempt(&self.batch, &mut self.scratch, &mut self.left);
        if only_first && self.left.is_empty() {
            return Some(summary.bytes);
        }
        self.settle(tallies);
        let mut left = std::mem::take(&mut self.left);
        if !only_first {
            if let Some(work) = &mut self.work {
                work.todo = left.iter().map(|place| work.todo[*place]).collect();
            }
            self.finish_work();
        }
        // Whoever called sees whether any was left.
        left.truncate(1);
        self.left = left;
        Some(summary.bytes)
    }

    /// What the sink below has counted of the work in hand.
    fn scratch_of_work(&mut self) -> Tally {
        let Some(work) = &self.work else { return Tally::default() };
        std::mem::take(&mut self.scratch[work.frame.listener])
    }

    /// Takes what the sink below has counted into the books.
    pub(super) fn settle(&mut self, tallies: &mut Tallies) {
        let counted = self.scratch_of_work();
        let (Some(work), Some(store)) = (&self.work, &mut self.store) else { return };
        let Frame { segment, listener, .. } = work.frame;
        let decided = counted.delivered + counted.dropped.total();
        let tally = &mut tallies[listener];
        match work.held {
            Held::OnDisk => tally.spilled -= decided,
            Held::InMemory | Held::Nowhere => tally.pending -= decided,
        }
        tally.delivered += counted.delivered;
        tally.dropped.add(&counted.dropped);
        store.decide(segment, listener, decided);
        self.voice.sent(counted.delivered);
    }

    /// So many of what is to be sent are decided, the first ones.
    fn keep_from(&mut self, count: usize) {
        if let Some(work) = &mut self.work {
            work.todo.drain(..count.min(work.todo.len()));
        }
        self.finish_work();
    }

    /// What is decided of the frame in hand is acknowledged, so that nobody sends it again.
    fn finish_work(&mut self) {
        let in_hand = self.inner.in_hand() as u64;
        let (Some(work), Some(store)) = (&self.work, &mut self.store) else { return };
        match work.held {
            Held::OnDisk => store.acknowledge(work.frame.segment, work.decided()),
            Held::InMemory => {
                store.keep_unwritten(|place| work.todo.binary_search(&place).is_ok());
                // It may be written before it is read again.
                store.expect_handed(in_hand);
                self.work = None;
            }
            Held::Nowhere => {}
        }
        self.work.take_if(|work| work.todo.is_empty());
    }

    /// What is being sent is given up where it waits. If its first datagram is on the way, it waits for its answer.
    pub(super) fn orphan_work(&mut self, tallies: &mut Tallies) {
        let is_trial = matches!(self.way, Way::Trial { .. });
        let (Some(work), Some(store), true) = (&mut self.work, &mut self.store, is_trial) else {
            self.work = None;
            return;
        };
        match work.held {
            Held::OnDisk => {
                let tally = &mut tallies[work.frame.listener];
                (tally.spilled, tally.pending) = (tally.spilled - 1, tally.pending + 1);
                store.decide(work.frame.segment, work.frame.listener, 1);
            }
            Held::InMemory => store.keep_unwritten(|place| place > 0),
            Held::Nowhere => {}
        }
        work.held = Held::Nowhere;
        work.todo.truncate(1);
    }

    /// What waits nowhere any more was refused.
    pub(super) fn give_up_orphan(&mut self, tallies: &mut Tallies) {
        let Some(work) = self.work.take_if(|work| work.held == Held::Nowhere) else { return };
        let tally = &mut tallies[work.frame.listener];
        tally.pending -= work.todo.len() as u64;
        tally.dropped.spill_full += work.todo.len() as u64;
    }
}
