//! Tests of what `sendmmsg` would be given, read through the headers as the kernel does. No system calls, so that they
//! run under an interpreter that checks every pointer.
#![allow(unsafe_code)]
#![allow(clippy::unnecessary_cast)] // as in batch.rs

use super::*;

/// What a header leads to: name, payload and whether there is a control message.
fn follow(header: *mut libc::mmsghdr) -> (Vec<u8>, Vec<u8>, bool) {
    // SAFETY: the tests pass headers that were filled; their pointers lead into the arena of a batch that is alive.
    let (name, payload) = unsafe {
        let inner = &raw const (*header).msg_hdr;
        let iovec = (*inner).msg_iov;
        assert_eq!((*inner).msg_iovlen as usize, 1);
        let name = copied((*inner).msg_name.cast(), (*inner).msg_namelen as usize);
        (name, copied((*iovec).iov_base.cast(), (*iovec).iov_len))
    };
    (name, payload, !control(header).is_empty())
}

/// The control messages that a header leads to.
fn control(header: *mut libc::mmsghdr) -> Vec<(i32, i32, Vec<u8>)> {
    // SAFETY: as in `follow`.
    let bytes = unsafe {
        let inner = &raw const (*header).msg_hdr;
        copied((*inner).msg_control.cast(), (*inner).msg_controllen as usize)
    };
    cmsg::ControlMessages::new(&bytes).map(|one| (one.level, one.kind, one.data.to_vec())).collect()
}

/// # Safety
/// So many bytes are readable there.
unsafe fn copied(start: *const u8, count: usize) -> Vec<u8> {
    // SAFETY: the caller vouches for it.
    (0..count).map(|at| unsafe { start.add(at).read() }).collect()
}

fn batch(slots: usize, slot_bytes: usize) -> SendBatch {
    SendBatch::new(slots, slot_bytes).expect("memory")
}

fn addresses(from: &str, to: &str) -> (IpAddr, SocketAddr) {
    (from.parse().expect("valid"), to.parse().expect("valid"))
}

#[test]
fn a_header_leads_to_what_was_pushed_whatever_was_in_the_slot_before() {
    let to: SocketAddr = "192.0.2.1:53".parse().expect("valid");
    let mut batch = batch(2, 100);
    batch.push_segmented(&[1; 100], 50, Some(to)).expect("a free slot");
    batch.push(b"named", Some(to)).expect("a free slot");
    assert_eq!(follow(batch.region.header(0)), (addr::encode(to).as_bytes().to_vec(), vec![1; 100], true));
    assert_eq!(follow(batch.region.header(1)), (addr::encode(to).as_bytes().to_vec(), b"named".to_vec(), false));
    batch.clear();
    batch.push(b"plain", None).expect("a free slot");
    assert_eq!(follow(batch.region.header(0)), (Vec::new(), b"plain".to_vec(), false));
}

#[test]
fn segments_sent_singly_are_the_parts_of_the_payload_with_the_same_address() {
    let to: SocketAddr = "[2001:db8::1]:53".parse().expect("valid");
    let mut batch = batch(1, 100);
    batch.push_segmented(b"aabbc", 2, Some(to)).expect("a free slot");
    batch.next_segment = 1;
    batch.build_singles(2);
    let name = addr::encode(to).as_bytes().to_vec();
    assert_eq!(follow(batch.singles.header(0)), (name.clone(), b"bb".to_vec(), false));
    assert_eq!(follow(batch.singles.header(1)), (name, b"c".to_vec(), false));
}

#[test]
fn the_longest_train_fits_into_the_headers_for_single_segments() {
    let mut batch = batch(1, MAX_SEGMENTS);
    let payload: Vec<u8> = (0..128).collect();
    batch.push_segmented(&payload, 1, None).expect("a free slot");
    batch.build_singles(MAX_SEGMENTS);
    let sent: Vec<u8> = (0..MAX_SEGMENTS).flat_map(|single| follow(batch.singles.header(single)).1).collect();
    assert_eq!(sent, payload);
}

#[test]
fn a_source_goes_with_its_message_alone_in_a_train_and_one_by_one() {
    for (from, to) in [("192.0.2.9", "192.0.2.1:53"), ("2001:db8::9", "[2001:db8::1]:53")] {
        let (from, to) = addresses(from, to);
        let mut batch = batch(2, 100);
        batch.push_from(b"alone", from, to).expect("a free slot");
        let source = control(batch.region.header(0));
        assert_eq!(source.len(), 1);
        batch.push_from(b"aa", from, to).expect("a free slot");
        assert!(batch.join(b"bb") && batch.join(b"c"));
        let segments = (libc::SOL_UDP, libc::UDP_SEGMENT, 2_u16.to_ne_bytes().to_vec());
        assert_eq!(control(batch.region.header(1)), [source[0].clone(), segments]);
        batch.next = 1;
        batch.build_singles(3);
        for (single, payload) in [b"aa".to_vec(), b"bb".to_vec(), b"c".to_vec()].into_iter().enumerate() {
            assert_eq!(follow(batch.singles.header(single)).1, payload);
            assert_eq!(control(batch.singles.header(single)), source);
        }
        batch.clear();
        batch.push_segmented(b"aabb", 2, Some(to)).expect("a free slot");
        batch.build_singles(2);
        assert!(control(batch.singles.header(0)).is_empty(), "nothing is left of the source before");
    }
}

#[test]
fn a_source_of_the_other_family_is_refused_before_the_kernel_ignores_it() {
    let mut batch = batch(1, 100);
    for (from, to) in
        [("192.0.2.9", "[2001:db8::1]:53"), ("2001:db8::9", "192.0.2.1:53"), ("::9", "[::ffff:192.0.2.1]:53")]
    {
        let (from, to) = addresses(from, to);
        assert_eq!(batch.push_from(b"x", from, to), Err(PushError::OtherFamily { from, to }));
    }
    assert!(batch.is_empty());
    let (from, to) = addresses("::ffff:192.0.2.9", "192.0.2.1:53");
    batch.push_from(b"x", from, to).expect("IPv4");
    assert_eq!(control(batch.region.header(0))[0].1, libc::IP_PKTINFO);
}

#[test]
fn a_payload_of_one_segment_is_an_ordinary_datagram() {
    let mut batch = batch(2, 100);
    batch.push_segmented(&[1; 50], 50, None).expect("a free slot");
    batch.push_segmented(b"", 50, None).expect("a free slot");
    assert!(batch.queue[..2].iter().all(|queued| queued.segment_bytes == 0 && queued.datagrams() == 1));
    assert!(!follow(batch.region.header(0)).2);
}

#[test]
fn datagrams_of_one_length_travel_together_until_a_shorter_one_ends_the_train() {
    let mut batch = batch(3, 100);
    assert!(!batch.join(b"nothing to join"));
    batch.push(b"four", None).expect("a free slot");
    for (payload, joins) in
        [("fore", true), ("", false), ("fives", false), ("two", true), ("four", false), ("x", false)]
    {
        assert_eq!(batch.join(payload.as_bytes()), joins, "{payload}");
    }
    assert_eq!(follow(batch.region.header(0)), (Vec::new(), b"fourforetwo".to_vec(), true));
    assert_eq!(batch.queue[0].datagrams(), 3);
    batch.push(b"", None).expect("a free slot");
    assert!(!batch.join(b""), "an empty datagram cannot be told from none in a train");
    batch.push(&[1; 60], None).expect("a free slot");
    assert!(!batch.join(&[1; 60]), "it would not fit");
    assert!(batch.join(&[1; 40]));
    assert_eq!(batch.len(), 3);
}

#[test]
fn no_more_datagrams_travel_together_than_every_kernel_takes() {
    let mut batch = batch(1, 1000);
    batch.push(b"x", None).expect("a free slot");
    assert_eq!((0..100).filter(|_| batch.join(b"x")).count(), JOINED_MAX - 1);
}

#[test]
fn nothing_joins_a_message_that_is_partly_sent() {
    let mut batch = batch(1, 100);
    batch.push_segmented(b"aabb", 2, None).expect("a free slot");
    batch.refused = Some(libc::EIO);
    assert!(!batch.join(b"cc"));
}

#[test]
fn datagrams_of_two_parts_travel_together_while_both_parts_together_are_equally_long() {
    let mut batch = batch(2, 20);
    batch.push_prefixed(b"AA", b"one", None).expect("a free slot");
    assert!(!batch.join_prefixed(b"AAA", b"four"), "longer than the first");
    assert!(batch.join_prefixed(b"BBB", b"to") && batch.join_prefixed(b"C", b""));
    assert!(!batch.join_prefixed(b"D", b""), "behind a shorter one");
    assert_eq!(follow(batch.region.header(0)), (Vec::new(), b"AAoneBBBtoC".to_vec(), true));
    assert_eq!(batch.queue[0].datagrams(), 3);
    let refused = batch.push_prefixed(b"AAAAAAAAAA", b"12345678901", None);
    assert!(matches!(refused, Err(PushError::TooLong { length: 21, slot_bytes: 20 })), "{refused:?}");
}
