//! From the bytes of a ring to the tally, with the layouts of several kernels: each record is written at the places
//! that the kernel of that layout writes to, and what no kernel writes is counted nowhere.
//!
//! The `format` files of 6.1 and 6.18 were read on such machines. That of 5.10 is put together from its declaration.

use super::records;
use super::records::{PerfRecord, PerfRecords, pieces};
use super::tracepoints::{TracepointFormat, Tracepoints};
use super::watch::{BlindSpot, DropTally, Fired, PortCount, ReasonCount, TallyTables};

const FREED_5_10: &str = include_str!("formats/kfree_skb-5.10");
const FREED_6_1: &str = include_str!("formats/kfree_skb-6.1");
const FREED_6_18: &str = include_str!("formats/kfree_skb-6.18");
const NOT_QUEUED_6_1: &str = include_str!("formats/udp_fail_queue_rcv_skb-6.1");
const NOT_QUEUED_6_18: &str = include_str!("formats/udp_fail_queue_rcv_skb-6.18");

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Where the kernels have what is looked at, and what they call their tracepoints.
struct Kernel {
    tracepoints: Tracepoints,
    freed: (u16, usize),
    protocol_at: usize,
    reason_at: usize,
    not_queued: (u16, usize),
    port_at: usize,
}

/// An interpreter is shown no more names than the tests ask for.
fn shown(text: &str) -> &str {
    if cfg!(miri) { text.split("{ 16,").next().expect("never empty") } else { text }
}

fn kernel_6_1() -> Kernel {
    let tracepoints = Tracepoints::parse(Some(NOT_QUEUED_6_1), Some(shown(FREED_6_1))).expect("understood");
    Kernel { tracepoints, freed: (1319, 32), protocol_at: 24, reason_at: 28, not_queued: (1295, 16), port_at: 12 }
}

fn kernel_6_18() -> Kernel {
    let tracepoints = Tracepoints::parse(Some(NOT_QUEUED_6_18), Some(shown(FREED_6_18))).expect("understood");
    Kernel { tracepoints, freed: (2310, 40), protocol_at: 32, reason_at: 36, not_queued: (2282, 76), port_at: 14 }
}

impl Kernel {
    fn freed(&self, protocol: u16, reason: u32) -> Vec<u8> {
        let mut record = vec![0xa5; self.freed.1];
        record[..2].copy_from_slice(&self.freed.0.to_ne_bytes());
        record[self.protocol_at..][..2].copy_from_slice(&protocol.to_ne_bytes());
        record[self.reason_at..][..4].copy_from_slice(&reason.to_ne_bytes());
        envelope(9, &record)
    }

    fn not_queued(&self, error: i32, port: u16) -> Vec<u8> {
        let mut record = vec![0xa5; self.not_queued.1];
        record[..2].copy_from_slice(&self.not_queued.0.to_ne_bytes());
        record[8..12].copy_from_slice(&error.to_ne_bytes());
        record[self.port_at..][..2].copy_from_slice(&port.to_ne_bytes());
        envelope(9, &record)
    }

    fn tally(&self, bytes: &[u8], fired: Fired) -> DropTally {
        let mut tables = TallyTables::default();
        for record in PerfRecords::of(bytes) {
            if let PerfRecord::Sample(record) = record {
                tables.count(record, &self.tracepoints);
            }
        }
        tables.tally(fired, &self.tracepoints)
    }
}

/// A record as the kernel puts it into the ring: header, length of the payload, payload, up to the next word.
fn envelope(kind: u32, payload: &[u8]) -> Vec<u8> {
    let body = (4 + payload.len()).next_multiple_of(8);
    let mut record = kind.to_ne_bytes().to_vec();
    record.extend_from_slice(&[0; 2]);
    record.extend_from_slice(&u16::try_from(8 + body).expect("short").to_ne_bytes());
    record.extend_from_slice(&u32::try_from(body - 4).expect("short").to_ne_bytes());
    record.extend_from_slice(payload);
    record.resize(8 + body, 0);
    record
}

fn port(reason: &str, port: u16, count: u64) -> PortCount {
    PortCount { reason: reason.to_owned(), port, count }
}

fn reason(name: &str, is_ipv6: bool, count: u64) -> ReasonCount {
    ReasonCount { reason: name.to_owned(), is_ipv6, is_udp_only: name.starts_with("UDP_"), count }
}

#[test]
fn the_same_drops_have_the_same_names_on_kernels_that_number_and_lay_them_out_differently() {
    for (kernel, [full, checksum, closed]) in [(kernel_6_1(), [15, 6, 2]), (kernel_6_18(), [6, 11, 3])] {
        let mut ring = Vec::new();
        for _ in 0..3 {
            ring.extend(kernel.not_queued(-libc::ENOMEM, 514));
            ring.extend(kernel.freed(IPV4, full));
        }
        ring.extend(kernel.not_queued(-libc::ENOBUFS, 2055));
        ring.extend(kernel.freed(IPV6, checksum));
        ring.extend(kernel.freed(IPV6, checksum));
        ring.extend(kernel.freed(IPV4, closed));
        let tally = kernel.tally(&ring, Fired { not_queued: 4, freed: 6, unnamed: 7 });
        assert_eq!(tally.by_port, [port("SOCKET_RCVBUFF", 514, 3), port("PROTO_MEM", 2055, 1)]);
        let by_reason =
            [reason("SOCKET_RCVBUFF", false, 3), reason("UDP_CSUM", true, 2), reason("NO_SOCKET", false, 1)];
        assert_eq!(tally.by_reason, by_reason);
        assert_eq!((tally.lost_reasons, tally.lost_ports, tally.unnamed), (0, 0, Some(7)));
        assert_eq!(tally.unseen.contains(&BlindSpot::PortsOfIpv6), kernel.port_at == 12, "6.1 tells no port of IPv6");
    }
}

#[test]
fn a_kernel_without_reasons_gives_ports_and_says_so() {
    let tracepoints = Tracepoints::parse(Some(NOT_QUEUED_6_1), Some(FREED_5_10)).expect("ports are enough");
    let tally = TallyTables::default().tally(Fired::default(), &tracepoints);
    assert_eq!(tally.unnamed, None, "not known is not 0");
    assert!(
        tally.unseen.contains(&BlindSpot::Reasons) && !tally.unseen.contains(&BlindSpot::Ports),
        "{:?}",
        tally.unseen
    );
}

#[test]
fn a_kernel_without_ports_gives_reasons_and_says_so() {
    let tracepoints = Tracepoints::parse(None, Some(shown(FREED_6_18))).expect("reasons are enough");
    let tally = TallyTables::default().tally(Fired::default(), &tracepoints);
    assert!(
        tally.unseen.contains(&BlindSpot::Ports) && !tally.unseen.contains(&BlindSpot::Reasons),
        "{:?}",
        tally.unseen
    );
}

#[test]
#[cfg_attr(miri, ignore = "safe code, and long texts")]
fn texts_that_describe_neither_tracepoint_are_refused_with_what_is_missing() {
    for (not_queued, freed, expected) in [
        (None, Some(FREED_5_10), "Linux 5.17"),
        (Some(FREED_6_18), Some(NOT_QUEUED_6_18), "neither"),
        (Some(""), None, "name:"),
        (None, Some("name: kfree_skb\nID: many\n"), "ID: many"),
    ] {
        let error = Tracepoints::parse(not_queued, freed).expect_err("nothing is there to be watched");
        assert!(error.to_string().contains(expected), "{error}");
        assert_ne!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
#[cfg_attr(miri, ignore = "safe code, and long texts")]
fn names_that_the_kernel_did_not_resolve_are_numbers_and_that_is_said() {
    let unresolved = FREED_6_18.replace("{ 2, ", "{ SKB_DROP_REASON_NOT_SPECIFIED, ").replace("{ 6, ", "{ 0x6, ");
    let names = TracepointFormat::parse(&unresolved).expect("understood").names("reason");
    assert!(names.iter().all(|(_, name)| name != "NOT_SPECIFIED") && names.contains(&(6, "SOCKET_RCVBUFF".to_owned())));
    let mut kernel = kernel_6_18();
    let print = FREED_6_18.find("print fmt").expect("there");
    kernel.tracepoints = Tracepoints::parse(None, Some(&FREED_6_18[..print])).expect("understood");
    let tally = kernel.tally(&kernel.freed(IPV4, 6), Fired { freed: 1, ..Fired::default() });
    assert_eq!(tally.by_reason, [reason("reason 6", false, 1)]);
    assert_eq!(tally.unnamed, None);
    assert!(tally.unseen.contains(&BlindSpot::Names));
}

#[test]
#[cfg_attr(miri, ignore = "safe code, and long texts")]
fn the_kernel_is_told_to_keep_the_drops_of_others_and_those_without_a_reason_to_itself() {
    for (text, unnamed) in [(FREED_6_1, 1), (FREED_6_18, 2)] {
        let names = TracepointFormat::parse(text).expect("understood").names("reason");
        let filter = records::filter_of_named(&names);
        // What the kernel computes from it, for every reason there is and one that is not there yet.
        let passes = |value: u32| {
            filter.split(" && ").skip(1).all(|part| match part.trim_matches(['(', ')']).split_once(" || ") {
                Some((low, high)) => {
                    let number = |text: &str, before: &str| text.strip_prefix(before).expect(before).parse::<u32>();
                    value < number(low, "reason < ").expect("a number")
                        || value > number(high, "reason > ").expect("a number")
                }
                None => part.strip_prefix("reason != ").expect("the only other form") != value.to_string(),
            })
        };
        for (value, name) in &names {
            assert_eq!(passes(*value), records::can_be_input(name) && *value != unnamed, "{name}: {filter}");
        }
        assert!(passes(5000), "a reason that is new is seen: {filter}");
        assert!(filter.starts_with("(protocol == 0x800 || protocol == 0x86dd) && "), "{filter}");
        assert!(filter.len() < 4096, "the kernel takes no longer one than a page");
        let unnamed = format!("(protocol == 0x800 || protocol == 0x86dd) && reason == {unnamed}");
        assert_eq!(records::filter_of_unnamed(&names), Some(unnamed));
        for input in ["NO_SOCKET", "SOCKET_RCVBUFF", "PROTO_MEM", "UDP_CSUM", "IP_RPFILTER", "NETFILTER_DROP"] {
            assert!(records::can_be_input(input));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "safe code, and long texts")]
fn what_overran_a_ring_or_a_table_is_counted_as_not_named() {
    let kernel = kernel_6_18();
    let mut ring = kernel.freed(IPV4, 3);
    // Lost records are a record of their own; the counter of the event has them already.
    ring.extend(envelope(2, &[7; 12]));
    for number in 0..5000_u16 {
        ring.extend(kernel.not_queued(-libc::ENOMEM, number));
    }
    let tally = kernel.tally(&ring, Fired { freed: 1001, not_queued: 5000, unnamed: 0 });
    assert_eq!((tally.by_reason.as_slice(), tally.lost_reasons), ([reason("NO_SOCKET", false, 1)].as_slice(), 1000));
    let named: u64 = tally.by_port.iter().map(|drop| drop.count).sum();
    assert_eq!((tally.by_port.len(), named + tally.lost_ports), (4096, 5000));
}

#[test]
fn records_that_no_kernel_writes_are_counted_nowhere_and_end_the_piece() {
    let kernel = kernel_6_18();
    let good = kernel.freed(IPV4, 3);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let set_length = |length: u16| with(&|bytes| bytes[6..8].copy_from_slice(&length.to_ne_bytes()));
    let set_payload = |length: u32| with(&|bytes| bytes[8..12].copy_from_slice(&length.to_ne_bytes()));
    let torn = [
        good[..good.len() - 1].to_vec(),
        good[..7].to_vec(),
        set_length(0),
        set_length(7),
        set_length(8),
        set_length(11),
        set_length(u16::MAX),
    ];
    for bytes in &torn {
        let found: Vec<PerfRecord<'_>> = PerfRecords::of(bytes).collect();
        assert_eq!(found.first(), Some(&PerfRecord::Torn), "{bytes:?}");
    }
    // A record of a length that can be, with a payload that cannot: the next one is found again.
    for payload in [u32::MAX, 45, 1 << 31] {
        let bytes = [set_payload(payload), good.clone()].concat();
        let tally = kernel.tally(&bytes, Fired { freed: 2, ..Fired::default() });
        assert_eq!((tally.by_reason.as_slice(), tally.lost_reasons), ([reason("NO_SOCKET", false, 1)].as_slice(), 1));
    }
    // Payloads too short for their fields, of another tracepoint, and of another protocol.
    let short = [set_payload(0), set_payload(1), set_payload(2), set_payload(39)].concat();
    let other = with(&|bytes| bytes[12..14].copy_from_slice(&9_u16.to_ne_bytes()));
    let bytes = [short, other, kernel.freed(0x0806, 3)].concat();
    assert_eq!(kernel.tally(&bytes, Fired::default()).by_reason, []);
}

#[test]
#[cfg_attr(miri, ignore = "safe code, and long texts")]
fn random_bytes_are_read_to_their_end_and_never_beyond() {
    let (kernel, mut random) = (kernel_6_18(), fastrand::Rng::with_seed(15));
    for round in 0..if cfg!(debug_assertions) { 5_000 } else { 100_000 } {
        let mut bytes = [kernel.freed(IPV4, 3), kernel.not_queued(-libc::ENOMEM, 514)].concat();
        if round % 2 == 0 {
            random.fill(&mut bytes);
        } else {
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u32(..8);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        assert!(PerfRecords::of(&bytes).count() <= bytes.len());
        kernel.tally(&bytes, Fired::default());
        let text = String::from_utf8_lossy(&bytes).replace('\u{fffd}', "field:x;\toffset:99999999999;\tsize:9;");
        let _ = Tracepoints::parse(Some(&format!("name: a\nID: 1\n{text}")), None);
    }
}

#[test]
fn the_two_pieces_of_a_ring_hold_every_byte_between_the_positions_once() {
    assert_eq!(pieces(0, 0, 8), Some((0..0, 0..0)));
    assert_eq!(pieces(3, 8, 8), Some((3..8, 0..0)));
    assert_eq!(pieces(5, 11, 8), Some((5..8, 0..3)));
    assert_eq!(pieces(5, 13, 8), Some((5..8, 0..5)));
    assert_eq!(pieces(u64::MAX - 1, 2, 8), Some((6..8, 0..2)), "positions wrap around");
    // More than there is room for, and a position that went back.
    assert_eq!(pieces(5, 14, 8), None);
    assert_eq!(pieces(5, 4, 8), None);
    assert_eq!(pieces(0, 1, 0), None);
}
