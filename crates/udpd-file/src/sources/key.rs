//! The file that a datagram belongs to, by its addresses, and how those become a part of a path.
//!
//! Nothing that a sender writes gets into a name: only addresses and ports as numbers, which are formatted here. Names
//! have digits, the letters a to f, dots, hyphens and underscores, and never begin with a hyphen or a dot. So no sender
//! can leave the directory, hide a file or make one that a shell or another system cannot name.
//!
//! An IPv6 address has hyphens for its colons (`2001-db8--7`), and a zero where it would begin or end with one
//! (`0--1`). Replacing the hyphens by colons gives the address again. An IPv4 address that came to an IPv6 socket is
//! written as IPv4: one sender has one file. A prefix is written behind an underscore (`10.1.2.0_24`), and so is the
//! number of the interface of a link-local address (`fe80--1_if3`), which is another host at another interface.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::template::{ALL_BITS, OfDatagram};
use super::host_names::usable;

/// Stands in place of addresses in the name of the file that sources beyond the limit share.
pub(super) const OVERFLOW: &str = "overflow";

/// What selects a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SourceKey {
    /// Which of the sink's paths it is.
    pub(super) path: u32,
    /// `None` for the overflow file.
    of: Option<KeyAddresses>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct KeyAddresses {
    /// The bits of it that select the file; unspecified when it does not.
    source: IpAddr,
    /// The interface of a link-local address.
    scope: u32,
    port: u16,
    destination: IpAddr,
    /// The number of the source's name, see `host_names`; 0 where there is none.
    host: u32,
}

/// The parts of a datagram's addresses that select its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyParts {
    bits: Option<[u8; 2]>,
    port: bool,
    destination: bool,
    pub(super) host: bool,
}

/// A path whose placeholders are for the addresses of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourcePattern(Vec<PatternPiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPiece {
    Text(String),
    Filled(OfDatagram),
}

impl SourcePattern {
    /// Reads a path that has passed the check of templates.
    pub(super) fn new(path: &str) -> Self {
        let mut pieces = Vec::new();
        let mut parts = path.split('{');
        pieces.extend(parts.next().map(|text| PatternPiece::Text(text.to_owned())));
        for part in parts {
            let (name, text) = part.split_once('}').unwrap_or((part, ""));
            pieces.extend(OfDatagram::read(name).map(PatternPiece::Filled));
            pieces.push(PatternPiece::Text(text.to_owned()));
        }
        Self(pieces)
    }

    /// The patterns of the directories of a path, and of the file. The slash in `{source/24}` separates nothing.
    pub(super) fn levels(path: &str) -> Vec<Self> {
        without_slashes(path).split('/').map(|level| Self::new(&level.replace(SLASH, "/"))).collect()
    }

    /// The parts of the addresses that distinguish its files: the finest that are named.
    pub(super) fn parts(&self) -> KeyParts {
        let mut parts = KeyParts { bits: None, port: false, destination: false, host: false };
        for piece in &self.0 {
            match piece {
                PatternPiece::Filled(OfDatagram::Source { bits }) => {
                    let before = parts.bits.unwrap_or([0, 0]);
                    parts.bits = Some([before[0].max(bits[0]), before[1].max(bits[1])]);
                }
                PatternPiece::Filled(OfDatagram::Host) => parts.host = true,
                PatternPiece::Filled(OfDatagram::SourcePort) => parts.port = true,
                PatternPiece::Filled(OfDatagram::Destination) => parts.destination = true,
                PatternPiece::Text(_) => {}
            }
        }
        parts
    }

    /// Whether a datagram fills in a part of it.
    pub(super) fn names_a_datagram(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, PatternPiece::Filled(_)))
    }

    /// Reads a text that [`SourcePattern::fill`] has made, and adds to what was read before: `behind` gives the rest of
    /// a text after a piece that no datagram fills in, and `is_rest` tells what may follow the last piece.
    pub(super) fn read(
        &self,
        text: &str,
        before: KeyReading,
        behind: &dyn for<'t> Fn(&str, &'t str) -> Option<&'t str>,
        is_rest: &dyn Fn(&str) -> bool,
    ) -> Option<KeyReading> {
        fn read(
            pieces: &[PatternPiece],
            text: &str,
            before: KeyReading,
            behind: &dyn for<'t> Fn(&str, &'t str) -> Option<&'t str>,
            is_rest: &dyn Fn(&str) -> bool,
        ) -> Option<KeyReading> {
            match pieces {
                [] => is_rest(text).then_some(before),
                [PatternPiece::Text(own), rest @ ..] => read(rest, behind(own, text)?, before, behind, is_rest),
                [PatternPiece::Filled(of), rest @ ..] => (1..=text.len()).rev().find_map(|end| {
                    let (own, text) = text.split_at_checked(end)?;
                    read(rest, text, before.with(*of, own)?, behind, is_rest)
                }),
            }
        }
        read(&self.0, text, before, behind, is_rest)
    }

    /// Whether [`SourcePattern::fill`] can make this text for some source.
    pub(super) fn fits(&self, text: &str) -> bool {
        fits(&self.0, text)
    }

    /// The path of one file, with codes for the time still in it. `name` is that of the key's host, if it has one.
    pub(super) fn fill(&self, key: &SourceKey, name: &str) -> String {
        let mut path = String::with_capacity(128);
        for piece in &self.0 {
            match (piece, &key.of) {
                (PatternPiece::Text(text), _) => path.push_str(text),
                (PatternPiece::Filled(_), None) => path.push_str(OVERFLOW),
                (PatternPiece::Filled(OfDatagram::Host), Some(of)) if of.host != 0 => path.push_str(name),
                (PatternPiece::Filled(piece @ (OfDatagram::Source { .. } | OfDatagram::Host)), Some(of)) => {
                    let bits = if let OfDatagram::Source { bits } = piece { bits } else { &ALL_BITS };
                    append(&mut path, masked(of.source, *bits));
                    let bits_of_family = if of.source.is_ipv4() { 0 } else { 1 };
                    if bits[bits_of_family] < ALL_BITS[bits_of_family] {
                        // Writing to a string cannot fail.
                        let _ = write!(path, "_{}", bits[bits_of_family]);
                    }
                    if of.scope != 0 {
                        let _ = write!(path, "_if{}", of.scope);
                    }
                }
                (PatternPiece::Filled(OfDatagram::SourcePort), Some(of)) => {
                    let _ = write!(path, "{}", of.port);
                }
                (PatternPiece::Filled(OfDatagram::Destination), Some(of)) => append(&mut path, of.destination),
            }
        }
        path
    }
}

impl SourceKey {
    /// `host` is the number of the source's name, where it is known and one of the parts.
    pub(super) fn new(path: u32, parts: &KeyParts, source: SocketAddr, destination: IpAddr, host: u32) -> Self {
        let unset = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let address = source.ip().to_canonical();
        let bits = if parts.host && host == 0 { Some(ALL_BITS) } else { parts.bits };
        let scope = match (&source, address) {
            (SocketAddr::V6(v6), IpAddr::V6(address)) if address.is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        let of = KeyAddresses {
            source: bits.map_or(unset, |bits| masked(address, bits)),
            scope: if bits.is_some() { scope } else { 0 },
            port: if parts.port { source.port() } else { 0 },
            destination: if parts.destination { destination.to_canonical() } else { unset },
            host,
        };
        Self { path, of: Some(of) }
    }

    /// The number of its source's name.
    pub(super) fn host(&self) -> u32 {
        self.of.map_or(0, |of| of.host)
    }

    /// The address of a source whose name is not known. An address of one link has none.
    pub(super) fn nameless(&self) -> Option<IpAddr> {
        self.of.filter(|of| of.host == 0 && of.scope == 0).map(|of| of.source)
    }

    /// The same with the name of its source.
    pub(super) fn named(self, parts: &KeyParts, host: u32) -> Self {
        let unset = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let source = |of: &KeyAddresses| parts.bits.map_or(unset, |bits| masked(of.source, bits));
        Self { of: self.of.map(|of| KeyAddresses { host, source: source(&of), ..of }), ..self }
    }

    /// The key of the overflow file.
    pub(super) fn overflow(path: u32) -> Self {
        Self { path, of: None }
    }
}

/// Replaces a slash between braces. No path has it.
const SLASH: char = '\u{1}';

/// A path in which each slash separates directories. [`SourcePattern::levels`] restores the others.
pub(super) fn without_slashes(path: &str) -> String {
    let mut is_within = false;
    let of = |character| {
        is_within = character == '{' || is_within && character != '}';
        if is_within && character == '/' { SLASH } else { character }
    };
    path.chars().map(of).collect()
}

/// The source that a filled-in path names, as far as it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyReading {
    path: u32,
    parts: KeyParts,
    of: KeyAddresses,
    /// How many bits of the source are known.
    bits: u8,
}

impl KeyReading {
    /// For the path with this number, whose files these parts distinguish.
    pub(super) fn new(path: usize, parts: KeyParts) -> Self {
        let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        // There are no more paths than lanes.
        Self {
            path: path as u32,
            parts,
            of: KeyAddresses { source: none, scope: 0, port: 0, destination: none, host: 0 },
            bits: 0,
        }
    }

    /// Adds the text of one more placeholder; `None` if udpd does not write such a text there, or if it is that of the
    /// overflow file.
    fn with(mut self, of: OfDatagram, text: &str) -> Option<Self> {
        let address = |text: &str| text.replace('-', ":").parse::<IpAddr>().ok();
        match of {
            OfDatagram::SourcePort => self.of.port = text.parse().ok()?,
            OfDatagram::Destination => self.of.destination = address(text)?,
            OfDatagram::Source { .. } | OfDatagram::Host => {
                // A file with a name is not counted: who has none is what could fill the table.
                let bits = if let OfDatagram::Source { bits } = of { bits } else { ALL_BITS };
                let (text, scope) = match text.split_once("_if") {
                    Some((text, scope)) => (text, scope.parse().ok()?),
                    None => (text, 0),
                };
                let (text, written) = match text.split_once('_') {
                    Some((text, written)) => (text, Some(written.parse::<u8>().ok()?)),
                    None => (text, None),
                };
                let source = address(text)?;
                let family = usize::from(source.is_ipv6());
                let own = bits[family];
                if written != (own < ALL_BITS[family]).then_some(own) {
                    return None;
                }
                if own >= self.bits {
                    (self.of.source, self.of.scope, self.bits) = (source, scope, own);
                }
            }
        }
        Some(self)
    }

    pub(super) fn key(self) -> Option<SourceKey> {
        let bits = self.parts.bits.unwrap_or([0, 0]);
        let is_whole = self.parts.bits.is_none() || self.bits >= bits[usize::from(self.of.source.is_ipv6())];
        is_whole.then_some(SourceKey { path: self.path, of: Some(self.of) })
    }
}

fn fits(pieces: &[PatternPiece], text: &str) -> bool {
    match pieces {
        [] => text.is_empty(),
        [PatternPiece::Text(own), rest @ ..] => text.strip_prefix(own.as_str()).is_some_and(|text| fits(rest, text)),
        [PatternPiece::Filled(of), rest @ ..] => (1..=text.len()).any(|end| {
            let halves = text.split_at_checked(end);
            halves.is_some_and(|(own, text)| is_of(*of, own) && fits(rest, text))
        }),
    }
}

/// Whether this text can replace the placeholder in a path.
fn is_of(of: OfDatagram, text: &str) -> bool {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let behind = |text: &str, mark: &str| match text.split_once(mark) {
        Some((before, number)) => is_number(number).then(|| before.to_owned()),
        None => Some(text.to_owned()),
    };
    let is_address = |text: &str| text.replace('-', ":").parse::<IpAddr>().is_ok();
    match of {
        _ if text == OVERFLOW => true,
        OfDatagram::SourcePort => is_number(text),
        OfDatagram::Destination => is_address(text),
        OfDatagram::Host if usable(text).as_deref() == Some(text) => true,
        OfDatagram::Source { .. } | OfDatagram::Host => {
            let address = behind(text, "_if").and_then(|text| behind(&text, "_"));
            address.is_some_and(|address| is_address(&address))
        }
    }
}

/// Whether a file by address, or that of all beyond the limit, can have this name.
pub(super) fn is_address_name(text: &str) -> bool {
    is_of(OfDatagram::Source { bits: ALL_BITS }, text)
}

fn masked(address: IpAddr, [v4_bits, v6_bits]: [u8; 2]) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4_bits.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6_bits.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

fn append(path: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let _ = write!(path, "{v4}");
        }
        IpAddr::V6(v6) => {
            let text = v6.to_string().replace(':', "-");
            if text.starts_with('-') {
                path.push('0');
            }
            path.push_str(&text);
            if text.ends_with('-') {
                path.push('0');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(pattern: &str, source: &str) -> String {
        let pattern = SourcePattern::new(pattern);
        let destination: IpAddr = "2001:db8::5".parse().expect("an address");
        let key = SourceKey::new(0, &pattern.parts(), source.parse().expect("an address"), destination, 0);
        pattern.fill(&key, "")
    }

    #[test]
    fn a_path_is_filled_in_with_addresses_that_every_system_can_name() {
        for (pattern, source, expected) in [
            ("/l/{source}.log", "10.1.2.3:514", "/l/10.1.2.3.log"),
            ("/l/{source}.log", "[::ffff:10.1.2.3]:514", "/l/10.1.2.3.log"),
            ("/l/{source}.log", "[::1]:514", "/l/0--1.log"),
            ("/l/{source}", "[2001:db8::]:514", "/l/2001-db8--0"),
            ("/l/{source}", "[::]:514", "/l/0--0"),
            ("/l/{source}", "[fe80::1%3]:514", "/l/fe80--1_if3"),
            ("/l/{source/24}/%Y", "10.1.2.3:514", "/l/10.1.2.0_24/%Y"),
            ("/l/{source/24}", "[2001:db8:1:2:3::4]:514", "/l/2001-db8-1-2--0_64"),
            ("/l/{source/32/48}", "[2001:db8:1:2:3::4]:514", "/l/2001-db8-1--0_48"),
            ("/l/{source/32/48}", "10.1.2.3:514", "/l/10.1.2.3"),
            ("/l/{source/8}/{source}-{source_port}", "10.1.2.3:514", "/l/10.0.0.0_8/10.1.2.3-514"),
            ("/l/{destination}/x", "10.1.2.3:514", "/l/2001-db8--5/x"),
        ] {
            assert_eq!(path(pattern, source), expected, "{pattern} of {source}");
            assert!(SourcePattern::new(pattern).fits(expected), "{pattern} fits {expected}");
        }
        let pattern = SourcePattern::new("/l/{source/8}-{source_port}");
        assert_eq!(pattern.fill(&SourceKey::overflow(0), ""), "/l/overflow-overflow");
        assert!(pattern.fits("/l/overflow-overflow") && !pattern.fits("/l/x-1") && !pattern.fits("/l/10.0.0.1-"));
    }

    #[test]
    fn no_address_escapes_the_directory_or_is_named_like_another() {
        let pattern = SourcePattern::new("{source}");
        let mut state = 7_u128;
        let mut seen = std::collections::HashSet::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            // Many zeros, and the families beside one another.
            let address = Ipv6Addr::from_bits(state & (state << 61) & (u128::MAX >> (state as u32 % 97)));
            let source = SocketAddr::from((address, 1));
            let name = pattern.fill(&SourceKey::new(0, &pattern.parts(), source, source.ip(), 0), "");
            let is_plain = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b'-');
            assert!(name.bytes().all(is_plain) && !name.starts_with(['-', '.']) && name != OVERFLOW, "{name}");
            let back: IpAddr = name.replace('-', ":").parse().expect("an address again");
            assert_eq!(back, source.ip().to_canonical());
            seen.insert((name, source.ip().to_canonical()));
        }
        let names: std::collections::HashSet<&String> = seen.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), seen.len(), "two addresses have one name");
    }

    #[test]
    fn only_what_the_path_names_tells_files_apart() {
        let key = |pattern: &str, source: &str| {
            SourceKey::new(
                0,
                &SourcePattern::new(pattern).parts(),
                source.parse().expect("an address"),
                Ipv4Addr::LOCALHOST.into(),
                0,
            )
        };
        assert_eq!(key("{source}", "10.0.0.1:1"), key("{source}", "10.0.0.1:2"));
        assert_ne!(key("{source}-{source_port}", "10.0.0.1:1"), key("{source}-{source_port}", "10.0.0.1:2"));
        assert_eq!(key("{source/24}", "10.0.0.1:1"), key("{source/24}", "10.0.0.255:1"));
        assert_ne!(key("{source/24}", "10.0.0.1:1"), key("{source/24}", "10.0.1.1:1"));
        assert_ne!(key("{source}", "[fe80::1%1]:1"), key("{source}", "[fe80::1%2]:1"));
        assert_eq!(key("{source_port}", "[fe80::1%1]:1"), key("{source_port}", "[fe80::1%2]:1"));
    }

    #[test]
    fn a_sender_with_a_name_has_the_file_of_the_name_and_one_without_that_of_its_address() {
        for (pattern, named, nameless) in [
            ("/l/{host}.log", "/l/web1.log", "/l/10.1.2.3.log"),
            ("/l/{source/24}/{host}/{source_port}", "/l/10.1.2.0_24/web1/514", "/l/10.1.2.0_24/10.1.2.3/514"),
        ] {
            let pattern = SourcePattern::new(pattern);
            let of = |source: &str| {
                let source = source.parse().expect("an address");
                SourceKey::new(0, &pattern.parts(), source, Ipv4Addr::LOCALHOST.into(), 0)
            };
            let (one, other) = (of("10.1.2.3:514"), of("10.1.2.4:514"));
            assert_eq!(one.nameless(), Some(IpAddr::from([10, 1, 2, 3])));
            assert!(one != other && one.named(&pattern.parts(), 7) == other.named(&pattern.parts(), 7));
            assert!(one.named(&pattern.parts(), 7) != one.named(&pattern.parts(), 8));
            assert_eq!(pattern.fill(&one, ""), nameless);
            assert_eq!(pattern.fill(&one.named(&pattern.parts(), 7), "web1"), named);
            assert!(pattern.fits(named) && pattern.fits(nameless));
        }
    }
}
