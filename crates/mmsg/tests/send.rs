//! Sending on loopback: whole batches, and errors that belong to one datagram.

use std::net::{IpAddr, SocketAddr};

use mmsg::{Control, Family, PushError, SendBatch};

use crate::common::{batch, bound, bound_v4, payloads, receive_count, unbound};

/// A batch to send.
fn outgoing(slots: usize, slot_bytes: usize) -> SendBatch {
    SendBatch::new(slots, slot_bytes).expect("memory")
}

#[test]
fn a_batch_longer_than_one_call_is_sent_whole_and_in_order() {
    let (socket, address) = bound(Family::V6, |socket| {
        socket.set_receive_buffer(16 << 20).expect("a buffer");
    });
    let buffer = socket.memory_info().expect("memory info").receive_buffer_bytes;
    let sender = unbound(Family::V6);
    let mut out = outgoing(2500, 16);
    for number in 0..2500_u32 {
        out.push(&number.to_be_bytes(), Some(address)).expect("a free slot");
    }
    assert_eq!((out.len(), out.is_full()), (2500, true));
    let report = out.flush(&sender).expect("sent");
    assert_eq!((report.sent, report.datagrams, report.failed), (2500, 2500, 0));
    assert!(out.is_empty() && !out.is_full());
    let numbers = payloads(&socket, 2500);
    assert!(numbers.iter().zip(0..2500_u32).all(|(found, number)| *found == number.to_be_bytes()), "{buffer}");
}

#[test]
fn a_connected_socket_needs_no_address() {
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    sender.connect(address).expect("connected");
    let mut out = outgoing(2, 2000);
    out.push(b"plain", None).expect("a free slot");
    out.push_segmented(&[3; 1050], 100, None).expect("a free slot");
    assert_eq!(out.flush(&sender).expect("sent").datagrams, 12);
    let received = payloads(&socket, 12);
    assert_eq!((received[0].as_slice(), received[11].as_slice()), (&b"plain"[..], &[3; 50][..]));
}

#[test]
fn an_ipv6_socket_sends_to_ipv4_addresses_too() {
    let (socket, address) = bound_v4();
    let mut out = outgoing(1, 16);
    out.push(b"four", Some(address)).expect("a free slot");
    assert_eq!(out.flush(&unbound(Family::V6)).expect("sent").sent, 1);
    assert_eq!(payloads(&socket, 1), [b"four"]);
}

#[test]
fn a_datagram_the_kernel_refuses_is_skipped_and_the_others_are_sent() {
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    let mut out = outgoing(8, 66_000);
    out.push(b"first", Some(address)).expect("a free slot");
    out.push(&[0; 65_508], Some(address)).expect("a free slot");
    out.push(b"second", Some(address)).expect("a free slot");
    out.push(b"to port 0", Some(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a free slot");
    out.push(b"to no address", None).expect("a free slot");
    out.push_segmented(b"aabb", 2, Some(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a free slot");
    out.push_segmented(b"ccdd", 2, Some(address)).expect("a free slot");
    let report = out.flush(&sender).expect("none of these ends the call");
    assert_eq!((report.sent, report.datagrams, report.failed), (3, 4, 4));
    assert!(!report.segmentation_refused, "port 0 was at fault, not segmentation");
    let failures: Vec<_> = out.failures().iter().map(|failure| (failure.index, failure.errno)).collect();
    let expected = [(1, libc::EMSGSIZE), (3, libc::EINVAL), (4, libc::EDESTADDRREQ), (5, libc::EINVAL)];
    assert_eq!(failures, expected);
    assert_eq!(payloads(&socket, 4), [&b"first"[..], b"second", b"cc", b"dd"]);
}

#[test]
fn a_refused_connection_costs_no_datagram() {
    let (gone, address) = bound_v4();
    drop(gone);
    let sender = unbound(Family::V4);
    sender.connect(address).expect("connected");
    let mut out = outgoing(16, 16);
    for _ in 0..16 {
        out.push(b"to-a-closed-port", None).expect("a free slot");
    }
    let report = out.flush(&sender).expect("not an error of the call");
    assert_eq!((report.sent, report.failed), (16, 0), "each answer belonged to the datagram before");
    out.push(b"to-a-closed-port", None).expect("a free slot");
    let report = out.flush(&sender).expect("not an error of the call");
    assert_eq!((report.sent, report.failed, report.calls), (1, 0, 2), "the answer to the one before took a call");
    assert_eq!(out.answers(), [libc::ECONNREFUSED]);
}

#[test]
fn a_train_with_more_bytes_than_the_kernel_takes_is_sent_as_single_datagrams() {
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_gro(true).expect("GRO");
    });
    // 66,000 bytes are more than one message may carry; two datagrams of 33,000 are not.
    let sender = unbound(Family::V4);
    let mut out = outgoing(1, 66_000);
    out.push_segmented(&[5; 66_000], 33_000, Some(address)).expect("a free slot");
    let report = out.flush(&sender).expect("sent");
    assert_eq!((report.sent, report.datagrams, report.failed, report.segmentation_refused), (1, 2, 0, false));
    let received = receive_count(&socket, &mut batch(4, 65_536, Control::new().gro(true)), 2);
    assert!(received.iter().all(|one| one.payload == [5; 33_000]));
}

#[test]
fn what_cannot_be_queued_is_refused_and_leaves_the_batch_as_it_was() {
    let mut out = outgoing(1, 300);
    assert_eq!(out.push(&[0; 301], None), Err(PushError::TooLong { length: 301, slot_bytes: 300 }));
    assert_eq!(out.push_segmented(b"ab", 0, None), Err(PushError::EmptySegments));
    assert_eq!(out.push_segmented(&[0; 129], 1, None), Err(PushError::TooManySegments { segments: 129 }));
    assert!(out.is_empty());
    out.push(b"", None).expect("an empty datagram is a datagram");
    assert_eq!(out.push(b"", None), Err(PushError::Full));
    out.clear();
    assert!(out.is_empty());
    assert!(SendBatch::new(0, 1).is_err() && SendBatch::new(1, 0).is_err());
}

#[test]
fn a_datagram_leaves_from_the_address_that_was_asked_for() {
    for (sender_family, receiver_family) in [(Family::V4, Family::V4), (Family::V6, Family::V4)] {
        let (socket, to) = bound(receiver_family, |_| {});
        let sender = unbound(sender_family);
        let mut out = outgoing(4, 100);
        let (two, three) = (IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3]));
        out.push_from(b"two", two, to).expect("a free slot");
        out.push_from(b"threethree", three, to).expect("a free slot");
        assert!(out.join(b"in a train"), "equally long, so they travel together");
        out.push(b"as ever", Some(to)).expect("a free slot");
        assert_eq!(out.flush(&sender).expect("sent").datagrams, 4);
        let received = receive_count(&socket, &mut batch(8, 100, Control::default()), 4);
        let sources: Vec<IpAddr> = received.iter().map(|one| one.source.ip()).collect();
        assert_eq!(sources, [two, three, three, IpAddr::from([127, 0, 0, 1])], "{sender_family:?}");
        let port = sender.local_addr().expect("it has one by now").port();
        assert!(received.iter().all(|one| one.source.port() == port), "the port is the socket's");
    }
    let (socket, to) = bound(Family::V6, |_| {});
    let mut out = outgoing(1, 100);
    out.push_from(b"six", to.ip(), to).expect("a free slot");
    assert_eq!(out.flush(&unbound(Family::V6)).expect("sent").sent, 1);
    assert_eq!(receive_count(&socket, &mut batch(1, 16, Control::default()), 1)[0].source.ip(), to.ip());
}

#[test]
fn a_source_that_is_not_this_hosts_fails_its_own_message_and_no_other() {
    for (family, foreign) in [(Family::V4, "192.0.2.77"), (Family::V6, "2001:db8::77")] {
        let (socket, to) = bound(family, |_| {});
        let sender = unbound(family);
        let mut out = outgoing(3, 100);
        out.push(b"before", Some(to)).expect("a free slot");
        out.push_from(b"foreign", foreign.parse().expect("valid"), to).expect("a free slot");
        out.push(b"after", Some(to)).expect("a free slot");
        let report = out.flush(&sender).expect("not an error of the call");
        assert_eq!((report.sent, report.failed, out.failures()[0].index), (2, 1, 1), "{family:?}");
        assert_eq!(payloads(&socket, 2), [&b"before"[..], b"after"]);
    }
}

#[test]
fn a_whole_socket_can_be_set_to_cut_what_it_sends() {
    let (socket, address) = bound_v4();
    let sender = unbound(Family::V4);
    sender.set_segment_size(10).expect("UDP_SEGMENT");
    let mut out = outgoing(1, 100);
    out.push(&[1; 25], Some(address)).expect("a free slot");
    out.flush(&sender).expect("sent").all_sent().expect("all of it");
    assert_eq!(payloads(&socket, 3).iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
}
