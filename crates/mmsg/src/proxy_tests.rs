//! Tests of the PROXY header: the bytes of the protocol's own description, every length of it cut off, and noise.

use super::*;
use crate::testing::rounds;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("the test wrote a valid address")
}

/// A header with this command, family and transport, and what comes behind them.
fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(u16::try_from(rest.len()).expect("short").to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// The sender by its header, if that names one.
fn sender(datagram: &[u8]) -> Result<Option<SocketAddr>, Flaw> {
    read(datagram).map(|header| header.name(datagram).and_then(source))
}

#[test]
fn a_prefix_is_the_bytes_that_the_protocol_says_and_is_read_back() {
    let prefix = Prefix::new(address("192.0.2.7:40000"), address("198.51.100.1:514"));
    let expected = [
        0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x12, 0x00, 0x0c, 192, 0, 2, 7,
        198, 51, 100, 1, 0x9c, 0x40, 0x02, 0x02,
    ];
    assert_eq!(prefix.as_bytes(), expected);
    for (from, to) in [
        ("192.0.2.7:40000", "198.51.100.1:514"),
        ("[2001:db8::7]:1", "[2001:db8::1]:65535"),
        ("192.0.2.7:0", "[::]:514"),
        ("[2001:db8::7]:1", "10.0.0.1:2"),
    ] {
        let prefix = Prefix::new(address(from), address(to));
        assert_eq!(sender(prefix.as_bytes()), Ok(Some(address(from))));
        assert_eq!(read(prefix.as_bytes()).map(|header| header.bytes), Ok(prefix.as_bytes().len()));
        assert_eq!(prefix.as_bytes().len(), if address(from).is_ipv4() { 28 } else { PREFIX_BYTES_MAX });
    }
}

#[test]
fn an_ipv4_sender_is_ipv4_in_either_clothes() {
    let mapped = Prefix::new(address("[::ffff:192.0.2.7]:9"), address("192.0.2.1:514"));
    assert_eq!(mapped.as_bytes().len(), 28);
    let mut addresses = [0; 36];
    addresses[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
    addresses[33] = 9;
    assert_eq!(sender(&header(0x21, 0x22, &addresses)), Ok(Some(address("192.0.2.7:9"))));
}

#[test]
fn a_header_that_names_nobody_is_skipped_with_all_that_is_in_it() {
    for (command, family, rest) in [
        (0x20, 0x00, 0),
        (0x20, 0x12, 12),
        (0x20, 0xff, 3),
        (0x21, 0x00, 0),
        (0x21, 0x00, 40),
        (0x21, 0x10, 12),
        (0x21, 0x32, 216),
    ] {
        let bytes = header(command, family, &vec![7; rest]);
        assert_eq!(sender(&bytes), Ok(None), "{command:#x} {family:#x}");
        assert_eq!(read(&bytes).map(|header| header.bytes), Ok(16 + rest));
    }
}

#[test]
fn what_comes_behind_the_addresses_is_skipped_and_the_payload_is_not() {
    for family in [0x11, 0x12] {
        let mut bytes = header(0x21, family, &[9; 12 + 300]);
        bytes.extend(b"payload");
        let read = read(&bytes).expect("a header");
        assert_eq!(&bytes[read.bytes..], b"payload");
        assert_eq!(sender(&bytes), Ok(Some(address("9.9.9.9:2313"))));
    }
}

#[test]
fn what_is_no_header_is_missing_or_malformed() {
    let whole = header(0x21, 0x22, &[1; 36]);
    for length in 0..whole.len() {
        let flaw = if length < SIGNATURE.len() { Flaw::Missing } else { Flaw::Malformed };
        assert_eq!(read(&whole[..length]), Err(flaw), "{length} bytes of it");
    }
    for (command, family, rest) in
        [(0x11, 0x12, 12), (0x31, 0x12, 12), (0x22, 0x12, 12), (0x21, 0x13, 12), (0x21, 0x42, 36), (0x21, 0x22, 35)]
    {
        let bytes = header(command, family, &vec![0; rest]);
        assert_eq!(read(&bytes), Err(Flaw::Malformed), "{command:#x} {family:#x}");
    }
    // The header of version 1 is text, and means nothing here.
    assert_eq!(read(b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 514\r\npayload"), Err(Flaw::Missing));
}

#[test]
fn noise_never_panics_and_what_is_read_of_it_lies_within_it() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0002);
    let mut bytes = [0; 300];
    let mut counts = [0_u64; 3];
    for _ in 0..rounds() {
        random.fill(&mut bytes);
        if random.usize(..8) > 0 {
            bytes[..12].copy_from_slice(&SIGNATURE);
            bytes[12] = [0x20, 0x21, 0x21, bytes[12]][random.usize(..4)];
            bytes[13] = [0x11, 0x12, 0x22, bytes[13]][random.usize(..4)];
            bytes[14] &= random.usize(..2) as u8;
        }
        let datagram = &bytes[..random.usize(..bytes.len() + 1)];
        match read(datagram) {
            Ok(header) => {
                assert!(header.bytes >= FIXED_BYTES && header.bytes <= datagram.len());
                let named = header.name(datagram).map(|name| (name.len(), source(name)));
                assert!(named.is_none_or(|(length, source)| length <= header.bytes && source.is_some()));
                counts[0] += 1;
            }
            Err(Flaw::Missing) => counts[1] += 1,
            Err(Flaw::Malformed) => counts[2] += 1,
        }
    }
    assert!(counts.iter().all(|&count| count > 0), "the generator missed a case: {counts:?}");
}

#[test]
fn random_addresses_are_read_back_as_they_were_written() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0003);
    for _ in 0..rounds() {
        let mut address = || {
            let (mut octets, port) = ([0; 16], random.u16(..));
            random.fill(&mut octets);
            match random.usize(..2) {
                0 => SocketAddr::from((Ipv4Addr::from(*octets.first_chunk::<4>().expect("of 16")), port)),
                _ => SocketAddr::from((Ipv6Addr::from(octets), port)),
            }
        };
        let (from, to) = (address(), address());
        let canonical = SocketAddr::new(from.ip().to_canonical(), from.port());
        assert_eq!(sender(Prefix::new(from, to).as_bytes()), Ok(Some(canonical)));
    }
}
