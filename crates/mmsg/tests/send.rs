//! Sending on loopback: whole batches, and errors that belong to one datagram.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{IpAddr, SocketAddr};

use common::{batch, bound, receive_count};
use mmsg::{Control, Family, PushError, SendBatch, Socket};

#[test]
fn a_batch_longer_than_one_call_is_sent_whole_and_in_order() {
    let (socket, address) = bound(Family::V6, |socket| {
        socket.set_receive_buffer(16 << 20).expect("a buffer");
    });
    let buffer = socket.memory_info().expect("memory info").receive_buffer_bytes;
    let sender = Socket::new(Family::V6).expect("a socket");
    let mut outgoing = SendBatch::new(2500, 16).expect("memory");
    for number in 0..2500_u32 {
        outgoing.push(&number.to_be_bytes(), Some(address)).expect("a free slot");
    }
    assert_eq!((outgoing.len(), outgoing.is_full()), (2500, true));
    let report = outgoing.flush(&sender).expect("sent");
    assert_eq!((report.sent, report.datagrams, report.failed), (2500, 2500, 0));
    assert!(outgoing.is_empty() && !outgoing.is_full());
    let received = receive_count(&socket, &mut batch(64, 16, Control::default()), 2500);
    let numbers: Vec<_> = received.iter().map(|one| one.payload.clone()).collect();
    assert!(numbers.iter().eq((0..2500_u32).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>().iter()), "{buffer}");
}

#[test]
fn a_connected_socket_needs_no_address() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = Socket::new(Family::V4).expect("a socket");
    sender.connect(address).expect("connected");
    let mut outgoing = SendBatch::new(2, 2000).expect("memory");
    outgoing.push(b"plain", None).expect("a free slot");
    outgoing.push_segmented(&[3; 1050], 100, None).expect("a free slot");
    assert_eq!(outgoing.flush(&sender).expect("sent").datagrams, 12);
    let received = receive_count(&socket, &mut batch(16, 2000, Control::default()), 12);
    assert_eq!(received[0].payload, b"plain");
    assert_eq!(received[11].payload, [3; 50]);
}

#[test]
fn an_ipv6_socket_sends_to_ipv4_addresses_too() {
    let (socket, address) = bound(Family::V4, |_| {});
    let mut outgoing = SendBatch::new(1, 16).expect("memory");
    outgoing.push(b"four", Some(address)).expect("a free slot");
    assert_eq!(outgoing.flush(&Socket::new(Family::V6).expect("a socket")).expect("sent").sent, 1);
    assert_eq!(receive_count(&socket, &mut batch(1, 16, Control::default()), 1)[0].payload, b"four");
}

#[test]
fn a_datagram_the_kernel_refuses_is_skipped_and_the_others_are_sent() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = Socket::new(Family::V4).expect("a socket");
    let mut outgoing = SendBatch::new(8, 66_000).expect("memory");
    outgoing.push(b"first", Some(address)).expect("a free slot");
    outgoing.push(&[0; 65_508], Some(address)).expect("a free slot");
    outgoing.push(b"second", Some(address)).expect("a free slot");
    outgoing.push(b"to port 0", Some(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a free slot");
    outgoing.push(b"to nobody", None).expect("a free slot");
    outgoing.push_segmented(b"aabb", 2, Some(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a free slot");
    outgoing.push_segmented(b"ccdd", 2, Some(address)).expect("a free slot");
    let report = outgoing.flush(&sender).expect("none of these ends the call");
    assert_eq!((report.sent, report.datagrams, report.failed), (3, 4, 4));
    assert!(!report.segmentation_refused, "port 0 was at fault, not segmentation");
    let failures: Vec<_> = outgoing.failures().iter().map(|failure| (failure.index, failure.errno)).collect();
    let expected = [(1, libc::EMSGSIZE), (3, libc::EINVAL), (4, libc::EDESTADDRREQ), (5, libc::EINVAL)];
    assert_eq!(failures, expected);
    let received = receive_count(&socket, &mut batch(8, 100, Control::default()), 4);
    let payloads: Vec<_> = received.into_iter().map(|one| one.payload).collect();
    assert_eq!(payloads, [b"first".to_vec(), b"second".to_vec(), b"cc".to_vec(), b"dd".to_vec()]);
}

#[test]
fn a_refused_connection_costs_no_datagram() {
    let (gone, address) = bound(Family::V4, |_| {});
    drop(gone);
    let sender = Socket::new(Family::V4).expect("a socket");
    sender.connect(address).expect("connected");
    let mut outgoing = SendBatch::new(16, 16).expect("memory");
    for _ in 0..16 {
        outgoing.push(b"anybody?", None).expect("a free slot");
    }
    let report = outgoing.flush(&sender).expect("not an error of the call");
    assert_eq!((report.sent, report.failed), (16, 0), "each answer belonged to the datagram before");
    outgoing.push(b"anybody?", None).expect("a free slot");
    let report = outgoing.flush(&sender).expect("not an error of the call");
    assert_eq!((report.sent, report.failed, report.calls), (1, 0, 2), "the answer to the one before took a call");
    assert_eq!(outgoing.answers(), [libc::ECONNREFUSED]);
}

#[test]
fn a_train_with_more_bytes_than_the_kernel_takes_is_sent_as_single_datagrams() {
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_gro(true).expect("GRO");
    });
    // 66,000 bytes are more than one message may carry; two datagrams of 33,000 are not.
    let sender = Socket::new(Family::V4).expect("a socket");
    let mut outgoing = SendBatch::new(1, 66_000).expect("memory");
    outgoing.push_segmented(&[5; 66_000], 33_000, Some(address)).expect("a free slot");
    let report = outgoing.flush(&sender).expect("sent");
    assert_eq!((report.sent, report.datagrams, report.failed, report.segmentation_refused), (1, 2, 0, false));
    let mut batch = batch(4, 65_536, Control::new().gro(true));
    let received = receive_count(&socket, &mut batch, 2);
    assert!(received.iter().all(|one| one.payload == [5; 33_000]));
}

#[test]
fn what_cannot_be_queued_is_refused_and_leaves_the_batch_as_it_was() {
    let mut outgoing = SendBatch::new(1, 300).expect("memory");
    assert_eq!(outgoing.push(&[0; 301], None), Err(PushError::TooLong { length: 301, slot_bytes: 300 }));
    assert_eq!(outgoing.push_segmented(b"ab", 0, None), Err(PushError::EmptySegments));
    assert_eq!(outgoing.push_segmented(&[0; 129], 1, None), Err(PushError::TooManySegments { segments: 129 }));
    assert!(outgoing.is_empty());
    outgoing.push(b"", None).expect("an empty datagram is a datagram");
    assert_eq!(outgoing.push(b"", None), Err(PushError::Full));
    outgoing.clear();
    assert!(outgoing.is_empty());
    assert!(SendBatch::new(0, 1).is_err() && SendBatch::new(1, 0).is_err());
}

#[test]
fn a_datagram_leaves_from_the_address_that_was_asked_for() {
    for (sender_family, receiver_family) in [(Family::V4, Family::V4), (Family::V6, Family::V4)] {
        let (socket, to) = bound(receiver_family, |_| {});
        let sender = Socket::new(sender_family).expect("a socket");
        let mut outgoing = SendBatch::new(4, 100).expect("memory");
        let (two, three) = (IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3]));
        outgoing.push_from(b"two", two, to).expect("a free slot");
        outgoing.push_from(b"threethree", three, to).expect("a free slot");
        assert!(outgoing.join(b"in a train"), "equally long, so they travel together");
        outgoing.push(b"as ever", Some(to)).expect("a free slot");
        assert_eq!(outgoing.flush(&sender).expect("sent").datagrams, 4);
        let received = receive_count(&socket, &mut batch(8, 100, Control::default()), 4);
        let sources: Vec<IpAddr> = received.iter().map(|one| one.source.ip()).collect();
        assert_eq!(sources, [two, three, three, IpAddr::from([127, 0, 0, 1])], "{sender_family:?}");
        let port = sender.local_addr().expect("it has one by now").port();
        assert!(received.iter().all(|one| one.source.port() == port), "the port is the socket's");
    }
    let (socket, to) = bound(Family::V6, |_| {});
    let mut outgoing = SendBatch::new(1, 100).expect("memory");
    outgoing.push_from(b"six", to.ip(), to).expect("a free slot");
    assert_eq!(outgoing.flush(&Socket::new(Family::V6).expect("a socket")).expect("sent").sent, 1);
    assert_eq!(receive_count(&socket, &mut batch(1, 16, Control::default()), 1)[0].source.ip(), to.ip());
}

#[test]
fn a_source_that_is_not_this_hosts_fails_its_own_message_and_no_other() {
    for (family, foreign) in [(Family::V4, "192.0.2.77"), (Family::V6, "2001:db8::77")] {
        let (socket, to) = bound(family, |_| {});
        let sender = Socket::new(family).expect("a socket");
        let mut outgoing = SendBatch::new(3, 100).expect("memory");
        outgoing.push(b"before", Some(to)).expect("a free slot");
        outgoing.push_from(b"foreign", foreign.parse().expect("valid"), to).expect("a free slot");
        outgoing.push(b"after", Some(to)).expect("a free slot");
        let report = outgoing.flush(&sender).expect("not an error of the call");
        assert_eq!((report.sent, report.failed, outgoing.failures()[0].index), (2, 1, 1), "{family:?}");
        let received = receive_count(&socket, &mut batch(4, 100, Control::default()), 2);
        assert_eq!((received[0].payload.as_slice(), received[1].payload.as_slice()), (&b"before"[..], &b"after"[..]));
    }
}

#[test]
fn a_whole_socket_can_be_set_to_cut_what_it_sends() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = Socket::new(Family::V4).expect("a socket");
    sender.set_segment_size(10).expect("UDP_SEGMENT");
    let mut outgoing = SendBatch::new(1, 100).expect("memory");
    outgoing.push(&[1; 25], Some(address)).expect("a free slot");
    outgoing.flush(&sender).expect("sent");
    let lengths: Vec<_> =
        receive_count(&socket, &mut batch(4, 100, Control::default()), 3).iter().map(|one| one.length).collect();
    assert_eq!(lengths, [10, 10, 5]);
}
