//! One destination of a relay: its socket, its queue, its ledger, and its log lines.
//!
//! With a spill the destination also tells which datagrams of a batch it did not take, see [`BatchOutcome`]. UDP tells
//! little of that, see `groups`. What the kernel does not take is left, and so is what it took of a batch during which
//! the network refused something: a port without a socket answers to what was sent before, and the datagrams around
//! that one are most likely gone as well. What a silent destination has lost cannot be known.
//!
//! To send with the original source address ([`Spoof`]) whole packets go through a raw socket, for receivers that tell
//! their senders apart by address. The kernel neither cuts nor fragments what comes this way, so a packet must fit the
//! route; and much of the network drops packets that come from where their source is not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(not(test))]
use mmsg::SendBatch;
use mmsg::proxy::{PREFIX_BYTES_MAX, Prefix};
use mmsg::{Datagram, Socket};

use super::groups::ANSWER_TIME;
use super::log_lines::{DestinationError, DestinationLog, LOST, words};
use super::route::{RelayError, RouteChange, RouteSocket};
use super::settings::KeepSource;
#[cfg(test)]
use super::simulated::{self, SendBatch};
use crate::target::DestinationTarget;
use udpd_base::capture::headers;
use udpd_base::ledger::{DestinationLedger, DestinationTally, Tallies};
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::{deliver, fail};
use udpd_base::text::address::PeerAddress;

/// The number of messages in the queue; each can be a train of datagrams of one length.
const SLOTS: usize = 64;

/// The longest payload there is: that of an IPv6 packet.
const PAYLOAD_BYTES_MAX: usize = 65_527;

/// How often in a row a full queue may find that the kernel takes nothing, if the destination is alone in its relay:
/// the channel keeps what comes meanwhile. Attempts are counted, not time: a thread that got no core for a while has
/// not waited for the kernel.
const FAILED_LOOKS_MAX: usize = 64;

/// The pause between two attempts of a full queue.
const FULL_WAIT: Duration = Duration::from_micros(150);

/// The longest message of a queue.
fn slot_bytes(keep_source: KeepSource) -> usize {
    match keep_source {
        KeepSource::No => PAYLOAD_BYTES_MAX,
        KeepSource::Address => PACKET_BYTES_MAX,
        // Longer than the kernel takes, which then says so.
        KeepSource::Header => PREFIX_BYTES_MAX + PAYLOAD_BYTES_MAX,
    }
}

/// How many datagrams its queue holds at most, when each message is a train.
pub(super) const DATAGRAMS_MAX: usize = SLOTS * mmsg::MAX_SEGMENTS;

/// The memory of the queue of one destination.
pub(super) fn memory_bytes(keep_source: KeepSource) -> usize {
    SLOTS * slot_bytes(keep_source)
}

#[derive(Debug, Clone, Copy)]
struct QueuedMessage {
    listener: usize,
    datagrams: usize,
    /// It is made of templates, and no datagram that anything counts.
    is_repeat: bool,
    /// Of those, the ones known to have failed.
    failed: usize,
    /// Those that the destination did not take, and may take another time. Without a spill they fail.
    left: usize,
    /// The route takes its first datagram whole, so that others can travel with it.
    is_open: bool,
}

/// The error that waits on a socket, which this takes.
fn waiting_error(socket: &Socket) -> Option<i32> {
    #[cfg(test)]
    if let Some(simulated) = simulated::waiting_error(socket) {
        return simulated;
    }
    rustix::net::sockopt::socket_error(socket).ok()?.err().map(|error| error.raw_os_error())
}

/// Where datagrams go.
#[derive(Debug)]
pub(super) struct RelayDestination {
    route: RouteSocket,
    spoof: Option<Spoof>,
    /// Each datagram begins with a header that names its source.
    is_prefixed: bool,
    queue: SendBatch,
    /// The messages of the queue, since it was last empty.
    messages: Vec<QueuedMessage>,
    /// How many of them are decided.
    decided: usize,
    may_wait: bool,
    /// Waiting was in vain, and the kernel has taken nothing since.
    is_stalled: bool,
    /// It has failed since the last [`RelayDestination::take_failure`].
    has_failed: bool,
    /// The same for answers of the network.
    is_refused: bool,
    /// It has failed since the last [`RelayDestination::take_new`], and when it was last seen to have.
    is_troubled: bool,
    troubled: Option<Instant>,
    /// What was sent before it may not have, or not know to be from the same sender.
    is_new: bool,
    tally: DestinationTally,
    ledger: Arc<DestinationLedger>,
    log_lines: DestinationLog,
    /// With a spill, what becomes of the batch in hand.
    outcome: Option<BatchOutcome>,
}

impl RelayDestination {
    /// Opens it; a destination that is alone in its relay may wait for the kernel a little, unless it runs inline.
    pub(super) fn open(
        sink: &str,
        peer: &PeerAddress,
        target: DestinationTarget,
        keep_source: KeepSource,
        may_wait: bool,
        spills: bool,
    ) -> Result<Self, RelayError> {
        let fail = |(operation, error)| RelayError { destination: peer.clone(), operation, error };
        let log_lines = DestinationLog::new(sink, peer.clone(), spills);
        let is_spoofed = keep_source == KeepSource::Address;
        let (route, reason) = RouteSocket::new(target, is_spoofed).map_err(fail)?;
        let mut destination = Self {
            route,
            spoof: is_spoofed.then(Spoof::new),
            is_prefixed: keep_source == KeepSource::Header,
            queue: SendBatch::new(SLOTS, slot_bytes(keep_source)).map_err(|error| fail(("get memory", error)))?,
            messages: Vec::with_capacity(SLOTS),
            decided: 0,
            may_wait,
            is_stalled: false,
            has_failed: false,
            is_refused: false,
            is_troubled: false,
            troubled: None,
            is_new: false,
            tally: DestinationTally::default(),
            ledger: Arc::new(DestinationLedger::new(peer)),
            log_lines,
            outcome: spills.then(BatchOutcome::default),
        };
        destination.note_no_route(reason);
        Ok(destination)
    }

    /// To be called once before the first datagram; it may wait for a resolver until `limit`.
    pub(super) fn begin(&mut self, limit: Instant) {
        let reason = self.route.begin(limit);
        self.note_no_route(reason);
    }

    fn note_no_route(&mut self, reason: Option<io::Error>) {
        if let Some(error) = reason {
            let consequence = self.log_lines.consequence();
            self.log_error(DestinationError::NoRoute, || {
                format!(
                    "there is no route yet: {error}; datagrams {consequence} until there is one; see `ip route get`"
                )
            });
        }
    }

    pub(super) fn ledger(&self) -> Arc<DestinationLedger> {
        Arc::clone(&self.ledger)
    }

    /// Queues a datagram that came to `bound`; sends what is queued when there is no room, and counts the datagram as
    /// failed when there is none then.
    pub(super) fn push(&mut self, listener: usize, bound: SocketAddr, datagram: &Datagram<'_>, tallies: &mut Tallies) {
        if datagram.is_truncated() {
            self.refuse(SpoofError::Truncated);
            self.tally.failed += 1;
            return fail(&mut tallies[listener], 1);
        }
        let prefix =
            self.is_prefixed.then(|| Prefix::new(headers::source(datagram), headers::destination(datagram, bound)));
        let prefix = prefix.as_ref().map_or(&[][..], Prefix::as_bytes);
        if self.joins(listener, prefix, datagram) {
            self.messages.last_mut().expect("it has joined a message").datagrams += 1;
            return self.note_queued();
        }
        if self.queue.is_full() && !self.make_room(tallies) {
            self.log_full();
            return self.leave(listener, tallies);
        }
        let bytes = self.spoof.as_mut().map_or(Ok(datagram.payload()), |spoof| {
            let source = headers::source(datagram);
            spoof.packet(source, datagram.payload(), self.route.address(), self.route.mtu_bytes())
        });
        let queued = match bytes {
            Ok(bytes) => self.queue.push_prefixed(prefix, bytes, None).is_ok(),
            Err(SpoofError::Nowhere) => {
                self.refuse(SpoofError::Nowhere);
                return self.leave(listener, tallies);
            }
            Err(refusal) => {
                self.refuse(refusal);
                false
            }
        };
        // The kernel refuses to cut what it would have to fragment then, and some kernels say it of every train.
        let headers_bytes = self.route.address().map_or(0, headers::headers_bytes);
        let is_open = headers_bytes + prefix.len() + datagram.payload().len() <= self.route.mtu_bytes();
        if queued {
            self.messages.push(QueuedMessage { listener, datagrams: 1, is_repeat: false, failed: 0, left: 0, is_open });
            self.note_queued();
        } else {
            self.tally.failed += 1;
            fail(&mut tallies[listener], 1);
        }
    }

    /// Queues templates of the exporter of a datagram, which go before it. They are lost where there is no room.
    pub(super) fn push_templates(
        &mut self,
        listener: usize,
        bound: SocketAddr,
        datagram: &Datagram<'_>,
        templates: &[u8],
        tallies: &mut Tallies,
    ) {
        if self.queue.is_full() && !self.make_room(tallies) {
            return;
        }
        let source = headers::source(datagram);
        let prefix = self.is_prefixed.then(|| Prefix::new(source, headers::destination(datagram, bound)));
        let bytes = self.spoof.as_mut().map_or(Ok(templates), |spoof| {
            spoof.packet(source, templates, self.route.address(), self.route.mtu_bytes())
        });
        let prefix = prefix.as_ref().map_or(&[][..], Prefix::as_bytes);
        if bytes.is_ok_and(|bytes| self.queue.push_prefixed(prefix, bytes, None).is_ok()) {
            let message = QueuedMessage { listener, datagrams: 1, is_repeat: true, failed: 0, left: 0, is_open: false };
            self.messages.push(message);
        }
    }

    /// The datagram in hand cannot be sent now: with a spill it is left, without one it fails.
    fn leave(&mut self, listener: usize, tallies: &mut Tallies) {
        match &mut self.outcome {
            Some(outcome) => outcome.left.push(outcome.place),
            None => {
                self.tally.failed += 1;
                fail(&mut tallies[listener], 1);
            }
        }
    }

    fn log_full(&mut self) {
        let consequence = self.log_lines.consequence();
        self.log_error(DestinationError::Full, || {
            format!(
                "the queue is full and the kernel takes nothing; until it does datagrams {consequence}; see `ip neigh`, \
                 the device's transmit queue, and sysctl net.core.wmem_max, which bounds the send buffer"
            )
        });
    }

    /// Sends what is queued, and waits if it may, for as long as the kernel takes some of it now and then: a slow
    /// device is not a dead one. Returns whether there is room then.
    fn make_room(&mut self, tallies: &mut Tallies) -> bool {
        let mut failed_looks = 0;
        let mut queued = self.queue.len();
        while !self.flush(tallies) {
            if self.queue.len() < queued {
                queued = self.queue.len();
                failed_looks = 0;
            }
            failed_looks += 1;
            if !self.may_wait || self.is_stalled || failed_looks > FAILED_LOOKS_MAX {
                self.is_stalled = true;
                return false;
            }
            threads::blocking(|| clock::sleep(FULL_WAIT));
        }
        true
    }

    /// Whether the datagram goes out in one message with the last one. A packet that is built here cannot.
    fn joins(&mut self, listener: usize, prefix: &[u8], datagram: &Datagram<'_>) -> bool {
        self.spoof.is_none()
            && self.messages.last().is_some_and(|last| last.is_open && last.listener == listener)
            && self.queue.join_prefixed(prefix, datagram.payload())
    }

    /// Sends what is queued. Returns false when the kernel did not take all of it, and it should be tried again.
    pub(super) fn flush(&mut self, tallies: &mut Tallies) -> bool {
        if self.queue.is_empty() && !self.log_lines.has_error() {
            self.publish();
            return true;
        }
        self.review();
        self.send(tallies);
        self.note_answers();
        self.log_lines.settle(self.tally.failed, self.tally.icmp_errors);
        self.publish();
        self.queue.is_empty()
    }

    fn review(&mut self) {
        match self.route.review() {
            RouteChange::Same => return,
            RouteChange::Opened => self.log_lines.info("there is a route now"),
            RouteChange::To(address) => self.log_lines.info(&format!("is at {address} now")),
            RouteChange::From(address) => self.log_lines.info(&format!("udpd now sends from {address}")),
        }
        self.is_new = true;
    }

    fn send(&mut self, tallies: &mut Tallies) {
        let Some(socket) = self.route.socket() else {
            if !self.queue.is_empty() {
                let consequence = self.log_lines.consequence();
                self.log_error(DestinationError::NoRoute, || {
                    format!("there is no route; datagrams {consequence} until there is one; see `ip route get`")
                });
            }
            return self.give_up(tallies);
        };
        let queued = self.queue.len();
        let flushed = self.queue.flush(socket);
        self.note_failures();
        self.settle(self.messages.len() - self.queue.len(), tallies);
        self.is_stalled &= self.queue.len() == queued;
        if let Err(error) = &flushed
            && !is_for_a_moment(&error.error)
        {
            let errno = error.error.raw_os_error().unwrap_or_default();
            let consequence = self.log_lines.consequence();
            self.log_error(DestinationError::Stuck(errno), || {
                format!("cannot send anything: {}; such datagrams {consequence}", words(errno))
            });
            self.give_up(tallies);
        }
        if self.queue.is_empty() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if let Some(outcome) = &mut self.outcome {
            outcome.forget_queue();
        }
        self.queue.clear();
        self.messages.clear();
        self.decided = 0;
    }

    /// Fails what the kernel did not take at once, because this relay never waits.
    pub(super) fn refuse_rest(&mut self, tallies: &mut Tallies) {
        self.log_full();
        self.give_up(tallies);
    }

    /// Gives up what is still queued: without a spill it fails, with one it is left.
    pub(super) fn give_up(&mut self, tallies: &mut Tallies) {
        for message in &mut self.messages[self.decided..] {
            message.left = message.datagrams - message.failed;
        }
        self.settle(self.messages.len(), tallies);
        self.forget();
        self.publish();
    }

    fn note_failures(&mut self) {
        for at in 0..self.queue.failures().len() {
            let failure = self.queue.failures()[at];
            let message = &mut self.messages[failure.index];
            let is_too_long = failure.errno == nix::libc::EMSGSIZE;
            if is_too_long {
                message.failed += failure.datagrams;
                self.tally.too_long += if message.is_repeat { 0 } else { failure.datagrams as u64 };
            } else {
                message.left += failure.datagrams;
            }
            self.has_failed |= !is_too_long;
            self.is_troubled |= !is_too_long;
            if failure.errno != nix::libc::ECONNREFUSED {
                let consequence = if is_too_long { LOST } else { self.log_lines.consequence() };
                self.log_error(DestinationError::Failed(failure.errno), || {
                    format!(
                        "cannot send a datagram: {}; such datagrams {consequence}; see `ip route get` and the \
                         firewall's output rules",
                        words(failure.errno)
                    )
                });
            }
        }
    }

    /// Counts the answers of the network to datagrams that were sent before.
    fn note_answers(&mut self) {
        let answers = self.queue.answers();
        self.tally.icmp_errors += answers.len() as u64;
        if let Some(&errno) = answers.last() {
            self.note_answer(errno);
        }
    }

    fn note_answer(&mut self, errno: i32) {
        self.is_refused |= DestinationError::Answered(errno).is_of_destination();
        self.log_error(DestinationError::Answered(errno), || {
            format!(
                "answers with an error: {}; udpd goes on sending and counts the answers as icmp_errors; check that its \
                 receiver runs on that port",
                words(errno)
            )
        });
    }

    /// Counts the outcome of the first `decided` messages of the queue.
    fn settle(&mut self, decided: usize, tallies: &mut Tallies) {
        for message in &self.messages[self.decided..decided] {
            let (mut failed, mut left) = (message.failed, message.left);
            if message.is_repeat {
                self.tally.templates += u64::from(failed + left == 0);
                continue;
            }
            match &mut self.outcome {
                None => failed += std::mem::take(&mut left),
                Some(outcome) => {
                    if left > 0 {
                        // The kernel does not tell which datagrams of a train it did not take, so all are sent again.
                        left = message.datagrams - failed;
                    }
                    outcome.settle(message.datagrams, failed, left);
                }
            }
            let sent = (message.datagrams - failed - left) as u64;
            deliver(&mut tallies[message.listener], sent);
            fail(&mut tallies[message.listener], failed as u64);
            self.tally.sent += sent;
            self.tally.failed += failed as u64;
        }
        self.decided = decided;
    }

    pub(super) fn peer(&self) -> &PeerAddress {
        self.log_lines.peer()
    }

    /// Whether it is known to have failed since the last call. The kernel reports an ICMP error at the next send, or by
    /// `SO_ERROR`, which clears it; this reads the latter.
    pub(super) fn take_failure(&mut self) -> bool {
        self.read_answer();
        std::mem::take(&mut self.has_failed)
    }

    /// What follows may be the first that it gets of a source.
    pub(super) fn note_new(&mut self) {
        self.is_new = true;
    }

    /// Whether that is so since the last call: it is new, or was in trouble and is quiet for as long as answers take.
    pub(super) fn take_new(&mut self) -> bool {
        if std::mem::take(&mut self.is_troubled) {
            self.troubled = Some(clock::now());
        } else if self.troubled.take_if(|since| clock::since(*since) >= ANSWER_TIME).is_some() {
            self.is_new = true;
        }
        std::mem::take(&mut self.is_new)
    }

    fn read_answer(&mut self) {
        if let Some(errno) = self.route.socket().and_then(waiting_error) {
            self.note_answer(errno);
            self.tally.icmp_errors += 1;
        }
    }

    /// Logs an error once, and counts it against the destination unless the datagram is at fault.
    fn log_error(&mut self, error: DestinationError, text: impl FnOnce() -> String) {
        self.has_failed |= error.is_of_destination();
        self.is_troubled |= error.is_of_destination();
        self.log_lines.error(error, text);
    }

    fn refuse(&mut self, refusal: SpoofError) {
        match refusal {
            SpoofError::TooLong { packet_bytes, mtu_bytes } => {
                self.tally.too_long += 1;
                self.log_error(DestinationError::TooLong, || {
                    format!(
                        "a packet of {packet_bytes} bytes exceeds the MTU of the route, {mtu_bytes}, and with \
                         keep_source the kernel does not fragment it; such datagrams count as too_long; send shorter \
                         ones, raise the MTU, or write keep_source = false"
                    )
                });
            }
            SpoofError::OtherFamily => self.log_error(DestinationError::OtherFamily, || {
                "cannot keep a source of the other address family; such datagrams fail; give each family a listener \
                 and a relay of its own"
                    .to_owned()
            }),
            SpoofError::Nowhere => {
                let consequence = self.log_lines.consequence();
                self.log_error(DestinationError::NoRoute, || {
                    format!("its address is not known; datagrams {consequence} until it is; see `ip route get`")
                });
            }
            SpoofError::Truncated => self.log_error(DestinationError::Truncated, || {
                "udpd does not send on a truncated datagram, because it would look like a whole one; such datagrams \
                 fail; raise max_length"
                    .to_owned()
            }),
        }
    }
}

// With a spill: the outcome of the datagrams of one batch.

impl RelayDestination {
    fn note_queued(&mut self) {
        if let Some(outcome) = &mut self.outcome {
            outcome.queue();
        }
    }

    /// In the middle of a batch with a spill, what was sent may be taken back.
    fn publish(&self) {
        if self.outcome.as_ref().is_none_or(BatchOutcome::is_over) {
            self.ledger.publish(&self.tally);
        }
    }

    /// Sends what is queued for as long as the kernel takes some of it; the places of the rest go to `left`. If the
    /// network has refused something meanwhile, nothing of the batch counts as sent.
    pub(super) fn end_batch(&mut self, listener: usize, tallies: &mut Tallies, left: &mut Vec<usize>) {
        if !self.make_room(tallies) {
            self.log_full();
            self.give_up(tallies);
        }
        let was_refused = self.take_refusal();
        let Some(outcome) = &mut self.outcome else { return };
        if was_refused {
            let sent = outcome.sent.len() as u64;
            tallies[listener].delivered -= sent;
            tallies[listener].pending += sent;
            self.tally.sent -= sent;
            left.append(&mut outcome.sent);
        }
        left.append(&mut outcome.left);
        outcome.sent.clear();
        self.ledger.publish(&self.tally);
    }

    /// The next datagram is the one at this place of the batch.
    pub(super) fn begin_datagram(&mut self, place: usize) {
        if let Some(outcome) = &mut self.outcome {
            outcome.place = place;
        }
    }

    /// Whether the network has refused something since the last call.
    pub(super) fn take_refusal(&mut self) -> bool {
        self.read_answer();
        std::mem::take(&mut self.is_refused)
    }
}

/// Whether the kernel will take it soon.
fn is_for_a_moment(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EAGAIN | nix::libc::ENOBUFS | nix::libc::ENOMEM | nix::libc::EINTR))
}

/// With a spill: which datagrams of one batch are queued, sent and left. Datagrams are known by their places in the
/// batch.
#[derive(Debug, Default)]
struct BatchOutcome {
    /// The place of the datagram in hand.
    place: usize,
    /// The datagrams in the queue, in its order, and how many of them are decided.
    queued: Vec<usize>,
    decided: usize,
    /// The datagrams that the kernel has taken.
    sent: Vec<usize>,
    /// The datagrams that it has not taken, and may take another time.
    left: Vec<usize>,
}

impl BatchOutcome {
    /// The datagram in hand is queued.
    fn queue(&mut self) {
        self.queued.push(self.place);
    }

    /// Of the datagrams of the next message of the queue, so many have failed and so many are left.
    fn settle(&mut self, datagrams: usize, failed: usize, left: usize) {
        let end = (self.decided + datagrams).min(self.queued.len());
        let own = &self.queued[self.decided..end];
        let sent = own.len() - (failed + left).min(own.len());
        self.sent.extend_from_slice(&own[..sent]);
        self.left.extend_from_slice(&own[own.len() - left.min(own.len())..]);
        self.decided = end;
    }

    fn forget_queue(&mut self) {
        self.queued.clear();
        self.decided = 0;
    }

    /// Whether nothing of the batch can be taken back any more.
    fn is_over(&self) -> bool {
        self.sent.is_empty() && self.queued.is_empty()
    }
}

/// The longest packet there is.
const PACKET_BYTES_MAX: usize = 65_575;

/// Builds packets with the original sources, one after the other.
#[derive(Debug)]
struct Spoof {
    packet: Vec<u8>,
}

/// Why a datagram cannot be sent with its own source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpoofError {
    /// So long a packet does not fit the route, which takes so many bytes.
    TooLong { packet_bytes: usize, mtu_bytes: usize },
    /// No packet has a source of one family and a destination of the other.
    OtherFamily,
    /// Only its beginning was received.
    Truncated,
    /// The address of the destination is not known.
    Nowhere,
}

impl Spoof {
    fn new() -> Self {
        Self { packet: Vec::with_capacity(PACKET_BYTES_MAX) }
    }

    /// The packet that carries this payload from its sender to `destination`, on a route with this MTU.
    fn packet(
        &mut self,
        source: SocketAddr,
        payload: &[u8],
        destination: Option<SocketAddr>,
        mtu_bytes: usize,
    ) -> Result<&[u8], SpoofError> {
        let destination = destination.ok_or(SpoofError::Nowhere)?;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(SpoofError::OtherFamily);
        }
        let packet_bytes = headers::headers_bytes(source) + payload.len();
        if packet_bytes > mtu_bytes {
            return Err(SpoofError::TooLong { packet_bytes, mtu_bytes });
        }
        self.packet.clear();
        headers::append(&mut self.packet, source, destination, payload, payload.len());
        Ok(&self.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datagram_of_a_message_is_sent_failed_or_left() {
        let mut outcome = BatchOutcome::default();
        for place in 0..6 {
            outcome.place = place;
            outcome.queue();
        }
        outcome.settle(3, 0, 0);
        outcome.settle(2, 1, 1);
        outcome.settle(1, 0, 1);
        (outcome.place, _) = (6, outcome.forget_queue());
        outcome.left.push(6);
        assert_eq!((&outcome.sent[..], &outcome.left[..]), (&[0, 1, 2][..], &[4, 5, 6][..]));
    }
}
