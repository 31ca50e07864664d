//! What is counted of each stream by itself, for readers of the ledger and for the log: which exporter loses, and which
//! one has fallen silent.
//!
//! A sender that forges addresses makes as many streams as it likes. So a stream is *established* only once it has been
//! heard for ten seconds: then it keeps its place in the `table` against all that come after it, the log may name it,
//! and it stands before others in the list of the worst. What has been heard for ten minutes stands before all younger
//! ones there, whatever these claim to have lost.

use std::borrow::BorrowMut;
use std::cmp::Reverse;

use super::note_ring::StreamKey;
use super::stream::StreamCounts;
use udpd_base::ledger::snapshot::WORST_MAX;

/// For how long a stream has to be heard.
const ESTABLISHED_S: u32 = 10;

/// The same before younger ones cannot take its place among the worst.
const TRUSTED_S: u32 = 600;

/// Without a loss for so long, a stream loses no more.
const LOSING_S: u32 = 60;

/// How much later than a gap a reading has to be, for the gap to be judged by it: the kernel was asked for the drops
/// that it tells of up to a second before.
pub(super) const JUDGED_AFTER_S: u32 = 2;

/// How many changes wait for the log. It takes them once in ten seconds.
pub(super) const CHANGES_MAX: usize = 16;

/// What has changed with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamChange {
    BeginsToLose,
    /// Numbers of it are missing, and this host may have dropped all of them.
    HasGaps,
    LosesNoMore,
    IsSilent,
    IsHeardAgain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Silence {
    #[default]
    None,
    Silent,
    /// Its exporter goes on from another port.
    Moved,
}

/// What this host may have lost itself of the streams of a listener, as of a reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostLoss {
    /// When the last sweep before it was, in seconds since the listener was made.
    pub(super) swept_s: u32,
    /// `None`: it is not known how many.
    pub(super) datagrams: Option<u64>,
    /// How many numbers each may have had at the most; `None`: any number.
    pub(super) units_each: Option<u64>,
}

impl HostLoss {
    /// The same in the unit of the numbers.
    pub(super) fn units(&self) -> Option<u64> {
        self.units_of(self.datagrams?)
    }

    fn units_of(&self, datagrams: u64) -> Option<u64> {
        if datagrams == 0 { Some(0) } else { self.units_each.map(|each| datagrams.saturating_mul(each)) }
    }
}

/// How what this host may have lost has changed from one judgement of the streams to the next.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostLossChange {
    /// So many numbers more, or fewer: drops that count as one stream's own by now.
    pub(super) more: u64,
    pub(super) fewer: u64,
}

impl HostLossChange {
    pub(super) fn between(before: &HostLoss, now: &HostLoss) -> Self {
        // How much it is not known, so it may have been anything.
        let (Some(then), Some(datagrams)) = (before.datagrams, now.datagrams) else {
            return Self { more: u64::MAX, fewer: 0 };
        };
        let units = |datagrams: u64| now.units_of(datagrams).unwrap_or(u64::MAX);
        Self { more: units(datagrams.saturating_sub(then)), fewer: units(then.saturating_sub(datagrams)) }
    }
}

/// What is counted of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamRecord {
    pub(super) key: StreamKey,
    pub(super) counts: StreamCounts,
    /// Numbers that came.
    pub(super) arrived: u64,
    /// Numbers that may be missing of messages of IPFIX that wait, as of the last sweep.
    pub(super) held: u64,
    /// The first number and the one behind the last, where they count on from one datagram to the next.
    pub(super) span: Option<(u64, u64)>,
    /// Of the missing numbers those that this host has dropped: surely, and perhaps.
    pub(super) dropped: [u64; 2],
    /// When it was heard first and last, in seconds since the listener was made.
    pub(super) first_s: u32,
    pub(super) heard_s: u32,
    pub(super) is_established: bool,
    silence: Silence,
    /// When it lost something last, while it loses or has gaps.
    lost_at_s: Option<u32>,
    /// More is missing than this host can have dropped.
    is_losing: bool,
    /// How much had been lost when it was judged last, and what is to be judged next, when a reading tells of all that
    /// this host had dropped by then.
    judged: u64,
    to_judge: u64,
    /// How many further numbers may be missing because of this host: what it has dropped since they were last complete.
    excused: u64,
}

impl StreamRecord {
    pub(super) fn new(key: StreamKey, now_s: u32) -> Self {
        Self { key, first_s: now_s, heard_s: now_s, ..Self::default() }
    }

    pub(super) fn has_been_heard_for_long(&self) -> bool {
        self.heard_s - self.first_s >= ESTABLISHED_S
    }

    pub(super) fn is_losing(&self) -> bool {
        self.is_losing
    }

    /// Whether something of it is to be judged, or has to be forgotten in time.
    pub(super) fn is_unsettled(&self) -> bool {
        self.lost_at_s.is_some() || self.judged != self.missing_surely()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silence == Silence::Silent
    }

    pub(super) fn missing_at_most(&self) -> u64 {
        self.counts.missing.saturating_sub(self.dropped[0]) + self.counts.uncertain + self.held
    }

    fn missing_surely(&self) -> u64 {
        self.counts.missing.saturating_sub(self.dropped[1])
    }

    /// What is missing at least, where so much more was lost here; `None`: it is not known how much.
    pub(super) fn missing_at_least(&self, lost_here: Option<u64>) -> u64 {
        lost_here.map_or(0, |lost| self.missing_surely().saturating_sub(lost))
    }

    /// Judges what was missing when it was judged last, by what this host has lost since; whether it has begun to lose.
    /// Numbers that this host may have dropped are no loss on the way.
    pub(super) fn judge(&mut self, now_s: u32, here: HostLossChange) -> Option<StreamChange> {
        self.excuse(here);
        // Drops that were this stream's own for a moment only are not missing twice.
        let now = self.missing_surely();
        let lost = std::mem::replace(&mut self.to_judge, now).min(now);
        let more = lost.saturating_sub(std::mem::replace(&mut self.judged, lost));
        let is_sure = more > self.excused;
        self.excused = self.excused.saturating_sub(more);
        if more == 0 || self.is_losing && !is_sure {
            return None;
        }
        let is_first = self.lost_at_s.replace(now_s).is_none();
        match is_sure {
            true => (!std::mem::replace(&mut self.is_losing, true)).then_some(StreamChange::BeginsToLose),
            false => is_first.then_some(StreamChange::HasGaps),
        }
    }

    /// Notes what this host has lost since.
    pub(super) fn excuse(&mut self, here: HostLossChange) {
        self.excused = self.excused.saturating_sub(here.fewer).saturating_add(here.more);
    }

    /// All of it that came by now is judged, and something came since this host dropped anything: no later gap is this
    /// host's.
    pub(super) fn excuse_no_more(&mut self) {
        if self.judged == self.missing_surely() {
            self.excused = 0;
        }
    }

    /// Looks whether it loses no more.
    pub(super) fn look(&mut self, now_s: u32) -> Option<StreamChange> {
        self.lost_at_s.take_if(|at| now_s - *at >= LOSING_S).map(|_| {
            self.is_losing = false;
            StreamChange::LosesNoMore
        })
    }

    /// What tells the streams of one exporter from those of another, whatever port it sends from.
    fn exporter(&self) -> (u128, u64, u16) {
        (self.key.source, self.key.stream, self.key.session.destination)
    }
}

/// Looks which established streams have sent nothing for `silence_s`. One whose exporter goes on from another port
/// since then, as after a restart, is not silent. `heard` has room for the place of each, so nothing is allocated.
pub(super) fn look_for_silence<R: BorrowMut<StreamRecord>>(
    all: &mut [R],
    heard: &mut Vec<u32>,
    (now_s, silence_s): (u32, u32),
    mut change: impl FnMut(StreamChange, &StreamRecord),
) {
    heard.clear();
    // One that was silent for so long that it is not established any more may be heard again.
    let is_followed = |record: &StreamRecord| record.is_established || record.is_silent();
    let is_quiet = |record: &StreamRecord| now_s - record.heard_s >= silence_s;
    // A port that was left stays so, when the port that took its place is not heard any more either.
    let is_due = |record: &StreamRecord| is_quiet(record) && record.silence != Silence::Moved;
    let mut any_is_due = false;
    for (place, one) in all.iter_mut().enumerate() {
        let record = one.borrow_mut();
        if !is_followed(record) || is_quiet(record) {
            any_is_due |= is_followed(record) && is_due(record);
            continue;
        }
        if std::mem::take(&mut record.silence) == Silence::Silent {
            change(StreamChange::IsHeardAgain, record);
        }
        heard.push(place as u32);
    }
    if !any_is_due {
        return;
    }
    let of = |all: &[R], place: u32| {
        let record: &StreamRecord = all[place as usize].borrow();
        (record.exporter(), record.first_s)
    };
    heard.sort_unstable_by_key(|place| of(all, *place));
    for place in 0..all.len() {
        let record: &StreamRecord = all[place].borrow();
        if !is_followed(record) || !is_due(record) {
            continue;
        }
        // The last stream of this exporter that is heard, if it began since.
        let end = heard.partition_point(|place| of(all, *place).0 <= record.exporter());
        let last = end.checked_sub(1).map(|last| of(all, heard[last]));
        let has_moved = last.is_some_and(|(who, first_s)| who == record.exporter() && first_s >= record.heard_s);
        let silence = if has_moved { Silence::Moved } else { Silence::Silent };
        let record = all[place].borrow_mut();
        match (std::mem::replace(&mut record.silence, silence), silence) {
            (Silence::None, Silence::Silent) => change(StreamChange::IsSilent, record),
            (Silence::Silent, Silence::Moved) => change(StreamChange::IsHeardAgain, record),
            _ => {}
        }
    }
}

/// The worst ones: those that lost something or are silent.
pub(super) fn worst(records: &[StreamRecord]) -> Vec<StreamRecord> {
    let is_bad = |record: &&StreamRecord| record.missing_at_most() > 0 || record.is_silent();
    let mut worst: Vec<&StreamRecord> = records.iter().filter(is_bad).collect();
    let trust = |record: &StreamRecord| (record.heard_s - record.first_s >= TRUSTED_S, record.is_established);
    if worst.len() > WORST_MAX {
        worst.select_nth_unstable_by_key(WORST_MAX, |record| Reverse((trust(record), record.missing_at_most())));
        worst.truncate(WORST_MAX);
    }
    worst.sort_by_key(|record| Reverse(record.missing_at_most()));
    worst.into_iter().copied().collect()
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
