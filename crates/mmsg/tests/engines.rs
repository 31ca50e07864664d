//! The engines against each other and at their edges: whatever is sent, both give the same datagrams in the same order,
//! nothing stays behind at the end, and a ring may be dropped at any moment.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use common::{DEADLINE, Kind, Receiving, bound_shared, bytes, loopback, wait_until_asleep};
use mmsg::{Control, Family, SendBatch, Socket, Wait};

const EVERYTHING: Control = Control::new()
    .packet_info(true)
    .timestamps(true)
    .drop_overflow(true)
    .traffic_class(true)
    .hop_limit(true)
    .hardware_timestamps(true);

fn with_everything(socket: &Socket) {
    socket.set_packet_info(true).expect("packet info");
    socket.set_timestamps(true).expect("timestamps");
    socket.set_drop_overflow(true).expect("drop overflow");
    socket.set_report_traffic_class(true).expect("traffic class");
    socket.set_report_hop_limit(true).expect("hop limit");
    socket.set_hardware_timestamps(true).expect("hardware timestamps");
    socket.set_receive_buffer(4 << 20).expect("a buffer");
}

/// What can be compared of a datagram between two sockets.
type Seen = (Vec<u8>, usize, SocketAddr, Option<std::net::IpAddr>, Option<u32>, bool, [Option<u8>; 2]);

fn seen(receiving: &Receiving) -> Vec<Seen> {
    let one = |datagram: mmsg::Datagram<'_>| {
        let arrived = datagram.arrival().is_some();
        let source = datagram.source().expect("every datagram has a sender");
        let (to, interface) = (datagram.destination(), datagram.interface_index());
        let header = [datagram.traffic_class(), datagram.hop_limit()];
        (datagram.payload().to_vec(), datagram.length(), source, to, interface, arrived, header)
    };
    receiving.batch.datagrams().map(one).collect()
}

fn receive_seen(receiving: &mut Receiving, count: usize) -> Vec<Seen> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        let left = DEADLINE.saturating_sub(start.elapsed());
        assert!(receiving.engine.wait_readable(left).expect("poll"), "nothing more came after {}", all.len());
        receiving.receive(Wait::No);
        all.extend(seen(receiving));
    }
    all
}

#[test]
fn both_engines_give_identical_datagrams_of_any_size_on_both_families() {
    let mut random = fastrand::Rng::with_seed(0xd1ff);
    for kind in Kind::here().into_iter().filter(|kind| *kind != Kind::Recvmmsg) {
        for family in [Family::V4, Family::V6] {
            for slot_bytes in [100, 2048, 65_536] {
                let (one, to_one) = bound_shared(family, with_everything);
                let (other, to_other) = bound_shared(family, with_everything);
                let mut one = Receiving::new(Kind::Recvmmsg, &one, 16, slot_bytes, EVERYTHING);
                let mut other = Receiving::new(kind, &other, 16, slot_bytes, EVERYTHING);
                let sender = UdpSocket::bind(loopback(family)).expect("a free port");
                for _ in 0..40 {
                    let count = random.usize(1..=24);
                    for _ in 0..count {
                        let longest = [0, 1, 99, 1472, 9000, 65_507][random.usize(0..=5)];
                        let size = random.usize(0..=longest);
                        let payload = bytes(&mut random, size);
                        sender.send_to(&payload, to_one).expect("sent");
                        sender.send_to(&payload, to_other).expect("sent");
                    }
                    let (one, other) = (receive_seen(&mut one, count), receive_seen(&mut other, count));
                    assert!(one == other, "{kind:?}, {family:?}, slots of {slot_bytes}");
                    assert!(
                        one.iter().all(|seen| seen.5 && seen.4.is_some() && !seen.6.contains(&None)),
                        "all was asked for and is there"
                    );
                }
            }
        }
    }
}

#[test]
fn message_by_message_the_same_comes_in_the_same_order_also_from_the_end_of_a_socket() {
    let mut random = fastrand::Rng::with_seed(0xeac4);
    for gro in [false, true] {
        let control = EVERYTHING.gro(gro);
        let prepare = |socket: &Socket| {
            with_everything(socket);
            if gro {
                socket.set_gro(true).expect("GRO");
            }
        };
        for kind in Kind::here() {
            let (socket, to) = bound_shared(Family::V4, prepare);
            let mut receiving = Receiving::new(kind, &socket, 16, 65_536, control);
            let sender = Socket::new(Family::V4).expect("a socket");
            sender.connect(to).expect("connected");
            let mut sent = Vec::new();
            let mut outgoing = SendBatch::new(8, 65_507).expect("memory");
            for _ in 0..40 {
                let (size, segments) = (random.usize(1..=900), random.usize(1..=20));
                let train = bytes(&mut random, size * segments);
                outgoing.push_segmented(&train, size as u16, None).expect("queued");
                outgoing.flush(&sender).expect("sent");
                sent.extend(train.chunks(size).map(<[u8]>::to_vec));
            }
            socket.refuse_arrivals().expect("a filter");
            socket.interrupt().expect("interrupted");
            receiving.engine.finish();
            let mut got: Vec<Vec<u8>> = Vec::new();
            let mut empty_looks = 0;
            while empty_looks < 2 {
                receiving.batch.clear();
                match receiving.engine.receive_each(&mut receiving.batch).expect("received") {
                    0 => empty_looks += 1,
                    _ => got.extend(receiving.batch.datagrams().map(|datagram| datagram.payload().to_vec())),
                }
            }
            assert!(got == sent, "{kind:?}, GRO {gro}: {} of {}", got.len(), sent.len());
        }
    }
}

#[test]
fn a_dual_stack_socket_shows_ipv4_senders_as_ipv4_with_either_engine() {
    for kind in Kind::here() {
        let socket = Socket::new(Family::V6).expect("a socket");
        socket.set_packet_info(true).expect("packet info");
        socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        let control = Control::new().packet_info(true);
        let mut receiving = Receiving::new(kind, &Arc::new(socket), 8, 64, control);
        for local in ["127.0.0.1", "::1"] {
            let sender = UdpSocket::bind((local, 0)).expect("a free port");
            sender.send_to(b"hello", (local, port)).expect("sent");
            let seen = receive_seen(&mut receiving, 1);
            assert_eq!(seen[0].2, sender.local_addr().expect("bound"), "{kind:?}");
            assert_eq!(seen[0].3, Some(sender.local_addr().expect("bound").ip()), "{kind:?}");
        }
    }
}

#[test]
fn order_is_kept_and_nothing_is_lost_across_many_rounds_of_a_small_ring() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |socket| {
            socket.set_receive_buffer(4 << 20).expect("a buffer");
        });
        let mut receiving = Receiving::new(kind, &socket, 3, 64, Control::default());
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let (mut sent, mut received, mut random) = (0_u32, 0_u32, fastrand::Rng::with_seed(7));
        while sent < 50_000 {
            for _ in 0..random.usize(1..=300) {
                // Every seventh is empty, which ends the receive of a ring.
                let payload = sent.to_ne_bytes();
                let payload = if sent.is_multiple_of(7) { &payload[..0] } else { &payload[..] };
                sender.send_to(payload, address).expect("sent");
                sent += 1;
            }
            while received < sent {
                assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"), "{kind:?}: {received} of {sent}");
                let gather = Wait::Gather(Duration::from_micros(100));
                receiving.receive([Wait::No, Wait::Block, gather][random.usize(0..=2)]);
                for datagram in receiving.batch.datagrams() {
                    match <[u8; 4]>::try_from(datagram.payload()) {
                        Ok(number) => assert_eq!(u32::from_ne_bytes(number), received, "{kind:?}"),
                        Err(_) => assert!(datagram.payload().is_empty() && received.is_multiple_of(7), "{kind:?}"),
                    }
                    received += 1;
                }
            }
        }
        assert_eq!(socket.memory_info().expect("memory info").drops, 0);
        assert_eq!(receiving.receive(Wait::No), 0, "{kind:?}: nothing came twice");
    }
}

#[test]
fn what_gathers_is_received_together_and_a_lone_datagram_is_not_waited_with_for_ever() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let gather = Wait::Gather(Duration::from_millis(50));
        // Of eleven, three are left over by a full batch: nothing new comes that would end a wait for more.
        for (sent, batches) in [(1, &[1][..]), (5, &[5]), (8, &[8]), (11, &[8, 3])] {
            for _ in 0..sent {
                sender.send_to(b"x", address).expect("sent");
            }
            for &count in batches {
                assert_eq!(receiving.receive(gather), count, "{kind:?}");
            }
        }
    }
}

#[test]
fn a_wait_in_which_nothing_gathers_goes_on_until_something_comes() {
    for (number, kind) in Kind::here().into_iter().enumerate() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let name = format!("gather-{number}");
        std::thread::scope(|scope| {
            let waiting = std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, || {
                let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
                receiving.receive(Wait::Gather(Duration::from_micros(1)))
            });
            wait_until_asleep(&name);
            UdpSocket::bind("127.0.0.1:0").and_then(|sender| sender.send_to(b"late", address)).expect("sent");
            assert_eq!(waiting.expect("a thread").join().expect("no panic"), 1, "{kind:?}");
        });
    }
}

/// The numbers that a receiver of its own thread gets until the socket has ended; says when it has got some.
fn receive_to_the_end(kind: Kind, socket: &Arc<Socket>, under_way: &Sender<()>) -> Vec<u64> {
    let mut receiving = Receiving::new(kind, socket, 16, 64, Control::default());
    let (mut numbers, mut empty_looks) = (Vec::new(), 0);
    while empty_looks < 2 {
        let wait = if empty_looks == 0 { Wait::Block } else { Wait::No };
        let messages = receiving.receive(wait);
        empty_looks += usize::from(messages == 0);
        let number = |payload: &[u8]| u64::from_ne_bytes(payload.try_into().expect("eight bytes"));
        numbers.extend(receiving.batch.datagrams().map(|datagram| number(datagram.payload())));
        if numbers.len() > 2000 {
            // Heard once; later nobody listens any more.
            let _ = under_way.send(());
        }
    }
    numbers
}

/// One run: a socket under load is ended as a daemon does it, first the arrivals, then the receiver.
fn end_under_load(kind: Kind) {
    let (socket, address) = bound_shared(Family::V4, |socket| {
        socket.set_receive_buffer(1 << 20).expect("a buffer");
    });
    let stop = AtomicBool::new(false);
    let (under_way, heard) = channel();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                sender.send_to(&sent.to_ne_bytes(), address).expect("sent");
                sent += 1;
            }
            sent
        });
        let receiver = scope.spawn(|| receive_to_the_end(kind, &socket, &under_way));
        heard.recv().expect("the load is received");
        socket.refuse_arrivals().expect("a filter");
        mmsg::wait_for_arrivals_under_way().expect("a kernel that can ask its cores");
        socket.interrupt().expect("interrupt");
        let numbers = receiver.join().expect("no panic");
        stop.store(true, Ordering::Relaxed);
        let sent = load.join().expect("no panic");
        let dropped = u64::from(socket.memory_info().expect("memory info").drops);
        assert_eq!(numbers.len() as u64 + dropped, sent, "{kind:?}: received and dropped is what was sent");
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{kind:?}: in order");
    });
}

#[test]
fn the_end_of_a_socket_under_load_loses_nothing_twenty_times_over() {
    for kind in Kind::here() {
        (0..20).for_each(|_| end_under_load(kind));
    }
}

#[test]
fn a_full_socket_is_emptied_after_the_interrupt() {
    for kind in Kind::here() {
        for before in [0, 1, 40] {
            let (socket, address) = bound_shared(Family::V4, |socket| {
                socket.set_receive_buffer(1 << 20).expect("a buffer");
            });
            let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
            let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
            let send = |numbers: std::ops::Range<u32>| {
                for number in numbers {
                    sender.send_to(&number.to_ne_bytes(), address).expect("sent");
                }
            };
            send(0..before);
            // The ring now holds more than the batch, and its requests are in flight.
            let mut got = receiving.receive(Wait::No) as u32;
            assert_eq!(got, before.min(8));
            send(before..before + 600);
            socket.refuse_arrivals().expect("a filter");
            socket.interrupt().expect("interrupt");
            loop {
                match receiving.receive(Wait::Block) {
                    0 => break,
                    count => {
                        for (offset, datagram) in (got..).zip(receiving.batch.datagrams()) {
                            assert_eq!(datagram.payload(), offset.to_ne_bytes(), "{kind:?}: in order");
                        }
                        got += count as u32;
                    }
                }
            }
            assert_eq!(got, before + 600, "{kind:?}");
            assert_eq!(receiving.receive(Wait::No), 0);
        }
    }
}

#[test]
fn a_ring_that_is_dropped_with_requests_in_flight_leaves_its_batches_whole() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        for round in 0..200_usize {
            let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
            for number in 0..8_u8 {
                sender.send_to(&[number; 32], address).expect("sent");
            }
            let taken = receiving.receive(if round % 2 == 0 { Wait::No } else { Wait::Block });
            assert_eq!(taken, 4, "{kind:?}");
            let batch = receiving.drop_engine();
            // More arrives, which a request left behind would write into memory that is no longer its own.
            sender.send_to(&[0xee; 32], address).expect("sent");
            let numbers: Vec<u8> = batch.datagrams().map(|datagram| datagram.payload()[0]).collect();
            assert_eq!(numbers, [0, 1, 2, 3], "{kind:?}, round {round}");
            drop(batch);
            // For the next round the socket is emptied; what the ring had is gone with it.
            let mut rest = Receiving::new(Kind::Recvmmsg, &socket, 16, 64, Control::default());
            while rest.receive(Wait::No) > 0 {}
        }
    }
}

#[test]
fn a_batch_of_another_pool_is_refused_by_a_ring() {
    for kind in Kind::here().into_iter().filter(|kind| *kind != Kind::Recvmmsg) {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
        let mut other = common::batch(4, 64, Control::default());
        let error = receiving.engine.receive(&mut other, Wait::No).expect_err("refused");
        assert!(error.to_string().contains("one RecvBatch::pool"), "{error}");
    }
}

#[test]
fn an_error_of_the_socket_is_handed_on_and_receiving_goes_on_after_it() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        // A peer that does not listen: what is sent to it comes back as an error of the socket.
        let peer = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let to = peer.local_addr().expect("bound");
        socket.connect(to).expect("connected");
        let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
        assert_eq!(receiving.receive(Wait::No), 0);
        drop(peer);
        let mut outgoing = SendBatch::new(1, 8).expect("memory");
        outgoing.push(b"hello", None).expect("a free slot");
        outgoing.flush(&socket).expect("sent");
        assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"));
        let error = receiving.engine.receive(&mut receiving.batch, Wait::Block).expect_err("refused by the peer");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{kind:?}");
        let peer = UdpSocket::bind(to).expect("free again");
        peer.send_to(b"back", address).expect("sent");
        assert_eq!(receiving.receive(Wait::Block), 1, "{kind:?}");
    }
}

#[test]
fn what_may_be_done_with_an_engine_does_not_depend_on_the_features() {
    fn survives_a_panic<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe + Unpin>() {}
    survives_a_panic::<mmsg::Engine>();
    survives_a_panic::<mmsg::Uring>();
}

#[test]
fn a_ring_that_cannot_be_had_is_refused_with_the_reason() {
    if let Err(why) = mmsg::Uring::supported() {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let error =
            mmsg::Engine::uring(socket, vec![common::batch(4, 64, Control::default())], 0).expect_err("refused");
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<mmsg::Refusal>()).expect("a refusal");
        assert_eq!(refusal.to_string(), why.to_string());
    }
}

#[test]
fn a_ring_needs_a_batch_of_its_own() {
    if Kind::here().len() > 1 {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let error = mmsg::Engine::uring(socket, Vec::new(), 0).expect_err("refused");
        assert!(error.to_string().contains("at least one batch"), "{error}");
    }
}
