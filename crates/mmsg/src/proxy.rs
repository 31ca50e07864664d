//! The header of the PROXY protocol, version 2, which a relay or load balancer puts before a datagram to name its
//! sender: read and written. Pure: no system calls, no `unsafe`, every bound checked, nothing allocated.
//!
//! ```text
//! | signature, 12 | version and command | family and transport | length of the rest u16 |
//! | source | destination | source port | destination port | fields of type, length, value, which are skipped |
//! ```
//!
//! A stream transport is read like a datagram one: some balancers write it for both, and the addresses lie in the same
//! place.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What every header begins with. As the family of a socket address it would be unknown, see `addr`.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// What stands before the addresses.
const FIXED_BYTES: usize = 16;

const VERSION: u8 = 2;
const COMMAND_LOCAL: u8 = 0;
const COMMAND_PROXY: u8 = 1;
const FAMILY_V4: u8 = 1;
const FAMILY_V6: u8 = 2;
const FAMILY_MAX: u8 = 3;
const TRANSPORT_DATAGRAM: u8 = 2;

/// The most that [`Prefix`] puts before a datagram: the header with two IPv6 addresses.
pub const PREFIX_BYTES_MAX: usize = FIXED_BYTES + address_bytes(FAMILY_V6);

/// Two addresses and two ports.
const fn address_bytes(family: u8) -> usize {
    match family {
        FAMILY_V4 => 12,
        FAMILY_V6 => 36,
        // Two paths of UNIX sockets.
        FAMILY_MAX => 216,
        _ => 0,
    }
}

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its length, skipped fields included: the payload comes behind it.
    pub bytes: usize,
    /// The length of the beginning that names the sender; 0 where it names no IP address.
    named_bytes: usize,
}

impl Header {
    /// The beginning of `bytes` that has the addresses; `None` when there are none, and the kernel's sender holds.
    pub(crate) fn name<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.named_bytes == 0 { None } else { bytes.get(..self.named_bytes) }
    }
}

/// Why there is no header at the beginning of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The datagram begins with something else.
    Missing,
    /// It begins like a header, and is of an unknown version or does not end within the datagram.
    Malformed,
}

impl fmt::Display for Flaw {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Flaw::Missing => "no PROXY header",
            Flaw::Malformed => "a malformed PROXY header",
        })
    }
}

/// Reads the header at the beginning of a datagram.
pub fn read(datagram: &[u8]) -> Result<Header, Flaw> {
    if !datagram.starts_with(&SIGNATURE) {
        return Err(Flaw::Missing);
    }
    let fixed = datagram.first_chunk::<FIXED_BYTES>().ok_or(Flaw::Malformed)?;
    let (version, command) = (fixed[12] >> 4, fixed[12] & 0xf);
    let (family, transport) = (fixed[13] >> 4, fixed[13] & 0xf);
    let rest_bytes = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let bytes = FIXED_BYTES + rest_bytes;
    if version != VERSION || command > COMMAND_PROXY || bytes > datagram.len() {
        return Err(Flaw::Malformed);
    }
    // What the proxy sends itself, such as a probe, may have any family.
    if command == COMMAND_LOCAL {
        return Ok(Header { bytes, named_bytes: 0 });
    }
    if family > FAMILY_MAX || transport > TRANSPORT_DATAGRAM || rest_bytes < address_bytes(family) {
        return Err(Flaw::Malformed);
    }
    // Without a transport the addresses mean nothing.
    let is_named = matches!(family, FAMILY_V4 | FAMILY_V6) && transport > 0;
    let named_bytes = if is_named { FIXED_BYTES + address_bytes(family) } else { 0 };
    Ok(Header { bytes, named_bytes })
}

/// The sender by the part of a header that [`Header::name`] has found. A mapped IPv4 sender is IPv4.
#[inline]
pub(crate) fn source(name: &[u8]) -> Option<SocketAddr> {
    let addresses = name.get(FIXED_BYTES..).filter(|_| name.starts_with(&SIGNATURE))?;
    let port = |at: usize| addresses.get(at..)?.first_chunk().map(|port| u16::from_be_bytes(*port));
    match name[13] >> 4 {
        FAMILY_V4 => Some(SocketAddr::from((Ipv4Addr::from(*addresses.first_chunk::<4>()?), port(8)?))),
        FAMILY_V6 => {
            let address = Ipv6Addr::from(*addresses.first_chunk::<16>()?);
            let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            Some(SocketAddr::new(address, port(32)?))
        }
        _ => None,
    }
}

/// What a relay puts before a datagram.
#[derive(Clone, Copy)]
pub struct Prefix {
    bytes: [u8; PREFIX_BYTES_MAX],
    length: usize,
}

impl Prefix {
    /// The header that names sender and destination of a datagram. The source decides the family; a destination of the
    /// other family, which a header cannot have, is written as the unspecified address.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Prefix {
        let mut bytes = [0; PREFIX_BYTES_MAX];
        bytes[..12].copy_from_slice(&SIGNATURE);
        bytes[12] = VERSION << 4 | COMMAND_PROXY;
        let (family, ports) = match source.ip().to_canonical() {
            IpAddr::V4(from) => {
                let to = match destination.ip().to_canonical() {
                    IpAddr::V4(to) => to,
                    IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
                };
                bytes[16..20].copy_from_slice(&from.octets());
                bytes[20..24].copy_from_slice(&to.octets());
                (FAMILY_V4, 24)
            }
            IpAddr::V6(from) => {
                let to = match destination.ip() {
                    IpAddr::V6(to) => to,
                    IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
                };
                bytes[16..32].copy_from_slice(&from.octets());
                bytes[32..48].copy_from_slice(&to.octets());
                (FAMILY_V6, 48)
            }
        };
        bytes[13] = family << 4 | TRANSPORT_DATAGRAM;
        // 12 or 36.
        bytes[15] = address_bytes(family) as u8;
        bytes[ports..ports + 2].copy_from_slice(&source.port().to_be_bytes());
        bytes[ports + 2..ports + 4].copy_from_slice(&destination.port().to_be_bytes());
        Prefix { bytes, length: FIXED_BYTES + address_bytes(family) }
    }

    /// As it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Prefix").field(&source(self.as_bytes())).finish()
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
