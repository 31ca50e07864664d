//! Sources refused in the kernel, on sockets: what is delivered, what the kernel counts as dropped and what the filter
//! says it was add up to what was sent, whatever else the kernel drops meanwhile. Without the right to load a program
//! they say so and end.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{batch, bound, receive_count};
use mmsg::{Control, Family, OwnRights, Refused, Socket, SourceFilter, SourceRanges, SourceTable, Wait};

/// 127.0.0.2 is refused, and nobody else of IPv4; of IPv6 everybody.
const RANGES: SourceRanges<'_> =
    SourceRanges { v4_first: true, v4_turns: &[0x7f00_0002, 0x7f00_0003], v6_first: false, v6_turns: &[] };

#[allow(clippy::print_stderr)]
fn filter(socket: &Socket, ranges: &SourceRanges<'_>) -> Option<SourceFilter> {
    match SourceTable::new(ranges, &OwnRights).and_then(|table| table.filter(socket, None, &OwnRights)) {
        Ok(filter) => Some(filter),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("NOT CHECKED: refusing sources in the kernel needs CAP_BPF: {error}");
            None
        }
        Err(error) => panic!("a filter: {error}"),
    }
}

fn sender(source: &str, to: SocketAddr) -> UdpSocket {
    let source: IpAddr = source.parse().expect("an address");
    let sender = UdpSocket::bind((source, 0)).expect("loopback has it");
    sender.connect(to).expect("connected");
    sender
}

fn drops(socket: &Socket) -> u64 {
    socket.memory_info().expect("memory info").drops.into()
}

fn refused(socket: &Socket) -> u64 {
    socket.refused().map_or(0, |refused| refused.messages)
}

fn read_to_the_end(socket: &Socket) -> u64 {
    let mut batch = batch(64, 2048, Control::default());
    let mut read = 0;
    while batch.receive(socket, Wait::No).expect("readable") > 0 {
        read += batch.datagrams().count() as u64;
    }
    read
}

#[test]
fn a_refused_source_is_counted_as_such_and_the_others_arrive_whole() {
    let (socket, address) = bound(Family::V4, |_| {});
    let Some(filter) = filter(&socket, &RANGES) else { return };
    let (good, bad) = (sender("127.0.0.1", address), sender("127.0.0.2", address));
    bad.send(b"before").expect("sent");
    filter.attach(&socket).expect("attached");
    for length in [0, 1, 1400] {
        good.send(&vec![7; length]).expect("sent");
        bad.send(&vec![8; length]).expect("sent");
    }
    let mut batch = batch(8, 2048, Control::default());
    let lengths: Vec<usize> = receive_count(&socket, &mut batch, 4).iter().map(|one| one.payload.len()).collect();
    assert_eq!(lengths, [6, 0, 1, 1400]);
    assert_eq!(socket.refused(), Some(Refused { messages: 3, datagrams: 3, bytes: 1401 }));
    assert_eq!(drops(&socket), 3, "the kernel counts them as drops of the socket");
    socket.accept_arrivals().expect("detached");
    bad.send(b"after").expect("sent");
    assert_eq!((read_to_the_end(&socket), refused(&socket)), (1, 3));
}

#[test]
fn on_a_socket_of_both_families_each_source_gets_the_answer_of_its_own() {
    let socket = Socket::new(Family::V6).expect("a socket");
    socket.set_v6_only(false).expect("both families");
    socket.bind("[::]:0".parse().expect("an address")).expect("a free port");
    let port = socket.local_addr().expect("bound").port();
    assert_eq!(socket.refused(), None);
    let Some(filter) = filter(&socket, &RANGES) else { return };
    filter.attach(&socket).expect("attached");
    for (source, to) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.1"), ("::1", "::1")] {
        sender(source, (to.parse::<IpAddr>().expect("valid"), port).into()).send(b"x").expect("sent");
    }
    assert_eq!((read_to_the_end(&socket), refused(&socket), drops(&socket)), (1, 2, 2));
}

#[test]
fn a_train_is_one_drop_and_as_many_datagrams_as_it_has_segments() {
    let (socket, address) = bound(Family::V4, |socket| socket.set_gro(true).expect("Linux 5.0"));
    let Some(filter) = filter(&socket, &RANGES) else { return };
    filter.attach(&socket).expect("attached");
    let bad = Socket::new(Family::V4).expect("a socket");
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
    const EACH: u64 = 20_000;
    let is_over = AtomicBool::new(false);
    let read = std::thread::scope(|scope| {
        let send = |source: &'static str| {
            move || {
                let sender = sender(source, address);
                (0..EACH).for_each(|_| assert_eq!(sender.send(b"x").expect("sent"), 1));
            }
        };
        let senders = [scope.spawn(send("127.0.0.1")), scope.spawn(send("127.0.0.2"))];
        // Who looks meanwhile, drops first, never sees more refused than refusals.
        let looker = scope.spawn(|| {
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
        let mut read = 0;
        while !senders.iter().all(|sender| sender.is_finished()) {
            read += read_to_the_end(&socket);
        }
        is_over.store(true, Ordering::Relaxed);
        looker.join().expect("it only looks");
        read + read_to_the_end(&socket)
    });
    mmsg::wait_for_arrivals_under_way().expect("a membarrier");
    assert_eq!(refused(&socket), EACH);
    assert_eq!(read + drops(&socket) - EACH, EACH, "what was neither denied nor read found the buffer full");
}

#[test]
fn filters_that_take_turns_under_load_lose_count_of_nothing() {
    let (socket, address) = bound(Family::V4, |_| {});
    let other = SourceRanges { v4_turns: &[0x7f00_0001, 0x7f00_0002], ..RANGES };
    let (Some(one), Some(two)) = (filter(&socket, &RANGES), filter(&socket, &other)) else { return };
    const EACH: u64 = 20_000;
    let read = std::thread::scope(|scope| {
        let send = |source: &'static str| {
            move || {
                let sender = sender(source, address);
                (0..EACH).for_each(|_| assert_eq!(sender.send(b"x").expect("sent"), 1));
            }
        };
        let senders = [scope.spawn(send("127.0.0.1")), scope.spawn(send("127.0.0.2"))];
        let mut read = 0;
        while !senders.iter().all(|sender| sender.is_finished()) {
            one.attach(&socket).expect("attached");
            read += read_to_the_end(&socket);
            two.attach(&socket).expect("attached");
            read += read_to_the_end(&socket);
        }
        read
    });
    mmsg::wait_for_arrivals_under_way().expect("a membarrier");
    let (read, dropped) = (read + read_to_the_end(&socket), drops(&socket));
    assert_eq!(read + dropped, 2 * EACH);
    assert!(refused(&socket) <= dropped, "the rest found the buffer full");
}
