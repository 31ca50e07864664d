//! Crash accounting: a process reports what the one before it may have lost, and records the same of itself for the
//! next. A process that is killed cannot say what it lost, so the next one says it.
//!
//! The record is a file in memory that the service manager keeps with the sockets, and that a process which takes over
//! gets with them: the process, how much it can hold at most, how far it and the kernel had counted drops, and whether
//! it has ended by itself. The file has two slots, which are written in turn, so that a kill between two pages spoils
//! one of them at most. A slot is valid when the number at its beginning is also at its end.
//!
//! Before the first datagram a process logs what the one before may have lost, and puts itself and its bounds into the
//! record: from then on a kill is one of this process. What the one before may have lost stays beside them until this
//! process is ready, so a kill in between hides nothing. A start that fails restores what was there, so that the
//! process that does start reports the same once more.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use udpd_base::ledger::snapshot::BeforeSnapshot;
use udpd_engine::config::Config;
use udpd_engine::pipeline::{
    CumulativeLedger, Drops, LedgerPosition, OrphanSockets, Pipeline, PreviousCounts, SocketAssignment,
};
use udpd_engine::plan::memory::Bytes;
use udpd_engine::plan::{Held, PipelinePlan};

/// The name under which the file is kept. No lane has it: their names end with a number.
pub(super) const RECORD_NAME: &str = "udpd-record";

/// The length of a slot. Only what is written takes memory; there is room for some twenty thousand sockets.
pub(super) const SLOT_BYTES: usize = 1 << 20;

/// How many digits a number has at the beginning and at the end of a slot.
const DIGITS: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessRecord {
    pub pid: u32,
    /// It has ended by itself, with a closed ledger.
    pub ended: bool,
    pub held_at_most: Held,
    /// What processes before it may have lost, until this one has it in its ledger and is ready.
    pub before: UnreportedLoss,
    /// Datagrams under way at its last look.
    pub in_flight: u64,
    /// The kernel's counts of drops at its last look, by the inode of the socket.
    pub drops: Drops,
    /// What the kernel had dropped by then; `None` where that is not known, as of older versions.
    #[serde(default)]
    pub kernel_dropped: Option<u64>,
    /// What it had dropped itself by then.
    pub dropped: u64,
    /// The listeners with receive queues past the kernel's stack. What the kernel dropped there is not known after its
    /// death.
    pub queues: BTreeSet<String>,
}

/// What processes may have lost, and no process that was ready has reported yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct UnreportedLoss {
    pub held_at_most: Held,
    pub in_flight: u64,
    /// What the kernel had dropped, in ledgers that are gone; `None` where that is not known.
    #[serde(default)]
    pub kernel_dropped: Option<u64>,
    /// What those processes had dropped themselves.
    pub dropped: u64,
}

impl Default for ProcessRecord {
    fn default() -> Self {
        Self {
            pid: 0,
            ended: false,
            held_at_most: Held::default(),
            before: UnreportedLoss::default(),
            in_flight: 0,
            drops: Drops::new(),
            kernel_dropped: Some(0),
            dropped: 0,
            queues: BTreeSet::new(),
        }
    }
}

impl Default for UnreportedLoss {
    fn default() -> Self {
        Self { held_at_most: Held::default(), in_flight: 0, kernel_dropped: Some(0), dropped: 0 }
    }
}

impl ProcessRecord {
    /// What it may have lost, with what it had yet to report of those before it.
    pub(super) fn lost(&self) -> UnreportedLoss {
        let Self { held_at_most, in_flight, kernel_dropped, dropped, before, .. } = self;
        // What one has counted that ended by itself is in its last ledger.
        let own = if self.ended {
            UnreportedLoss::default()
        } else {
            UnreportedLoss {
                held_at_most: *held_at_most,
                in_flight: *in_flight,
                kernel_dropped: *kernel_dropped,
                dropped: *dropped,
            }
        };
        let add = |one: u64, other: u64| one.saturating_add(other);
        let held_at_most = Held {
            datagrams: add(own.held_at_most.datagrams, before.held_at_most.datagrams),
            bytes: add(own.held_at_most.bytes, before.held_at_most.bytes),
        };
        UnreportedLoss {
            held_at_most,
            in_flight: add(own.in_flight, before.in_flight),
            kernel_dropped: own.kernel_dropped.zip(before.kernel_dropped).map(|(one, other)| add(one, other)),
            dropped: add(own.dropped, before.dropped),
        }
    }
}

#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    /// How many records were written.
    written: u64,
}

impl RecordFile {
    /// An empty one.
    fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC;
        // Some hosts insist that it cannot be run as a program; kernels before 6.3 do not know what that is.
        let file = match memfd_create(RECORD_NAME, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(RECORD_NAME, flags),
            other => other,
        };
        let file = File::from(file?);
        // The kernel makes it readable for every user.
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { file, written: 0 })
    }

    /// One that was kept, with what was written there last; `None` where nothing can be read from it.
    pub(super) fn open(descriptor: OwnedFd) -> Option<(Self, ProcessRecord)> {
        let file = File::from(descriptor);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (written, record) = newest(&file)?;
        Some((Self { file, written }, record))
    }

    pub(super) fn write(&mut self, record: &ProcessRecord) -> io::Result<()> {
        let number = self.written + 1;
        let json = serde_json::to_string(record)?;
        let text = format!("{number:0DIGITS$}\n{json}\n{number:0DIGITS$}\n");
        if text.len() > SLOT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(text.as_bytes(), offset(number % 2))?;
        self.written = number;
        Ok(())
    }
}

fn offset(slot: u64) -> u64 {
    slot * SLOT_BYTES as u64
}

fn newest(file: &File) -> Option<(u64, ProcessRecord)> {
    let slots = [0, 1].map(|slot| read_slot(file, slot));
    slots.into_iter().flatten().max_by_key(|(number, _)| *number)
}

/// The number and the record in a slot, unless it is empty or was written in part.
fn read_slot(file: &File, slot: u64) -> Option<(u64, ProcessRecord)> {
    let mut bytes = vec![0; SLOT_BYTES];
    let mut length = 0;
    while length < SLOT_BYTES {
        match file.read_at(&mut bytes[length..], offset(slot) + length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let mut lines = std::str::from_utf8(&bytes[..length]).ok()?.split('\n');
    let (begin, json, end) = (lines.next()?, lines.next()?, lines.next()?);
    if begin != end || begin.len() != DIGITS {
        return None;
    }
    // The next one has a number, too.
    let number = begin.parse().ok().filter(|number| *number < u64::MAX)?;
    Some((number, serde_json::from_str(json).ok()?))
}

/// The record of this process, and what the one before had left in it.
#[derive(Debug)]
pub(super) struct CrashRecord {
    /// `None` where it cannot be made or written.
    file: Option<RecordFile>,
    before: Option<ProcessRecord>,
    /// The process before was killed, and its sockets are gone with it.
    lost_process: Option<u32>,
    own: ProcessRecord,
    /// What can be held with the configuration that came last.
    newest: Held,
    orphans: OrphanSockets,
    ledger: Option<Arc<CumulativeLedger>>,
    stage: StartStage,
}

/// How far the start of this process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartStage {
    /// The record is that of the process before.
    Reading,
    /// The record is that of this process, and the start may still fail.
    Starting,
    Running,
}

impl CrashRecord {
    /// From a file that was kept, or anew. `lost_process` is one whose sockets are gone with it.
    pub(super) fn new(kept: Option<OwnedFd>, lost_process: Option<u32>) -> Self {
        let had_one = kept.is_some();
        let (file, before) = kept.and_then(RecordFile::open).unzip();
        if had_one && before.is_none() {
            log::warn!(
                "cannot read what the process before this one has left in its record; whether it has lost datagrams is \
                 not known"
            );
        }
        let create = || {
            let made = RecordFile::create();
            made.inspect_err(|error| {
                log::warn!("cannot make the file in memory for what the next process has to know after a kill: {error}")
            })
        };
        let file = file.or_else(|| create().ok());
        let own = ProcessRecord { pid: std::process::id(), ..ProcessRecord::default() };
        let (newest, orphans) = (Held::default(), OrphanSockets::default());
        Self { file, before, lost_process, own, newest, orphans, ledger: None, stage: StartStage::Reading }
    }

    /// From what the process said of itself that this one takes over from.
    pub(super) fn after(said: Value) -> Self {
        let mut record = Self::new(None, None);
        record.before = serde_json::from_value(said).ok();
        if record.before.is_none() {
            log::warn!(
                "cannot read what the process before this one says of itself; whether it has lost datagrams is not \
                 known"
            );
        }
        record
    }

    /// What a process has to know that takes over from this one. `ended`: this one has closed its ledger.
    pub(super) fn as_json(&self, pipeline: &Pipeline, ended: bool) -> Value {
        let ledger = pipeline.ledger();
        let last = ProcessRecord { ended, ..updated(self.own.clone(), ledger.position(), ledger.under_way()) };
        serde_json::to_value(last).unwrap_or_default()
    }

    /// To be called right before the first datagram can come: from then on a kill is one of this process.
    pub(super) fn begin(&mut self, config: &Config, plan: &PipelinePlan, assignment: &SocketAssignment) {
        if let Some(before) = &self.before {
            log_lost(before);
        }
        self.orphans = OrphanSockets::of(assignment);
        self.newest = plan.held_at_most(config);
        self.own.held_at_most = self.newest;
        // What waits in sockets that are closed is gone with a process that is killed before it has counted it.
        self.own.held_at_most.datagrams = self.newest.datagrams.saturating_add(assignment.discarded_hold_at_most());
        if let Some(before) = &self.before {
            self.own.before = before.lost();
            // Until the first look these are the latest counts.
            self.own.drops.clone_from(&before.drops);
        }
        self.stage = StartStage::Starting;
        self.write();
    }

    /// To be called right before another configuration comes into force: what was made for those before is held as
    /// well, until they have finished.
    pub(super) fn add_configuration(&mut self, config: &Config, plan: &PipelinePlan) {
        self.newest = plan.held_at_most(config);
        let all = &mut self.own.held_at_most;
        all.datagrams = all.datagrams.saturating_add(self.newest.datagrams);
        all.bytes = all.bytes.saturating_add(self.newest.bytes);
        self.write();
    }

    /// The pipelines of earlier configurations have closed. The next update writes that down.
    pub(super) fn settle(&mut self) {
        self.own.held_at_most = self.newest;
    }

    /// The start has succeeded: puts into the ledger what the process before may have lost, and what the kernel dropped
    /// in between.
    pub(super) fn set_running(&mut self, pipeline: &Pipeline) {
        let orphans = std::mem::take(&mut self.orphans);
        if self.stage == StartStage::Running {
            return;
        }
        self.stage = StartStage::Running;
        self.ledger = Some(pipeline.ledger());
        self.own.before = UnreportedLoss::default();
        self.own.held_at_most = self.newest;
        let before = self.before.as_ref().map(summary).or_else(|| self.lost_process.map(nothing_is_known));
        before.into_iter().for_each(|before| pipeline.ledger().set_previous_process(before));
        let (killed, nothing) = (self.before.as_ref().filter(|before| !before.ended), BTreeSet::new());
        let lost_queues = killed.map_or(&nothing, |killed| &killed.queues);
        let known = PreviousCounts { seen: self.before.as_ref().map(|before| &before.drops), lost_queues };
        for (listener, dropped) in pipeline.count_previous_process(&orphans, &known) {
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

    /// Writes down how far all is counted now.
    pub(super) fn update(&mut self) {
        if let (Some(ledger), Some(_)) = (&self.ledger, &self.file) {
            self.own = updated(std::mem::take(&mut self.own), ledger.position(), ledger.under_way());
            self.write();
        }
    }

    /// The process that was taken over from has ended without closing its ledger, and this is the last that it has
    /// written down. If it said that it receives no more, it had delivered all that it held; otherwise its death is
    /// recorded already.
    pub(super) fn set_killed(&mut self, last: ProcessRecord) {
        if !self.before.as_ref().is_some_and(|said| said.ended) {
            return;
        }
        let before = ProcessRecord { held_at_most: Held::default(), in_flight: 0, ended: false, ..last };
        log::error!(
            "the process before this one (pid {}) was killed after it had handed over and before it had written its \
             last ledger: it had delivered what it held; {}",
            before.pid,
            counted(&before.lost())
        );
        self.own.before = before.lost();
        // How far it had seen the kernel count it has said, and this process has counted on from there.
        let drops = self.before.take().map_or_else(Default::default, |said| said.drops);
        self.before = Some(ProcessRecord { drops, ..before });
        self.write();
    }

    /// The start has failed after sockets had been received from. What the kernel dropped there meanwhile is in the
    /// last ledger of this process, and the one that does start is not to count it again.
    pub(super) fn restore_previous(&mut self, ledger: &CumulativeLedger) {
        let Some(before) = &mut self.before else { return };
        let counted = ledger.counted_drops();
        for (inode, seen) in &mut before.drops {
            *seen = seen.wrapping_add(counted.get(inode).copied().unwrap_or(0));
        }
    }

    /// The ledger is closed. It says all only if no thread has died: what that thread held may be lost.
    pub(super) fn close(&mut self, is_orderly: bool) {
        self.own.ended = is_orderly;
        self.update();
    }

    /// Whether an earlier process has left a record.
    pub(super) fn has_before(&self) -> bool {
        self.before.is_some()
    }

    pub(super) fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|own| &own.file)
    }

    /// A descriptor of the file for a process that takes over.
    pub(super) fn duplicate_file(&self) -> Option<OwnedFd> {
        self.file()?.try_clone().ok().map(OwnedFd::from)
    }

    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write(&self.own) {
            log::warn!("cannot write down what the next process has to know after a kill: {error}; it will not say it");
            self.file = None;
        }
    }
}

impl Drop for CrashRecord {
    fn drop(&mut self) {
        if let (StartStage::Starting, Some(before), Some(file)) = (self.stage, &mut self.before, &mut self.file) {
            // What waited in sockets that this one has closed.
            before.before.dropped += self.orphans.unread();
            // What could not be written has been said.
            let _ = file.write(before);
        }
    }
}

fn log_lost(before: &ProcessRecord) {
    if before.ended {
        return;
    }
    let lost = before.lost();
    let UnreportedLoss { held_at_most, in_flight, .. } = lost;
    let also =
        if before.before == UnreportedLoss::default() { "" } else { ", as was one before it while this one started" };
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
fn counted(lost: &UnreportedLoss) -> String {
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

/// With what is counted now.
fn updated(
    own: ProcessRecord,
    LedgerPosition { drops, kernel_dropped, dropped, queues }: LedgerPosition,
    in_flight: u64,
) -> ProcessRecord {
    ProcessRecord { drops, kernel_dropped, dropped, queues, in_flight, ..own }
}

fn summary(before: &ProcessRecord) -> BeforeSnapshot {
    let UnreportedLoss { held_at_most, in_flight, kernel_dropped, dropped } = before.lost();
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
#[path = "crash_record_tests.rs"]
mod tests;
