//! What a consumer has of a server: the batch that is being filled, and those on the way.
//!
//! The consumer encodes; the threads of the connections compress, send and wait. Batches are made at the start and go
//! round: what is filled comes back with its answer.

use std::sync::Arc;
use std::time::Duration;

use mmsg::Datagram;

use super::connection::HttpConnections;
use super::profile::BodyWriter;
use super::refused::RefusedFile;
use super::request::{BatchId, BatchOutcome, ConnectionReport, FinishedBatch, RefusedRecord, RequestBatch};
use super::{BatchLimits, HttpSettings};
use crate::target::Lookup;
use udpd_base::exit::Failure;
use udpd_base::format::{Encoder, Format};
use udpd_base::ledger::PeerLedger;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::seams::clock;
use udpd_base::sink::ConsumerFeeders;
use udpd_base::sink::settings::Opening;
use udpd_spill::spilling::{BatchAnswer, BatchDestination, BatchTriggers, add_count};

/// The side of the consumer.
#[derive(Debug)]
pub(super) struct HttpClient {
    sink: String,
    limits: BatchLimits,
    writer: BodyWriter,
    /// Knows what the records of a lane have in common.
    encoder: Encoder,
    refused: Option<RefusedFile>,
    /// Those that are neither on the way nor being filled.
    free: Vec<RequestBatch>,
    filling: Option<RequestBatch>,
    connections: HttpConnections,
    on_the_way: usize,
    connections_max: usize,
    next_ticket: u64,
    refusals: LogLimiter,
}

impl HttpClient {
    pub(super) fn open(settings: &HttpSettings, lookup: Lookup<'_>, opening: &Opening<'_>) -> Result<Self, Failure> {
        let refused = settings.refused.as_deref().map(|path| RefusedFile::open(path, opening)).transpose()?;
        let connections = HttpConnections::start(settings, lookup, opening.consumer, opening.caller.clone())?;
        let batches = settings.connections + 1;
        Ok(Self {
            sink: opening.sink.to_owned(),
            limits: settings.batch,
            writer: BodyWriter::new(settings),
            encoder: opening.encoder(Format::Jsonl),
            refused,
            free: (0..batches).map(|_| RequestBatch::new(settings.batch.bytes)).collect(),
            filling: None,
            connections,
            on_the_way: 0,
            connections_max: settings.connections,
            next_ticket: 1,
            refusals: LogLimiter::default(),
        })
    }

    /// What others see of its connections.
    pub(super) fn peers(&self) -> Arc<PeerLedger> {
        Arc::clone(&self.connections.peers)
    }

    fn answer(&mut self, finished: FinishedBatch) -> BatchAnswer {
        let FinishedBatch { ticket, batch, outcome } = finished;
        self.on_the_way -= 1;
        let mut answer = BatchAnswer { ticket, ..BatchAnswer::default() };
        if let BatchOutcome::Decided { refused } = outcome {
            answer.is_decided = true;
            for record in &refused {
                add_count(&mut answer.refused, batch.listeners[record.place], 1);
                self.connections.peers.note_refused(&record.reason);
            }
            self.note_refused(&batch, &refused);
        }
        self.free.push(batch);
        answer
    }

    fn note_refused(&mut self, batch: &RequestBatch, refused: &[RefusedRecord]) {
        let Some(first) = refused.first() else { return };
        if let Some(file) = &mut self.refused {
            file.write(&self.sink, batch, refused);
        }
        if let Some(silent) = self.refusals.pass(clock::now()) {
            log::warn!(
                "sink {}: the server will never take {} of {} datagrams: {}{}",
                self.sink,
                refused.len(),
                batch.records(),
                first.reason,
                repeats(silent)
            );
        }
    }
}

impl BatchDestination for HttpClient {
    fn triggers(&self) -> BatchTriggers {
        let BatchLimits { bytes, datagrams, every } = self.limits;
        BatchTriggers { datagrams: datagrams as u64, bytes: bytes as u64, every }
    }

    fn has_room(&self) -> bool {
        self.on_the_way < self.connections_max && (self.filling.is_some() || !self.free.is_empty())
    }

    fn is_failing(&self) -> bool {
        self.connections.is_failing()
    }

    fn begin_batch(&mut self, origin: u64, begin: u64) {
        let Some(mut batch) = self.filling.take().or_else(|| self.free.pop()) else { return };
        batch.clear();
        batch.id = BatchId { origin, begin };
        self.writer.begin(&mut batch);
        self.encoder.begin();
        if let Some(file) = &mut self.refused {
            file.begin();
        }
        self.filling = Some(batch);
    }

    fn add(&mut self, listener: usize, lane: usize, datagram: &Datagram<'_>) -> bool {
        let Some(batch) = &mut self.filling else { return true };
        self.writer.append(batch, &self.encoder.record(lane, datagram));
        batch.listeners.push(listener);
        if let Some(file) = &mut self.refused {
            file.keep(batch, lane, datagram);
        }
        batch.body.len() >= self.limits.bytes || batch.records() >= self.limits.datagrams
    }

    fn send(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(mut batch) = self.filling.take() {
            self.writer.end(&mut batch);
            self.on_the_way += 1;
            self.connections.send(ticket, batch);
        }
        ticket
    }

    fn take_answer(&mut self) -> Option<BatchAnswer> {
        match self.connections.take_report()? {
            // No batch has this ticket.
            ConnectionReport::Repeats(repeats) => Some(BatchAnswer { repeats, ..BatchAnswer::default() }),
            ConnectionReport::Finished(finished) => Some(self.answer(finished)),
        }
    }

    fn wait(&mut self, limit: Duration) {
        self.connections.wait(limit);
    }

    fn stop(&mut self) {
        self.connections.stop();
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.encoder.go_on_for(Arc::clone(&feeders.scenes));
        if let Some(file) = &mut self.refused {
            file.go_on_for(&feeders.scenes);
        }
    }
}
