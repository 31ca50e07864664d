//! A thread that carries batches to the server, one at a time, until the server has decided about each record.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::super::answer::ServerAnswer;
use super::super::profile::BodyWriter;
use super::super::request::{BatchOutcome, ConnectionReport, FinishedBatch, RefusedRecord, RequestBatch, Verdict};
use super::super::{HttpProfile, HttpSettings};
use super::Job;
use super::credentials::Credentials;
use super::exchange::{self, Exchange};
use super::log_lines::ServerLog;
use udpd_base::codec::{CompressingWriter, Method};
use udpd_base::handover::Caller;
use udpd_base::ledger::ConnectionLedger;
use udpd_base::os::threads;
use udpd_base::seams::{clock, waits};
use udpd_spill::spilling::add_count;

/// The first pause before a batch is sent again.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest that udpd makes on its own.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The longest that a server may ask for.
const ASKED_PAUSE_MAX: Duration = Duration::from_secs(300);

/// An answer that was longer gives its memory back.
const ANSWER_BYTES_KEPT: usize = 1 << 20;

/// Says what an answer to a request with so many records means.
pub(super) type Judge = fn(HttpProfile, &ServerAnswer<'_>, usize) -> Verdict;

/// Tells the consumer.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) told: Sender<ConnectionReport>,
    pub(super) caller: Caller,
    /// What others see of the connection.
    pub(super) ledger: Arc<ConnectionLedger>,
}

impl Reporter {
    /// Returns false when there is no consumer any more.
    fn tell(&self, report: ConnectionReport) -> bool {
        let is_heard = self.told.send(report).is_ok();
        self.caller.call();
        is_heard
    }
}

#[derive(Debug)]
pub(super) struct Carrier {
    exchange: Exchange,
    writer: BodyWriter,
    profile: HttpProfile,
    judge: Judge,
    compress: Option<Method>,
    credentials: Arc<Credentials>,
    log: Arc<ServerLog>,
    /// Its end: nothing is to be tried again.
    end: Receiver<Infallible>,
    reporter: Reporter,
    random: RandomState,
    /// The body as it is sent, where that is compressed.
    packed: Vec<u8>,
    answer: Vec<u8>,
    /// What is sent again of a batch.
    rest: RequestBatch,
}

/// What is still to be decided about a batch.
#[derive(Debug)]
struct OpenRecords {
    /// The place in the batch of each record of the request; `None` where that is the same.
    places: Option<Vec<usize>>,
    count: usize,
    refused: Vec<RefusedRecord>,
    /// Those of a batch that is too large which come after the request: the next ones last.
    waiting: Vec<Vec<usize>>,
}

impl OpenRecords {
    fn place(&self, in_request: usize) -> usize {
        self.places.as_ref().map_or(in_request, |places| places[in_request])
    }

    fn refuse(&mut self, refused: Vec<RefusedRecord>) {
        for RefusedRecord { place, reason } in refused.into_iter().filter(|record| record.place < self.count) {
            let place = self.place(place);
            self.refused.push(RefusedRecord { place, reason });
        }
    }

    fn refuse_all(&mut self, reason: &str) {
        let all = (0..self.count).map(|place| RefusedRecord { place, reason: reason.to_owned() }).collect();
        self.refuse(all);
    }

    /// How many of which listener are still open.
    fn by_listener(&self, batch: &RequestBatch) -> Vec<(usize, u64)> {
        let mut counts = Vec::new();
        (0..self.count).for_each(|place| add_count(&mut counts, batch.listeners[self.place(place)], 1));
        counts
    }

    /// Only these are still open of the request.
    fn keep(&mut self, again: impl Iterator<Item = usize>) {
        let places: Vec<usize> = again.map(|place| self.place(place)).collect();
        self.count = places.len();
        self.places = Some(places);
    }

    /// The first half goes first. A batch that is sent again is halved in the same way.
    fn halve(&mut self) {
        let half = self.count / 2;
        self.waiting.push((half..self.count).map(|place| self.place(place)).collect());
        self.keep(0..half);
    }

    /// Goes on to those that wait. Returns false when there are none.
    fn go_on(&mut self) -> bool {
        let Some(places) = self.waiting.pop() else { return false };
        self.count = places.len();
        self.places = Some(places);
        true
    }
}

impl Carrier {
    pub(super) fn new(
        settings: &HttpSettings,
        exchange: Exchange,
        credentials: Arc<Credentials>,
        log: Arc<ServerLog>,
        (judge, end): (Judge, Receiver<Infallible>),
        reporter: Reporter,
    ) -> Self {
        Self {
            exchange,
            writer: BodyWriter::new(settings),
            profile: settings.profile,
            judge,
            compress: settings.compress,
            credentials,
            log,
            end,
            reporter,
            random: RandomState::new(),
            packed: Vec::new(),
            answer: Vec::new(),
            rest: RequestBatch::new(0),
        }
    }

    /// Until there is no consumer any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(Job { ticket, batch }) = threads::blocking(|| waits::recv(jobs)) {
            self.reporter.ledger.set_on_the_way(batch.records() as u64);
            let outcome = self.carry(&batch);
            self.reporter.ledger.set_on_the_way(0);
            threads::step();
            if !self.reporter.tell(ConnectionReport::Finished(FinishedBatch { ticket, batch, outcome })) {
                return;
            }
        }
    }

    fn carry(&mut self, batch: &RequestBatch) -> BatchOutcome {
        let (places, count, refused, waiting) = (None, batch.records(), Vec::new(), Vec::new());
        let mut open = OpenRecords { places, count, refused, waiting };
        let mut rest = mem::replace(&mut self.rest, RequestBatch::new(0));
        let is_decided = self.decide(batch, &mut rest, &mut open);
        self.rest = rest;
        match is_decided {
            true => BatchOutcome::Decided { refused: open.refused },
            false => BatchOutcome::Undecided,
        }
    }

    /// Whether the server has decided about every record before the end.
    fn decide(&mut self, batch: &RequestBatch, rest: &mut RequestBatch, open: &mut OpenRecords) -> bool {
        let mut pause = PAUSE_MIN;
        self.pack(&batch.body);
        loop {
            let part = if open.places.is_some() { &*rest } else { batch };
            // A server that has only refused some takes the others at once.
            let after = match self.attempt(batch, part, open) {
                Attempt::Decided if !open.go_on() => return true,
                Attempt::Decided => Some(Duration::ZERO),
                Attempt::TooLarge => {
                    open.halve();
                    Some(Duration::ZERO)
                }
                Attempt::AtOnce => continue,
                Attempt::Partly { again, after } => {
                    if again.len() < open.count {
                        pause = PAUSE_MIN;
                    }
                    open.keep(again.into_iter());
                    after
                }
                Attempt::Later { after } => {
                    if !self.rest_for(after.unwrap_or(pause)) {
                        return false;
                    }
                    pause = (2 * pause).min(PAUSE_MAX);
                    continue;
                }
            };
            if let Some(places) = &open.places {
                self.writer.pick(batch, places, rest);
                self.pack(&rest.body);
            }
            if after == Some(Duration::ZERO) {
                pause = PAUSE_MIN;
                continue;
            }
            if !self.rest_for(after.unwrap_or(pause)) {
                return false;
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Sends a request, and looks what the answer means.
    fn attempt(&mut self, batch: &RequestBatch, part: &RequestBatch, open: &mut OpenRecords) -> Attempt {
        let Self { exchange, writer, compress, credentials, packed, answer, .. } = self;
        let body = if compress.is_some() { packed } else { &part.body };
        let (target, authorization) = (writer.target(part), credentials.header());
        let content_type = writer.content_type();
        let sent = threads::blocking(|| exchange.send(&target, content_type, authorization.as_ref(), body, answer));
        let head = match sent {
            Ok(head) => head,
            Err(trouble) => {
                // It is told before it happens: this process may be killed meanwhile.
                if trouble.is_doubtful && !self.is_ended() {
                    self.reporter.tell(ConnectionReport::Repeats(open.by_listener(batch)));
                }
                // A server closes connections that were idle for too long, and is there all the same.
                if trouble.is_stale && (!trouble.is_doubtful || !self.is_ended()) {
                    return Attempt::AtOnce;
                }
                if !self.exchange.is_interrupted() {
                    self.note_trouble(&self.credentials.clean(&trouble.what), trouble.cure);
                }
                return Attempt::Later { after: None };
            }
        };
        let mut why_not_renewed = String::new();
        if matches!(head.status, 401 | 403) {
            match self.credentials.renew(authorization.as_ref()) {
                Ok(true) if !self.is_ended() => return Attempt::AtOnce,
                Ok(_) => {}
                Err(why) => why_not_renewed = format!("; {why}"),
            }
        }
        let verdict = (self.judge)(self.profile, &head.with_body(&self.answer), open.count);
        if self.answer.capacity() > ANSWER_BYTES_KEPT {
            self.answer = Vec::new();
        }
        match verdict {
            Verdict::Taken { refused } => {
                open.refuse(self.cleaned(refused));
                self.note_taken();
                Attempt::Decided
            }
            Verdict::Refused { reason } => {
                open.refuse_all(&self.credentials.clean(&reason));
                self.note_taken();
                Attempt::Decided
            }
            Verdict::TooLarge { .. } if open.count > 1 => {
                self.log.note_too_large(open.count, part.body.len());
                Attempt::TooLarge
            }
            Verdict::TooLarge { reason } => {
                open.refuse_all(&reason);
                self.note_taken();
                Attempt::Decided
            }
            Verdict::Partly { refused, mut again, reason, after } => {
                again.retain(|place| *place < open.count);
                open.refuse(self.cleaned(refused));
                if again.is_empty() {
                    return Attempt::Decided;
                }
                if after != Some(Duration::ZERO) {
                    let what = format!("takes only a part of a batch for now: {}", self.credentials.clean(&reason));
                    self.note_trouble(&what, "");
                }
                Attempt::Partly { again, after }
            }
            Verdict::Later { reason, after } => {
                let what = format!("takes no batch for now: {}{why_not_renewed}", self.credentials.clean(&reason));
                self.note_trouble(&what, "");
                Attempt::Later { after }
            }
        }
    }

    fn note_trouble(&self, what: &str, cure: &str) {
        self.log.note_trouble(what, cure);
        self.reporter.ledger.note_down(what);
    }

    fn note_taken(&self) {
        self.log.note_taken();
        self.reporter.ledger.note_up();
    }

    fn cleaned(&self, mut refused: Vec<RefusedRecord>) -> Vec<RefusedRecord> {
        refused.iter_mut().for_each(|record| record.reason = self.credentials.clean(&record.reason));
        refused
    }

    /// Compresses a body, if that is wanted.
    fn pack(&mut self, body: &[u8]) {
        let Some(method) = self.compress else { return };
        let mut packed = mem::take(&mut self.packed);
        packed.clear();
        let compress = |into| -> io::Result<Vec<u8>> {
            let length = body.len() as u64;
            let mut writer = CompressingWriter::new(exchange::recipe(method), into, length, UNIX_EPOCH)?;
            writer.write_all(body)?;
            writer.finish()
        };
        // Memory takes everything.
        self.packed = compress(packed).unwrap_or_default();
        threads::step();
    }

    /// Whether nothing is to be tried again.
    fn is_ended(&self) -> bool {
        self.end.try_recv().is_err_and(|error| error.is_disconnected())
    }

    /// Pauses. Returns false when nothing is to be tried again.
    fn rest_for(&self, pause: Duration) -> bool {
        let pause = pause.clamp(PAUSE_MIN, ASKED_PAUSE_MAX);
        // Many hosts do not come back at the same moment.
        let chance = self.random.hash_one(clock::now()) % 1000;
        let pause = pause + pause.mul_f64(chance as f64 / 20_000.0);
        threads::blocking(|| waits::recv_timeout(&self.end, pause)) == Err(RecvTimeoutError::Timeout)
    }
}

/// How an attempt has ended.
#[derive(Debug)]
enum Attempt {
    Decided,
    /// The same once more, without a pause.
    AtOnce,
    /// In halves, without a pause.
    TooLarge,
    Later {
        after: Option<Duration>,
    },
    Partly {
        again: Vec<usize>,
        after: Option<Duration>,
    },
}
