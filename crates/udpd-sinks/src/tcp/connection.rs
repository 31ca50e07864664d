//! The connection to a peer: how it is made, how its end is noticed, and the log lines about both.
//!
//! Nothing here waits. A peer that cannot be reached is tried again after a pause that doubles each time. Of several
//! destinations the first that accepts is used; while it is not the first of the list, those before it are tried after
//! each period, and the next one is gone over to when everything is acknowledged. A destination that accepts and ends
//! the connection at once, as a proxy does that has nothing behind it, comes after the others in the next attempt.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peer_stream::{PeerStream, READS_MAX};
use super::relp::RelpAnswer;
use super::search::{FoundPeer, PeerSearch, SearchState, TlsPeers};
use crate::peer_trouble::{cure, waiting_place};
use crate::target::DestinationTarget;
use udpd_base::ledger::ConnectionLedger;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::text::address::PeerAddress;

/// The first pause before another attempt.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A connection that ends sooner counts as an attempt that failed.
const LASTING: Duration = Duration::from_secs(1);

/// How often the end of a connection is looked for that nothing is written to.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a connection is made with.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionManner {
    pub(super) timeout: Duration,
    pub(super) probe_every: Duration,
    /// The peer answers by RELP.
    pub(super) is_relp: bool,
}

#[derive(Debug)]
enum LinkState {
    Down { retry: Instant },
    Searching(PeerSearch),
    Up { peer: FoundPeer, since: Instant, probe: ProbeState },
}

/// The search for a destination before the one in use.
#[derive(Debug)]
enum ProbeState {
    /// There is none.
    Off,
    At(Instant),
    Searching(PeerSearch),
    Found(FoundPeer),
}

#[derive(Debug)]
pub(super) struct TcpConnection {
    sink: String,
    destinations: Vec<(PeerAddress, DestinationTarget)>,
    tls: Option<TlsPeers>,
    manner: ConnectionManner,
    link: LinkState,
    pause: Duration,
    /// The destination whose last connection did not last, if there is one.
    fleeting: Option<usize>,
    looked: Option<Instant>,
    /// A connection has ended, with so many bytes that were not acknowledged.
    ended: Option<u64>,
    /// What the peer does not take waits in a spill.
    spills: bool,
    /// The log has a line that it is gone.
    is_logged_gone: bool,
    /// A peer that comes and goes gets one line a minute.
    gone: LogLimiter,
    /// What others see of it.
    pub(super) ledger: Arc<ConnectionLedger>,
}

impl TcpConnection {
    pub(super) fn new(
        sink: &str,
        destinations: Vec<(PeerAddress, DestinationTarget)>,
        tls: Option<TlsPeers>,
        manner: ConnectionManner,
        spills: bool,
        now: Instant,
    ) -> Self {
        let (link, pause, gone) = (LinkState::Down { retry: now }, PAUSE_MIN, LogLimiter::default());
        let (sink, fleeting, looked, ended, is_logged_gone) = (sink.to_owned(), None, None, None, false);
        let ledger = Arc::new(ConnectionLedger::new(&destinations[0].0));
        Self {
            sink,
            destinations,
            tls,
            manner,
            link,
            pause,
            fleeting,
            looked,
            ended,
            spills,
            is_logged_gone,
            gone,
            ledger,
        }
    }

    /// The connection, if there is one.
    pub(super) fn stream(&self) -> Option<&TcpStream> {
        match &self.link {
            LinkState::Up { peer, .. } => Some(&peer.stream.stream),
            LinkState::Down { .. } | LinkState::Searching(_) => None,
        }
    }

    fn peer_stream(&mut self) -> Option<&mut PeerStream> {
        match &mut self.link {
            LinkState::Up { peer, .. } => Some(&mut peer.stream),
            LinkState::Down { .. } | LinkState::Searching(_) => None,
        }
    }

    /// How many bytes the peer has not acknowledged.
    pub(super) fn unacknowledged_bytes(&mut self) -> Option<u64> {
        self.peer_stream()?.unacknowledged_bytes().ok()
    }

    /// Says to the peer that no more comes.
    pub(super) fn close(&mut self, is_all_answered: bool) {
        if let Some(stream) = self.peer_stream() {
            stream.close(is_all_answered);
        }
    }

    /// A connection has ended or another has taken its place, and it was not asked for.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// How many bytes were not acknowledged when a connection ended or another took its place, once for each.
    pub(super) fn take_ended(&mut self) -> Option<u64> {
        self.ended.take()
    }

    /// Another destination is ready to take over: nothing more is to be written to this one.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.link, LinkState::Up { probe: ProbeState::Found(_), .. })
    }

    /// Waits for the first answer about names, until `limit`.
    pub(super) fn settle(&self, limit: Instant) {
        self.destinations.iter().for_each(|(_, target)| target.settle(limit));
    }

    /// Takes the next step towards a connection.
    pub(super) fn advance(&mut self, now: Instant, is_acknowledged: bool) {
        if let LinkState::Down { retry } = self.link {
            if now < retry {
                return;
            }
            let behind = self.fleeting.map_or(0, |place| place + 1);
            self.link = LinkState::Searching(self.search((behind..self.destinations.len()).chain(0..behind)));
        }
        if let LinkState::Searching(search) = &mut self.link {
            return match search.look(now) {
                SearchState::GoesOn => {}
                SearchState::Failed(place, error) => {
                    self.log_gone(now, place, "cannot be reached", &error);
                    self.rest(now);
                }
                SearchState::Found(peer) => self.use_peer(peer, now),
            };
        }
        self.advance_probe(now, is_acknowledged);
    }

    /// Looks for a destination before the one in use, and goes over to that.
    fn advance_probe(&mut self, now: Instant, is_acknowledged: bool) {
        let LinkState::Up { peer, probe, .. } = &mut self.link else { return };
        let place = peer.place;
        match mem::replace(probe, ProbeState::Off) {
            ProbeState::Found(found) if is_acknowledged => self.use_peer(found, now),
            ProbeState::At(due) if now >= due => {
                let search = self.search(0..place);
                self.set_probe(ProbeState::Searching(search));
            }
            ProbeState::Searching(mut search) => {
                let next = match search.look(now) {
                    SearchState::GoesOn => ProbeState::Searching(search),
                    SearchState::Found(found) => ProbeState::Found(found),
                    SearchState::Failed(..) => ProbeState::At(now + self.manner.probe_every),
                };
                self.set_probe(next);
            }
            other => *probe = other,
        }
    }

    fn set_probe(&mut self, next: ProbeState) {
        if let LinkState::Up { probe, .. } = &mut self.link {
            *probe = next;
        }
    }

    /// A search among the destinations at these places.
    fn search(&self, places: impl Iterator<Item = usize>) -> PeerSearch {
        let (mut addresses, mut unknown) = (VecDeque::new(), None);
        for place in places {
            match self.destinations[place].1.now(None) {
                Ok(found) => addresses.extend(found.iter().map(|address| (place, *address))),
                Err(error) => unknown = unknown.or(Some((place, error))),
            }
        }
        let Self { tls, manner, .. } = self;
        PeerSearch::new(addresses, tls.clone(), manner.timeout).failed_at(unknown).of_relp(manner.is_relp)
    }

    fn use_peer(&mut self, peer: FoundPeer, now: Instant) {
        self.close(self.ended.is_none());
        self.ended.get_or_insert(0);
        let name = self.name(peer.place, Some(peer.address));
        self.ledger.note_peer(&name);
        let was_gone = mem::take(&mut self.is_logged_gone);
        match peer.place {
            0 if was_gone => log::info!("sink {}: {name} is back", self.sink),
            0 if matches!(self.link, LinkState::Up { .. }) => {
                log::info!("sink {}: writes to {name} again, the first of its destinations", self.sink);
            }
            0 => {}
            _ => log::warn!("sink {}: writes to {name} now, because those before it accept no connection", self.sink),
        }
        let probe = if peer.place == 0 { ProbeState::Off } else { ProbeState::At(now + self.manner.probe_every) };
        self.link = LinkState::Up { peer, since: now, probe };
        self.looked = None;
    }

    /// Writes a part, perhaps nothing. What the peer does not take now is no error; after one the connection is of no
    /// use.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(stream) = self.peer_stream() else { return Ok(0) };
        match if bytes.is_empty() { stream.flush().map(|()| 0) } else { stream.write(bytes) } {
            Err(error) if is_for_now(&error) => Ok(0),
            written => written,
        }
    }

    /// Looks whether the peer has ended the connection, and what it answers, if that is of interest.
    pub(super) fn look(&mut self, now: Instant, answer: &mut dyn FnMut(RelpAnswer<'_>) -> bool) {
        let was_looked = self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_EVERY);
        if was_looked && !self.manner.is_relp {
            return;
        }
        self.looked = Some(now);
        for _ in 0..READS_MAX {
            let Some(stream) = self.peer_stream() else { return };
            let error = match stream.read(answer) {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => continue,
                Err(error) if is_for_now(&error) => return,
                Err(error) => error,
            };
            // TLS says more of it than an operator asks for.
            let error = match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "its program has closed the connection"),
                _ => error,
            };
            return self.lose(now, &error);
        }
    }

    /// The connection has ended, or is ended here: with a peer that does not keep to RELP.
    pub(super) fn lose(&mut self, now: Instant, error: &io::Error) {
        let LinkState::Up { peer, since, probe } = &mut self.link else { return };
        // A connection that is reset still knows it.
        self.ended = Some(peer.stream.unacknowledged_bytes().unwrap_or(u64::MAX));
        let (place, lasted) = (peer.place, now.saturating_duration_since(*since) >= LASTING);
        self.fleeting = (!lasted).then_some(place);
        if let ProbeState::Found(found) = mem::replace(probe, ProbeState::Off) {
            self.use_peer(found, now);
            return;
        }
        if lasted {
            self.pause = PAUSE_MIN;
        }
        let what = match error.kind() {
            io::ErrorKind::InvalidData => "is given up",
            _ => "has ended the connection",
        };
        self.log_gone(now, place, what, error);
        match lasted {
            // A program that was started anew is there at once.
            true => self.link = LinkState::Down { retry: now },
            false => self.rest(now),
        }
    }

    /// Tries a peer that is gone at once, whatever pause there is.
    pub(super) fn hurry(&mut self, now: Instant) {
        if let LinkState::Down { retry } = &mut self.link {
            (*retry, self.pause) = (now, PAUSE_MIN);
        }
    }

    fn rest(&mut self, now: Instant) {
        self.link = LinkState::Down { retry: now + self.pause };
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }

    /// When there is something to do although nothing is to be written.
    pub(super) fn due(&self, now: Instant) -> Instant {
        match &self.link {
            LinkState::Down { retry } => *retry,
            LinkState::Searching(_) | LinkState::Up { probe: ProbeState::Searching(_) | ProbeState::Found(_), .. } => {
                now + LOOK_EVERY
            }
            LinkState::Up { probe: ProbeState::At(due), .. } => (*due).min(now + Duration::from_secs(1)),
            LinkState::Up { probe: ProbeState::Off, .. } => now + Duration::from_secs(1),
        }
    }

    fn name(&self, place: usize, address: Option<SocketAddr>) -> String {
        let peer = &self.destinations[place].0;
        match (peer, address) {
            (PeerAddress::Host { .. }, Some(address)) => format!("{peer} ({address})"),
            _ => peer.to_string(),
        }
    }

    fn log_gone(&mut self, now: Instant, place: usize, what: &str, error: &io::Error) {
        self.ledger.note_down(format_args!("{} {what}: {error}", self.name(place, None)));
        if self.is_logged_gone {
            return;
        }
        let Some(silent) = self.gone.pass(now) else { return };
        self.is_logged_gone = true;
        log::warn!(
            "sink {}: {} {what}: {error}; datagrams wait {} until it is back{}{}",
            self.sink,
            self.name(place, None),
            waiting_place(self.spills),
            cure(error),
            repeats(silent)
        );
    }
}

/// Whether the error only says that there is nothing to be had now.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
