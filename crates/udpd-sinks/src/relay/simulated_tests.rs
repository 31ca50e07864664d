//! A kernel and a network for simulations of a relay: what a send call takes and answers, and which routes there are.
//! A thread that has entered none sends for real.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use mmsg::{SendError, Socket};
use nix::libc;

/// What becomes of a datagram that the kernel is given for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PeerState {
    #[default]
    Up,
    /// The kernel takes it, and the network answers that there is no such port.
    Refusing,
    /// The kernel takes nothing, with this error.
    Stuck(i32),
    /// The kernel refuses each datagram.
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) state: PeerState,
    pub(super) has_no_route: bool,
    /// How many messages a call takes.
    pub(super) takes: Option<usize>,
    pub(super) answer: Option<i32>,
    /// What the kernel took, and of it what arrived.
    pub(super) taken: Vec<Vec<u8>>,
    pub(super) arrived: Vec<Vec<u8>>,
}

thread_local! {
    static PEERS: RefCell<Option<HashMap<SocketAddr, Peer>>> = const { RefCell::new(None) };
}

/// The thread is in the simulation until this is dropped.
pub(super) struct Network;

impl Network {
    pub(super) fn enter() -> Self {
        PEERS.set(Some(HashMap::new()));
        Self
    }

    pub(super) fn peer<T>(&self, address: SocketAddr, look: impl FnOnce(&mut Peer) -> T) -> T {
        with(address, look).expect("a network")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        PEERS.set(None);
    }
}

fn with<T>(address: SocketAddr, look: impl FnOnce(&mut Peer) -> T) -> Option<T> {
    PEERS.with_borrow_mut(|peers| peers.as_mut().map(|peers| look(peers.entry(address).or_default())))
}

fn peer_of(socket: &Socket) -> SocketAddr {
    let peer = rustix::net::getpeername(socket).ok().flatten().expect("a connected socket");
    peer.try_into().expect("an address")
}

/// Whether there is a route.
pub(super) fn check_route(address: SocketAddr) -> io::Result<()> {
    match with(address, |peer| peer.has_no_route) {
        Some(true) => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
        _ => Ok(()),
    }
}

/// The answer that waits on a socket.
pub(super) fn waiting_error(socket: &Socket) -> Option<Option<i32>> {
    let is_simulated = PEERS.with_borrow(Option::is_some);
    is_simulated.then(|| with(peer_of(socket), |peer| peer.answer.take()).flatten())
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SendFailure {
    pub(super) index: usize,
    pub(super) datagrams: usize,
    pub(super) errno: i32,
}

/// Why a call ended.
pub(super) struct CallError {
    pub(super) error: io::Error,
}

/// In place of the batch of mmsg.
#[derive(Debug)]
pub(super) struct SendBatch {
    real: Option<mmsg::SendBatch>,
    slots: usize,
    messages: Vec<Vec<Vec<u8>>>,
    next: usize,
    failures: Vec<SendFailure>,
    answers: Vec<i32>,
}

impl SendBatch {
    pub(super) fn new(slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let is_simulated = PEERS.with_borrow(Option::is_some);
        let real = if is_simulated { None } else { Some(mmsg::SendBatch::new(slots, slot_bytes)?) };
        Ok(Self { real, slots, messages: Vec::new(), next: 0, failures: Vec::new(), answers: Vec::new() })
    }

    pub(super) fn push_prefixed(&mut self, prefix: &[u8], bytes: &[u8], to: Option<SocketAddr>) -> Result<(), ()> {
        if let Some(real) = &mut self.real {
            return real.push_prefixed(prefix, bytes, to).map_err(drop);
        }
        assert!(!self.is_full(), "there is room");
        self.messages.push(vec![[prefix, bytes].concat()]);
        Ok(())
    }

    pub(super) fn join_prefixed(&mut self, prefix: &[u8], bytes: &[u8]) -> bool {
        if let Some(real) = &mut self.real {
            return real.join_prefixed(prefix, bytes);
        }
        let one = [prefix, bytes].concat();
        let is_open = self.messages.len() > self.next;
        let last = self.messages.last_mut().filter(|last| {
            is_open && last.len() < 64 && !one.is_empty() && last.iter().all(|other| other.len() == one.len())
        });
        last.map(|last| last.push(one)).is_some()
    }

    pub(super) fn flush(&mut self, socket: &Socket) -> Result<(), CallError> {
        self.failures.clear();
        self.answers.clear();
        if let Some(real) = &mut self.real {
            let outcome = real.flush(socket).map(drop).map_err(|SendError { error, .. }| CallError { error });
            let own = |failure: &mmsg::SendFailure| {
                let mmsg::SendFailure { index, datagrams, errno, .. } = *failure;
                SendFailure { index, datagrams, errno }
            };
            self.failures.extend(real.failures().iter().map(own));
            self.answers.extend(real.answers());
            return outcome;
        }
        let outcome = with(peer_of(socket), |peer| self.flush_to(peer)).expect("a network");
        outcome.map_err(|errno| CallError { error: io::Error::from_raw_os_error(errno) })
    }

    fn flush_to(&mut self, peer: &mut Peer) -> Result<(), i32> {
        let mut takes = peer.takes.unwrap_or(usize::MAX);
        while self.next < self.messages.len() {
            if let PeerState::Stuck(errno) = peer.state {
                return Err(errno);
            }
            if takes == 0 {
                return Err(libc::EAGAIN);
            }
            takes -= 1;
            self.answers.extend(peer.answer.take());
            let message = &self.messages[self.next];
            match peer.state {
                PeerState::Unreachable => {
                    let (index, datagrams) = (self.next, message.len());
                    self.failures.push(SendFailure { index, datagrams, errno: libc::EHOSTUNREACH });
                }
                _ => {
                    peer.taken.extend(message.iter().cloned());
                    match peer.state {
                        PeerState::Refusing => peer.answer = Some(libc::ECONNREFUSED),
                        _ => peer.arrived.extend(message.iter().cloned()),
                    }
                }
            }
            self.next += 1;
        }
        self.clear();
        Ok(())
    }

    pub(super) fn failures(&self) -> &[SendFailure] {
        &self.failures
    }

    pub(super) fn answers(&self) -> &[i32] {
        &self.answers
    }

    pub(super) fn len(&self) -> usize {
        self.real.as_ref().map_or(self.messages.len() - self.next, mmsg::SendBatch::len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.real.as_ref().map_or(self.messages.len() == self.slots, mmsg::SendBatch::is_full)
    }

    pub(super) fn clear(&mut self) {
        if let Some(real) = &mut self.real {
            real.clear();
        }
        self.messages.clear();
        self.next = 0;
    }
}
