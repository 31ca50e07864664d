//! The engines against each other and at their edges: whatever is sent, both give the same datagrams in the same order,
//! nothing stays behind at the end, and a ring may be dropped at any moment.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use mmsg::{Control, Datagram, Engine, Family, Refusal, SendBatch, Socket, Uring, Wait};

use crate::common::{
    DEADLINE, Kind, Receiving, batch, bound_shared, bytes, drain, drops, send, sender, unbound, wait_until_asleep,
};

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
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    payload: Vec<u8>,
    length: usize,
    source: SocketAddr,
    destination: Option<IpAddr>,
    interface: Option<u32>,
    has_arrival: bool,
    header: [Option<u8>; 2],
}

impl Seen {
    fn of(datagram: Datagram<'_>) -> Seen {
        Seen {
            payload: datagram.payload().to_vec(),
            length: datagram.length(),
            source: datagram.source().expect("every datagram has a sender"),
            destination: datagram.destination(),
            interface: datagram.interface_index(),
            has_arrival: datagram.arrival().is_some(),
            header: [datagram.traffic_class(), datagram.hop_limit()],
        }
    }
}

/// Both hold enough for the tests of an end under load.
fn with_buffer(bytes: usize) -> impl Fn(&Socket) {
    move |socket| assert!(socket.set_receive_buffer(bytes).is_ok(), "a buffer")
}

#[test]
fn both_engines_give_identical_datagrams_of_any_size_on_both_families() {
    let mut random = fastrand::Rng::with_seed(0xd1ff);
    for kind in Kind::rings() {
        for family in [Family::V4, Family::V6] {
            for slot_bytes in [100, 2048, 65_536] {
                let (one, to_one) = bound_shared(family, with_everything);
                let (other, to_other) = bound_shared(family, with_everything);
                let mut one = Receiving::new(Kind::Recvmmsg, &one, 16, slot_bytes, EVERYTHING);
                let mut other = Receiving::new(kind, &other, 16, slot_bytes, EVERYTHING);
                let sender = sender(family);
                for _ in 0..40 {
                    let count = random.usize(1..=24);
                    for _ in 0..count {
                        let longest = [0, 1, 99, 1472, 9000, 65_507][random.usize(0..=5)];
                        let size = random.usize(0..=longest);
                        let payload = bytes(&mut random, size);
                        sender.send_to(&payload, to_one).expect("sent");
                        sender.send_to(&payload, to_other).expect("sent");
                    }
                    let (one, other) = (one.collect(count, Seen::of), other.collect(count, Seen::of));
                    assert!(one == other, "{kind:?}, {family:?}, slots of {slot_bytes}");
                    let has_all =
                        |seen: &Seen| seen.has_arrival && seen.interface.is_some() && !seen.header.contains(&None);
                    assert!(one.iter().all(has_all), "all was asked for and is there");
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
            let sender = unbound(Family::V4);
            sender.connect(to).expect("connected");
            let mut sent = Vec::new();
            let mut outgoing = SendBatch::new(8, 65_507).expect("memory");
            for _ in 0..40 {
                let (size, segments) = (random.usize(1..=900), random.usize(1..=20));
                let train = bytes(&mut random, size * segments);
                outgoing.push_segmented(&train, size as u16, None).expect("queued");
                outgoing.flush(&sender).expect("sent").all_sent().expect("all of it");
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
                    _ => got.extend(receiving.payloads()),
                }
            }
            assert!(got == sent, "{kind:?}, GRO {gro}: {} of {}", got.len(), sent.len());
        }
    }
}

#[test]
fn a_dual_stack_socket_shows_ipv4_senders_as_ipv4_with_either_engine() {
    for kind in Kind::here() {
        let socket = unbound(Family::V6);
        socket.set_packet_info(true).expect("packet info");
        socket.bind("[::]:0".parse().expect("valid")).expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        let control = Control::new().packet_info(true);
        let mut receiving = Receiving::new(kind, &Arc::new(socket), 8, 64, control);
        for local in ["127.0.0.1", "::1"] {
            let sender = UdpSocket::bind((local, 0)).expect("a free port");
            sender.send_to(b"hello", (local, port)).expect("sent");
            let (seen, from) = (receiving.collect(1, Seen::of), sender.local_addr().expect("bound"));
            assert_eq!((seen[0].source, seen[0].destination), (from, Some(from.ip())), "{kind:?}");
        }
    }
}

#[test]
fn order_is_kept_and_nothing_is_lost_across_many_rounds_of_a_small_ring() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, with_buffer(4 << 20));
        let mut receiving = Receiving::new(kind, &socket, 3, 64, Control::default());
        let sender = sender(Family::V4);
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
        assert_eq!(drops(&socket), 0);
        assert_eq!(receiving.receive(Wait::No), 0, "{kind:?}: nothing came twice");
    }
}

#[test]
fn what_gathers_is_received_together_and_a_lone_datagram_is_not_waited_with_for_ever() {
    for kind in Kind::here() {
        let (mut receiving, _, address) = Receiving::bound(kind, 8, 64);
        let gather = Wait::Gather(Duration::from_millis(50));
        // Of eleven, three are left over by a full batch: nothing new comes that would end a wait for more.
        for (sent, batches) in [(1, &[1][..]), (5, &[5]), (8, &[8]), (11, &[8, 3])] {
            send(address, vec![b"x"; sent]);
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
            send(address, [b"late"]);
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
        numbers.extend(receiving.numbers());
        if numbers.len() > 2000 {
            // The test listens for the first of them.
            let _ = under_way.send(());
        }
    }
    numbers
}

/// One run: a socket under load is ended as a daemon does it, first the arrivals, then the receiver.
fn end_under_load(kind: Kind) {
    let (socket, address) = bound_shared(Family::V4, with_buffer(1 << 20));
    let stop = AtomicBool::new(false);
    let (under_way, heard) = channel();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let sender = sender(Family::V4);
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
        let dropped = u64::from(drops(&socket));
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
            let (socket, address) = bound_shared(Family::V4, with_buffer(1 << 20));
            let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
            let send = |numbers: std::ops::Range<u32>| send(address, numbers.map(u32::to_ne_bytes));
            send(0..before);
            // The ring now holds more than the batch, and its requests are in flight.
            let mut got = receiving.receive(Wait::No) as u32;
            assert_eq!(got, before.min(8));
            send(before..before + 600);
            socket.refuse_arrivals().expect("a filter");
            socket.interrupt().expect("interrupt");
            while receiving.receive(Wait::Block) > 0 {
                for datagram in receiving.batch.datagrams() {
                    assert_eq!(datagram.payload(), got.to_ne_bytes(), "{kind:?}: in order");
                    got += 1;
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
        for round in 0..200_usize {
            let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
            send(address, (0..8_u8).map(|number| [number; 32]));
            let taken = receiving.receive(if round % 2 == 0 { Wait::No } else { Wait::Block });
            assert_eq!(taken, 4, "{kind:?}");
            let batch = receiving.batch;
            // More arrives, which a request left behind would write into memory that is no longer its own.
            send(address, [[0xee; 32]]);
            let numbers: Vec<u8> = batch.datagrams().map(|datagram| datagram.payload()[0]).collect();
            assert_eq!(numbers, [0, 1, 2, 3], "{kind:?}, round {round}");
            drop(batch);
            // For the next round; what the ring had is gone with it.
            drain(&socket);
        }
    }
}

#[test]
fn a_batch_of_another_pool_is_refused_by_a_ring() {
    for kind in Kind::rings() {
        let (mut receiving, ..) = Receiving::bound(kind, 4, 64);
        let mut other = batch(4, 64, Control::default());
        let error = receiving.engine.receive(&mut other, Wait::No).expect_err("refused");
        assert!(error.to_string().contains("one RecvBatch::pool"), "{error}");
    }
}

#[test]
fn an_error_of_the_socket_is_handed_on_and_receiving_goes_on_after_it() {
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        // A peer that does not listen: what is sent to it comes back as an error of the socket.
        let peer = sender(Family::V4);
        let to = peer.local_addr().expect("bound");
        socket.connect(to).expect("connected");
        let mut receiving = Receiving::new(kind, &socket, 4, 64, Control::default());
        assert_eq!(receiving.receive(Wait::No), 0);
        drop(peer);
        let mut outgoing = SendBatch::new(1, 8).expect("memory");
        outgoing.push(b"hello", None).expect("a free slot");
        outgoing.flush(&socket).expect("sent").all_sent().expect("all of it");
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
    survives_a_panic::<Engine>();
    survives_a_panic::<Uring>();
}

#[test]
fn a_ring_that_cannot_be_had_is_refused_with_the_reason() {
    if let Err(why) = Uring::supported() {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let error = Engine::uring(socket, vec![batch(4, 64, Control::default())], 0).expect_err("refused");
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()).expect("a refusal");
        assert_eq!(refusal.to_string(), why.to_string());
    }
}

#[test]
fn a_ring_needs_a_batch_of_its_own() {
    if !Kind::rings().is_empty() {
        let (socket, _) = bound_shared(Family::V4, |_| {});
        let error = Engine::uring(socket, Vec::new(), 0).expect_err("refused");
        assert!(error.to_string().contains("at least one batch"), "{error}");
    }
}
