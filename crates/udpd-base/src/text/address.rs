//! Addresses to listen on: what may be written, and which two of them would take each other's datagrams.
//!
//! Names of hosts are never looked up here: what a resolver answers at start is not what the operator read, and a
//! daemon that waits for DNS at boot is a daemon that is not listening. Only who sends may have one, see `peer`.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::text::advice::ValueAdvice;

/// An address that only this host reaches, where the operator names nothing better.
pub fn parse_metrics(text: &str) -> Result<SocketAddr, ValueAdvice> {
    parse(
        text,
        &Example { host: "127.0.0.1", host_noun: "for this host alone", port: "9817", instead_of_name: NOT_LOOKED_UP },
    )
}

/// An address that balancers reach.
pub fn parse_health(text: &str) -> Result<SocketAddr, ValueAdvice> {
    parse(
        text,
        &Example { host: "0.0.0.0", host_noun: "for every network", port: "9818", instead_of_name: NOT_LOOKED_UP },
    )
}

/// What to suggest for a part that is missing.
struct Example {
    host: &'static str,
    host_noun: &'static str,
    port: &'static str,
    /// What to write for a name.
    instead_of_name: &'static str,
}

const NOT_LOOKED_UP: &str = "names are not looked up: write the IP address";

/// An address to bind, with a port that is not 0.
fn parse(text: &str, example: &Example) -> Result<SocketAddr, ValueAdvice> {
    let numbered = with_interface_number(text)?;
    let address: SocketAddr = numbered.parse().map_err(|_| explain(text, example))?;
    if address.port() == 0 {
        let what = format!("port 0 in {text:?} would be a different port at every start");
        return Err(ValueAdvice::new(what, "write the port that the others expect, 1 to 65535"));
    }
    Ok(address)
}

/// The address with the number of the interface that it names, such as `[fe80::1%eth0]:514`.
fn with_interface_number(text: &str) -> Result<Cow<'_, str>, ValueAdvice> {
    let parts = text.split_once('%').and_then(|(host, rest)| Some((host, rest.rsplit_once("]:")?)));
    let Some((host, (interface, port))) = parts.filter(|(_, (interface, _))| interface.parse::<u32>().is_err()) else {
        return Ok(Cow::Borrowed(text));
    };
    let index = nix::net::if_::if_nametoindex(interface).map_err(|_| {
        let what = format!("this host has no interface {interface:?}, which {text:?} names");
        ValueAdvice::new(what, "write one that \"ip link\" shows")
    })?;
    Ok(Cow::Owned(format!("{host}%{index}]:{port}")))
}

/// An address that datagrams can be received on by this version.
pub fn parse_listener(text: &str) -> Result<SocketAddr, ValueAdvice> {
    let example =
        Example { host: "0.0.0.0", host_noun: "for every IPv4 address", port: "514", instead_of_name: NOT_LOOKED_UP };
    let address = parse(text, &example)?;
    check_v6(text, address)?;
    Ok(address)
}

/// An IPv6 address that means what it says.
fn check_v6(text: &str, address: SocketAddr) -> Result<(), ValueAdvice> {
    if let SocketAddr::V6(v6) = address {
        if let Some(v4) = v6.ip().to_ipv4_mapped() {
            let what = format!("{text:?} is an IPv4 address written as IPv6");
            return Err(ValueAdvice::new(what, format!("write \"{v4}:{}\"", v6.port())));
        }
        if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 {
            let what = format!("{text:?} is link-local and does not say on which interface");
            let cure = format!("write \"[{}%eth0]:{}\" with the name of the interface", v6.ip(), v6.port());
            return Err(ValueAdvice::new(what, cure));
        }
    }
    Ok(())
}

/// An address that datagrams can be sent to.
pub fn parse_destination(text: &str) -> Result<SocketAddr, ValueAdvice> {
    let example = Example {
        host: "10.0.0.9",
        host_noun: "with the address of the destination",
        port: "514",
        instead_of_name: "write an IP address, or a name of letters, digits, dashes and dots",
    };
    let address = parse(text, &example)?;
    check_v6(text, address)?;
    if address.ip() == Ipv4Addr::BROADCAST {
        let what = format!("{text:?} is every host of the network at once");
        return Err(ValueAdvice::new(what, "name the hosts, or a multicast group that they join"));
    }
    Ok(address)
}

/// Why `text` is no address with a port.
fn explain(text: &str, example: &Example) -> ValueAdvice {
    let Example { host: own, host_noun, port: own_port, instead_of_name } = example;
    let right = format!("such as \"{own}:{own_port}\"");
    if text.is_empty() {
        return ValueAdvice::new("the address is empty", format!("write an address and a port, {right}"));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let what = format!("{text:?} has a scheme, {scheme}:, and an address has none");
        return ValueAdvice::new(what, format!("write \"{}\"; it is UDP always", rest.trim_end_matches('/')));
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let shown = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        return ValueAdvice::new(
            format!("{text:?} has no port"),
            format!("write \"{shown}:{own_port}\" with the port you want"),
        );
    }
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if digits(text) {
        return ValueAdvice::new(format!("{text:?} has no address"), format!("write \"{own}:{text}\" {host_noun}"));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return ValueAdvice::new(format!("{text:?} is not an address and a port"), format!("write both, {right}"));
    };
    if digits(port) && port.parse::<u16>().is_err() {
        return ValueAdvice::new(format!("port {port} in {text:?} does not exist"), "write a port from 1 to 65535");
    }
    if !digits(port) {
        return ValueAdvice::new(
            format!("{port:?} in {text:?} is not a port"),
            format!("write an address and a port, {right}"),
        );
    }
    if host.is_empty() || host == "*" {
        let cure = format!("write \"{own}:{port}\" {host_noun}, or \"[::]:{port}\" for every address of both families");
        return ValueAdvice::new(format!("{text:?} names no address"), cure);
    }
    if host.contains(':') && !host.starts_with('[') {
        return ValueAdvice::new(
            format!("{text:?} needs brackets around the IPv6 address"),
            format!("write \"[{host}]:{port}\""),
        );
    }
    if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') || host.starts_with('[') {
        return ValueAdvice::new(format!("{host:?} in {text:?} is not an IP address"), format!("write one {right}"));
    }
    let cure = format!("{instead_of_name}, {right}");
    ValueAdvice::new(format!("{host:?} in {text:?} is not an IP address"), cure)
}

/// Whether what is sent to `destination` arrives at a socket of this host that is bound to `listener`; `local` are the
/// addresses of this host.
pub fn reaches(destination: SocketAddr, listener: SocketAddr, local: &[IpAddr]) -> bool {
    let (to, bound) = (destination.ip().to_canonical(), listener.ip().to_canonical());
    let here = to.is_loopback() || to.is_unspecified() || local.contains(&to);
    let matches = match bound {
        // A socket on [::] takes IPv4 as well.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => here,
        IpAddr::V4(bound) if bound.is_unspecified() => here && to.is_ipv4(),
        // What is sent to the unspecified address goes to loopback.
        _ => to == bound || (to.is_unspecified() && bound.is_loopback() && to.is_ipv4() == bound.is_ipv4()),
    };
    destination.port() == listener.port() && matches
}

/// True when a socket on `a` and one on `b`, both on the same interface or on none, would both match some datagram.
pub fn overlap(a: &SocketAddr, b: &SocketAddr) -> bool {
    let covers = |wide: &SocketAddr, narrow: &SocketAddr| match wide.ip() {
        // A socket on [::] takes IPv4 as well.
        IpAddr::V6(ip) => ip.is_unspecified(),
        IpAddr::V4(ip) => ip == Ipv4Addr::UNSPECIFIED && narrow.is_ipv4(),
    };
    a.port() == b.port() && (a == b || covers(a, b) || covers(b, a))
}

// An address to send to, as the operator writes it, while the daemon runs: an address, an address on an interface
// that may come and go, or the name of a host that may move.
//
// Nothing is looked up here, neither a name nor an interface. What both mean is found out where it is sent, again and
// again, because what is there at boot is not what is there a day later.

/// Where to send to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
        None => parse_destination(text).map(PeerAddress::Address),
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
    fn a_wildcard_overlaps_what_it_covers_and_nothing_else() {
        let overlapping = |a: &str, b: &str| overlap(&a.parse().expect(a), &b.parse().expect(b));
        assert!(overlapping("0.0.0.0:514", "127.0.0.1:514"));
        assert!(overlapping("127.0.0.1:514", "[::]:514"));
        assert!(overlapping("[::1]:514", "[::]:514"));
        assert!(overlapping("10.0.0.1:514", "10.0.0.1:514"));
        assert!(!overlapping("0.0.0.0:514", "0.0.0.0:515"));
        assert!(!overlapping("0.0.0.0:514", "[::1]:514"));
        assert!(!overlapping("10.0.0.1:514", "10.0.0.2:514"));
    }

    #[test]
    fn what_comes_back_is_told_from_what_does_not() {
        let local: Vec<IpAddr> = vec!["10.0.0.1".parse().expect("an address"), "fd00::1".parse().expect("an address")];
        let reaching = |to: &str, bound: &str| reaches(to.parse().expect(to), bound.parse().expect(bound), &local);
        for (to, bound) in [
            ("10.0.0.1:514", "10.0.0.1:514"),
            ("10.0.0.1:514", "0.0.0.0:514"),
            ("127.9.9.9:514", "0.0.0.0:514"),
            ("10.0.0.1:514", "[::]:514"),
            ("[fd00::1]:514", "[::]:514"),
            ("[::ffff:10.0.0.1]:514", "0.0.0.0:514"),
            ("0.0.0.0:514", "127.0.0.1:514"),
        ] {
            assert!(reaching(to, bound), "{to} reaches {bound}");
        }
        for (to, bound) in [
            ("10.0.0.1:515", "10.0.0.1:514"),
            ("10.0.0.2:514", "0.0.0.0:514"),
            ("10.0.0.2:514", "[::]:514"),
            ("[fd00::1]:514", "0.0.0.0:514"),
            ("10.0.0.1:514", "127.0.0.1:514"),
        ] {
            assert!(!reaching(to, bound), "{to} does not reach {bound}");
        }
    }

    #[test]
    fn a_destination_is_one_host_and_is_written_in_one_way() {
        for (text, words) in [
            ("255.255.255.255:514", "every host"),
            ("[::ffff:10.0.0.9]:514", "write \"10.0.0.9:514\""),
            ("[fe80::1]:514", "on which interface"),
        ] {
            let advice = parse_destination(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
        assert!(parse_destination("[fe80::1%2]:514").is_ok());
    }

    #[test]
    fn the_interface_of_an_address_is_a_number_or_a_name() {
        let index = nix::net::if_::if_nametoindex("lo").expect("every host has it");
        let expected: SocketAddr = format!("[fe80::1%{index}]:514").parse().expect("an address");
        for text in [format!("[fe80::1%{index}]:514"), "[fe80::1%lo]:514".to_owned()] {
            assert_eq!(parse_listener(&text).expect("an address"), expected);
            assert_eq!(parse_destination(&text).expect("an address"), expected);
            assert_eq!(parse_metrics(&text).expect("an address"), expected);
        }
    }

    #[test]
    fn a_wrong_address_says_what_would_be_right() {
        for (text, words) in [
            ("514", "write \"0.0.0.0:514\""),
            ("tcp://0.0.0.0:514", "has a scheme, tcp:, and an address has none; write \"0.0.0.0:514\"; it is UDP"),
            (":514", "write \"0.0.0.0:514\""),
            ("*:514", "\"[::]:514\""),
            ("0.0.0.0", "has no port"),
            ("::1", "\"[::1]:514\""),
            ("fe80::abcd::1:514", "needs brackets"),
            ("localhost:514", "names are not looked up"),
            ("300.0.0.1:514", "is not an IP address"),
            ("0.0.0.0:65536", "does not exist"),
            ("0.0.0.0:syslog", "is not a port"),
            ("0.0.0.0:0", "port 0"),
            ("", "is empty"),
            ("[fe80::1]:514", "link-local"),
            ("[fe80::1%nosuch0]:514", "this host has no interface \"nosuch0\""),
            ("[fe80::1%]:514", "this host has no interface \"\""),
            ("[fe80::x%lo]:514", "is not an IP address"),
            ("[::ffff:10.0.0.1]:514", "write \"10.0.0.1:514\""),
        ] {
            let advice = parse_listener(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
    }

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
