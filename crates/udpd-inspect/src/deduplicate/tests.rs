//! What is a copy of what, by payload and by the numbers of each protocol, and what a feed is made of.

use super::*;
use crate::upstream::{Fixed, NumberOrder};

fn feed(key: CopyKey, sequence: Option<Sequence>) -> Feed {
    let sides = ["192.0.2.1:514", "192.0.2.2:514"].map(|side| ("in".to_owned(), side.parse().expect("an address")));
    let window = Duration::from_secs(2);
    Feed::new(FeedPlan { name: None, window, key, sequence, rate: 1000, sides: sides.into() })
}

/// What each of these is that come on the second side after `first` came on the first.
fn after<const N: usize>(feed: &Feed, first: &[u8], others: [&[u8]; N]) -> [Meeting; N] {
    let now = feed.window_ms + 1;
    assert_eq!(feed.meet(first, 0, now), Meeting::New);
    others.map(|other| feed.meet(other, 1, now))
}

#[test]
fn by_payload_every_byte_counts_and_so_does_the_length() {
    let feed = feed(CopyKey::Payload, None);
    let met = after(&feed, b"one\0", [b"one", b"one\0", b"one\0\0", b"", b"One\0"]);
    assert_eq!(met, [Meeting::New, Meeting::Copy, Meeting::New, Meeting::New, Meeting::New]);
}

#[test]
fn by_sequence_the_number_decides_with_what_tells_streams_apart() {
    let fixed = Sequence::Fixed(Fixed { offset: 2, bytes: 4, order: NumberOrder::Little });
    let met = after(&feed(CopyKey::Sequence, Some(fixed)), b"A 0001 price", [b"B 0001 other", b"B 0002 price"]);
    assert_eq!(met, [Meeting::Copy, Meeting::New]);
    // A datagram that is too short for a number is compared as it is, and never with numbers.
    let short = feed(CopyKey::Sequence, Some(Sequence::Fixed(Fixed { offset: 4, bytes: 4, order: NumberOrder::Big })));
    assert_eq!(
        after(&short, b"head0001", [b"0001", b"0001", b"tail0001"]),
        [Meeting::New, Meeting::Repeated, Meeting::Copy]
    );

    let rtp = |number: u16, time: u32, source: u32| {
        let head = [&[0x80, 0x60][..], &number.to_be_bytes(), &time.to_be_bytes(), &source.to_be_bytes()].concat();
        [head, vec![7; 20]].concat()
    };
    let others = [rtp(9, 800, 5), rtp(9, 801, 5), rtp(9, 800, 6), rtp(10, 800, 5)];
    let met =
        after(&feed(CopyKey::Sequence, Some(Sequence::Rtp)), &rtp(9, 800, 5), others.each_ref().map(|one| &one[..]));
    let new = Meeting::New;
    assert_eq!(met, [Meeting::Copy, new, new, new], "65,536 numbers go round, and the time does not");

    let sflow = |agent: &[u8], of: u32, number: u32| {
        let kind = if agent.len() == 4 { 1_u32 } else { 2 };
        let head = [&5_u32.to_be_bytes()[..], &kind.to_be_bytes(), agent, &of.to_be_bytes(), &number.to_be_bytes()];
        [&head.concat()[..], &[0; 12]].concat()
    };
    for agents in [[vec![10, 0, 0, 1], vec![10, 0, 0, 2]], [vec![1; 16], vec![2; 16]]] {
        let [agent, other] = agents;
        let others = [sflow(&agent, 0, 9), sflow(&other, 0, 9), sflow(&agent, 1, 9), sflow(&agent, 0, 10)];
        let feed = feed(CopyKey::Sequence, Some(Sequence::Sflow));
        let met = after(&feed, &sflow(&agent, 0, 9), others.each_ref().map(|one| &one[..]));
        assert_eq!(met, [Meeting::Copy, new, new, new]);
    }
}

#[test]
fn each_address_is_a_side_and_what_has_none_is_of_its_listener() {
    let feed = Arc::new(feed(CopyKey::Payload, None));
    let side = |listener, bound: &str| Deduplicator::new(Arc::clone(&feed), listener, bound.parse().expect("one")).side;
    assert_eq!([side("in", "192.0.2.1:514"), side("in", "192.0.2.2:514"), side("in", "0.0.0.0:514")], [0, 1, 0]);
}

#[test]
fn its_memory_is_four_places_for_each_datagram_of_the_window() {
    let plan = feed(CopyKey::Payload, None).plan;
    // 1000 a second for two seconds, in buckets of 16 places of 16 bytes.
    assert_eq!(plan.bytes(), 4 * 2000 * 16 + 65_536);
}
