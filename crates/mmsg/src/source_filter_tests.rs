//! The program, run by the kernel on packets that are not sent: which sources it keeps, and what it counts. Needs the
//! right to load it; without that the tests say so and end.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::addr::Family;
use crate::refused::Refused;

/// A filter and the socket that it counts for.
struct Loaded {
    socket: Socket,
    filter: SourceFilter,
}

#[allow(clippy::print_stderr)]
fn load(ranges: &SourceRanges<'_>, arrivals: Option<&CoreCounter>) -> Option<Loaded> {
    let socket = Socket::new(Family::V6).expect("a socket");
    match SourceTable::new(ranges, &OwnRights).and_then(|table| table.filter(&socket, arrivals, &OwnRights)) {
        Ok(filter) => Some(Loaded { socket, filter }),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("NOT CHECKED: refusing sources in the kernel needs CAP_BPF: {error}");
            None
        }
        Err(error) => panic!("a filter: {error}"),
    }
}

impl Loaded {
    fn keeps(&self, packet: &[u8]) -> bool {
        match bpf::run(self.filter.program(), &mut bpf::TestRun::once(packet)).expect("it runs").returned {
            0 => false,
            u32::MAX => true,
            other => panic!("it keeps all or nothing, and not {other}"),
        }
    }

    fn keeps_v4(&self, source: u32) -> bool {
        self.keeps(&v4(source.into()))
    }

    fn keeps_v6(&self, source: u128) -> bool {
        self.keeps(&v6(source.into()))
    }
}

fn refused(loaded: &Loaded) -> u64 {
    loaded.socket.refused().expect("it has a filter").messages
}

/// Addresses of the card, and the protocol above.
fn ethernet(protocol: u16) -> Vec<u8> {
    [&[2; 12], protocol.to_be_bytes().as_slice()].concat()
}

fn v4(source: Ipv4Addr) -> Vec<u8> {
    let mut packet = ethernet(0x0800);
    packet.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend([127, 0, 0, 1, 1, 0, 2, 0, 0, 8, 0, 0]);
    packet
}

fn v6(source: Ipv6Addr) -> Vec<u8> {
    let mut packet = ethernet(0x86dd);
    packet.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
    packet.extend(source.octets());
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend([1, 0, 2, 0, 0, 8, 0, 0]);
    packet
}

/// What the ranges say of an address, by looking at every turn.
fn expected<T: PartialOrd>(first: bool, turns: &[T], address: &T) -> bool {
    first == turns.iter().filter(|turn| *turn <= address).count().is_multiple_of(2)
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn every_source_gets_the_answer_of_its_range_at_its_ends_and_between() {
    let mut random = fastrand::Rng::with_seed(17);
    for count in [0, 1, 2, 3, 4, 7, 8, 9, 100, 1000] {
        let mut v4_turns: Vec<u32> = (0..count).map(|_| random.u32(..)).collect();
        let mut v6_turns: Vec<u128> =
            (0..count).map(|_| u128::from(random.u64(..)) << 64 | u128::from(random.u64(..4)) << 32).collect();
        // The highest addresses, and neighbours whose words differ in one place each.
        if count > 4 {
            v4_turns.extend([1, 2, 0x8000_0000, u32::MAX]);
            v6_turns.extend([1, 1 << 32, (1 << 64) - 1, 1 << 64, 1 << 96, 1 << 127, u128::MAX]);
        }
        v4_turns.sort_unstable();
        v6_turns.sort_unstable();
        v6_turns.dedup();
        v4_turns.dedup();
        for first in [true, false] {
            let ranges = SourceRanges { v4_first: first, v4_turns: &v4_turns, v6_first: !first, v6_turns: &v6_turns };
            let Some(loaded) = load(&ranges, None) else { return };
            let near = |turn: u32| [turn.wrapping_sub(1), turn, turn.wrapping_add(1)];
            for source in v4_turns.iter().flat_map(|turn| near(*turn)).chain([0, u32::MAX, 0x7f00_0001]) {
                let wanted = expected(first, &v4_turns, &source);
                assert_eq!(loaded.keeps_v4(source), wanted, "{} of {count}", Ipv4Addr::from(source));
                let mapped = Ipv4Addr::from(source).to_ipv6_mapped();
                assert_eq!(loaded.keeps(&v6(mapped)), wanted, "{mapped} is IPv4");
            }
            let near = |turn: u128| [turn.wrapping_sub(1), turn, turn.wrapping_add(1), turn ^ 1 << 32, turn ^ 1 << 80];
            let is_v6 = |source: &u128| Ipv6Addr::from(*source).to_ipv4_mapped().is_none();
            for source in v6_turns.iter().flat_map(|turn| near(*turn)).chain([0, 1, u128::MAX]).filter(is_v6) {
                let wanted = expected(!first, &v6_turns, &source);
                assert_eq!(loaded.keeps_v6(source), wanted, "{} of {count}", Ipv6Addr::from(source));
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn what_it_does_not_understand_is_kept_for_who_reads_the_socket() {
    let ranges = SourceRanges { v4_first: false, v4_turns: &[], v6_first: false, v6_turns: &[] };
    let Some(loaded) = load(&ranges, None) else { return };
    assert!(!loaded.keeps_v4(1) && !loaded.keeps_v6(1));
    let mut arp = v4(Ipv4Addr::LOCALHOST);
    arp[13] = 6;
    assert!(loaded.keeps(&arp));
    // Its header is all that it looks at.
    assert!(!loaded.keeps(&v4(Ipv4Addr::LOCALHOST)[..14 + 20]) && !loaded.keeps(&v6(Ipv6Addr::LOCALHOST)[..14 + 40]));
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn every_refusal_is_counted_and_nothing_else_and_the_next_filter_counts_on() {
    let ranges = SourceRanges { v4_first: true, v4_turns: &[10], v6_first: true, v6_turns: &[] };
    let Some(first) = load(&ranges, None) else { return };
    assert_eq!(first.socket.refused(), Some(Refused::default()));
    for source in [9, 10, 11, 12] {
        assert_eq!(first.keeps_v4(source), source < 10);
    }
    // On order the program sees the header of IP as well, and takes it for payload.
    assert_eq!(first.socket.refused(), Some(Refused { messages: 3, datagrams: 3, bytes: 3 * 20 }));
    let table = SourceTable::new(&SourceRanges { v4_turns: &[20], ..ranges }, &OwnRights).expect("a table");
    let filter = table.filter(&first.socket, None, &OwnRights).expect("a filter");
    let second = Loaded { filter, ..first };
    assert!(second.keeps_v4(11) && !second.keeps_v4(20));
    assert_eq!(refused(&second), 4);
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn arrivals_are_counted_by_core_whether_they_are_kept_or_not() {
    let ranges = SourceRanges { v4_first: true, v4_turns: &[10], v6_first: true, v6_turns: &[] };
    let Ok(arrivals) = CoreCounter::by_queue(4) else { return };
    let Some(loaded) = load(&ranges, Some(&arrivals)) else { return };
    assert!(loaded.keeps_v4(9) && !loaded.keeps_v4(10));
    let counted: u64 = arrivals.read().expect("counts").iter().map(|arrivals| arrivals.count).sum();
    assert_eq!((counted, refused(&loaded)), (2, 1));
}

#[test]
#[cfg_attr(miri, ignore = "needs a kernel")]
fn as_many_turns_as_are_taken_make_a_program_that_the_verifier_accepts_and_one_more_is_refused() {
    let v4_turns: Vec<u32> = (0..TURNS_MAX as u32).map(|turn| 16 * (turn + 1)).collect();
    let v6_turns: Vec<u128> = (0..TURNS_MAX as u128).map(|turn| (turn + 1) << 90).collect();
    let ranges = SourceRanges { v4_first: true, v4_turns: &v4_turns, v6_first: true, v6_turns: &v6_turns };
    assert_eq!(ranges.table_bytes(), 96 << 20);
    let Some(loaded) = load(&ranges, None) else { return };
    for place in [0, 1, 2, TURNS_MAX / 2, TURNS_MAX - 2, TURNS_MAX - 1] {
        let is_kept = place % 2 == 1;
        assert_eq!((loaded.keeps_v4(v4_turns[place]), loaded.keeps_v4(v4_turns[place] - 1)), (is_kept, !is_kept));
        assert_eq!((loaded.keeps_v6(v6_turns[place]), loaded.keeps_v6(v6_turns[place] - 1)), (is_kept, !is_kept));
    }
    let more = vec![0; TURNS_MAX + 1];
    let refused = SourceTable::new(&SourceRanges { v4_turns: &more, ..ranges }, &OwnRights).expect_err("too many");
    assert_eq!(refused.raw_os_error(), Some(libc::E2BIG));
}
