//! Sending with the original source address: whole packets through a raw socket, for receivers that tell their senders
//! apart by address. The kernel neither cuts nor fragments what comes this way, so a packet must fit the route; and
//! much of the network throws away packets that come from where their source is not.

use std::net::SocketAddr;

use mmsg::Datagram;

use udpd_base::capture::headers;

/// The longest packet there is.
pub(super) const PACKET_BYTES_MAX: usize = 65_575;

/// What keeps the sources, in packets built one after the other.
#[derive(Debug)]
pub(super) struct Spoof {
    packet: Vec<u8>,
}

/// Why a datagram cannot be sent with its own source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpoofError {
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
    pub(super) fn new() -> Self {
        Self { packet: Vec::with_capacity(PACKET_BYTES_MAX) }
    }

    /// The packet that carries this datagram to `destination`, on a way that takes so many bytes.
    pub(super) fn packet(
        &mut self,
        datagram: &Datagram<'_>,
        destination: Option<SocketAddr>,
        mtu_bytes: usize,
    ) -> Result<&[u8], SpoofError> {
        let destination = destination.ok_or(SpoofError::Nowhere)?;
        let source = headers::source(datagram);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(SpoofError::OtherFamily);
        }
        let packet_bytes = headers::headers_bytes(source) + datagram.payload().len();
        if packet_bytes > mtu_bytes {
            return Err(SpoofError::TooLong { packet_bytes, mtu_bytes });
        }
        self.packet.clear();
        headers::append(&mut self.packet, source, destination, datagram.payload(), datagram.length());
        Ok(&self.packet)
    }
}
