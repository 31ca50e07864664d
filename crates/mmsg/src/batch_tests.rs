//! Tests of the batch against a kernel made of a closure: it writes through the headers exactly as `recvmmsg` does.
//! They run under an interpreter that checks every pointer (`cargo +nightly miri test -p mmsg`).
#![allow(unsafe_code)]

#[path = "train_tests.rs"]
mod trains;

use super::*;
use crate::shape::Control;
use crate::{addr, cmsg};

/// One message as the kernel would deliver it.
#[derive(Clone, Default)]
struct Delivery {
    payload: Vec<u8>,
    control: Vec<u8>,
    control_cut: bool,
    without_sender: bool,
}

fn single(payload: &[u8]) -> Delivery {
    Delivery { payload: payload.to_vec(), ..Delivery::default() }
}

fn train(payload: &[u8], segment_bytes: i32) -> Delivery {
    let control = cmsg::encode(libc::SOL_UDP, libc::UDP_GRO, &segment_bytes.to_ne_bytes());
    Delivery { control, ..single(payload) }
}

fn without_sender() -> Delivery {
    Delivery { without_sender: true, ..Delivery::default() }
}

/// Copies as much as the header says there is room for, and writes back what it did. Returns the bytes copied.
///
/// # Safety
/// `target` must be writable for `room` bytes.
unsafe fn copy_out(bytes: &[u8], target: *mut u8, room: usize) -> usize {
    let count = bytes.len().min(room);
    if count > 0 {
        // SAFETY: the caller vouches for the target; `bytes` is test memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, count) };
    }
    count
}

fn deliver(batch: &mut RecvBatch, deliveries: &[Delivery]) -> usize {
    let sender = addr::encode("192.0.2.7:4000".parse().expect("valid"));
    batch
        .fill(|headers, count| {
            for (slot, delivery) in deliveries.iter().take(count).enumerate() {
                // SAFETY: `fill` passes `count` armed headers whose pointers lead to the parts of their slots.
                unsafe {
                    let header = headers.add(slot);
                    let inner = &raw mut (*header).msg_hdr;
                    let name = if delivery.without_sender { &[] } else { sender.as_bytes() };
                    (*inner).msg_namelen = copy_out(name, (*inner).msg_name.cast(), (*inner).msg_namelen as usize) as _;
                    let room = (*inner).msg_controllen as usize;
                    (*inner).msg_controllen = copy_out(&delivery.control, (*inner).msg_control.cast(), room) as _;
                    let iovec = (*inner).msg_iov;
                    copy_out(&delivery.payload, (*iovec).iov_base.cast(), (*iovec).iov_len);
                    (*inner).msg_flags = if delivery.control_cut { libc::MSG_CTRUNC } else { 0 };
                    (*header).msg_len = u32::try_from(delivery.payload.len()).expect("a test payload");
                }
            }
            Ok(deliveries.len().min(count))
        })
        .expect("this kernel never fails")
}

fn batch(slots: usize, slot_bytes: usize, gro: bool) -> RecvBatch {
    RecvBatch::new(&BatchShape::new(slots, slot_bytes).control(Control::new().gro(gro))).expect("memory")
}

fn payloads(batch: &RecvBatch) -> Vec<Vec<u8>> {
    batch.datagrams().map(|datagram| datagram.payload().to_vec()).collect()
}

#[test]
fn what_is_delivered_is_what_is_read() {
    let mut batch = batch(4, 100, false);
    assert_eq!(deliver(&mut batch, &[single(b"one"), single(b""), single(b"three")]), 3);
    assert_eq!(payloads(&batch), [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
    assert_eq!(*batch.summary(), Summary { datagrams: 3, bytes: 8, truncated: 0, unsplit: 0 });
    let sources: Vec<_> = batch.datagrams().filter_map(|datagram| datagram.source()).collect();
    assert_eq!(sources, ["192.0.2.7:4000".parse().expect("valid"); 3]);
}

#[test]
fn a_batch_can_be_looped_over_and_ends_for_good() {
    let mut batch = batch(2, 10, false);
    deliver(&mut batch, &[single(b"one"), single(b"two")]);
    let mut seen = Vec::new();
    for datagram in &batch {
        seen.push(datagram.payload());
    }
    assert_eq!(seen, [b"one", b"two"]);
    let mut datagrams = batch.datagrams();
    assert_eq!(datagrams.by_ref().count(), 2);
    assert!(datagrams.next().is_none() && datagrams.next().is_none());
}

#[test]
fn a_batch_is_filled_again_and_again() {
    let mut batch = batch(2, 10, false);
    for round in 0..5_u8 {
        assert_eq!(deliver(&mut batch, &[single(&[round; 10]), single(&[round])]), 2);
        assert!(batch.is_full());
        assert_eq!(payloads(&batch), [vec![round; 10], vec![round]]);
        batch.clear();
        assert!(batch.is_empty() && payloads(&batch).is_empty());
    }
}

#[test]
fn more_is_appended_until_the_batch_is_full() {
    let mut batch = batch(3, 10, false);
    assert_eq!(deliver(&mut batch, &[single(b"a")]), 1);
    assert_eq!(deliver(&mut batch, &[single(b"b"), single(b"c"), single(b"d")]), 2);
    assert_eq!(deliver(&mut batch, &[single(b"e")]), 0, "a full batch takes no more");
    assert_eq!(payloads(&batch), [b"a", b"b", b"c"]);
}

#[test]
fn a_datagram_longer_than_its_slot_is_marked_and_keeps_its_real_length() {
    let mut batch = batch(2, 4, false);
    deliver(&mut batch, &[single(b"longer"), single(b"fits")]);
    let datagram = batch.datagrams().next().expect("one");
    assert_eq!((datagram.payload(), datagram.length(), datagram.is_truncated()), (b"long".as_slice(), 6, true));
    assert_eq!(*batch.summary(), Summary { datagrams: 2, bytes: 8, truncated: 1, unsplit: 0 });
}

#[test]
fn trains_are_split_between_single_datagrams() {
    let mut batch = batch(4, 100, true);
    assert_eq!(deliver(&mut batch, &[single(b"x"), train(b"aabbc", 2), single(b""), train(b"dd", 2)]), 4);
    let expected: [&[u8]; 6] = [b"x", b"aa", b"bb", b"c", b"", b"dd"];
    assert_eq!(payloads(&batch), expected);
    assert_eq!(*batch.summary(), Summary { datagrams: 6, bytes: 8, truncated: 0, unsplit: 0 });
    assert_eq!(batch.messages(), 4);
}

#[test]
fn a_train_that_cannot_be_split_is_counted_and_never_shown() {
    let mut batch = batch(4, 100, true);
    let cut = Delivery { control_cut: true, ..single(b"aabb") };
    deliver(&mut batch, &[cut, train(b"aabb", 0), train(&[7; 200], 1), single(b"y")]);
    assert_eq!(payloads(&batch), [b"y"]);
    assert_eq!(*batch.summary(), Summary { datagrams: 1, bytes: 1, truncated: 0, unsplit: 3 });
}

#[test]
fn a_train_longer_than_its_slot_counts_every_datagram_that_lost_bytes() {
    let mut batch = batch(1, 65_536, true);
    deliver(&mut batch, &[train(&[9; 67_000], 1000)]);
    // 65 whole ones, 536 bytes of the next, and nothing of the last.
    assert_eq!(*batch.summary(), Summary { datagrams: 67, bytes: 65_536, truncated: 2, unsplit: 0 });
    let cut: Vec<_> = batch.datagrams().filter(Datagram::is_truncated).map(|one| one.payload().len()).collect();
    assert_eq!(cut, [536, 0]);
    assert_eq!(batch.retain(|datagram| !datagram.is_truncated()), 2);
    assert_eq!(*batch.summary(), Summary { datagrams: 65, bytes: 65_000, truncated: 0, unsplit: 0 });
}

#[test]
fn what_is_longer_than_is_kept_is_cut_and_counted_in_a_train_and_alone() {
    let mut batch = batch(8, 3, true);
    deliver(
        &mut batch,
        &[train(b"aaaabbbbcc", 4), single(b"dddddd"), train(b"eeefff", 3), single(b"g"), train(b"hh", 9)],
    );
    let expected: [&[u8]; 8] = [b"aaa", b"bbb", b"cc", b"ddd", b"eee", b"fff", b"g", b"hh"];
    assert_eq!(payloads(&batch), expected);
    assert_eq!(*batch.summary(), Summary { datagrams: 8, bytes: 20, truncated: 3, unsplit: 0 });
    let lengths: Vec<_> = batch.datagrams().filter(Datagram::is_truncated).map(|one| one.length()).collect();
    assert_eq!(lengths, [4, 4, 6]);
    assert_eq!(batch.retain(|datagram| !datagram.is_truncated()), 3);
    assert_eq!(*batch.summary(), Summary { datagrams: 5, bytes: 11, truncated: 0, unsplit: 0 });
}

#[test]
fn the_longest_train_is_split_into_as_many_datagrams() {
    let mut batch = batch(1, 65_536, true);
    let payload: Vec<u8> = (0..128).collect();
    deliver(&mut batch, &[train(&payload, 1)]);
    assert_eq!(batch.datagrams().count(), 128);
    assert_eq!(batch.retain(|datagram| datagram.payload()[0] % 2 == 1), 64);
    assert_eq!(payloads(&batch), (0..128).filter(|n| n % 2 == 1).map(|n| vec![n]).collect::<Vec<_>>());
}

#[test]
fn discarded_datagrams_are_not_yielded_and_the_summary_follows() {
    let mut batch = batch(4, 3, false);
    deliver(&mut batch, &[single(b"aaaa"), single(b"bb"), single(b"cccc")]);
    assert_eq!(batch.retain(|datagram| datagram.payload() != b"ccc"), 1);
    assert_eq!(*batch.summary(), Summary { datagrams: 2, bytes: 5, truncated: 1, unsplit: 0 });
    assert_eq!(deliver(&mut batch, &[single(b"d")]), 1, "what comes after discarding is kept");
    assert_eq!(payloads(&batch), [b"aaa".to_vec(), b"bb".to_vec(), b"d".to_vec()]);
    assert_eq!(batch.retain(|_| false), 3);
    assert_eq!(*batch.summary(), Summary::default());
    assert_eq!(batch.messages(), 4, "messages were received, whatever became of them");
}

#[test]
fn a_message_without_sender_is_not_a_datagram() {
    for gro in [false, true] {
        let mut batch = batch(4, 10, gro);
        assert_eq!(deliver(&mut batch, &[without_sender()]), 0);
        assert!(batch.is_empty() && !batch.is_full());
        assert_eq!(*batch.summary(), Summary::default());

        assert_eq!(deliver(&mut batch, &[single(b"a"), without_sender(), single(b"b"), without_sender()]), 2);
        assert_eq!(payloads(&batch), [b"a", b"b"], "gro {gro}");
        assert_eq!((batch.messages(), batch.summary().datagrams), (2, 2));
        batch.clear();
        assert_eq!(deliver(&mut batch, &[single(b"c")]), 1);
        assert_eq!(payloads(&batch), [b"c"]);
    }
}

#[test]
fn headers_are_armed_again_after_each_use() {
    let mut batch = batch(2, 10, true);
    deliver(&mut batch, &[train(b"aabb", 2), without_sender()]);
    batch.clear();
    deliver(&mut batch, &[single(b"plain"), train(b"ccdd", 2)]);
    let expected: [&[u8]; 3] = [b"plain", b"cc", b"dd"];
    assert_eq!(payloads(&batch), expected, "neither an old segment size nor a spent name length is left over");
    assert!(batch.datagrams().all(|datagram| datagram.source().is_some_and(|source| source.port() == 4000)));
}

#[test]
fn batches_of_one_pool_do_not_disturb_each_other() {
    let shape = BatchShape::new(2, 64);
    let (mut batches, backing) = RecvBatch::pool(3, &shape).expect("memory");
    assert_eq!(backing, Backing::Ordinary { why: None });
    for (number, batch) in (0..).zip(&mut batches) {
        deliver(batch, &[single(&[number; 64]), single(&[number; 64])]);
    }
    let last = batches.pop().expect("three");
    drop(batches);
    assert_eq!(payloads(&last), [vec![2; 64], vec![2; 64]], "the arena lives as long as its last batch");
}

#[test]
fn a_batch_can_be_handed_to_another_thread_and_read_from_several() {
    let mut batch = batch(2, 10, false);
    deliver(&mut batch, &[single(b"shared")]);
    let batch = std::thread::spawn(move || batch).join().expect("no panic");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(payloads(&batch), [b"shared"]));
        }
    });
}

#[test]
fn impossible_pools_are_refused() {
    let shape = BatchShape::new(2, 64);
    for (count, shape) in [(0, shape), (usize::MAX, shape), (1, BatchShape { slots: 0, ..shape })] {
        let error = RecvBatch::pool(count, &shape).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

fn proxied(from: &str, payload: &[u8]) -> Vec<u8> {
    let prefix = crate::proxy::Prefix::new(from.parse().expect("valid"), "192.0.2.1:514".parse().expect("valid"));
    [prefix.as_bytes(), payload].concat()
}

/// Senders and payloads, as they are shown.
fn shown(batch: &RecvBatch) -> Vec<(String, Vec<u8>)> {
    let show =
        |one: Datagram<'_>| (one.source().map(|from| from.to_string()).unwrap_or_default(), one.payload().into());
    batch.datagrams().map(show).collect()
}

#[test]
fn headers_are_taken_off_each_datagram_of_a_train_and_what_is_not_kept_is_not_shown() {
    let mut batch = RecvBatch::new(&BatchShape::new(8, 2048).control(Control::new().gro(true))).expect("memory");
    let segments: Vec<Vec<u8>> = (1..4).map(|host| proxied(&format!("10.0.0.{host}:7"), b"12345")).collect();
    let last = proxied("10.0.0.9:7", b"");
    let segment_bytes = i32::try_from(segments[0].len()).expect("short");
    deliver(&mut batch, &[train(&[segments.concat(), last].concat(), segment_bytes), single(b"plain"), single(b"")]);
    let mut seen = Vec::new();
    let discarded = batch.unwrap_proxied(|datagram, header| {
        seen.push((datagram.source().map(|from| from.port()), header.is_ok()));
        datagram.payload() != b"plain" && !datagram.payload().ends_with(b"\0\x07\x02\x02")
    });
    assert_eq!((discarded, seen.len()), (2, 6));
    assert!(seen.iter().all(|(port, _)| *port == Some(4000)), "the kernel's word, not the header's");
    assert_eq!(seen.iter().filter(|(_, is_whole)| *is_whole).count(), 4);
    let expected = ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7"].map(|from| (from.to_owned(), b"12345".to_vec()));
    assert_eq!(shown(&batch), [&expected[..], &[("192.0.2.7:4000".to_owned(), Vec::new())]].concat());
    assert_eq!(*batch.summary(), Summary { datagrams: 4, bytes: 15, truncated: 0, unsplit: 0 });
    assert_eq!(batch.retain(|datagram| datagram.source().is_some_and(|from| from.ip().to_string() != "10.0.0.2")), 1);
    assert_eq!(*batch.summary(), Summary { datagrams: 3, bytes: 10, truncated: 0, unsplit: 0 });
}

#[test]
fn a_datagram_whose_header_was_taken_off_is_packed_without_and_keeps_its_sender_and_its_mark() {
    let mut batch = RecvBatch::new(&BatchShape::new(4, 100)).expect("memory");
    deliver(&mut batch, &[single(&proxied("[2001:db8::7]:9", &[5; 60])), single(&proxied("10.0.0.1:7", b"short"))]);
    assert_eq!(batch.summary().truncated, 1);
    assert_eq!(batch.unwrap_proxied(|_, header| header.is_ok()), 0);
    assert_eq!(*batch.summary(), Summary { datagrams: 2, bytes: 48 + 5, truncated: 1, unsplit: 0 });
    let (mut packed, _) = crate::PackedBatch::pool(1, 4096, false).expect("memory");
    batch.datagrams().for_each(|datagram| assert!(packed[0].push(&datagram)));
    let read: Vec<_> = packed[0].datagrams().map(|one| (one.source(), one.payload().len(), one.length())).collect();
    let from = |text: &str| Some(text.parse().expect("valid"));
    assert_eq!(read, [(from("[2001:db8::7]:9"), 48, 60), (from("10.0.0.1:7"), 5, 5)]);
    // What comes later into the same batch has not been judged, and is shown as it came.
    deliver(&mut batch, &[single(&proxied("10.0.0.1:7", b"later"))]);
    assert_eq!(shown(&batch)[2].0, "192.0.2.7:4000");
    batch.clear();
    deliver(&mut batch, &[single(&proxied("10.0.0.1:7", b"again"))]);
    assert_eq!(shown(&batch)[0].0, "192.0.2.7:4000");
}

#[test]
fn datagrams_without_a_header_have_the_sender_that_they_are_given_and_those_with_one_their_own() {
    let mut batch = RecvBatch::new(&BatchShape::new(8, 2048).control(Control::new().gro(true))).expect("memory");
    let header = proxied("10.0.0.1:7", b"12345");
    let segment_bytes = i32::try_from(header.len()).expect("short");
    let plain = vec![b'x'; header.len()];
    deliver(
        &mut batch,
        &[train(&[&header[..], &plain, b"end"].concat(), segment_bytes), single(b"other"), single(b"v6")],
    );
    let [given, v6] = ["10.0.0.9:9", "[2001:db8::7]:9"].map(|text| text.parse::<SocketAddr>().expect("valid"));
    let mut seen = Vec::new();
    let discarded = batch.unwrap_flows(|datagram, header, sender| {
        seen.push((header.ok().flatten().map(|from| from.to_string()), *sender));
        assert_eq!(datagram.source().map(|from| from.port()), Some(4000), "the kernel's word");
        match datagram.payload() {
            b"other" => return false,
            b"v6" => *sender = Some(v6),
            _ if header.is_err() => *sender = Some(given),
            _ => {}
        }
        true
    });
    assert_eq!(discarded, 1);
    let named = Some("10.0.0.1:7".to_owned());
    assert_eq!(seen, [(named, None), (None, None), (None, Some(given)), (None, None), (None, None)]);
    let expected =
        [("10.0.0.1:7", &b"12345"[..]), ("10.0.0.9:9", &plain), ("10.0.0.9:9", b"end"), ("[2001:db8::7]:9", b"v6")];
    assert_eq!(shown(&batch), expected.map(|(from, payload)| (from.to_owned(), payload.to_vec())));
    let (mut packed, _) = crate::PackedBatch::pool(1, 4096, false).expect("memory");
    batch.datagrams().for_each(|datagram| assert!(packed[0].push(&datagram)));
    let senders: Vec<_> = packed[0].datagrams().filter_map(|one| one.source()).map(|from| from.to_string()).collect();
    assert_eq!(senders, ["10.0.0.1:7", "10.0.0.9:9", "10.0.0.9:9", "[2001:db8::7]:9"]);
    // The next call finds all the room for names again.
    batch.clear();
    deliver(&mut batch, &[single(b"later")]);
    assert_eq!(shown(&batch)[0].0, "192.0.2.7:4000");
}
