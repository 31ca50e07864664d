//! Receiving on loopback: what is sent arrives byte for byte, and everything a datagram says of itself is true.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use common::{DEADLINE, Noise, batch, bound, receive_count, wait_until_asleep};
use mmsg::{Control, Family, SendBatch, Socket, Wait};

const SIZES: [usize; 5] = [0, 1, 1472, 9000, 65_507];

/// A sender made by the standard library, so that these tests do not trust our own sending.
fn sender(to: SocketAddr) -> UdpSocket {
    let local = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let sender = UdpSocket::bind(local).expect("loopback has free ports");
    sender.connect(to).expect("loopback is reachable");
    sender
}

#[test]
fn every_size_arrives_byte_for_byte_on_both_families() {
    for family in [Family::V4, Family::V6] {
        for gro in [false, true] {
            let (socket, address) = bound(family, |socket| socket.set_gro(gro).expect("GRO"));
            let mut batch = batch(8, 65_536, Control { gro, ..Control::default() });
            let sender = sender(address);
            let mut noise = Noise::new(0x517e);
            for size in SIZES {
                let payload = noise.bytes(size);
                sender.send(&payload).expect("sent");
                let received = receive_count(&socket, &mut batch, 1);
                assert!(received[0].payload == payload, "{size} bytes on {family:?}, gro {gro}");
                assert_eq!((received.len(), received[0].length), (1, size));
                assert_eq!(received[0].source, sender.local_addr().expect("bound"));
            }
        }
    }
}

#[test]
fn a_datagram_longer_than_its_slot_is_truncated_with_its_real_length() {
    let (socket, address) = bound(Family::V4, |_| {});
    let mut batch = batch(4, 100, Control::default());
    sender(address).send(&[7; 1472]).expect("sent");
    sender(address).send(&[8; 100]).expect("sent");
    let received = receive_count(&socket, &mut batch, 2);
    assert_eq!((received[0].payload.as_slice(), received[0].length), ([7; 100].as_slice(), 1472));
    assert_eq!((received[1].payload.as_slice(), received[1].length), ([8; 100].as_slice(), 100));
}

#[test]
fn an_ipv4_sender_is_shown_as_ipv4_on_a_dual_stack_socket() {
    let socket = Socket::new(Family::V6).expect("a socket");
    socket.set_packet_info(true).expect("packet info");
    socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
    let port = socket.local_addr().expect("bound").port();
    let sender = sender(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    sender.send(b"four").expect("sent");

    let mut batch = batch(4, 100, Control { packet_info: true, ..Control::default() });
    assert!(socket.wait_readable(DEADLINE).expect("poll"));
    assert_eq!(batch.receive(&socket, Wait::No).expect("receive"), 1);
    let datagram = batch.datagrams().next().expect("one");
    assert_eq!(datagram.source(), sender.local_addr().expect("bound"));
    assert_eq!(datagram.destination(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert!(datagram.interface_index().is_some());
}

#[test]
fn an_ipv4_address_can_be_bound_and_connected_on_an_ipv6_socket() {
    let socket = Socket::new(Family::V6).expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("valid")).expect("a free port");
    let address = socket.local_addr().expect("bound");
    assert!(address.is_ipv4(), "{address}");
    socket.connect(sender(address).local_addr().expect("bound")).expect("connected");
}

#[test]
fn a_v6_only_socket_leaves_the_ipv4_port_to_others() {
    let socket = Socket::new(Family::V6).expect("a socket");
    socket.set_v6_only(true).expect("before bind");
    socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
    let error = socket.connect("127.0.0.1:9".parse().expect("valid")).expect_err("no IPv4 here");
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable);
}

#[test]
fn all_control_messages_fit_at_once_also_beside_a_train() {
    for family in [Family::V4, Family::V6] {
        let (socket, address) = bound(family, |socket| {
            socket.set_packet_info(true).expect("packet info");
            socket.set_timestamps(true).expect("timestamps");
            socket.set_drop_overflow(true).expect("drop overflow");
            socket.set_gro(true).expect("GRO");
            socket.set_receive_buffer(8192).expect("a small buffer");
        });
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let control = Control { packet_info: true, timestamps: true, gro: true, drop_overflow: true };
        let mut batch = batch(64, 1, control);
        overflow(&socket, address);
        while batch.receive(&socket, Wait::No).expect("receive") > 0 {}

        let mut train = SendBatch::new(1, 1000).expect("memory");
        train.push_segmented(&[1; 950], 100, Some(address)).expect("fits");
        train.flush(&Socket::new(family).expect("a socket")).expect("sent");
        assert!(socket.wait_readable(DEADLINE).expect("poll"));
        batch.receive(&socket, Wait::No).expect("receive");
        assert_eq!((batch.summary().datagrams, batch.summary().unsplit), (10, 0));
        for datagram in batch.datagrams() {
            assert_eq!(datagram.destination(), Some(address.ip()));
            assert!(datagram.interface_index().is_some());
            let arrival = datagram.arrival().expect("asked for");
            assert!(arrival + Duration::from_secs(1) > before, "{arrival:?} is before the test began, {before:?}");
            assert_eq!(datagram.drop_overflow(), Some(socket.memory_info().expect("memory info").drops));
        }
    }
}

/// Sends until the socket has dropped something.
fn overflow(socket: &Socket, address: SocketAddr) {
    let sender = sender(address);
    for _ in 0..10_000 {
        sender.send(&[0; 64]).expect("sent");
        if socket.memory_info().expect("memory info").drops > 0 {
            return;
        }
    }
    panic!("10,000 datagrams fitted into 8 KiB");
}

#[test]
fn drops_are_counted_exactly_by_memory_info() {
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_receive_buffer(16_384).expect("a small buffer");
    });
    let sender = sender(address);
    for _ in 0..1000 {
        sender.send(&[0; 32]).expect("sent");
    }
    let info = socket.memory_info().expect("memory info");
    assert!(info.receive_used_bytes > 0 && info.receive_buffer_bytes >= 16_384, "{info:?}");
    let mut batch = batch(64, 64, Control::default());
    let mut received = 0;
    loop {
        match batch.receive(&socket, Wait::No).expect("receive") {
            0 => break,
            count => received += count,
        }
    }
    assert!(info.drops > 0, "nothing was dropped, so nothing was tested");
    assert_eq!(received + info.drops as usize, 1000);
}

#[test]
fn a_socket_that_refuses_arrivals_counts_them_and_keeps_what_it_has() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = sender(address);
    for _ in 0..5 {
        sender.send(b"before").expect("sent");
    }
    socket.refuse_arrivals().expect("a filter");
    for _ in 0..7 {
        sender.send(b"after").expect("sent");
    }
    let mut batch = batch(64, 64, Control::default());
    assert_eq!(batch.receive(&socket, Wait::No).expect("receive"), 5);
    assert!(batch.datagrams().all(|datagram| datagram.payload() == b"before"));
    assert_eq!(batch.receive(&socket, Wait::No).expect("receive"), 0);
    assert_eq!(socket.memory_info().expect("memory info").drops, 7);
}

#[test]
fn an_interrupt_wakes_a_blocked_receive_and_every_later_one() {
    for gro in [false, true] {
        let (socket, _) = bound(Family::V4, |_| {});
        let control = Control { gro, ..Control::default() };
        let name = if gro { "blocked-gro" } else { "blocked-plain" };
        std::thread::scope(|scope| {
            let receive = || {
                let mut batch = batch(4, 64, control);
                let first = batch.receive(&socket, Wait::Block).expect("receive");
                let second = batch.receive(&socket, Wait::Block).expect("receive");
                (first, second, *batch.summary())
            };
            let blocked = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, receive);
            wait_until_asleep(name);
            socket.interrupt().expect("interrupt");
            let (first, second, summary) = blocked.expect("a thread").join().expect("no panic");
            assert_eq!((first, second, summary.datagrams), (0, 0, 0), "an empty answer is no datagram");
        });
        let mut batch = batch(4, 64, control);
        assert_eq!(batch.receive(&socket, Wait::Block).expect("receive"), 0);
        assert_eq!(batch.receive(&socket, Wait::No).expect("receive"), 0);
        assert!(batch.is_empty());
        socket.interrupt().expect("again");
    }
}

#[test]
fn what_is_queued_is_read_before_an_interrupt_shows() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = sender(address);
    sender.send(b"queued").expect("sent");
    socket.interrupt().expect("interrupt");
    let mut batch = batch(4, 64, Control::default());
    assert_eq!(batch.receive(&socket, Wait::Block).expect("receive"), 1);
    sender.send(b"").expect("a datagram may come later still, and be empty");
    assert_eq!(batch.receive(&socket, Wait::Block).expect("receive"), 1);
    assert_eq!(batch.datagrams().next().expect("one").payload(), b"");
}

#[test]
fn receiving_more_appends_and_a_full_batch_does_not_wait() {
    let (socket, address) = bound(Family::V4, |_| {});
    let sender = sender(address);
    let mut batch = batch(2, 64, Control::default());
    sender.send(b"a").expect("sent");
    assert_eq!(batch.receive(&socket, Wait::Block).expect("receive"), 1);
    sender.send(b"b").expect("sent");
    assert_eq!(batch.receive_more(&socket, Wait::Block).expect("receive"), 1);
    assert!(batch.is_full());
    assert_eq!(batch.receive_more(&socket, Wait::Block).expect("no wait"), 0);
    let payloads: Vec<_> = batch.datagrams().map(|datagram| datagram.payload().to_vec()).collect();
    assert_eq!(payloads, [b"a", b"b"]);
}

#[test]
fn an_empty_socket_is_not_readable_and_a_receive_without_waiting_returns_nothing() {
    let (socket, _) = bound(Family::V4, |_| {});
    assert!(!socket.wait_readable(Duration::from_millis(1)).expect("poll"));
    assert_eq!(batch(2, 64, Control::default()).receive(&socket, Wait::No).expect("receive"), 0);
}

#[test]
fn a_train_without_room_for_its_control_message_is_unsplit_and_never_merged() {
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_gro(true).expect("GRO");
        socket.set_timestamps(true).expect("timestamps");
    });
    // Room for the segment size only; the time, which comes first, takes it.
    let mut batch = batch(4, 1, Control { gro: true, ..Control::default() });
    let mut train = SendBatch::new(1, 10_000).expect("memory");
    train.push_segmented(&[1; 10_000], 1000, Some(address)).expect("fits");
    train.flush(&Socket::new(Family::V4).expect("a socket")).expect("sent");
    assert!(socket.wait_readable(DEADLINE).expect("poll"));
    assert_eq!(batch.receive(&socket, Wait::No).expect("receive"), 1);
    assert_eq!((batch.summary().unsplit, batch.summary().datagrams, batch.summary().bytes), (1, 0, 0));
    assert_eq!(batch.datagrams().count(), 0);
}

#[test]
fn a_batch_that_cannot_split_trains_refuses_a_socket_that_makes_them() {
    let (socket, _) = bound(Family::V4, |socket| socket.set_gro(true).expect("GRO"));
    let mut batch = batch(2, 64, Control::default());
    let error = batch.receive(&socket, Wait::No).expect_err("refused");
    assert!(error.to_string().contains("control.gro"), "{error}");
    assert!(socket.set_gro(false).is_err(), "and it cannot be talked out of it");
}
