//! Groups that grow and shrink under load, and the evidence of where datagrams arrive.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{batch, bound, receive_count};
use mmsg::{BatchShape, Control, CoreCounter, Family, Group, GroupSpread, RecvBatch, Socket, Wait};

const LARGEST: usize = 8;
const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 20 };

/// How many datagrams may be on their way: they fit into the buffer of one member, however slow its reader is.
const WINDOW: usize = 256;

/// So many are sent to the whole group before it shrinks again: each of its members gets some of them.
const TO_ALL: usize = 400;

/// Longer than this nothing takes, or something is lost for good.
const LIMIT: Duration = Duration::from_secs(60);

fn socket(family: Family) -> Arc<Socket> {
    let socket = Socket::new(family).expect("a socket");
    socket.set_receive_buffer(8 << 20).expect("a buffer");
    Arc::new(socket)
}

/// A thread that reads one member, as a receiver does; it ends when it is told to and the socket is empty.
struct Reader(JoinHandle<(usize, u32)>);

/// What sender and readers know of each other.
#[derive(Default)]
struct Traffic {
    sent: AtomicUsize,
    received: AtomicUsize,
    is_over: AtomicBool,
}

impl Traffic {
    /// Returns when so many more are sent.
    fn wait_for(&self, more: usize) {
        let (until, begun) = (self.sent.load(Ordering::Relaxed) + more, Instant::now());
        while self.sent.load(Ordering::Relaxed) < until {
            assert!(begun.elapsed() < LIMIT, "the sender waits for what nobody receives");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Reader {
    /// Blocks in the kernel until [`Socket::interrupt`], and then reads to the end.
    fn start(socket: Arc<Socket>, traffic: Arc<Traffic>) -> Self {
        Self(thread::spawn(move || {
            let mut batch = batch(64, 64, Control::default());
            let mut total = 0;
            loop {
                let count = match batch.receive(&socket, Wait::Block).expect("receive") {
                    // A call that was about to wait when it was interrupted may have missed what came just before.
                    0 => read_to_the_end(&socket),
                    count => {
                        traffic.received.fetch_add(count, Ordering::Relaxed);
                        total += count;
                        continue;
                    }
                };
                traffic.received.fetch_add(count, Ordering::Relaxed);
                return (total + count, socket.memory_info().expect("memory info").drops);
            }
        }))
    }

    /// Datagrams read, and those the kernel dropped for want of room.
    fn end(self) -> (usize, u32) {
        self.0.join().expect("the reader does not panic")
    }
}

/// Sends from sixteen ports, as fast as the readers take it, until told to stop; returns how many were sent.
fn send_while(traffic: &Traffic, to: SocketAddr) -> usize {
    let any: SocketAddr = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }.parse().expect("an address");
    let senders: Vec<UdpSocket> = (0..16).map(|_| UdpSocket::bind(any).expect("a free port")).collect();
    let mut sent = 0;
    while !traffic.is_over.load(Ordering::Relaxed) {
        if sent - traffic.received.load(Ordering::Relaxed) >= WINDOW {
            thread::sleep(Duration::from_micros(20));
            continue;
        }
        senders[sent % senders.len()].send_to(b"numbered by its count", to).expect("sent");
        sent += 1;
        traffic.sent.store(sent, Ordering::Relaxed);
    }
    sent
}

/// Grows a group from one member to [`LARGEST`] and back, again and again, while it is sent to. Every datagram that was
/// sent must have been read by somebody.
fn grow_and_shrink(family: Family, spread: GroupSpread) {
    let first = socket(family);
    let mut group = Group::new(vec![Arc::clone(&first)], spread.clone()).expect("a group of one");
    let address = group.bind(common::loopback(family)).expect("loopback has free ports");
    let traffic = Arc::new(Traffic::default());
    let sender = thread::spawn({
        let traffic = Arc::clone(&traffic);
        move || send_while(&traffic, address)
    });
    let start = |member| Reader::start(member, Arc::clone(&traffic));
    let mut readers = vec![start(first)];
    let mut ended = Vec::new();
    for _ in 0..ROUNDS {
        while readers.len() < LARGEST {
            let member = socket(family);
            group.grow(Arc::clone(&member)).expect("one more");
            readers.push(start(member));
        }
        traffic.wait_for(TO_ALL);
        while let Some(reader) = (readers.len() > 1).then(|| readers.pop()).flatten() {
            let counts = group.shrink(|leaving| {
                leaving.interrupt().expect("woken");
                reader.end()
            });
            ended.push(counts.expect("one less"));
        }
    }
    traffic.is_over.store(true, Ordering::Relaxed);
    let sent = sender.join().expect("the sender does not panic");
    // Loopback queues before send returns, so nothing is under way any more.
    group.members()[0].interrupt().expect("woken");
    ended.extend(readers.into_iter().map(Reader::end));
    let dropped: u32 = ended.iter().map(|(_, dropped)| dropped).sum();
    assert_eq!(dropped, 0, "{spread:?}: what is on its way did not fit into a receive buffer");
    let received: usize = ended.iter().map(|(count, _)| count).sum();
    assert_eq!(received, sent, "{spread:?}");
    if spread == GroupSpread::Random {
        let idle = ended.iter().filter(|(count, _)| *count == 0).count();
        assert_eq!(idle, 0, "of {} members", ended.len());
    }
}

#[test]
fn nothing_is_lost_while_a_group_without_a_program_grows_and_shrinks() {
    grow_and_shrink(Family::V4, GroupSpread::Flow);
    grow_and_shrink(Family::V6, GroupSpread::Flow);
}

#[test]
fn nothing_is_lost_while_a_group_spread_at_random_grows_and_shrinks() {
    grow_and_shrink(Family::V4, GroupSpread::Random);
}

#[test]
fn nothing_is_lost_while_a_group_spread_by_core_grows_and_shrinks() {
    // Every core that this machine has is in the table, and the last member is wanted as much as the first.
    let table: Vec<(usize, u32)> = (0..64).map(|core| (core, 7 - core as u32 % 8)).collect();
    grow_and_shrink(Family::V4, GroupSpread::Cpu(table));
    grow_and_shrink(Family::V4, GroupSpread::Cpu(vec![]));
}

#[test]
fn nothing_is_lost_while_a_group_spread_by_queue_grows_and_shrinks() {
    // Loopback records no queue: everything is left to the kernel's hash, which must not find the member that leaves.
    grow_and_shrink(Family::V4, GroupSpread::Queue((0..8).map(|queue| (queue, queue)).collect()));
}

fn read_to_the_end(socket: &Socket) -> usize {
    let mut batch = batch(64, 64, Control::default());
    let mut total = 0;
    loop {
        match batch.receive(socket, Wait::No).expect("receive") {
            0 => return total,
            count => total += count,
        }
    }
}

fn send(to: SocketAddr, datagrams: usize) {
    for _ in 0..datagrams {
        UdpSocket::bind("127.0.0.1:0").and_then(|sender| sender.send_to(b"x", to)).expect("sent");
    }
}

#[test]
fn what_waited_at_a_member_that_leaves_is_handed_over_and_the_rest_get_what_comes_then() {
    for spread in [GroupSpread::Flow, GroupSpread::Random] {
        let mut group = Group::new((0..3).map(|_| socket(Family::V4)).collect(), spread).expect("a group");
        let address = group.bind(common::loopback(Family::V4)).expect("bound");
        send(address, 300);
        let left = group.shrink(|leaving| {
            send(address, 300);
            read_to_the_end(&leaving)
        });
        let left = left.expect("one less");
        assert!((1..300).contains(&left), "{left} of the first 300");
        send(address, 300);
        let rest: Vec<usize> = group.members().iter().map(|member| read_to_the_end(member)).collect();
        assert_eq!((rest.len(), left + rest.iter().sum::<usize>()), (2, 900), "{rest:?}");
        assert!(rest.iter().all(|&count| count > 0), "{rest:?}");
    }
}

#[test]
fn a_table_is_folded_to_the_members_there_are() {
    let table: Vec<(usize, u32)> = (0..64).map(|core| (core, 5)).collect();
    let mut group = Group::new((0..4).map(|_| socket(Family::V4)).collect(), GroupSpread::Cpu(table)).expect("a group");
    let address = group.bind(common::loopback(Family::V4)).expect("bound");
    let counts = |group: &Group| group.members().iter().map(|member| read_to_the_end(member)).collect::<Vec<_>>();
    send(address, 10);
    assert_eq!(counts(&group), [0, 10, 0, 0], "5 mod 4");
    group.shrink(drop).expect("one less");
    send(address, 10);
    assert_eq!(counts(&group), [0, 0, 10], "5 mod 3");
    group.set_spread(GroupSpread::Cpu((0..64).map(|core| (core, 0)).collect())).expect("steered");
    send(address, 10);
    assert_eq!(counts(&group), [10, 0, 0]);
}

#[test]
fn a_member_that_left_is_out_of_the_group_at_once_though_it_is_still_open() {
    let table = GroupSpread::Cpu((0..64).map(|core| (core, 1)).collect());
    let mut group = Group::new(vec![socket(Family::V4), socket(Family::V4)], table).expect("a group");
    let address = group.bind(common::loopback(Family::V4)).expect("bound");
    let kept = group.shrink(|leaving| leaving).expect("one less");
    group.grow(socket(Family::V4)).expect("its number is free");
    send(address, 10);
    assert_eq!((read_to_the_end(&kept), read_to_the_end(&group.members()[1])), (0, 10));
}

#[test]
fn the_last_member_cannot_leave_and_a_group_has_at_least_one() {
    assert!(Group::new(vec![], GroupSpread::Flow).is_err());
    let mut group = Group::new(vec![socket(Family::V4)], GroupSpread::Random).expect("a group");
    assert!(group.grow(socket(Family::V4)).expect_err("not bound").to_string().contains("after its bind"));
    group.bind(common::loopback(Family::V4)).expect("bound");
    assert!(group.shrink(drop).expect_err("refused").to_string().contains("drop the group"));
}

/// A counter, or `None` with the reason printed where this process may not have one.
fn counter() -> Option<CoreCounter> {
    match CoreCounter::new() {
        Ok(counter) => Some(counter),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            say_skipped(&error);
            None
        }
        Err(error) => panic!("a counter: {error}"),
    }
}

#[allow(clippy::print_stderr)]
fn say_skipped(error: &std::io::Error) {
    eprintln!("NOT CHECKED: counting by core needs CAP_BPF or kernel.unprivileged_bpf_disabled = 0: {error}");
}

#[test]
fn every_datagram_is_counted_on_a_core_and_still_received_until_another_filter_takes_over() {
    let Some(counter) = counter() else { return };
    let total = || counter.read().expect("counts").iter().map(|arrivals| arrivals.count).sum::<u64>();
    for family in [Family::V4, Family::V6] {
        let before = total();
        let (socket, address) = bound(family, |socket| counter.attach(socket).expect("attached before the bind"));
        let sender = UdpSocket::bind(common::loopback(family)).expect("a free port");
        for length in [0, 1, 1400, 9000] {
            sender.send_to(&vec![7; length], address).expect("sent");
        }
        let mut batch = batch(8, 9000, Control::default());
        let lengths: Vec<usize> =
            receive_count(&socket, &mut batch, 4).iter().map(|datagram| datagram.payload.len()).collect();
        assert_eq!(lengths, [0, 1, 1400, 9000], "nothing is cut");
        assert_eq!(total() - before, 4);

        sender.send_to(b"waits", address).expect("sent");
        socket.refuse_arrivals().expect("it takes the place of the counter");
        sender.send_to(b"refused", address).expect("sent");
        assert_eq!(receive_count(&socket, &mut batch, 1)[0].payload, b"waits");
        assert_eq!(read_to_the_end(&socket), 0);
        assert_eq!(socket.memory_info().expect("memory info").drops, 1);
        assert_eq!(total() - before, 5, "the count has ended with its filter");
    }
}

#[test]
fn what_does_not_fit_the_receive_buffer_has_arrived_all_the_same() {
    let Some(counter) = counter() else { return };
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_receive_buffer(4096).expect("a small buffer");
        counter.attach(socket).expect("attached");
    });
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..100 {
        sender.send_to(b"x", address).expect("sent");
    }
    let dropped = socket.memory_info().expect("memory info").drops as usize;
    assert!(dropped > 0);
    assert_eq!(read_to_the_end(&socket) + dropped, 100);
    let counts = counter.read().expect("counts");
    assert_eq!(counts.iter().map(|arrivals| arrivals.count).sum::<u64>(), 100);
    assert!(counts.windows(2).all(|pair| pair[0].core < pair[1].core), "in the order of the cores: {counts:?}");
}

#[test]
fn a_counter_by_queue_counts_what_comes_from_no_queue_as_such_however_many_queues_it_tells_apart() {
    if counter().is_none() {
        return;
    }
    for queues in [0, 1, 64, 1023, u32::MAX] {
        let counter = CoreCounter::by_queue(queues).expect("the kernel takes the program");
        let (_socket, address) = bound(Family::V4, |socket| counter.attach(socket).expect("attached"));
        send(address, 10);
        let counts = counter.read().expect("counts");
        assert_eq!(counts.iter().map(|arrivals| arrivals.count).sum::<u64>(), 10, "{queues} queues: {counts:?}");
        assert!(counts.iter().all(|arrivals| arrivals.queue.is_none()), "loopback records none: {counts:?}");
    }
}

#[test]
fn a_socket_that_has_withdrawn_gets_nothing_more_and_can_be_read_to_its_end() {
    let socket = Socket::new(Family::V4).expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    sender.connect(socket.local_addr().expect("bound")).expect("connected");
    sender.send(b"before").expect("sent");
    socket.withdraw().expect("no interface yet");
    sender.send(b"after").expect("the kernel takes it and finds nobody");
    let refused = sender.send(b"after").expect_err("the sender is told");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let shape = BatchShape::new(8, 64);
    let mut batch = RecvBatch::new(&shape).expect("a batch");
    assert_eq!(batch.receive(&socket, Wait::No).expect("what was queued"), 1);
    assert_eq!(socket.memory_info().expect("its books").drops, 0);
}
