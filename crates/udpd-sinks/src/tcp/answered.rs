//! RELP with a spill: everything is on the disk first, and is sent from there in batches, which are decided when the
//! server has answered for all their records.
//!
//! The records of a batch are held in the window until the batch is sent, because the spill has to know before where it
//! ends. Answers come in the order of the records, so they are those of the first batch that lacks some.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mmsg::Datagram;

use super::relp;
use super::sink::TcpSink;
use udpd_base::seams::clock;
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_spill::spilling::{BatchAnswer, BatchDestination, BatchTriggers, add_count};

/// When a batch is sent. Several have room in the window.
const BATCH: BatchTriggers = BatchTriggers { datagrams: 4096, bytes: 256 << 10, every: Duration::from_millis(20) };

/// A batch whose records are in the window.
#[derive(Debug)]
struct AnsweredBatch {
    ticket: u64,
    is_sent: bool,
    /// How many records it has, and how many of them have no answer.
    records: usize,
    open: usize,
    /// In bytes of the window.
    bytes: usize,
    /// How many are refused, by listener.
    refused: Vec<(usize, u64)>,
}

/// Those without all their answers, and those whose outcome was not fetched.
#[derive(Debug, Default)]
pub(super) struct BatchesOnTheWay {
    batches: VecDeque<AnsweredBatch>,
    last_ticket: u64,
}

impl BatchesOnTheWay {
    /// Returns false where there are no batches.
    pub(super) fn note_answer(&mut self, listener: usize, is_refused: bool) -> bool {
        let Some(batch) = self.batches.iter_mut().find(|batch| batch.open > 0) else { return false };
        batch.open -= 1;
        if is_refused {
            add_count(&mut batch.refused, listener, 1);
        }
        true
    }

    fn take_decided(&mut self) -> Option<BatchAnswer> {
        self.batches.front().filter(|batch| batch.is_sent && batch.open == 0)?;
        let AnsweredBatch { ticket, refused, .. } = self.batches.pop_front()?;
        Some(BatchAnswer { ticket, is_decided: true, refused, repeats: Vec::new() })
    }
}

impl BatchDestination for TcpSink {
    fn begin(&mut self) {
        Sink::begin(self);
    }

    fn triggers(&self) -> BatchTriggers {
        BATCH
    }

    fn has_room(&self) -> bool {
        let stream = &self.streams[0];
        let is_there = stream.connection.stream().is_some() && !stream.connection.is_leaving();
        is_there && stream.window.has_room_for(BATCH.datagrams as usize, BATCH.bytes as usize)
    }

    fn is_failing(&self) -> bool {
        self.streams[0].connection.stream().is_none()
    }

    fn begin_batch(&mut self, _origin: u64, _begin: u64) {
        let Self { streams, outcomes, .. } = self;
        let batches = &mut outcomes.batches;
        // One that was filled and never sent is filled anew.
        if let Some(unsent) = batches.batches.back().filter(|batch| !batch.is_sent) {
            streams[0].window.take_back(unsent.records);
            batches.batches.pop_back();
        }
        batches.last_ticket += 1;
        let (ticket, refused) = (batches.last_ticket, Vec::new());
        batches.batches.push_back(AnsweredBatch { ticket, is_sent: false, records: 0, open: 0, bytes: 0, refused });
    }

    fn add(&mut self, listener: usize, _lane: usize, datagram: &Datagram<'_>) -> bool {
        let is_told = self.is_told(datagram);
        let Self { streams, outcomes, .. } = self;
        let Some(batch) = outcomes.batches.batches.back_mut() else { return true };
        if is_told {
            streams[0].window.hold(listener, |bytes, number| {
                let before = bytes.len();
                relp::append_record(bytes, number, datagram.payload());
                batch.bytes += bytes.len() - before;
            });
            batch.records += 1;
            batch.open += 1;
        } else {
            add_count(&mut batch.refused, listener, 1);
        }
        batch.records as u64 >= BATCH.datagrams || batch.bytes as u64 >= BATCH.bytes
    }

    fn send(&mut self) -> u64 {
        let Some(batch) = self.outcomes.batches.batches.back_mut() else { return 0 };
        batch.is_sent = true;
        let ticket = batch.ticket;
        self.streams[0].window.release();
        self.advance_all(clock::now());
        ticket
    }

    fn take_answer(&mut self) -> Option<BatchAnswer> {
        if let Some(answer) = self.outcomes.batches.take_decided() {
            return Some(answer);
        }
        self.advance_all(clock::now());
        let repeated = self.outcomes.repeated.iter_mut().map(std::mem::take).enumerate();
        let repeats: Vec<_> = repeated.filter(|(_, count)| *count > 0).collect();
        match repeats.is_empty() {
            true => self.outcomes.batches.take_decided(),
            false => Some(BatchAnswer { repeats, ..BatchAnswer::default() }),
        }
    }

    fn wait(&mut self, limit: Duration) {
        self.streams[0].wait(limit);
    }

    fn stop(&mut self) {
        self.close();
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
    }
}
