//! One destination of a relay: its socket, its queue, its books, and what is said of it in the log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmsg::{Datagram, Family, SendBatch, Socket};

use super::spoof::{PACKET_BYTES_MAX, Refusal, Spoof};
use super::{RelayError, deliver, fail};
use crate::ledger::{DestinationLedger, DestinationTally, Tally};

/// Messages in the queue; each can be a train of datagrams of one length.
const SLOTS: usize = 64;

/// The longest payload there is.
const PAYLOAD_BYTES_MAX: usize = 65_507;

/// What a send buffer should hold while the device is busy.
const SEND_BUFFER_BYTES: usize = 1 << 21;

/// A destination that has not answered with an error for so long is said to be well again.
const QUIET: Duration = Duration::from_secs(10);

/// A message in the queue.
#[derive(Debug, Clone, Copy)]
struct Message {
    listener: usize,
    datagrams: usize,
    /// Of those, the ones known to have failed.
    failed: usize,
}

/// Where datagrams go.
#[derive(Debug)]
pub(super) struct Destination {
    sink: String,
    address: SocketAddr,
    socket: Socket,
    spoof: Option<Spoof>,
    queue: SendBatch,
    /// The messages of the queue, since it was last empty.
    messages: Vec<Message>,
    /// How many of them are decided.
    decided: usize,
    tally: DestinationTally,
    ledger: Arc<DestinationLedger>,
    /// When the network last answered with an error.
    refused: Option<Instant>,
    /// What kinds of failure have been said.
    said: Vec<String>,
}

impl Destination {
    pub(super) fn open(sink: &str, address: SocketAddr, keep_source: bool) -> Result<Self, RelayError> {
        let fail = |operation: &'static str| move |error| RelayError { destination: address, operation, error };
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let (socket, spoof) = if keep_source {
            let spoof = Spoof::new(address).map_err(fail("find a route"))?;
            (Socket::raw(family).map_err(fail("make a raw socket"))?, Some(spoof))
        } else {
            (Socket::nonblocking(family).map_err(fail("make a socket"))?, None)
        };
        socket.connect(address).map_err(fail("find a route"))?;
        // A smaller buffer only means that the queue is tried again more often.
        let _ = socket.set_send_buffer(SEND_BUFFER_BYTES);
        let slot_bytes = if keep_source { PACKET_BYTES_MAX } else { PAYLOAD_BYTES_MAX };
        Ok(Self {
            sink: sink.to_owned(),
            address,
            socket,
            spoof,
            queue: SendBatch::new(SLOTS, slot_bytes).map_err(fail("get memory"))?,
            messages: Vec::with_capacity(SLOTS),
            decided: 0,
            tally: DestinationTally::default(),
            ledger: Arc::new(DestinationLedger::new(address)),
            refused: None,
            said: Vec::new(),
        })
    }

    pub(super) fn ledger(&self) -> Arc<DestinationLedger> {
        Arc::clone(&self.ledger)
    }

    /// Queues a datagram; sends what is queued when there is no room, and counts the datagram as failed when there is none then.
    pub(super) fn push(&mut self, listener: usize, datagram: &Datagram<'_>, tallies: &mut [Tally]) {
        if datagram.is_truncated() {
            self.refuse(Refusal::Truncated);
            self.tally.failed += 1;
            return fail(&mut tallies[listener], 1);
        }
        if self.joins(listener, datagram) {
            self.messages.last_mut().expect("it has joined a message").datagrams += 1;
            return;
        }
        if self.queue.is_full() {
            self.flush(tallies);
        }
        let bytes = match &mut self.spoof {
            None => Ok(datagram.payload()),
            Some(spoof) => spoof.packet(datagram),
        };
        let queued = match bytes {
            Ok(bytes) => self.queue.push(bytes, None).is_ok(),
            Err(refusal) => {
                self.refuse(refusal);
                false
            }
        };
        if queued {
            self.messages.push(Message { listener, datagrams: 1, failed: 0 });
        } else {
            self.tally.failed += 1;
            fail(&mut tallies[listener], 1);
        }
    }

    /// Whether the datagram goes out in one message with the last one. A packet that is built here cannot.
    fn joins(&mut self, listener: usize, datagram: &Datagram<'_>) -> bool {
        self.spoof.is_none()
            && self.messages.last().is_some_and(|last| last.listener == listener)
            && self.queue.join(datagram.payload())
    }

    /// Sends what is queued. False when the kernel did not take all of it, and it should be tried again.
    pub(super) fn flush(&mut self, tallies: &mut [Tally]) -> bool {
        if self.queue.is_empty() && self.refused.is_none() {
            self.ledger.publish(&self.tally);
            return true;
        }
        if let Some(spoof) = &mut self.spoof {
            spoof.refresh();
        }
        let outcome = self.queue.flush(&self.socket);
        self.note_failures();
        self.settle(self.messages.len() - self.queue.len(), tallies);
        if let Err(error) = &outcome
            && !is_for_a_moment(&error.error)
        {
            self.say(&format!("nothing can be sent: {}", error.error));
            self.give_up(tallies);
        }
        if self.queue.is_empty() {
            self.queue.clear();
            self.messages.clear();
            self.decided = 0;
        }
        self.note_answers();
        self.ledger.publish(&self.tally);
        self.queue.is_empty()
    }

    /// Counts what is still queued as failed.
    pub(super) fn give_up(&mut self, tallies: &mut [Tally]) {
        for message in &mut self.messages[self.decided..] {
            message.failed = message.datagrams;
        }
        self.settle(self.messages.len(), tallies);
        self.queue.clear();
        self.messages.clear();
        self.decided = 0;
        self.ledger.publish(&self.tally);
    }

    fn note_failures(&mut self) {
        for at in 0..self.queue.failures().len() {
            let failure = self.queue.failures()[at];
            self.messages[failure.index].failed += failure.datagrams;
            if failure.errno == nix::libc::EMSGSIZE {
                self.tally.too_long += failure.datagrams as u64;
            }
            let error = failure.error();
            if !matches!(error.raw_os_error(), Some(nix::libc::ECONNREFUSED)) {
                self.say(&format!("a datagram cannot be sent: {error}"));
            }
        }
    }

    /// The first `decided` messages of the queue have met their fate.
    fn settle(&mut self, decided: usize, tallies: &mut [Tally]) {
        for message in &self.messages[self.decided..decided] {
            let sent = (message.datagrams - message.failed) as u64;
            deliver(&mut tallies[message.listener], sent);
            fail(&mut tallies[message.listener], message.failed as u64);
            self.tally.sent += sent;
            self.tally.failed += message.failed as u64;
        }
        self.decided = decided;
    }

    /// What the network has answered to datagrams that were sent before.
    fn note_answers(&mut self) {
        let answers = self.queue.answers();
        if let Some(&errno) = answers.last() {
            self.tally.icmp_errors += answers.len() as u64;
            if self.refused.replace(Instant::now()).is_none() {
                log::warn!(
                    "sink {}: {} answers with an error: {}; datagrams are sent to it all the same, and its answers are counted \
                     as icmp_errors; start what should listen there",
                    self.sink,
                    self.address,
                    std::io::Error::from_raw_os_error(errno)
                );
            }
        } else if self.refused.is_some_and(|refused| refused.elapsed() >= QUIET) {
            self.refused = None;
            log::info!(
                "sink {}: {} answers with no more errors; there were {}",
                self.sink,
                self.address,
                self.tally.icmp_errors
            );
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::TooLong { packet_bytes, mtu_bytes } => {
                self.tally.too_long += 1;
                self.say_once("too long", &|| {
                    format!(
                        "a packet of {packet_bytes} bytes does not fit the route, which takes {mtu_bytes}, and with keep_source \
                         nobody cuts it; such datagrams fail and count as too_long; lower max_length at the senders, raise \
                         the MTU, or write keep_source = false"
                    )
                });
            }
            Refusal::OtherFamily => self.say_once("other family", &|| {
                "a source of the other address family cannot be kept; such datagrams fail; give each family a listener and a \
                 relay of its own"
                    .to_owned()
            }),
            Refusal::Truncated => self.say_once("truncated", &|| {
                "a datagram that was received in part is not sent on, because nobody could tell it from a whole one; such \
                 datagrams fail; raise max_length"
                    .to_owned()
            }),
        }
    }

    fn say(&mut self, what: &str) {
        self.say_once(what, &|| format!("{what}; such datagrams count as sink_error"));
    }

    /// Each kind of failure is said once; the ledger goes on counting.
    fn say_once(&mut self, kind: &str, what: &dyn Fn() -> String) {
        /// More kinds than there are; whatever the kernel says, the memory for it is bounded.
        const KINDS_MAX: usize = 16;
        if self.said.len() < KINDS_MAX && !self.said.iter().any(|said| said == kind) {
            self.said.push(kind.to_owned());
            log::warn!("sink {}: {}: {}", self.sink, self.address, what());
        }
    }
}

/// Whether the kernel will take it in a moment.
fn is_for_a_moment(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EAGAIN | nix::libc::ENOBUFS | nix::libc::ENOMEM | nix::libc::EINTR))
}
