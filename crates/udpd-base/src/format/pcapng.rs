//! The format `pcapng`: a capture file, as if captured on the wire. Wireshark and tshark open it.
//!
//! Each lane is an interface, named `LISTENER/laneN`. A socket hands over payloads without their headers, so IP and UDP
//! headers are built again from the addresses; times are the kernel's, in nanoseconds, unless the description of the
//! interface says that they are those of batches. What the kernel dropped at the
//! socket stands in the packet before which it was dropped. All numbers are written least significant byte first, which
//! every reader must understand.

use super::DatagramRecord;
use crate::capture::headers;

/// The most bytes that a packet has besides its payload: the block, its options, padding, and the headers.
pub const PACKET_OVERHEAD_BYTES_MAX: usize = 28 + 16 + 3 + 4 + headers::HEADERS_BYTES_MAX;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

/// What tells a reader in which order the bytes are.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Packets begin with the header of IP.
const LINK_TYPE_RAW: u16 = 101;

/// Times count nanoseconds.
const RESOLUTION: u8 = 9;

/// The longest packet there is.
const SNAP_BYTES: u32 = 65_575;

const OPTION_END: u16 = 0;
const SECTION_OS: u16 = 3;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_DROPS: u16 = 4;

/// Appends what every capture begins with. A file that is appended to after a restart has several.
pub fn append_section_header(bytes: &mut Vec<u8>) {
    append_block(bytes, SECTION_HEADER, |body| {
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        body.extend_from_slice(&1_u16.to_le_bytes());
        body.extend_from_slice(&0_u16.to_le_bytes());
        // How long the section is: not known.
        body.extend_from_slice(&(-1_i64).to_le_bytes());
        append_option(body, SECTION_OS, b"Linux");
        append_option(body, SECTION_APPLICATION, concat!("udpd ", env!("CARGO_PKG_VERSION")).as_bytes());
        append_option(body, OPTION_END, b"");
    });
}

/// Appends an interface. The first of a section has number 0.
pub fn append_interface(bytes: &mut Vec<u8>, name: &str, description: &str) {
    append_block(bytes, INTERFACE, |body| {
        body.extend_from_slice(&LINK_TYPE_RAW.to_le_bytes());
        body.extend_from_slice(&0_u16.to_le_bytes());
        body.extend_from_slice(&SNAP_BYTES.to_le_bytes());
        append_option(body, INTERFACE_NAME, name.as_bytes());
        append_option(body, INTERFACE_DESCRIPTION, description.as_bytes());
        append_option(body, INTERFACE_RESOLUTION, &[RESOLUTION]);
        append_option(body, OPTION_END, b"");
    });
}

/// Appends a packet; `drops` datagrams were lost at this interface since the one before.
pub fn append_packet(bytes: &mut Vec<u8>, interface: u32, record: &DatagramRecord<'_>, drops: u64) {
    append_block(bytes, PACKET, |body| {
        // 2^64 nanoseconds end in the year 2554.
        let time = u64::try_from(record.arrival.as_nanos()).unwrap_or(u64::MAX);
        let headers = headers::headers_bytes(record.source);
        body.extend_from_slice(&interface.to_le_bytes());
        body.extend_from_slice(&((time >> 32) as u32).to_le_bytes());
        body.extend_from_slice(&(time as u32).to_le_bytes());
        body.extend_from_slice(&length_field(headers + record.payload.len()));
        body.extend_from_slice(&length_field(headers + record.length));
        let start = body.len();
        headers::append(body, record.source, record.destination, record.payload, record.length);
        pad(body, start);
        if drops > 0 {
            append_option(body, PACKET_DROPS, &drops.to_le_bytes());
            append_option(body, OPTION_END, b"");
        }
    });
}

/// Type, length, body, and length again.
fn append_block(bytes: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    body(bytes);
    let length = length_field(bytes.len() - start + 4);
    bytes[start + 4..start + 8].copy_from_slice(&length);
    bytes.extend_from_slice(&length);
}

/// Number, length and value, padded.
fn append_option(bytes: &mut Vec<u8>, number: u16, value: &[u8]) {
    bytes.extend_from_slice(&number.to_le_bytes());
    // Names are a hundred bytes at most.
    bytes.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes());
    let start = bytes.len();
    bytes.extend_from_slice(value);
    pad(bytes, start);
}

/// Fills what began at `start` up to a multiple of four.
fn pad(bytes: &mut Vec<u8>, start: usize) {
    let missing = (bytes.len() - start).wrapping_neg() % 4;
    bytes.extend_from_slice(&[0; 3][..missing]);
}

fn length_field(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Boundary, WholeRecords};
    use std::time::Duration;

    fn record(payload: &[u8]) -> DatagramRecord<'_> {
        DatagramRecord {
            listener: "in",
            lane: 0,
            arrival: Duration::new(1_795_243_341, 123_456_789),
            is_time_of_batch: false,
            source: "[2001:db8::7]:40000".parse().expect("an address"),
            destination: "[2001:db8::1]:514".parse().expect("an address"),
            payload,
            length: payload.len(),
        }
    }

    #[test]
    fn everything_written_is_whole_blocks_and_fits_its_bound() {
        let mut bytes = Vec::new();
        append_section_header(&mut bytes);
        append_interface(&mut bytes, "in/lane0", "127.0.0.1:514");
        let header = bytes.len();
        assert_eq!(Boundary::Block.whole(&bytes), WholeRecords { bytes: header, records: 0 });
        let payload = [7; 65_507];
        for (number, length) in (0..70).chain([1_472, 65_507]).enumerate() {
            let before = bytes.len();
            append_packet(&mut bytes, 0, &record(&payload[..length]), number as u64);
            assert!(bytes.len() - before <= length + PACKET_OVERHEAD_BYTES_MAX, "{length}");
            assert_eq!(Boundary::Block.whole(&bytes), WholeRecords { bytes: bytes.len(), records: number as u64 + 1 });
        }
    }

    #[test]
    fn a_packet_holds_time_lengths_headers_and_what_was_lost_before_it() {
        let mut bytes = Vec::new();
        append_packet(&mut bytes, 2, &DatagramRecord { length: 900, ..record(b"head") }, 5);
        let word = |place: usize| u32::from_le_bytes(bytes[place..place + 4].try_into().expect("four bytes"));
        assert_eq!((word(0), word(8)), (PACKET, 2));
        let time = u64::from(word(12)) << 32 | u64::from(word(16));
        assert_eq!(time, 1_795_243_341_123_456_789);
        assert_eq!((word(20), word(24)), (48 + 4, 48 + 900));
        assert_eq!(&bytes[28 + 48..28 + 52], b"head");
        assert_eq!(&bytes[80..92], &[4, 0, 8, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(word(4) as usize, bytes.len());
    }
}
