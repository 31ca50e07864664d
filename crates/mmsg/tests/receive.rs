//! Receiving on loopback: what is sent arrives byte for byte, and everything a datagram says of itself is true.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::{DEADLINE, Kind, Receiving, batch, bound_shared, bytes, wait_until_asleep};
use mmsg::{Control, Engine, Family, SendBatch, Socket, Wait};

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
    for kind in Kind::here() {
        for family in [Family::V4, Family::V6] {
            for gro in [false, true] {
                let (socket, address) = bound_shared(family, |socket| socket.set_gro(gro).expect("GRO"));
                let mut receiving = Receiving::new(kind, &socket, 8, 65_536, Control::new().gro(gro));
                let sender = sender(address);
                let mut random = fastrand::Rng::with_seed(0x517e);
                for size in SIZES {
                    let payload = bytes(&mut random, size);
                    sender.send(&payload).expect("sent");
                    let received = receiving.count(1);
                    assert!(received[0].payload == payload, "{size} bytes on {family:?}, gro {gro}");
                    assert_eq!((received.len(), received[0].length), (1, size));
                    assert_eq!(received[0].source, sender.local_addr().expect("bound"));
                }
            }
        }
    }
}

#[test]
fn a_datagram_longer_than_its_slot_is_truncated_with_its_real_length() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let mut receiving = Receiving::new(kind, &socket, 4, 100, Control::default());
        sender(address).send(&[7; 1472]).expect("sent");
        sender(address).send(&[8; 100]).expect("sent");
        let received = receiving.count(2);
        assert_eq!((received[0].payload.as_slice(), received[0].length), ([7; 100].as_slice(), 1472));
        assert_eq!((received[1].payload.as_slice(), received[1].length), ([8; 100].as_slice(), 100));
    }
}

#[test]
fn an_ipv4_sender_is_shown_as_ipv4_on_a_dual_stack_socket() {
    for kind in Kind::here() {
        let socket = Socket::new(Family::V6).expect("a socket");
        socket.set_packet_info(true).expect("packet info");
        socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        let sender = sender(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        sender.send(b"four").expect("sent");

        let control = Control::new().packet_info(true);
        let mut receiving = Receiving::new(kind, &Arc::new(socket), 4, 100, control);
        assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"));
        assert_eq!(receiving.receive(Wait::No), 1);
        let datagram = receiving.batch.datagrams().next().expect("one");
        assert_eq!(datagram.source(), sender.local_addr().ok());
        assert_eq!(datagram.destination(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(datagram.interface_index().is_some());
    }
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
    for kind in Kind::here() {
        for family in [Family::V4, Family::V6] {
            let (socket, address) = bound_shared(family, |socket| {
                socket.set_packet_info(true).expect("packet info");
                socket.set_timestamps(true).expect("timestamps");
                socket.set_drop_overflow(true).expect("drop overflow");
                socket.set_gro(true).expect("GRO");
                socket.set_receive_buffer(8192).expect("a small buffer");
            });
            let before = SystemTime::now();
            let control = Control::new().packet_info(true).timestamps(true).gro(true).drop_overflow(true);
            let mut receiving = Receiving::new(kind, &socket, 64, 1, control);
            overflow(&socket, address);
            while receiving.receive(Wait::No) > 0 {}

            let mut train = SendBatch::new(1, 1000).expect("memory");
            train.push_segmented(&[1; 950], 100, Some(address)).expect("fits");
            train.flush(&Socket::new(family).expect("a socket")).expect("sent");
            assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"));
            receiving.receive(Wait::No);
            assert_eq!((receiving.batch.summary().datagrams, receiving.batch.summary().unsplit), (10, 0));
            for datagram in receiving.batch.datagrams() {
                assert_eq!(datagram.destination(), Some(address.ip()));
                assert!(datagram.interface_index().is_some());
                let arrival = datagram.arrival().expect("asked for");
                assert!(arrival + Duration::from_secs(1) > before, "{arrival:?} is before the test began, {before:?}");
                let since_epoch = arrival.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
                assert_eq!(datagram.arrival_since_epoch(), Some(since_epoch));
                assert_eq!(datagram.drop_overflow(), Some(socket.memory_info().expect("memory info").drops));
            }
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
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |socket| {
            socket.set_receive_buffer(16_384).expect("a small buffer");
        });
        let sender = sender(address);
        for _ in 0..1000 {
            sender.send(&[0; 32]).expect("sent");
        }
        let info = socket.memory_info().expect("memory info");
        assert!(info.receive_used_bytes > 0 && info.receive_buffer_bytes >= 16_384, "{info:?}");
        let mut receiving = Receiving::new(kind, &socket, 64, 64, Control::default());
        let mut received = 0;
        loop {
            match receiving.receive(Wait::No) {
                0 => break,
                count => received += count,
            }
        }
        assert!(info.drops > 0, "nothing was dropped, so nothing was tested");
        assert_eq!(received + info.drops as usize, 1000);
    }
}

#[test]
fn a_socket_that_refuses_arrivals_counts_them_and_keeps_what_it_has() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let sender = sender(address);
        for _ in 0..5 {
            sender.send(b"before").expect("sent");
        }
        socket.refuse_arrivals().expect("a filter");
        for _ in 0..7 {
            sender.send(b"after").expect("sent");
        }
        let mut receiving = Receiving::new(kind, &socket, 64, 64, Control::default());
        assert_eq!(receiving.receive(Wait::No), 5);
        assert!(receiving.batch.datagrams().all(|datagram| datagram.payload() == b"before"));
        assert_eq!(receiving.receive(Wait::No), 0);
        assert_eq!(socket.memory_info().expect("memory info").drops, 7);
    }
}

#[test]
fn an_interrupt_wakes_a_blocked_receive_and_every_later_one() {
    for kind in Kind::here() {
        for gro in [false, true] {
            let (socket, _) = bound_shared(Family::V4, |_| {});
            let control = Control::new().gro(gro);
            let name = if gro { "blocked-gro" } else { "blocked-plain" };
            std::thread::scope(|scope| {
                let receive = || {
                    let mut receiving = Receiving::new(kind, &socket, 4, 64, control);
                    let first = receiving.receive(Wait::Block);
                    let second = receiving.receive(Wait::Block);
                    (first, second, *receiving.batch.summary())
                };
                let blocked = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, receive);
                wait_until_asleep(name);
                socket.interrupt().expect("interrupt");
                let (first, second, summary) = blocked.expect("a thread").join().expect("no panic");
                assert_eq!((first, second, summary.datagrams), (0, 0, 0), "an empty answer is no datagram");
            });
            let mut receiving = Receiving::new(kind, &socket, 4, 64, control);
            assert_eq!(receiving.receive(Wait::Block), 0);
            assert_eq!(receiving.receive(Wait::No), 0);
            assert!(receiving.batch.is_empty());
            socket.interrupt().expect("again");
        }
    }
}

#[test]
fn what_is_queued_is_read_before_an_interrupt_shows() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let sender = sender(address);
        sender.send(b"queued").expect("sent");
        socket.interrupt().expect("interrupt");
        let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
        assert_eq!(receiving.receive(Wait::Block), 1);
        sender.send(b"").expect("a datagram may come later still, and be empty");
        assert_eq!(receiving.receive(Wait::Block), 1);
        assert_eq!(receiving.batch.datagrams().next().expect("one").payload(), b"");
    }
}

#[test]
fn receiving_more_appends_and_a_full_batch_does_not_wait() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let sender = sender(address);
        let mut receiving = Receiving::new(kind, &socket, 2, 64, Control::default());
        sender.send(b"a").expect("sent");
        assert_eq!(receiving.receive(Wait::Block), 1);
        sender.send(b"b").expect("sent");
        assert_eq!(receiving.receive_more(Wait::Block), 1);
        assert!(receiving.batch.is_full());
        assert_eq!(receiving.receive_more(Wait::Block), 0);
        let payloads: Vec<_> = receiving.batch.datagrams().map(|datagram| datagram.payload().to_vec()).collect();
        assert_eq!(payloads, [b"a", b"b"]);
    }
}

#[test]
fn an_empty_socket_is_not_readable_and_a_receive_without_waiting_returns_nothing() {
    for kind in Kind::here() {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let mut receiving = Receiving::new(kind, &socket, 2, 64, Control::default());
        for _ in 0..2 {
            assert!(!receiving.engine.wait_readable(Duration::from_millis(1)).expect("poll"));
            assert_eq!(receiving.receive(Wait::No), 0);
        }
    }
}

#[test]
fn a_train_without_room_for_its_control_message_is_unsplit_and_never_merged() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |socket| {
            socket.set_gro(true).expect("GRO");
            socket.set_timestamps(true).expect("timestamps");
        });
        // Room for the segment size only; the time, which comes first, takes it.
        let mut receiving = Receiving::new(kind, &socket, 4, 65_536, Control::new().gro(true));
        let mut train = SendBatch::new(1, 10_000).expect("memory");
        train.push_segmented(&[1; 10_000], 1000, Some(address)).expect("fits");
        train.flush(&Socket::new(Family::V4).expect("a socket")).expect("sent");
        assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"));
        assert_eq!(receiving.receive(Wait::No), 1);
        let summary = receiving.batch.summary();
        assert_eq!((summary.unsplit, summary.datagrams, summary.bytes), (1, 0, 0), "{kind:?}");
        assert_eq!(receiving.batch.datagrams().count(), 0);
    }
}

#[test]
fn a_batch_that_cannot_split_trains_refuses_a_socket_that_makes_them() {
    let (socket, _) = bound_shared(Family::V4, |socket| socket.set_gro(true).expect("GRO"));
    let mut plain = batch(2, 64, Control::default());
    let error = plain.receive(&socket, Wait::No).expect_err("refused");
    assert!(error.to_string().contains("control.gro"), "{error}");
    assert!(socket.set_gro(false).is_err(), "and it cannot be talked out of it");
    if Kind::here().len() > 1 {
        let error = Engine::uring(socket, vec![plain], 0).expect_err("refused");
        assert!(error.to_string().contains("control.gro"), "{error}");
    }
}
