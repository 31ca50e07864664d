//! Writing what has gathered, and the books of it: what a file did not take is failed, and no other file notices.

use std::io;
use std::time::Instant;

use super::super::super::settings::Sync;
use super::super::gathered::{Chain, Gathered, NONE};
use super::super::voice::Fault;
use super::SourcesSink;
use udpd_base::ledger::Tallies;
use udpd_base::os::crew;
use udpd_base::sink::contract::{deliver, fail};
use udpd_base::sink::outbox::Destination;

impl SourcesSink {
    /// Writes everything that waits: first to the files that are open, so that none of them is closed for another
    /// before it was written.
    pub(super) fn write_out(&mut self, tallies: &mut Tallies) {
        if self.gathered.is_empty() {
            self.write_due = None;
            return;
        }
        let now = self.clock.seconds();
        let mut waiting = std::mem::take(&mut self.waiting);
        self.failed = (0, 0);
        waiting.sort_unstable_by_key(|&place| !self.table.is_open(place));
        let mut written = 0;
        for &place in &waiting {
            written += self.write_source(place, now, tallies);
        }
        waiting.clear();
        self.waiting = waiting;
        self.gathered.clear();
        self.write_due = None;
        self.ledger.note_sources(self.table.own() as u64);
        self.note_written(written);
        self.settle_voice();
    }

    fn note_written(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.ledger.add_written(bytes);
        if let (Sync::Every(interval), None) = (self.settings.sync, self.sync_due) {
            self.sync_due = Some(Instant::now() + interval);
        }
    }

    /// Writes what waits for one source; returns how many bytes that were.
    fn write_source(&mut self, place: usize, now: u64, tallies: &mut Tallies) -> u64 {
        let mut first = std::mem::replace(&mut self.table.at(place).chain, Chain::EMPTY).first;
        let mut written = 0;
        match crew::at_rest(|| self.files.provide(&mut self.table, place, now, &self.ledger)) {
            Ok(None) => {}
            Ok(Some(lacking)) => self.say_lacking(&lacking),
            Err((path, error)) => {
                self.say_unwritten(place, &path, &error);
                self.settle(first, NONE, 0, tallies);
                return 0;
            }
        }
        while first != NONE {
            let (bytes, next) = self.gathered.together(first);
            let source = self.table.at(place);
            let (Some(handle), Some(begun)) = (&mut source.handle, &mut source.begun) else { break };
            let (mut done, mut outcome) = (0, Ok(()));
            while done < bytes.len() && outcome.is_ok() {
                match crew::at_rest(|| handle.write(&bytes[done..])) {
                    Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => outcome = Err(error),
                }
            }
            let whole = settle_whole(&self.gathered, first, next, done, tallies, &mut self.failed);
            if whole < done {
                // Where that fails the file is not as it was left, and is repaired when it is opened again.
                let _ = crew::at_rest(|| handle.take_back(done - whole));
            }
            begun.length += whole as u64;
            written += whole as u64;
            if let Err(error) = outcome {
                let path = self.files.path(&source.key, begun.at);
                self.say_unwritten(place, &path, &error);
                self.table.close(place);
                self.settle(next, NONE, 0, tallies);
                return written;
            }
            first = next;
        }
        self.table.note_written(place);
        self.voice.fare_well(Fault::Writing, &mut self.table.at(place).failing);
        let length = self.table.at(place).begun.map_or(0, |begun| begun.length);
        if self.files.rotate.bytes > 0 && length >= self.files.rotate.bytes {
            self.finish_file(place, now, true);
        }
        written
    }

    /// Of the records from `first` to before `end`, those in the first `done` bytes are delivered and the others fail.
    fn settle(&mut self, first: u32, end: u32, done: usize, tallies: &mut Tallies) {
        settle_whole(&self.gathered, first, end, done, tallies, &mut self.failed);
    }
}

/// Of the records from `first` to before `end`, delivers those that are whole in the first `done` bytes and fails the
/// others; returns how long the whole ones are.
fn settle_whole(
    gathered: &Gathered,
    first: u32,
    end: u32,
    done: usize,
    tallies: &mut Tallies,
    failed: &mut (u64, u64),
) -> usize {
    let (mut next, mut length, mut whole) = (first, 0, 0);
    while next != end
        && let Some(record) = gathered.record(next)
    {
        let bytes = (record.end - record.start) as usize;
        length += bytes;
        let tally = &mut tallies[record.listener as usize];
        if length <= done {
            whole = length;
            deliver(tally, 1);
        } else {
            fail(tally, 1);
            failed.0 += 1;
            failed.1 += bytes as u64;
        }
        next = record.next;
    }
    whole
}
