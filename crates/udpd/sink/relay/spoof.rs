//! Sending with somebody else's address: whole packets through a raw socket, for receivers that tell their senders apart by
//! address. The kernel neither cuts nor fragments what comes this way, so a packet must fit the route; and much of the
//! network throws away packets that come from where their source is not.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mmsg::{Datagram, Family, Socket};

use crate::packet;

/// How often the route is asked what it takes.
const MTU_INTERVAL: Duration = Duration::from_secs(1);

/// The longest packet there is.
pub(super) const PACKET_BYTES_MAX: usize = 65_575;

/// What keeps the sources of one destination.
#[derive(Debug)]
pub(super) struct Spoof {
    destination: SocketAddr,
    /// An ordinary socket on the same route, which knows how long packets may be.
    probe: Socket,
    mtu_bytes: usize,
    asked: Instant,
    packet: Vec<u8>,
}

/// Why a datagram cannot be sent with its own source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// So long a packet does not fit the route, which takes so many bytes.
    TooLong { packet_bytes: usize, mtu_bytes: usize },
    /// No packet has a source of one family and a destination of the other.
    OtherFamily,
    /// Only its beginning was received.
    Truncated,
}

impl Spoof {
    pub(super) fn new(destination: SocketAddr) -> io::Result<Self> {
        let family = if destination.is_ipv4() { Family::V4 } else { Family::V6 };
        let probe = Socket::nonblocking(family)?;
        probe.connect(destination)?;
        let mtu_bytes = probe.path_mtu()?;
        let packet = Vec::with_capacity(PACKET_BYTES_MAX);
        Ok(Self { destination, probe, mtu_bytes, asked: Instant::now(), packet })
    }

    /// Asks the route again, now and then.
    pub(super) fn refresh(&mut self) {
        if self.asked.elapsed() >= MTU_INTERVAL {
            self.asked = Instant::now();
            self.mtu_bytes = self.probe.path_mtu().unwrap_or(self.mtu_bytes);
        }
    }

    /// The packet that carries this datagram.
    pub(super) fn packet(&mut self, datagram: &Datagram<'_>) -> Result<&[u8], Refusal> {
        let source = datagram.source();
        if source.is_ipv4() != self.destination.is_ipv4() {
            return Err(Refusal::OtherFamily);
        }
        let packet_bytes = packet::headers_bytes(source) + datagram.payload().len();
        if packet_bytes > self.mtu_bytes {
            return Err(Refusal::TooLong { packet_bytes, mtu_bytes: self.mtu_bytes });
        }
        self.packet.clear();
        packet::append(&mut self.packet, source, self.destination, datagram.payload(), datagram.length());
        Ok(&self.packet)
    }
}
