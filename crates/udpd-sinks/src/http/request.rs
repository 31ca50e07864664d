//! What one request carries: the body as the profile writes it, and whose records they are.

use std::time::Duration;

/// Names a batch, together with its number of records, so that a server can tell whether it has it already. It is the
/// same when the batch is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchId {
    /// Unique to the segment of a spill, or to an open sink.
    pub(super) origin: u64,
    /// The place of its first record there.
    pub(super) begin: u64,
}

/// Records on their way to a server.
#[derive(Debug)]
pub(super) struct RequestBatch {
    pub(super) id: BatchId,
    /// What is sent, before it is compressed.
    pub(super) body: Vec<u8>,
    /// Where the record at each place ends in the body.
    pub(super) ends: Vec<usize>,
    /// The listener of each record, by its number.
    pub(super) listeners: Vec<usize>,
    /// The datagrams as packets of a capture, and where each ends: what `refused` is written from. Empty without it.
    pub(super) packets: Vec<u8>,
    pub(super) packet_ends: Vec<usize>,
}

impl RequestBatch {
    /// With room for so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let id = BatchId { origin: 0, begin: 0 };
        let (ends, listeners, packets, packet_ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { id, body: Vec::with_capacity(bytes), ends, listeners, packets, packet_ends }
    }

    pub(super) fn records(&self) -> usize {
        self.ends.len()
    }

    /// What names it to a server that remembers batches.
    pub(super) fn token(&self) -> String {
        format!("{:016x}-{:x}-{:x}", self.id.origin, self.id.begin, self.records())
    }

    pub(super) fn clear(&mut self) {
        self.body.clear();
        self.ends.clear();
        self.listeners.clear();
        self.packets.clear();
        self.packet_ends.clear();
    }
}

/// A record that the server will never take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedRecord {
    /// Its place in the batch.
    pub(super) place: usize,
    /// In the server's words, shortened.
    pub(super) reason: String,
}

/// What the answer to a request means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server has all records but these.
    Taken { refused: Vec<RefusedRecord> },
    /// It will never take any of them.
    Refused { reason: String },
    /// It takes no request of this size, and may take its halves.
    TooLarge { reason: String },
    /// It has taken none for now: the batch is to be sent again, after a pause if it has named one.
    Later { reason: String, after: Option<Duration> },
    /// It has those that are in neither list; `again` are to be sent again.
    Partly { refused: Vec<RefusedRecord>, again: Vec<usize>, reason: String, after: Option<Duration> },
}

/// How a batch has ended.
#[derive(Debug)]
pub(super) enum BatchOutcome {
    /// The server has all records but these.
    Decided { refused: Vec<RefusedRecord> },
    /// The connection was told to end before the server has answered: it may have the batch, or not.
    Undecided,
}

/// What a connection tells its consumer.
#[derive(Debug)]
pub(super) enum ConnectionReport {
    /// So many records of each listener are about to be sent again, and the server may have them.
    Repeats(Vec<(usize, u64)>),
    Finished(FinishedBatch),
}

/// What a connection gives back.
#[derive(Debug)]
pub(super) struct FinishedBatch {
    pub(super) ticket: u64,
    pub(super) batch: RequestBatch,
    pub(super) outcome: BatchOutcome,
}
