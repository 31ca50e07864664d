//! A datagram with all that is known of it, as the formats that keep more than the payload write it.

use std::net::SocketAddr;
use std::time::Duration;

/// One datagram.
#[derive(Debug, Clone, Copy)]
pub struct DatagramRecord<'a> {
    /// The name of the listener that received it.
    pub listener: &'a str,
    /// The number of the lane within the listener.
    pub lane: usize,
    /// When it came, since 1970.
    pub arrival: Duration,
    /// That is when its batch was begun: no kernel code has looked at the clock for it.
    pub is_time_of_batch: bool,
    pub source: SocketAddr,
    /// What it was sent to, as far as that is known.
    pub destination: SocketAddr,
    /// Its bytes, or the first of them.
    pub payload: &'a [u8],
    /// How long it was on the wire.
    pub length: usize,
}
