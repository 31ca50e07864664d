//! Sources refused in the kernel, on sockets: what is delivered, what the kernel counts as dropped and what the filter
//! says it was add up to what was sent, whatever else the kernel drops meanwhile. Without the right to load a program
//! they say so and end.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use mmsg::{Family, OwnRights, Refused, Socket, SourceFilter, SourceRanges, SourceTable};

use crate::common::{self, bound, bound_v4, payloads, permitted, unbound};

/// 127.0.0.2 is refused, and no other source of IPv4; of IPv6 all are.
const RANGES: SourceRanges<'_> =
    SourceRanges { v4_first: true, v4_turns: &[0x7f00_0002, 0x7f00_0003], v6_first: false, v6_turns: &[] };

fn filter(socket: &Socket, ranges: &SourceRanges<'_>) -> Option<SourceFilter> {
    let made = SourceTable::new(ranges, &OwnRights).and_then(|table| table.filter(socket, None, &OwnRights));
    permitted("refusing sources in the kernel", made)
}

fn sender(source: &str, to: SocketAddr) -> UdpSocket {
    let source: IpAddr = source.parse().expect("an address");
    let sender = UdpSocket::bind((source, 0)).expect("loopback has it");
    sender.connect(to).expect("connected");
    sender
}

fn drops(socket: &Socket) -> u64 {
    common::drops(socket).into()
}

fn refused(socket: &Socket) -> u64 {
    socket.refused().map_or(0, |refused| refused.messages)
}

fn drain(socket: &Socket) -> u64 {
    common::drain(socket) as u64
}

const EACH: u64 = 20_000;

/// Sends [`EACH`] from either address, calling `meanwhile` until all are sent.
fn send_from_both(address: SocketAddr, mut meanwhile: impl FnMut()) {
    std::thread::scope(|scope| {
        let senders = ["127.0.0.1", "127.0.0.2"].map(|source| {
            scope.spawn(move || {
                let sender = sender(source, address);
                (0..EACH).for_each(|_| assert_eq!(sender.send(b"x").expect("sent"), 1));
            })
        });
        while !senders.iter().all(|sender| sender.is_finished()) {
            meanwhile();
        }
    });
    mmsg::wait_for_arrivals_under_way().expect("a membarrier");
}

#[test]
fn a_refused_source_is_counted_as_such_and_the_others_arrive_whole() {
    let (socket, address) = bound_v4();
    let Some(filter) = filter(&socket, &RANGES) else { return };
    let (good, bad) = (sender("127.0.0.1", address), sender("127.0.0.2", address));
    bad.send(b"before").expect("sent");
    filter.attach(&socket).expect("attached");
    for length in [0, 1, 1400] {
        good.send(&vec![7; length]).expect("sent");
        bad.send(&vec![8; length]).expect("sent");
    }
    let lengths: Vec<usize> = payloads(&socket, 4).iter().map(Vec::len).collect();
    assert_eq!(lengths, [6, 0, 1, 1400]);
    assert_eq!(socket.refused(), Some(Refused { messages: 3, datagrams: 3, bytes: 1401 }));
    assert_eq!(drops(&socket), 3, "the kernel counts them as drops of the socket");
    socket.accept_arrivals().expect("detached");
    bad.send(b"after").expect("sent");
    assert_eq!((drain(&socket), refused(&socket)), (1, 3));
}

#[test]
fn on_a_socket_of_both_families_each_source_gets_the_answer_of_its_own() {
    let socket = unbound(Family::V6);
    socket.set_v6_only(false).expect("both families");
    socket.bind("[::]:0".parse().expect("an address")).expect("a free port");
    let port = socket.local_addr().expect("bound").port();
    assert_eq!(socket.refused(), None);
    let Some(filter) = filter(&socket, &RANGES) else { return };
    filter.attach(&socket).expect("attached");
    for (source, to) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.1"), ("::1", "::1")] {
        sender(source, (to.parse::<IpAddr>().expect("valid"), port).into()).send(b"x").expect("sent");
    }
    assert_eq!((drain(&socket), refused(&socket), drops(&socket)), (1, 2, 2));
}

#[test]
fn a_train_is_one_drop_and_as_many_datagrams_as_it_has_segments() {
    let (socket, address) = bound(Family::V4, |socket| socket.set_gro(true).expect("Linux 5.0"));
    let Some(filter) = filter(&socket, &RANGES) else { return };
    filter.attach(&socket).expect("attached");
    let bad = unbound(Family::V4);
    bad.bind("127.0.0.2:0".parse().expect("an address")).expect("loopback has it");
    bad.connect(address).expect("connected");
    bad.set_segment_size(100).expect("Linux 4.18");
    let sender = UdpSocket::from(std::os::fd::OwnedFd::from(bad));
    // Ten whole ones and a short one, and a lone datagram.
    sender.send(&[1; 1050]).expect("sent");
    sender.send(&[1; 100]).expect("sent");
    assert_eq!(socket.refused(), Some(Refused { messages: 2, datagrams: 12, bytes: 1150 }));
    assert_eq!((drops(&socket), socket.memory_info().expect("memory info").receive_used_bytes), (2, 0));
}

#[test]
fn in_overload_what_is_denied_and_what_finds_the_buffer_full_are_told_apart_exactly() {
    let (socket, address) = bound(Family::V4, |socket| assert!(socket.set_receive_buffer(4096).is_ok()));
    let Some(filter) = filter(&socket, &RANGES) else { return };
    filter.attach(&socket).expect("attached");
    let (is_over, mut read) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        // A thread that looks meanwhile, drops first, never sees more refused than refusals.
        scope.spawn(|| {
            // Once at least, also where everything is over before this thread gets a core.
            loop {
                let is_last = is_over.load(Ordering::Relaxed);
                let dropped = drops(&socket);
                let refused = refused(&socket);
                assert!(dropped <= refused + EACH, "{dropped} drops, {refused} refused");
                if is_last {
                    break;
                }
            }
        });
        send_from_both(address, || read += drain(&socket));
        is_over.store(true, Ordering::Relaxed);
    });
    read += drain(&socket);
    assert_eq!(refused(&socket), EACH);
    assert_eq!(read + drops(&socket) - EACH, EACH, "what was neither denied nor read found the buffer full");
}

#[test]
fn filters_that_take_turns_under_load_lose_count_of_nothing() {
    let (socket, address) = bound_v4();
    let other = SourceRanges { v4_turns: &[0x7f00_0001, 0x7f00_0002], ..RANGES };
    let (Some(one), Some(two)) = (filter(&socket, &RANGES), filter(&socket, &other)) else { return };
    let mut read = 0;
    send_from_both(address, || {
        for filter in [&one, &two] {
            filter.attach(&socket).expect("attached");
            read += drain(&socket);
        }
    });
    let (read, dropped) = (read + drain(&socket), drops(&socket));
    assert_eq!(read + dropped, 2 * EACH);
    assert!(refused(&socket) <= dropped, "the rest found the buffer full");
}
