//! An address to send to, as the operator writes it, while the daemon runs: an address, an address on an interface
//! that may come and go, or the name of a host that may move.
//!
//! Nothing is looked up here, neither a name nor an interface. What both mean is found out where it is sent, again and
//! again, because what is there at boot is not what is there a day later.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};

use super::address;
use super::advice::ValueAdvice;

/// Where to send to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerAddress {
    Address(SocketAddr),
    /// An address that means something on one interface only, which is named.
    OnInterface {
        ip: Ipv6Addr,
        interface: String,
        port: u16,
    },
    /// A host by its name.
    Host {
        name: String,
        port: u16,
    },
}

impl PeerAddress {
    /// Its address, where that is always the same.
    pub fn fixed(&self) -> Option<SocketAddr> {
        if let Self::Address(address) = self { Some(*address) } else { None }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(formatter, "{address}"),
            Self::OnInterface { ip, interface, port } => write!(formatter, "[{ip}%{interface}]:{port}"),
            Self::Host { name, port } => write!(formatter, "{name}:{port}"),
        }
    }
}

/// Reads a destination as an operator writes it.
pub fn parse_peer(text: &str) -> Result<PeerAddress, ValueAdvice> {
    if let Some(name) = host_name(text) {
        let port = text[name.len() + 1..].parse();
        if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
            let what = format!("{name:?} is longer than a name can be");
            return Err(ValueAdvice::new(what, "write at most 63 letters between two dots, and 253 in all"));
        }
        // Names are the same in either case, and with or without the dot at the end.
        let name = name.to_ascii_lowercase();
        return Ok(PeerAddress::Host { name, port: port.expect("`host_name` has read it") });
    }
    match on_interface(text) {
        Some(peer) => peer,
        None => address::parse_destination(text).map(PeerAddress::Address),
    }
}

/// An address on an interface that is named, and not numbered.
fn on_interface(text: &str) -> Option<Result<PeerAddress, ValueAdvice>> {
    let (ip, rest) = text.strip_prefix('[')?.split_once('%')?;
    let (interface, port) = rest.rsplit_once("]:")?;
    let (Ok(ip), Ok(port @ 1..)) = (ip.parse::<Ipv6Addr>(), port.parse::<u16>()) else { return None };
    if interface.parse::<u32>().is_ok() {
        return None;
    }
    // The kernel takes no longer one.
    if interface.is_empty() || interface.len() > 15 || interface.contains(['/', ' ', ':']) {
        let what = format!("{interface:?} in {text:?} is not the name of an interface");
        return Some(Err(ValueAdvice::new(what, "write one that \"ip link\" shows")));
    }
    let is_local = ip.is_unicast_link_local() || ip.is_multicast();
    Some(if is_local {
        Ok(PeerAddress::OnInterface { ip, interface: interface.to_owned(), port })
    } else {
        let what = format!("{ip} is the same on every interface");
        Err(ValueAdvice::new(what, format!("write \"[{ip}]:{port}\"; routes decide which way datagrams leave")))
    })
}

/// The host in `HOST:PORT` when that is the name of one.
pub fn host_name(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let has_port = port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
    (has_port && !host.is_empty() && host.bytes().all(is_name) && !is_number).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_an_address_an_address_on_an_interface_or_a_name() {
        let host = |name: &str| PeerAddress::Host { name: name.to_owned(), port: 514 };
        for (text, peer) in [
            ("10.0.0.9:514", PeerAddress::Address("10.0.0.9:514".parse().expect("valid"))),
            ("[2001:db8::9]:514", PeerAddress::Address("[2001:db8::9]:514".parse().expect("valid"))),
            ("[fe80::9%7]:514", PeerAddress::Address("[fe80::9%7]:514".parse().expect("valid"))),
            (
                "[fe80::9%nosuch0]:514",
                PeerAddress::OnInterface {
                    ip: "fe80::9".parse().expect("valid"),
                    interface: "nosuch0".into(),
                    port: 514,
                },
            ),
            ("collector:514", host("collector")),
            ("collector.example.:514", host("collector.example.")),
            ("9.collector-2.example:514", host("9.collector-2.example")),
        ] {
            let read = parse_peer(text).expect(text);
            assert_eq!(read, peer);
            assert_eq!(read.to_string(), text, "it is shown as it was written");
        }
        assert_eq!(parse_peer("Collector.Example:514").expect("a name"), host("collector.example"));
    }

    #[test]
    fn what_is_no_destination_says_what_would_be_right() {
        for (text, words) in [
            ("collector", "is not an address and a port"),
            ("collector:0", "letters, digits"),
            ("collector:65536", "does not exist"),
            ("collector:syslog", "is not a port"),
            ("10.0.0.256:514", "is not an IP address"),
            ("a b:514", "is not an IP address"),
            ("a-label-of-more-than-63-letters-is-no-part-of-a-name-that-dns-knows-ever.example:1", "at most 63"),
            ("[fe80::1]:514", "on which interface"),
            ("[fe80::1%a-name-of-16-bytes]:514", "is not the name of an interface"),
            ("[fe80::1%]:514", "is not the name of an interface"),
            ("[2001:db8::1%eth0]:514", "write \"[2001:db8::1]:514\""),
            ("255.255.255.255:514", "every host"),
        ] {
            let advice = parse_peer(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
    }
}
