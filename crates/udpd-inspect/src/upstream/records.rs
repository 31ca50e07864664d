//! What is counted of each stream by itself, for readers of the ledger and for the log: which exporter loses, and which
//! one has fallen silent.
//!
//! A sender that forges addresses makes as many streams as it likes. So a stream is *established* only once it has been
//! heard for ten seconds: then it keeps its place in the `table` against all that come after it, the log may name it,
//! and it stands before others in the list of the worst. What has been heard for ten minutes stands before all younger
//! ones there, whatever these claim to have lost.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::note_ring::StreamKey;
use super::stream::StreamCounts;
use udpd_base::ledger::Keyed;
use udpd_base::ledger::snapshot::WORST_MAX;

/// For how long a stream has to be heard.
const ESTABLISHED_S: u32 = 10;

/// The same before younger ones cannot take its place among the worst.
const TRUSTED_S: u32 = 600;

/// Without a loss for so long, a stream loses no more.
const LOSING_S: u32 = 60;

/// How many changes wait for the log. It takes them once in ten seconds.
pub(super) const CHANGES_MAX: usize = 16;

/// What has changed with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamChange {
    BeginsToLose,
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

/// What is counted of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamRecord {
    pub(super) key: StreamKey,
    pub(super) counts: StreamCounts,
    /// Numbers that came.
    pub(super) arrived: u64,
    /// Of the missing numbers those that this host has dropped: surely, and perhaps.
    pub(super) dropped: [u64; 2],
    /// When it was heard first and last, in seconds since the listener was made.
    pub(super) first_s: u32,
    pub(super) heard_s: u32,
    pub(super) is_established: bool,
    silence: Silence,
    /// When it lost something last, while it loses; and how much it had lost by then.
    lost_at_s: Option<u32>,
    lost: u64,
}

impl StreamRecord {
    pub(super) fn new(key: StreamKey, now_s: u32) -> Self {
        Self { key, first_s: now_s, heard_s: now_s, ..Self::default() }
    }

    pub(super) fn has_been_heard_for_long(&self) -> bool {
        self.heard_s - self.first_s >= ESTABLISHED_S
    }

    pub(super) fn is_losing(&self) -> bool {
        self.lost_at_s.is_some()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silence == Silence::Silent
    }

    pub(super) fn missing_at_most(&self) -> u64 {
        self.counts.missing.saturating_sub(self.dropped[0]) + self.counts.uncertain
    }

    fn missing_surely(&self) -> u64 {
        self.counts.missing.saturating_sub(self.dropped[1])
    }

    /// What is missing at least, where so much more was lost here; `None`: it is not known how much.
    pub(super) fn missing_at_least(&self, lost_here: Option<u64>) -> u64 {
        lost_here.map_or(0, |lost| self.missing_surely().saturating_sub(lost))
    }

    /// Looks whether it has begun to lose, or does not any more.
    pub(super) fn look(&mut self, now_s: u32) -> Option<StreamChange> {
        let lost = self.missing_surely();
        if lost > std::mem::replace(&mut self.lost, lost) {
            return self.lost_at_s.replace(now_s).is_none().then_some(StreamChange::BeginsToLose);
        }
        self.lost_at_s.take_if(|at| now_s - *at >= LOSING_S).map(|_| StreamChange::LosesNoMore)
    }

    /// What tells the streams of one exporter from those of another, whatever port it sends from.
    fn exporter(&self) -> (u128, u64, u16) {
        (self.key.source, self.key.stream, self.key.session.destination)
    }
}

/// Looks which established streams have sent nothing for `silence_s`. One whose exporter goes on from another port
/// since then, as after a restart, is not silent.
pub(super) fn look_for_silence<'r>(
    records: impl Iterator<Item = &'r mut StreamRecord>,
    (now_s, silence_s): (u32, u32),
    mut change: impl FnMut(StreamChange, &StreamRecord),
) {
    let mut quiet = Vec::new();
    let mut heard: HashMap<_, u32, Keyed> = HashMap::default();
    // One that was silent for so long that it is not established any more may be heard again.
    for record in records.filter(|record| record.is_established || record.is_silent()) {
        if now_s - record.heard_s >= silence_s {
            quiet.push(record);
            continue;
        }
        if std::mem::take(&mut record.silence) == Silence::Silent {
            change(StreamChange::IsHeardAgain, record);
        }
        let first_s = heard.entry(record.exporter()).or_default();
        *first_s = record.first_s.max(*first_s);
    }
    for record in quiet {
        let has_moved = heard.get(&record.exporter()).is_some_and(|first_s| *first_s >= record.heard_s);
        let silence = if has_moved { Silence::Moved } else { Silence::Silent };
        match (std::mem::replace(&mut record.silence, silence), silence) {
            (Silence::None, Silence::Silent) => change(StreamChange::IsSilent, record),
            (Silence::Silent, Silence::Moved) => change(StreamChange::IsHeardAgain, record),
            // Another port was heard and is not any more.
            (Silence::Moved, _) => record.silence = Silence::Moved,
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
