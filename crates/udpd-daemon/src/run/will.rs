//! What this process says of the one before it, and what it leaves for the next.
//!
//! Before the first datagram it says what the one before may have lost, and puts its own name and bounds into the
//! record: from then on a kill is one of this process. What the one before may have lost stands beside them until this
//! process is ready, so a kill in between hides nothing. A start that fails puts back what was there, so that the
//! process that does start says the same once more.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;

use super::record::{Record, RecordFile, Unsaid};
use udpd_base::ledger::snapshot::BeforeSnapshot;
use udpd_engine::config::Config;
use udpd_engine::pipeline::{
    CumulativeLedger, LedgerPosition, OrphanSockets, Pipeline, PreviousCounts, SocketAssignment,
};
use udpd_engine::plan::memory::Bytes;
use udpd_engine::plan::{Held, PipelinePlan};

/// The record, and what was in it when this process began.
#[derive(Debug)]
pub(super) struct Will {
    /// `None` where it cannot be had.
    file: Option<RecordFile>,
    before: Option<Record>,
    /// The process before was killed, and its sockets are gone with it.
    lost: Option<u32>,
    own: Record,
    /// What can be held of the configuration that came last.
    newest: Held,
    left: OrphanSockets,
    books: Option<Arc<CumulativeLedger>>,
    stage: Stage,
}

/// How far this process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The record is that of the process before.
    Reading,
    /// It is ours, and the start may still fail.
    Starting,
    Running,
}

impl Will {
    /// From what was kept, or anew. `lost` is the process whose sockets are gone with it.
    pub(super) fn new(kept: Option<OwnedFd>, lost: Option<u32>) -> Self {
        let had_one = kept.is_some();
        let (file, before) = kept.and_then(RecordFile::open).unzip();
        if had_one && before.is_none() {
            log::warn!(
                "cannot read what the process before this one has left in its record; whether it has lost datagrams is \
                 not known"
            );
        }
        let file = file.or_else(|| told(RecordFile::create()));
        let own = Record { pid: std::process::id(), ..Record::default() };
        let (newest, left) = (Held::default(), OrphanSockets::default());
        Self { file, before, lost, own, newest, left, books: None, stage: Stage::Reading }
    }

    /// From what another process said of itself that this one takes over from.
    pub(super) fn after(said: Value) -> Self {
        let mut will = Self::new(None, None);
        will.before = serde_json::from_value(said).ok();
        if will.before.is_none() {
            log::warn!(
                "cannot read what the process before this one says of itself; whether it has lost datagrams is not \
                 known"
            );
        }
        will
    }

    /// What another process has to know that takes over from this one.
    pub(super) fn last_words(&self, pipeline: &Pipeline, ended: bool) -> Value {
        let books = pipeline.ledger();
        let last = Record { ended, ..seen(self.own.clone(), books.position(), books.under_way()) };
        serde_json::to_value(last).unwrap_or_default()
    }

    /// To be called right before the first datagram can come.
    pub(super) fn begin(&mut self, config: &Config, plan: &PipelinePlan, claims: &SocketAssignment) {
        if let Some(before) = &self.before {
            say_lost(before);
        }
        self.left = OrphanSockets::of(claims);
        self.newest = plan.held_at_most(config);
        self.own.held_at_most = self.newest;
        // What waits in sockets that are closed is gone with a process that is killed before it has counted it.
        self.own.held_at_most.datagrams = self.newest.datagrams.saturating_add(claims.discarded_hold_at_most());
        if let Some(before) = &self.before {
            self.own.before = before.lost();
            // Until the first look these are the last that anybody has seen.
            self.own.drops.clone_from(&before.drops);
        }
        self.stage = Stage::Starting;
        self.write();
    }

    /// To be called right before another configuration comes into force: what was made for those before is held as
    /// well, until they have finished.
    pub(super) fn go_on(&mut self, config: &Config, plan: &PipelinePlan) {
        self.newest = plan.held_at_most(config);
        let all = &mut self.own.held_at_most;
        all.datagrams = all.datagrams.saturating_add(self.newest.datagrams);
        all.bytes = all.bytes.saturating_add(self.newest.bytes);
        self.write();
    }

    /// Nothing is held any more that was made for an earlier configuration. The next look writes it down.
    pub(super) fn settle(&mut self) {
        self.own.held_at_most = self.newest;
    }

    /// The start has succeeded: takes into the books what was found.
    pub(super) fn run(&mut self, pipeline: &Pipeline) {
        let left = std::mem::take(&mut self.left);
        if self.stage == Stage::Running {
            return;
        }
        self.stage = Stage::Running;
        self.books = Some(pipeline.ledger());
        self.own.before = Unsaid::default();
        self.own.held_at_most = self.newest;
        let before = self.before.as_ref().map(summary).or_else(|| self.lost.map(nothing_is_known));
        before.into_iter().for_each(|before| pipeline.ledger().set_previous_process(before));
        let (killed, nothing) = (self.before.as_ref().filter(|before| !before.ended), BTreeSet::new());
        let lost_queues = killed.map_or(&nothing, |killed| &killed.queues);
        let known = PreviousCounts { seen: self.before.as_ref().map(|before| &before.drops), lost_queues };
        for (listener, dropped) in pipeline.count_previous_process(&left, &known) {
            match dropped {
                Some(0) => {}
                Some(dropped) => log::warn!(
                    "listener {listener}: while no process looked, between the end of the one before and the start of \
                     this one, the kernel dropped {dropped} at its sockets because a receive buffer was full; raise \
                     receive_buffer or absorb; kernel_dropped_between has them, and kernel_dropped has not"
                ),
                // A socket unit makes sockets before there is a process.
                None if known.seen.is_none() => log::info!(
                    "listener {listener}: nothing is known of a process before this one, so what the kernel dropped at \
                     its sockets before this one looked is not known; kernel_dropped_between is null"
                ),
                None if lost_queues.contains(&listener) => log::warn!(
                    "listener {listener}: the process before this one was killed, and its receive queues past the \
                     kernel's stack are gone with it: what the kernel dropped there since the last look of that \
                     process is not known; kernel_dropped_between is null"
                ),
                None => log::warn!(
                    "listener {listener}: the kernel does not say how much it dropped at its sockets between the end \
                     of the process before and the start of this one; kernel_dropped_between is null"
                ),
            }
        }
    }

    /// Puts down what is so now.
    pub(super) fn look(&mut self) {
        if let (Some(books), Some(_)) = (&self.books, &self.file) {
            self.own = seen(std::mem::take(&mut self.own), books.position(), books.under_way());
            self.write();
        }
    }

    /// The process that was taken over from has ended without closing its books, and this is the last that it has
    /// written down. If it said that it receives no more it had delivered all that it held; otherwise its death is
    /// known.
    pub(super) fn note_killed(&mut self, last: Record) {
        if !self.before.as_ref().is_some_and(|said| said.ended) {
            return;
        }
        let before = Record { held_at_most: Held::default(), in_flight: 0, ended: false, ..last };
        log::error!(
            "the process before this one (pid {}) was killed after it had handed over and before it had written its \
             last ledger: it had delivered what it held; {}",
            before.pid,
            counted(&before.lost())
        );
        self.own.before = before.lost();
        // How far it had seen the kernel count it has said, and this process has counted on from there.
        let drops = self.before.take().map_or_else(Default::default, |said| said.drops);
        self.before = Some(Record { drops, ..before });
        self.write();
    }

    /// The start has failed after sockets had been received from. What the kernel dropped there meanwhile is in the
    /// last books of this process, and the one that does start is not to count it again.
    pub(super) fn give_back(&mut self, books: &CumulativeLedger) {
        let Some(before) = &mut self.before else { return };
        let counted = books.counted_drops();
        for (inode, seen) in &mut before.drops {
            *seen = seen.wrapping_add(counted.get(inode).copied().unwrap_or(0));
        }
    }

    /// The books are closed. They are all that there is to say only if no thread has died: what that one held may be
    /// lost.
    pub(super) fn end(&mut self, is_orderly: bool) {
        self.own.ended = is_orderly;
        self.look();
    }

    /// Whether an earlier process has left something.
    pub(super) fn has_before(&self) -> bool {
        self.before.is_some()
    }

    pub(super) fn file(&self) -> Option<&RecordFile> {
        self.file.as_ref()
    }

    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write(&self.own) {
            log::warn!("cannot write down what the next process has to know after a kill: {error}; it will not say it");
            self.file = None;
        }
    }
}

impl Drop for Will {
    fn drop(&mut self) {
        if let (Stage::Starting, Some(before), Some(file)) = (self.stage, &mut self.before, &mut self.file) {
            // What waited in sockets that this one has closed.
            before.before.dropped += self.left.unread();
            // What could not be written has been said.
            let _ = file.write(before);
        }
    }
}

/// Warns where another program decides which socket gets a datagram, and when it gets none any more.
pub(super) fn say_owner_of_groups(pipeline: &Pipeline) {
    let Some(lane) = pipeline.lanes().iter().find(|lane| lane.socket().is_some_and(|socket| socket.group_has_owner()))
    else {
        return;
    };
    log::warn!(
        "{}: another program owns the groups of sockets here, as udpgrm does (it answers option 200 of UDP): it, and \
         not spread, decides which lane gets a datagram, and udpd's sockets that are kept over a restart may get \
         none; run udpd outside of the control group that it is attached to",
        lane.setup
    );
}

fn told(made: std::io::Result<RecordFile>) -> Option<RecordFile> {
    made.inspect_err(|error| {
        log::warn!("cannot make the file in memory for what the next process has to know after a kill: {error}")
    })
    .ok()
}

fn say_lost(before: &Record) {
    if before.ended {
        return;
    }
    let lost = before.lost();
    let Unsaid { held_at_most, in_flight, .. } = lost;
    let also = if before.before == Unsaid::default() { "" } else { ", as was one before it while this one started" };
    log::warn!(
        "the process before this one (pid {}) was killed or has crashed{also}: up to {} datagrams in {} of memory that \
         it had received may be lost ({in_flight} were under way when it looked last); what waited in its sockets is \
         not; {}",
        before.pid,
        held_at_most.datagrams,
        Bytes(held_at_most.bytes as usize),
        counted(&lost)
    );
}

/// What was in the ledger of a process that is dead.
fn counted(lost: &Unsaid) -> String {
    let by_kernel = match lost.kernel_dropped {
        Some(dropped) => format!("the kernel had dropped {dropped} at its sockets"),
        None => "what the kernel had dropped at its sockets is not known".to_owned(),
    };
    format!(
        "by its last look {by_kernel} and it had dropped {} itself, which `before` in this ledger has",
        lost.dropped
    )
}

/// Of a process whose sockets are gone with it.
fn nothing_is_known(pid: u32) -> BeforeSnapshot {
    BeforeSnapshot {
        pid,
        ended: false,
        lost_datagrams_at_most: None,
        lost_bytes_at_most: None,
        in_flight: None,
        kernel_dropped: None,
        dropped: None,
    }
}

/// With what was seen now.
fn seen(
    own: Record,
    LedgerPosition { drops, kernel_dropped, dropped, queues }: LedgerPosition,
    in_flight: u64,
) -> Record {
    Record { drops, kernel_dropped, dropped, queues, in_flight, ..own }
}

fn summary(before: &Record) -> BeforeSnapshot {
    let Unsaid { held_at_most, in_flight, kernel_dropped, dropped } = before.lost();
    BeforeSnapshot {
        pid: before.pid,
        ended: before.ended,
        lost_datagrams_at_most: Some(held_at_most.datagrams),
        lost_bytes_at_most: Some(held_at_most.bytes),
        in_flight: Some(in_flight),
        kernel_dropped,
        dropped: Some(dropped),
    }
}

#[cfg(test)]
#[path = "will_tests.rs"]
mod tests;
