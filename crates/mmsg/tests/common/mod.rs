//! What the tests share: sockets on loopback, random bytes that are the same on every run, and receiving with a
//! deadline, so that a lost datagram fails a test instead of hanging it.
#![allow(dead_code)] // each test binary uses its part of it

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Control, Family, RecvBatch, Socket, Wait};

/// Nothing on loopback takes this long; whoever waits for it has lost something.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([127, 0, 0, 1], 0)),
        Family::V6 => "[::1]:0".parse().expect("valid"),
    }
}

/// A socket bound to a free port of loopback, after `prepare` has set its options.
pub(crate) fn bound(family: Family, prepare: impl FnOnce(&Socket)) -> (Socket, SocketAddr) {
    let socket = Socket::new(family).expect("a socket");
    prepare(&socket);
    socket.bind(loopback(family)).expect("loopback has free ports");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

pub(crate) fn batch(slots: usize, slot_bytes: usize, control: Control) -> RecvBatch {
    RecvBatch::new(&BatchShape { slots, slot_bytes, control, huge_pages: false }).expect("memory for a batch")
}

/// Receives until `enough` says so of the datagrams so far: payload, real length and source of each.
pub(crate) fn receive_until(
    socket: &Socket,
    batch: &mut RecvBatch,
    mut enough: impl FnMut(&[Received]) -> bool,
) -> Vec<Received> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while !enough(&all) {
        let left = DEADLINE.saturating_sub(start.elapsed());
        assert!(socket.wait_readable(left).expect("poll"), "nothing more came after {} datagrams", all.len());
        batch.receive(socket, Wait::No).expect("receive");
        all.extend(batch.datagrams().map(|datagram| Received {
            payload: datagram.payload().to_vec(),
            length: datagram.length(),
            source: datagram.source(),
        }));
    }
    all
}

pub(crate) fn receive_count(socket: &Socket, batch: &mut RecvBatch, count: usize) -> Vec<Received> {
    receive_until(socket, batch, |all| all.len() >= count)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub payload: Vec<u8>,
    pub length: usize,
    pub source: SocketAddr,
}

/// A xorshift generator.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + usize::try_from(self.next() >> 33).expect("31 bits fit") % (high - low + 1)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}
