//! Records on their way to a file descriptor, and which listener each belongs to.
//!
//! Records of many batches are gathered into one buffer of fixed size, so that one write carries thousands of
//! datagrams. The buffer remembers, in runs, which listener each stretch belongs to. Every format says where its
//! records end, so after a write that took only a part the number of datagrams that arrived can be counted in that
//! part: the ledger is exact also when a disk fills up in the middle of a record.

use std::io;
use std::sync::Arc;

use mmsg::Datagram;

use super::{deliver, fail};
use crate::format::{Encoder, Format, Scene};
use crate::handover::batch::LaneBatch;
use crate::ledger::Tallies;
use crate::os::threads;

/// From this fill on the buffer is written out.
const WRITE_AT_BYTES: usize = 256 * 1024;

/// The longest payload there is.
const PAYLOAD_BYTES_MAX: usize = 65_535;

/// The most runs that are remembered before the buffer is written out.
const RUNS_MAX: usize = 4096;

/// What an outbox writes to; the seam that tests make fail.
pub trait OutboxDestination {
    /// Writes a part of `bytes`, at least one byte.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether this error only says that it has taken nothing for a while, and is waited for.
    fn is_slow(&self, _error: &io::Error) -> bool {
        false
    }

    /// Takes back the last `bytes` that were written, the beginning of a record whose rest cannot be written. A
    /// destination that cannot, a pipe, leaves them.
    fn take_back(&mut self, bytes: usize) -> io::Result<()>;
}

/// A stretch of the buffer that belongs to one listener.
#[derive(Debug, Clone, Copy)]
struct ListenerRun {
    listener: usize,
    datagrams: u64,
    /// Where it ends in the buffer.
    end: usize,
}

/// Records that are encoded and not yet written.
#[derive(Debug)]
pub struct Outbox {
    encoder: Encoder,
    bytes: Vec<u8>,
    runs: Vec<ListenerRun>,
    /// So many of the first bytes are written, and whose they are is counted.
    counted: usize,
    /// How many datagrams, and bytes of their records, have failed since the beginning.
    lost: (u64, u64),
}

/// The memory that an outbox takes at most, from its start to its end.
pub fn memory_bytes_max() -> usize {
    let formats = [Format::Lines, Format::Jsonl, Format::Pcapng, Format::Lengths];
    let record = formats.map(|format| format.record_bytes_max(PAYLOAD_BYTES_MAX)).into_iter().max().unwrap_or_default();
    WRITE_AT_BYTES + record + RUNS_MAX * size_of::<ListenerRun>()
}

impl Outbox {
    /// An empty one, with all the memory it will ever have: from the last fill at which it is not yet written, the
    /// longest record there is still fits.
    pub fn new(encoder: Encoder) -> Self {
        let bytes = WRITE_AT_BYTES + encoder.format().record_bytes_max(PAYLOAD_BYTES_MAX);
        let (bytes, runs) = (Vec::with_capacity(bytes), Vec::with_capacity(RUNS_MAX));
        Self { encoder, bytes, runs, counted: 0, lost: (0, 0) }
    }

    /// The same with what a stream begins with already in it. A header holds no datagram, and none is counted
    /// there.
    pub fn with_header(encoder: Encoder) -> Self {
        let header = encoder.header();
        let mut outbox = Self::new(encoder);
        outbox.bytes.reserve_exact(outbox.bytes.capacity() + header.len());
        outbox.bytes.extend_from_slice(&header);
        outbox
    }

    /// Goes on with records of other lanes.
    pub fn go_on_for(&mut self, scenes: Arc<[Scene]>) {
        self.encoder.go_on_for(scenes);
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many datagrams, and bytes of their records, have failed since the beginning.
    pub fn lost(&self) -> (u64, u64) {
        self.lost
    }

    /// True when it is time to write.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= WRITE_AT_BYTES || self.runs.len() == RUNS_MAX
    }

    /// The next datagrams are of another batch.
    pub fn begin_batch(&mut self) {
        self.encoder.begin();
    }

    /// Adds the record of one datagram. The caller writes the box out when it is full.
    pub fn push(&mut self, batch: &LaneBatch, datagram: &Datagram<'_>) {
        debug_assert!(
            self.bytes.capacity() - self.bytes.len()
                >= self.encoder.format().record_bytes_max(datagram.payload().len()),
            "a full box was not written"
        );
        self.encoder.append(&mut self.bytes, batch.lane, datagram);
        self.note(batch.listener);
    }

    /// What was just appended is a record of this listener.
    fn note(&mut self, listener: usize) {
        let end = self.bytes.len();
        match self.runs.last_mut() {
            Some(run) if run.listener == listener => {
                run.datagrams += 1;
                run.end = end;
            }
            _ => self.runs.push(ListenerRun { listener, datagrams: 1, end }),
        }
    }

    /// Writes everything, and says how many bytes are written. On an error what was written in whole records is
    /// delivered, a part of a record is taken back, the rest is failed; the box is empty afterwards in any case.
    pub fn write_to(
        &mut self,
        destination: &mut impl OutboxDestination,
        tallies: &mut Tallies,
    ) -> (usize, io::Result<()>) {
        let mut written = 0;
        let mut outcome = Ok(());
        while written < self.bytes.len() && outcome.is_ok() {
            match threads::blocking(|| destination.write(&self.bytes[written..])) {
                Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if destination.is_slow(&error) => {
                    self.count_delivered(written, tallies);
                    tallies.publish();
                    if threads::is_given_up() {
                        outcome = Err(error);
                    }
                }
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_err() {
            let rest = &self.bytes[self.counted..written];
            let whole = self.counted + self.encoder.format().boundary().whole(rest).bytes;
            if whole < written
                && let Err(error) = threads::blocking(|| destination.take_back(written - whole))
            {
                log::warn!("a part of a record ({} bytes) could not be taken back: {error}", written - whole);
            }
            written = whole;
        }
        self.settle(written, tallies);
        (written, outcome)
    }

    /// What is encoded and not written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes as much as the destination takes, and counts nothing: the caller knows whose datagrams they are.
    pub fn write_part(&mut self, destination: &mut impl OutboxDestination) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < self.bytes.len() {
            match threads::blocking(|| destination.write(&self.bytes[written..])) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    /// Empties it, whatever became of what was in it.
    pub fn forget(&mut self) {
        self.bytes.clear();
        self.runs.clear();
        self.counted = 0;
    }

    /// Counts everything as failed without trying.
    pub fn discard(&mut self, tallies: &mut Tallies) {
        self.settle(0, tallies);
    }

    /// The first `written` bytes, whole records, are delivered and the others failed.
    fn settle(&mut self, written: usize, tallies: &mut Tallies) {
        self.count_delivered(written, tallies);
        for run in &self.runs {
            fail(&mut tallies[run.listener], run.datagrams);
            self.lost.0 += run.datagrams;
        }
        self.lost.1 += (self.bytes.len() - written) as u64;
        self.forget();
    }

    /// Counts the records that are whole within the first `written` bytes, as far as they are not counted yet.
    fn count_delivered(&mut self, written: usize, tallies: &mut Tallies) {
        let boundary = self.encoder.format().boundary();
        let mut start = self.counted;
        for run in self.runs.iter_mut().filter(|run| run.datagrams > 0) {
            let delivered = match run.end <= written {
                true => run.datagrams,
                false => boundary.whole(&self.bytes[start..written.max(start)]).records,
            };
            deliver(&mut tallies[run.listener], delivered);
            run.datagrams -= delivered;
            if run.datagrams > 0 {
                break;
            }
            start = run.end;
        }
        self.counted = start + boundary.whole(&self.bytes[start..written.max(start)]).bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::ledger::SinkTally;

    /// Takes `room` bytes, a few at a time, and then refuses.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl OutboxDestination for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(7).min(self.room - self.taken.len());
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn take_back(&mut self, bytes: usize) -> io::Result<()> {
            self.taken.truncate(self.taken.len() - bytes);
            Ok(())
        }
    }

    /// Records of two listeners in turn, written where there is room for so many bytes.
    fn written(format: Format, records: &[&[u8]], room: usize) -> (Narrow, [SinkTally; 2], io::Result<()>) {
        let mut outbox = Outbox::new(Encoder::new(format, Arc::new([]), |_| true));
        let mut tallies = Tallies::new(0..2);
        for (index, record) in records.iter().enumerate() {
            tallies[index % 2].pending += 1;
            outbox.bytes.extend_from_slice(record);
            outbox.note(index % 2);
        }
        let mut destination = Narrow { taken: Vec::new(), room };
        let (bytes, outcome) = outbox.write_to(&mut destination, &mut tallies);
        assert_eq!(bytes, destination.taken.len());
        assert!(outbox.is_empty());
        let lost =
            (tallies[0].dropped.sink_error + tallies[1].dropped.sink_error, (records.concat().len() - bytes) as u64);
        assert_eq!(outbox.lost(), lost);
        (destination, [tallies[0], tallies[1]], outcome)
    }

    #[test]
    fn wherever_a_disk_fills_up_whole_records_are_delivered_and_the_books_are_exact() {
        let lines: [&[u8]; 5] = [b"first\n", b"\n", b"a\\nb\n", b"fourth of them\n", b"last\n"];
        let lengths: [&[u8]; 5] = [b"\0\0\0\x01\n", b"\0\0\0\0", b"\0\0\0\x03a\nb", b"\0\0\0\x02ab", b"\0\0\0\x01x"];
        for (format, records) in [(Format::Lines, lines), (Format::Lengths, lengths)] {
            let whole = records.concat();
            for room in 0..=whole.len() {
                let (destination, tallies, outcome) = written(format, &records, room);
                assert_eq!(outcome.is_ok(), room == whole.len());
                assert!(whole.starts_with(&destination.taken));
                let found = format.boundary().whole(&destination.taken);
                assert_eq!(found.bytes, destination.taken.len(), "no torn record at {room}");
                assert_eq!(tallies[0].delivered + tallies[1].delivered, found.records, "room for {room} bytes");
                assert_eq!(tallies.map(|tally| tally.delivered + tally.dropped.sink_error), [3, 2]);
                assert_eq!(tallies.map(|tally| tally.pending), [0, 0]);
            }
        }
    }
}
