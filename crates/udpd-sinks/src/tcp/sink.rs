//! The sink itself: encodes datagrams into the windows of its destinations, and moves those on.
//!
//! Without a spill a datagram counts as delivered when the kernel of its peer has acknowledged it. While there is no
//! connection datagrams wait in the window, which is fixed in size; when it is full they fail. A peer that is there and
//! reads nothing makes its consumer wait, and then `when_full` decides; one of several that get their share of the
//! sources (`by_source`) is not waited for, because it would hold up the others.
//!
//! With a spill a datagram counts as delivered when the own kernel has it, because the spill has to go on without
//! waiting for an answer to each batch. It stays in the window until it is acknowledged, and is sent again where the
//! connection breaks before that.
//!
//! With RELP a datagram is acknowledged when the server has answered for it; see `answered` for that with a spill.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmsg::Datagram;
use mmsg::shares::Shares;
use nix::poll::{PollFlags, PollTimeout};

use super::answered::BatchesOnTheWay;
use super::connection::{ConnectionManner, TcpConnection};
use super::relp::{self, RelpAnswer};
use super::search::is_ready;
use super::window::SendWindow;
use super::{TcpFraming, TcpSettings, append_digits};
use crate::target::{DestinationTarget, FIRST_ANSWER, Lookup};
use crate::weights;
use udpd_base::capture::headers;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Encoder;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{PeerLedger, Tallies};
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::{ConsumerFeeders, Sink, deliver, fail};
use udpd_base::text::address::PeerAddress;
use udpd_base::text::units::print_duration;
use udpd_spill::spilling::SpillableSink;

/// After so many more bytes a stream is moved on before the batch is over.
const WRITE_AT_BYTES: usize = 256 << 10;

/// How long a peer that takes nothing is waited for at once.
const PEER_WAIT: Duration = Duration::from_millis(100);

/// How soon acknowledgements are looked for.
const LOOK: Duration = Duration::from_millis(5);

/// The pause while everything is written and nothing is acknowledged.
const ACKNOWLEDGEMENT_WAIT: Duration = Duration::from_millis(1);

/// The longest wait for acknowledgements at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// Where the outcome of a datagram is counted.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// By listener: how many are acknowledged, how many are refused, and how many are sent again.
    acknowledged: Vec<u64>,
    refused: Vec<u64>,
    pub(super) repeated: Vec<u64>,
    /// In whose turn answers are, with RELP and a spill.
    pub(super) batches: BatchesOnTheWay,
    /// Of the first refusal that is not told yet.
    reason: String,
    /// What others see of the connections, and of refusals by their kinds.
    pub(super) peers: Arc<PeerLedger>,
}

fn add_one(counts: &mut Vec<u64>, listener: usize) {
    if counts.len() <= listener {
        counts.resize(listener + 1, 0);
    }
    counts[listener] += 1;
}

impl Outcomes {
    /// The server has answered for a record of this listener.
    fn note_answer(&mut self, listener: usize, answer: RelpAnswer<'_>) {
        if let Some(reason) = answer {
            self.peers.note_refused(reason);
            if self.reason.is_empty() {
                self.reason.push_str(reason);
            }
        }
        if !self.batches.note_answer(listener, answer.is_some()) {
            add_one(if answer.is_some() { &mut self.refused } else { &mut self.acknowledged }, listener);
        }
    }

    /// Adds what was counted to the ledger.
    fn settle(&mut self, tallies: &mut Tallies) {
        for (listener, count) in self.refused.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            tallies[listener].pending -= *count;
            tallies[listener].dropped.refused += std::mem::take(count);
        }
        for (listener, count) in self.acknowledged.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            deliver(&mut tallies[listener], std::mem::take(count));
        }
        self.settle_repeats(tallies);
    }

    /// The same of what is sent again alone.
    fn settle_repeats(&mut self, tallies: &mut Tallies) {
        for (listener, count) in self.repeated.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            tallies[listener].stream_repeats_at_most += std::mem::take(count);
        }
    }

    /// The same of one listener, with a spill: the sum of the others is not at hand.
    fn settle_one(&mut self, listener: usize, tallies: &mut Tallies) {
        if let Some(count) = self.repeated.get_mut(listener) {
            tallies[listener].stream_repeats_at_most += std::mem::take(count);
        }
    }
}

/// A connection and what waits for it.
#[derive(Debug)]
pub(super) struct TcpStreamTo {
    pub(super) connection: TcpConnection,
    pub(super) window: SendWindow,
    /// From so many bytes on that are to be written it is moved on within a batch.
    advance_at: usize,
    /// With RELP, how long a server may be silent that owes an answer.
    silence_max: Option<Duration>,
    /// Since when it is.
    silent_since: Instant,
}

impl TcpStreamTo {
    /// Connects, writes what the peer takes and takes account of what it has. Never waits.
    fn advance(&mut self, now: Instant, outcomes: &mut Outcomes) {
        self.hear(now, outcomes);
        self.note_end(outcomes);
        self.connection.advance(now, self.window.is_acknowledged());
        self.note_end(outcomes);
        loop {
            let bytes = match self.connection.is_leaving() {
                true => self.window.rest_of_begun(),
                false => self.window.unwritten(),
            };
            match self.connection.write(bytes) {
                Ok(0) => break,
                Ok(written) => self.window.note_written(written),
                Err(error) => {
                    // The last answers may be there.
                    self.hear(now, outcomes);
                    if !self.connection.has_ended() {
                        self.connection.lose(now, &error);
                    }
                    break;
                }
            }
        }
        self.note_end(outcomes);
        if let Some(unacknowledged) = self.connection.unacknowledged_bytes().filter(|_| !self.window.is_acknowledged())
        {
            self.window.acknowledge(unacknowledged, |listener| add_one(&mut outcomes.acknowledged, listener));
        }
        self.connection.ledger.set_on_the_way(self.window.records() as u64);
        // A peer that takes nothing is not tried again for each datagram.
        self.advance_at = self.window.unwritten_bytes() + WRITE_AT_BYTES;
    }

    /// Takes in what the peer says, and the end of its connection.
    fn hear(&mut self, now: Instant, outcomes: &mut Outcomes) {
        let Self { connection, window, silent_since, silence_max, .. } = self;
        let is_owed = !window.is_acknowledged();
        let mut is_heard = false;
        connection.look(now, &mut |answer| {
            is_heard = true;
            window.take_answered().is_some_and(|listener| {
                outcomes.note_answer(listener, answer);
                true
            })
        });
        if is_heard || !is_owed {
            *silent_since = now;
        }
        if let Some(limit) = silence_max.filter(|limit| now.saturating_duration_since(*silent_since) >= *limit) {
            let what = format!("it has answered no transaction for {}", print_duration(limit));
            connection.lose(now, &io::Error::new(io::ErrorKind::InvalidData, what));
            *silent_since = now;
        }
    }

    /// Moves it on where enough has come since the last time.
    fn advance_if_due(&mut self, outcomes: &mut Outcomes) {
        if self.window.unwritten_bytes() >= self.advance_at {
            self.advance(clock::now(), outcomes);
        }
    }

    /// What a connection that has ended did not acknowledge is sent again.
    fn note_end(&mut self, outcomes: &mut Outcomes) {
        let Some(unacknowledged) = self.connection.take_ended() else { return };
        self.window.acknowledge(unacknowledged, |listener| add_one(&mut outcomes.acknowledged, listener));
        self.window.begin_anew(|listener| add_one(&mut outcomes.repeated, listener));
    }

    /// Waits a moment for the peer.
    pub(super) fn wait(&self, limit: Duration) {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
        let writes = self.window.unwritten_bytes() > 0 && !self.connection.is_leaving();
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::POLLOUT, writes);
        wanted.set(PollFlags::POLLIN, self.silence_max.is_some());
        match self.connection.stream().filter(|_| !wanted.is_empty()) {
            Some(stream) => {
                // An error is met by the next write.
                let _ = threads::blocking(|| is_ready(stream, wanted, limit));
            }
            None => threads::blocking(|| clock::sleep(ACKNOWLEDGEMENT_WAIT)),
        }
    }

    fn due(&self, now: Instant) -> Instant {
        let due = self.connection.due(now);
        match self.connection.stream() {
            Some(_) if !self.window.is_empty() => due.min(now + LOOK),
            _ => due,
        }
    }
}

/// Writes records to streams.
#[derive(Debug)]
pub(super) struct TcpSink {
    name: String,
    /// One, or with `by_source` one for each destination.
    pub(super) streams: Vec<TcpStreamTo>,
    shares: Shares,
    encoder: Encoder,
    framing: TcpFraming,
    pub(super) outcomes: Outcomes,
    pub(super) due: Instant,
    refusals: LogLimiter,
    is_truncation_logged: bool,
    /// The places of the datagrams that an attempt has put into the window.
    gathered: Vec<usize>,
}

impl TcpSink {
    /// Begins to look up names. Connections are made when it begins, and none has to succeed.
    pub(super) fn open(settings: &TcpSettings, lookup: Lookup<'_>, encoder: Encoder) -> Result<Self, Failure> {
        let (now, spills) = (clock::now(), settings.spill.is_on());
        let is_relp = settings.framing == TcpFraming::Relp;
        let TcpSettings { timeout, probe_every, .. } = *settings;
        let manner = ConnectionManner { timeout, probe_every, is_relp };
        let mut targets = Vec::new();
        let tls = settings
            .tls
            .client()
            .map_err(|error| Failure::new(ExitCode::Configuration, format!("[sink.{}] {error}", lookup.sink)))?;
        for peer in &settings.destinations {
            let target = DestinationTarget::at(peer, lookup).map_err(|error| {
                let message = format!(
                    "sink {}: cannot start a thread that looks up {peer}: {error}; see ulimit -u and the limits of its \
                     control group",
                    lookup.sink
                );
                Failure::new(ExitCode::Failure, message)
            })?;
            targets.push((peer.clone(), target));
        }
        let groups: Vec<Vec<_>> = match settings.is_shared() {
            true => targets.into_iter().map(|target| vec![target]).collect(),
            false => vec![targets],
        };
        let stream = |group: Vec<(PeerAddress, DestinationTarget)>| {
            let names = group.iter().map(|(peer, _)| settings.tls.name_of(peer)).collect();
            let names = tls.clone().map(|tls| (tls, names));
            TcpStreamTo {
                connection: TcpConnection::new(lookup.sink, group, names, manner, spills, now),
                window: SendWindow::new(settings.stream_format(), is_relp),
                advance_at: WRITE_AT_BYTES,
                silence_max: is_relp.then_some(timeout),
                silent_since: now,
            }
        };
        let streams: Vec<_> = groups.into_iter().map(stream).collect();
        let seen = streams.iter().map(|stream| Arc::clone(&stream.connection.ledger)).collect();
        let peers = Arc::new(PeerLedger::new(seen));
        Ok(Self {
            name: lookup.sink.to_owned(),
            streams,
            shares: weights::shares(&settings.destinations, &settings.weights),
            encoder,
            framing: settings.framing,
            outcomes: Outcomes { peers, ..Outcomes::default() },
            due: now,
            refusals: LogLimiter::default(),
            is_truncation_logged: false,
            gathered: Vec::new(),
        })
    }

    /// The place of the stream that a datagram goes to.
    fn choose(&self, datagram: &Datagram<'_>) -> usize {
        match self.streams.len() {
            1 => 0,
            _ => self.shares.place_of(headers::source(datagram).ip()),
        }
    }

    /// Adds the record of a datagram to the window, which has room.
    #[inline]
    fn push(&mut self, place: usize, batch: &LaneBatch, datagram: &Datagram<'_>) {
        let Self { streams, encoder, framing, .. } = self;
        streams[place].window.push(batch.listener, |bytes, number| match framing {
            TcpFraming::Newline => encoder.append(bytes, batch.lane, datagram),
            TcpFraming::OctetCounting => {
                append_digits(bytes, datagram.payload().len());
                bytes.push(b' ');
                bytes.extend_from_slice(datagram.payload());
            }
            TcpFraming::Relp => relp::append_record(bytes, number, datagram.payload()),
        });
    }

    /// Whether the format can tell a datagram that was received in part from a whole one.
    pub(super) fn is_told(&mut self, datagram: &Datagram<'_>) -> bool {
        let is_told = self.framing == TcpFraming::Newline || !datagram.is_truncated();
        if !is_told && !std::mem::replace(&mut self.is_truncation_logged, true) {
            log::warn!(
                "sink {}: udpd does not hand on a truncated datagram, because it would look like a whole one; such \
                 datagrams count as sink_error; raise max_length",
                self.name
            );
        }
        is_told
    }

    pub(super) fn advance_all(&mut self, now: Instant) {
        self.streams.iter_mut().for_each(|stream| stream.advance(now, &mut self.outcomes));
        self.log_refusal(now);
        self.due = self.streams.iter().map(|stream| stream.due(now)).min().unwrap_or(now);
    }

    fn log_refusal(&mut self, now: Instant) {
        if !self.outcomes.reason.is_empty() {
            if let Some(silent) = self.refusals.pass(now) {
                let (sink, reason, times) = (&self.name, &self.outcomes.reason, repeats(silent));
                log::warn!("sink {sink}: the server will never take a datagram: {reason}{times}");
            }
            self.outcomes.reason.clear();
        }
    }

    /// Makes room in the window of this stream, for which it waits if the peer is there and no other is held up.
    fn make_room(&mut self, place: usize, tallies: &mut Tallies) -> bool {
        let may_wait = self.streams.len() == 1;
        loop {
            self.streams[place].advance(clock::now(), &mut self.outcomes);
            self.outcomes.settle(tallies);
            if self.streams[place].window.has_room() {
                return true;
            }
            if !may_wait || self.streams[place].connection.stream().is_none() || threads::is_given_up() {
                return false;
            }
            // What it has acknowledged counts, should it take nothing more before the end.
            tallies.publish();
            self.streams[place].wait(PEER_WAIT);
        }
    }
}

impl Sink for TcpSink {
    fn begin(&mut self) {
        let limit = clock::now() + FIRST_ANSWER;
        threads::blocking(|| self.streams.iter().for_each(|stream| stream.connection.settle(limit)));
        self.advance_all(clock::now());
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.encoder.begin();
        // The streams that had no room, a bit each: they are not asked again for each datagram.
        let mut full = 0_u32;
        for datagram in batch.datagrams.datagrams() {
            let place = self.choose(&datagram);
            let bit = 1 << place;
            let has_room = full & bit == 0 && (self.streams[place].window.has_room() || self.make_room(place, tallies));
            if !has_room {
                full |= bit;
            }
            if !(has_room && self.is_told(&datagram)) {
                fail(&mut tallies[batch.listener], 1);
                continue;
            }
            self.push(place, batch, &datagram);
            self.streams[place].advance_if_due(&mut self.outcomes);
        }
        self.outcomes.settle(tallies);
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.advance_all(clock::now());
        self.outcomes.settle(tallies);
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush(tallies);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.encoder.go_on_for(Arc::clone(&feeders.scenes));
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        self.wait_for_the_rest(|sink| {
            sink.outcomes.settle(tallies);
            publish(tallies);
        });
        self.close();
        let mut left = 0;
        for stream in &mut self.streams {
            stream.window.forget(|listener| {
                fail(&mut tallies[listener], 1);
                left += 1;
            });
        }
        self.log_left(left, "they count as failed, and some may be there");
    }
}

impl TcpSink {
    /// Waits for acknowledgements of all that is in the windows, for a limited time, and no longer than this thread is
    /// waited for.
    fn wait_for_the_rest(&mut self, mut settle: impl FnMut(&mut Self)) {
        let now = clock::now();
        let limit = now + FINISH_LIMIT;
        self.streams.iter_mut().for_each(|stream| stream.connection.hurry(now));
        loop {
            self.advance_all(clock::now());
            settle(self);
            let are_empty = self.streams.iter().all(|stream| stream.window.is_empty());
            if are_empty || clock::now() >= limit || threads::is_given_up() {
                return;
            }
            let busy = self.streams.iter().find(|stream| !stream.window.is_empty());
            busy.into_iter().for_each(|stream| stream.wait(LOOK));
        }
    }

    /// Says to the peers that no more comes.
    pub(super) fn close(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.connection.close(stream.window.is_acknowledged()));
    }

    fn log_left(&self, left: u64, fate: &str) {
        if left > 0 {
            log::warn!(
                "sink {}: its peer has not acknowledged {left} datagrams within {} s of the end; {fate}",
                self.name,
                FINISH_LIMIT.as_secs()
            );
        }
    }
}

impl SpillableSink for TcpSink {
    fn begin(&mut self) {
        Sink::begin(self);
    }

    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        debug_assert_eq!(self.streams.len(), 1, "a spill is that of one stream");
        let limit = clock::now() + PEER_WAIT;
        self.advance_all(clock::now());
        self.encoder.begin();
        let mut takes = self.streams[0].connection.stream().is_some() && !self.streams[0].connection.is_leaving();
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if !self.is_told(&datagram) {
                fail(&mut tallies[batch.listener], 1);
                continue;
            }
            takes = takes && (self.streams[0].window.has_room() || self.wait_until(limit, SendWindow::has_room));
            if !takes {
                left.push(place);
                continue;
            }
            self.push(0, batch, &datagram);
            self.gathered.push(place);
            self.streams[0].advance_if_due(&mut self.outcomes);
        }
        self.wait_until(limit, |window| window.unwritten_bytes() == 0);
        // What the own kernel does not have goes to the spill.
        let back = self.streams[0].window.take_back(self.gathered.len());
        let given = self.gathered.len() - back;
        deliver(&mut tallies[batch.listener], given as u64);
        left.extend(self.gathered.drain(..).skip(given));
        left.sort_unstable();
        self.outcomes.settle_one(batch.listener, tallies);
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn when_due(&mut self) {
        self.advance_all(clock::now());
    }

    fn finish(&mut self, tallies: &mut Tallies) {
        self.wait_for_the_rest(|_| ());
        self.outcomes.settle_repeats(tallies);
        let mut left = 0;
        self.streams.iter_mut().for_each(|stream| stream.window.forget(|_| left += 1));
        self.close();
        self.log_left(left, "they count as delivered, and may be lost");
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
    }
}

impl TcpSink {
    /// Moves the only stream on until this holds. Returns false when that takes too long, or there is no connection.
    fn wait_until(&mut self, limit: Instant, holds: impl Fn(&SendWindow) -> bool) -> bool {
        loop {
            self.advance_all(clock::now());
            let stream = &self.streams[0];
            if holds(&stream.window) {
                return true;
            }
            let now = clock::now();
            if now >= limit || stream.connection.stream().is_none() || stream.connection.is_leaving() {
                return false;
            }
            stream.wait(limit - now);
        }
    }
}
