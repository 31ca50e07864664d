//! Receiving on loopback: what is sent arrives byte for byte, and everything a datagram says of itself is true.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mmsg::{Control, Engine, Family, SendBatch, Socket, Wait};

use crate::common::{
    DEADLINE, Kind, Received, Receiving, batch, bound_shared, bytes, drops, send, sender, unbound, wait_until_asleep,
};

#[test]
fn every_size_arrives_byte_for_byte_on_both_families() {
    for kind in Kind::here() {
        for (family, gro) in [(Family::V4, false), (Family::V4, true), (Family::V6, false), (Family::V6, true)] {
            let (socket, address) = bound_shared(family, |socket| socket.set_gro(gro).expect("GRO"));
            let mut receiving = Receiving::new(kind, &socket, 8, 65_536, Control::new().gro(gro));
            let sender = sender(family);
            let mut random = fastrand::Rng::with_seed(0x517e);
            for size in [0, 1, 1472, 9000, 65_507] {
                let payload = bytes(&mut random, size);
                sender.send_to(&payload, address).expect("sent");
                let source = sender.local_addr().expect("bound");
                let expected = [Received { payload, length: size, source }];
                assert!(receiving.collect(1, Received::of) == expected, "{size} bytes on {family:?}, gro {gro}");
            }
        }
    }
}

#[test]
fn a_datagram_longer_than_its_slot_is_truncated_with_its_real_length() {
    for kind in Kind::here() {
        let (mut receiving, _, address) = Receiving::bound(kind, 4, 100);
        send(address, [vec![7; 1472], vec![8; 100]]);
        let received = receiving.collect(2, |datagram| (datagram.payload().to_vec(), datagram.length()));
        assert_eq!(received, [(vec![7; 100], 1472), (vec![8; 100], 100)]);
    }
}

#[test]
fn an_ipv4_sender_is_shown_as_ipv4_on_a_dual_stack_socket() {
    for kind in Kind::here() {
        let socket = unbound(Family::V6);
        socket.set_packet_info(true).expect("packet info");
        socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
        let sender = sender(Family::V4);
        let port = socket.local_addr().expect("bound").port();
        sender.send_to(b"four", (Ipv4Addr::LOCALHOST, port)).expect("sent");
        let mut receiving = Receiving::new(kind, &Arc::new(socket), 4, 100, Control::new().packet_info(true));
        let seen = receiving
            .collect(1, |datagram| (datagram.source(), datagram.destination(), datagram.interface_index().is_some()));
        assert_eq!(seen, [(sender.local_addr().ok(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), true)]);
    }
}

#[test]
fn an_ipv4_address_can_be_bound_and_connected_on_an_ipv6_socket() {
    let socket = unbound(Family::V6);
    socket.bind("127.0.0.1:0".parse().expect("valid")).expect("a free port");
    let address = socket.local_addr().expect("bound");
    assert!(address.is_ipv4(), "{address}");
    socket.connect(sender(Family::V4).local_addr().expect("bound")).expect("connected");
}

#[test]
fn a_v6_only_socket_leaves_the_ipv4_port_to_others() {
    let socket = unbound(Family::V6);
    socket.set_v6_only(true).expect("before bind");
    socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
    let error = socket.connect("127.0.0.1:9".parse().expect("valid")).expect_err("no IPv4 here");
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable);
}

#[test]
fn all_control_messages_fit_at_once_also_beside_a_train() {
    for kind in Kind::here() {
        for family in [Family::V4, Family::V6] {
            let (receiver, address) = bound_shared(family, |socket| {
                socket.set_packet_info(true).expect("packet info");
                socket.set_timestamps(true).expect("timestamps");
                socket.set_drop_overflow(true).expect("drop overflow");
                socket.set_gro(true).expect("GRO");
                socket.set_receive_buffer(8192).expect("a small buffer");
            });
            let before = SystemTime::now();
            let control = Control::new().packet_info(true).timestamps(true).gro(true).drop_overflow(true);
            let mut receiving = Receiving::new(kind, &receiver, 64, 1, control);
            overflow(&receiver, address);
            while receiving.receive(Wait::No) > 0 {}

            let mut train = SendBatch::new(1, 1000).expect("memory");
            train.push_segmented(&[1; 950], 100, Some(address)).expect("fits");
            train.flush(&unbound(family)).expect("sent").all_sent().expect("all of it");
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
                assert_eq!(datagram.drop_overflow(), Some(drops(&receiver)));
            }
        }
    }
}

/// Sends until the socket has dropped something.
fn overflow(socket: &Socket, address: SocketAddr) {
    let fits = (0..10_000).take_while(|_| drops(socket) == 0).inspect(|_| send(address, [[0; 64]])).count();
    assert!(fits < 10_000, "10,000 datagrams fitted into 8 KiB");
}

#[test]
fn drops_are_counted_exactly_by_memory_info() {
    for kind in Kind::here() {
        let (socket, address) =
            bound_shared(Family::V4, |socket| assert!(socket.set_receive_buffer(16_384).is_ok(), "a small buffer"));
        send(address, [[0; 32]; 1000]);
        let info = socket.memory_info().expect("memory info");
        assert!(info.receive_used_bytes > 0 && info.receive_buffer_bytes >= 16_384, "{info:?}");
        let mut receiving = Receiving::new(kind, &socket, 64, 64, Control::default());
        let received: usize =
            std::iter::repeat_with(|| receiving.receive(Wait::No)).take_while(|count| *count > 0).sum();
        assert!(info.drops > 0, "nothing was dropped, so nothing was tested");
        assert_eq!(received + info.drops as usize, 1000);
    }
}

#[test]
fn a_socket_that_refuses_arrivals_counts_them_and_keeps_what_it_has() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        send(address, [b"before"; 5]);
        socket.refuse_arrivals().expect("a filter");
        send(address, [b"after"; 7]);
        let mut receiving = Receiving::new(kind, &socket, 64, 64, Control::default());
        assert_eq!(receiving.receive(Wait::No), 5);
        assert_eq!(receiving.payloads(), [b"before"; 5]);
        assert_eq!((receiving.receive(Wait::No), drops(&socket)), (0, 7));
    }
}

#[test]
fn an_interrupt_wakes_a_blocked_receive_and_every_later_one() {
    for kind in Kind::here() {
        for (gro, name) in [(true, "blocked-gro"), (false, "blocked-plain")] {
            let (socket, _) = bound_shared(Family::V4, |_| {});
            let control = Control::new().gro(gro);
            std::thread::scope(|scope| {
                let receive = || {
                    let mut receiving = Receiving::new(kind, &socket, 4, 64, control);
                    let calls = [receiving.receive(Wait::Block), receiving.receive(Wait::Block)];
                    (calls, receiving.batch.summary().datagrams)
                };
                let blocked = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, receive);
                wait_until_asleep(name);
                socket.interrupt().expect("interrupt");
                let outcome = blocked.expect("a thread").join().expect("no panic");
                assert_eq!(outcome, ([0, 0], 0), "an empty answer is no datagram");
            });
            let mut receiving = Receiving::new(kind, &socket, 4, 64, control);
            assert_eq!((receiving.receive(Wait::Block), receiving.receive(Wait::No)), (0, 0));
            assert!(receiving.batch.is_empty());
            socket.interrupt().expect("again");
        }
    }
}

#[test]
fn what_is_queued_is_read_before_an_interrupt_shows() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        send(address, [b"queued"]);
        socket.interrupt().expect("interrupt");
        let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
        assert_eq!(receiving.receive(Wait::Block), 1);
        // A datagram may come later still, and be empty.
        send(address, [b""]);
        assert_eq!((receiving.receive(Wait::Block), receiving.payloads()), (1, vec![b"".to_vec()]));
    }
}

#[test]
fn receiving_more_appends_and_a_full_batch_does_not_wait() {
    for kind in Kind::here() {
        let (mut receiving, _, address) = Receiving::bound(kind, 2, 64);
        send(address, [b"a"]);
        assert_eq!(receiving.receive(Wait::Block), 1);
        send(address, [b"b"]);
        for count in [1, 0] {
            let more = receiving.engine.receive_more(&mut receiving.batch, Wait::Block);
            assert_eq!((more.expect("receive"), receiving.batch.is_full()), (count, true));
        }
        assert_eq!(receiving.payloads(), [b"a", b"b"]);
    }
}

#[test]
fn an_empty_socket_is_not_readable_and_a_receive_without_waiting_returns_nothing() {
    for kind in Kind::here() {
        let (mut receiving, ..) = Receiving::bound(kind, 2, 64);
        for _ in 0..2 {
            assert!(!receiving.engine.wait_readable(Duration::from_millis(1)).expect("poll"));
            assert_eq!(receiving.receive(Wait::No), 0);
        }
    }
}

#[test]
fn a_train_without_room_for_its_control_message_is_unsplit_and_never_merged() {
    for kind in Kind::here() {
        let (receiver, address) = bound_shared(Family::V4, |socket| {
            socket.set_gro(true).expect("GRO");
            socket.set_timestamps(true).expect("timestamps");
        });
        // Room for the segment size only; the time, which comes first, takes it.
        let mut receiving = Receiving::new(kind, &receiver, 4, 65_536, Control::new().gro(true));
        let mut train = SendBatch::new(1, 10_000).expect("memory");
        train.push_segmented(&[1; 10_000], 1000, Some(address)).expect("fits");
        train.flush(&unbound(Family::V4)).expect("sent").all_sent().expect("all of it");
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
    let mut errors = vec![plain.receive(&socket, Wait::No).expect_err("refused")];
    assert!(socket.set_gro(false).is_err(), "trains may be queued already");
    if !Kind::rings().is_empty() {
        errors.push(Engine::uring(socket, vec![plain], 0).expect_err("refused"));
    }
    assert!(errors.iter().all(|error| error.to_string().contains("control.gro")), "{errors:?}");
}
