//! What a sink has written to files, and how much of it would survive a power loss. One writer for each number: the
//! consumer for what is written, the thread that keeps the file for all the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::counter::{Cells, CounterSet};
use super::counter_list::FileTally;
use super::snapshot::FilesSnapshot;

/// The published side of one file and of those that it replaced.
#[derive(Debug, Default)]
pub struct FileLedger {
    counts: Cells<FileTally>,
    /// Of what is written, how much has been forced to the disk or has failed to be.
    settled_bytes: AtomicU64,
    /// Nanoseconds since 1970; 0 = never.
    synced_at_ns: AtomicU64,
}

impl FileLedger {
    pub fn written(&self) -> u64 {
        self.counts.written_bytes.load(Ordering::Relaxed)
    }

    pub fn add_written(&self, bytes: u64) {
        self.counts.written_bytes.store(self.written() + bytes, Ordering::Release);
    }

    /// The first `written` bytes are on the disk, by a sync that was begun at `begun`.
    pub fn note_synced(&self, written: u64, begun: SystemTime) {
        self.settled_bytes.fetch_max(written, Ordering::Relaxed);
        let since = begun.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.synced_at_ns.store(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Of the first `written` bytes, those that were not on the disk may never get there.
    pub fn note_doubtful(&self, written: u64) {
        let settled = self.settled_bytes.fetch_max(written, Ordering::Relaxed);
        self.counts.doubtful_bytes.fetch_add(written.saturating_sub(settled), Ordering::Relaxed);
    }

    /// A file that holds the last of the first `written` bytes was removed by another program, and `after` bytes may
    /// have been written to it after that. It cannot be read any more, and is never forced to the disk.
    pub fn note_removed_by_others(&self, written: u64, after: u64) {
        self.settled_bytes.fetch_max(written, Ordering::Relaxed);
        self.counts.doubtful_bytes.fetch_add(after, Ordering::Relaxed);
    }

    /// So many bytes were written to files that another program has removed, and cannot be read any more.
    pub fn note_removed_bytes(&self, bytes: u64) {
        self.counts.doubtful_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many sources have a file of their own.
    pub fn note_sources(&self, sources: u64) {
        self.counts.sources.store(sources, Ordering::Relaxed);
    }

    /// So many datagrams went to an overflow file.
    pub fn note_overflow(&self, datagrams: u64) {
        self.counts.overflow.fetch_add(datagrams, Ordering::Relaxed);
    }

    pub fn note_sync_failure(&self) {
        self.counts.sync_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A file is finished and another begun.
    pub fn note_finished(&self) {
        self.counts.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// Finished files were removed to keep what `keep` says.
    pub fn note_removed(&self) {
        self.counts.removed.fetch_add(1, Ordering::Relaxed);
    }

    /// So many finished files wait to be compressed.
    pub fn note_uncompressed(&self, files: u64) {
        self.counts.uncompressed.store(files, Ordering::Relaxed);
    }

    /// A finished file was compressed.
    pub fn note_compressed(&self, from_bytes: u64, to_bytes: u64) {
        self.counts.compressed_from_bytes.fetch_add(from_bytes, Ordering::Relaxed);
        self.counts.compressed_to_bytes.fetch_add(to_bytes, Ordering::Relaxed);
        self.counts.compressed.fetch_add(1, Ordering::Relaxed);
    }

    /// A finished file could not be compressed.
    pub fn note_compress_failure(&self) {
        self.counts.compress_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// So many finished files wait to be uploaded.
    pub fn note_not_uploaded(&self, files: u64) {
        self.counts.not_uploaded.store(files, Ordering::Relaxed);
    }

    /// The server has a finished file.
    pub fn note_uploaded(&self, bytes: u64) {
        self.counts.uploaded_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counts.uploaded.fetch_add(1, Ordering::Relaxed);
    }

    /// A try to upload a finished file has failed. The thread that uploads counts that.
    pub fn note_upload_failure(&self) {
        self.counts.upload_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A file was removed to keep what `keep` says before it was uploaded.
    pub fn note_removed_unsent(&self) {
        self.counts.removed_unsent.fetch_add(1, Ordering::Relaxed);
    }

    /// The sum over the files of a sink. What is synced is as old as the oldest of them.
    pub fn sum<'l>(ledgers: impl Iterator<Item = &'l FileLedger>) -> FilesSnapshot {
        let mut sum = FilesSnapshot::default();
        let mut oldest_ns: Option<u64> = None;
        for ledger in ledgers {
            // What is settled is read first: it never exceeds what is written.
            let settled = ledger.settled_bytes.load(Ordering::Acquire);
            let mut counts = FileTally::load(&ledger.counts);
            counts.unsynced_bytes = counts.written_bytes.saturating_sub(settled);
            sum.counts.add(&counts);
            let at = ledger.synced_at_ns.load(Ordering::Relaxed);
            oldest_ns = Some(oldest_ns.map_or(at, |oldest| oldest.min(at)));
        }
        sum.synced_at = oldest_ns.filter(|at| *at > 0).map(|at| Duration::from_nanos(at).as_secs_f64());
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_unsynced_until_it_is_synced_or_doubtful() {
        let ledger = FileLedger::default();
        ledger.add_written(100);
        ledger.note_synced(60, UNIX_EPOCH + Duration::from_secs(5));
        ledger.add_written(40);
        let sum = FileLedger::sum([&ledger].into_iter());
        assert_eq!((sum.counts.written_bytes, sum.counts.unsynced_bytes, sum.synced_at), (140, 80, Some(5.0)));
        ledger.note_sync_failure();
        ledger.note_doubtful(140);
        let sum = FileLedger::sum([&ledger].into_iter());
        assert_eq!((sum.counts.unsynced_bytes, sum.counts.doubtful_bytes, sum.counts.sync_failures), (0, 80, 1));
    }

    #[test]
    fn a_sink_is_synced_when_the_last_of_its_files_was() {
        let ledgers = [FileLedger::default(), FileLedger::default()];
        ledgers[0].note_synced(0, UNIX_EPOCH + Duration::from_secs(7));
        assert_eq!(FileLedger::sum(ledgers.iter()).synced_at, None);
        ledgers[1].note_synced(0, UNIX_EPOCH + Duration::from_secs(9));
        assert_eq!(FileLedger::sum(ledgers.iter()).synced_at, Some(7.0));
    }
}
