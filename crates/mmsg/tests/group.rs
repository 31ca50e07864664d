//! Groups that grow and shrink under load, and the evidence of where datagrams arrive.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mmsg::{Control, CoreCounter, Family, Group, GroupSpread, Socket, Wait};

use crate::common::{
    batch, bound, bound_v4, drain, drops, loopback, payloads, permitted, receive_count, send, sender, unbound,
};

const LARGEST: usize = 8;
const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 20 };

/// How many datagrams may be on their way: they fit into the buffer of one member, however slow its reader is.
const WINDOW: usize = 256;

/// So many are sent to the whole group before it shrinks again: each of its members gets some of them.
const TO_ALL: usize = 400;

/// Longer than this nothing takes, or something is lost for good.
const LIMIT: Duration = Duration::from_secs(60);

fn member(family: Family) -> Arc<Socket> {
    let socket = unbound(family);
    socket.set_receive_buffer(8 << 20).expect("a buffer");
    Arc::new(socket)
}

/// A group of so many, bound to loopback.
fn group(members: usize, spread: GroupSpread) -> (Group, SocketAddr) {
    let members = std::iter::repeat_with(|| member(Family::V4)).take(members).collect();
    let mut group = Group::new(members, spread).expect("a group");
    let address = group.bind(loopback(Family::V4)).expect("bound");
    (group, address)
}

/// Every core that this machine has, to one member.
fn all_cores_to(member: u32) -> GroupSpread {
    GroupSpread::Cpu((0..64).map(|core| (core, member)).collect())
}

/// Reads all members to their ends.
fn counts(group: &Group) -> Vec<usize> {
    group.members().iter().map(|member| drain(member)).collect()
}

fn arrived(counter: &CoreCounter) -> u64 {
    counter.read().expect("counts").iter().map(|arrivals| arrivals.count).sum()
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
            assert!(begun.elapsed() < LIMIT, "the sender waits for what is not received");
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
                    0 => drain(&socket),
                    count => {
                        traffic.received.fetch_add(count, Ordering::Relaxed);
                        total += count;
                        continue;
                    }
                };
                traffic.received.fetch_add(count, Ordering::Relaxed);
                return (total + count, drops(&socket));
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
    let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
    let senders: Vec<UdpSocket> = (0..16).map(|_| sender(family)).collect();
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
/// sent must have been read by one of them.
fn grow_and_shrink(family: Family, spread: GroupSpread) {
    let first = member(family);
    let mut group = Group::new(vec![Arc::clone(&first)], spread.clone()).expect("a group of one");
    let address = group.bind(loopback(family)).expect("loopback has free ports");
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
            let member = member(family);
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

#[test]
fn what_waited_at_a_member_that_leaves_is_handed_over_and_the_rest_get_what_comes_then() {
    for spread in [GroupSpread::Flow, GroupSpread::Random] {
        let (mut group, address) = group(3, spread);
        let send_300 = || (0..300).for_each(|_| send(address, [b"x"]));
        send_300();
        let left = group.shrink(|leaving| {
            send_300();
            drain(&leaving)
        });
        let left = left.expect("one less");
        assert!((1..300).contains(&left), "{left} of the first 300");
        send_300();
        let rest = counts(&group);
        assert_eq!((rest.len(), left + rest.iter().sum::<usize>()), (2, 900), "{rest:?}");
        assert!(rest.iter().all(|&count| count > 0), "{rest:?}");
    }
}

#[test]
fn a_table_is_folded_to_the_members_there_are() {
    let (mut group, address) = group(4, all_cores_to(5));
    send(address, [b"x"; 10]);
    assert_eq!(counts(&group), [0, 10, 0, 0], "5 mod 4");
    group.shrink(drop).expect("one less");
    send(address, [b"x"; 10]);
    assert_eq!(counts(&group), [0, 0, 10], "5 mod 3");
    group.set_spread(all_cores_to(0)).expect("steered");
    send(address, [b"x"; 10]);
    assert_eq!(counts(&group), [10, 0, 0]);
}

#[test]
fn a_member_that_left_is_out_of_the_group_at_once_though_it_is_still_open() {
    let (mut group, address) = group(2, all_cores_to(1));
    let leaving = group.shrink(|leaving| leaving).expect("one less");
    group.grow(member(Family::V4)).expect("its number is free");
    send(address, [b"x"; 10]);
    assert_eq!((drain(&leaving), drain(&group.members()[1])), (0, 10));
}

#[test]
fn the_last_member_cannot_leave_and_a_group_has_at_least_one() {
    assert!(Group::new(vec![], GroupSpread::Flow).is_err());
    let mut unbound = Group::new(vec![member(Family::V4)], GroupSpread::Random).expect("a group");
    assert!(unbound.grow(member(Family::V4)).expect_err("not bound").to_string().contains("after its bind"));
    let (mut group, _) = group(1, GroupSpread::Random);
    assert!(group.shrink(drop).expect_err("refused").to_string().contains("drop the group"));
}

#[test]
fn every_datagram_is_counted_on_a_core_and_still_received_until_another_filter_takes_over() {
    let Some(counter) = permitted("counting by core", CoreCounter::new()) else { return };
    for family in [Family::V4, Family::V6] {
        let before = arrived(&counter);
        let (socket, address) = bound(family, |socket| counter.attach(socket).expect("attached before the bind"));
        send(address, [0, 1, 1400, 9000].map(|length| vec![7; length]));
        let received = receive_count(&socket, &mut batch(8, 9000, Control::default()), 4);
        let lengths: Vec<usize> = received.iter().map(|datagram| datagram.payload.len()).collect();
        assert_eq!(lengths, [0, 1, 1400, 9000], "nothing is cut");
        assert_eq!(arrived(&counter) - before, 4);

        send(address, [b"waits"]);
        socket.refuse_arrivals().expect("it takes the place of the counter");
        send(address, [b"refused"]);
        assert_eq!(payloads(&socket, 1), [b"waits"]);
        assert_eq!((drain(&socket), drops(&socket)), (0, 1));
        assert_eq!(arrived(&counter) - before, 5, "the count has ended with its filter");
    }
}

#[test]
fn what_does_not_fit_the_receive_buffer_has_arrived_all_the_same() {
    let Some(counter) = permitted("counting by core", CoreCounter::new()) else { return };
    let (socket, address) = bound(Family::V4, |socket| {
        socket.set_receive_buffer(4096).expect("a small buffer");
        counter.attach(socket).expect("attached");
    });
    send(address, [b"x"; 100]);
    let dropped = drops(&socket) as usize;
    assert!(dropped > 0);
    assert_eq!((drain(&socket) + dropped, arrived(&counter)), (100, 100));
    let counts = counter.read().expect("counts");
    assert!(counts.windows(2).all(|pair| pair[0].core < pair[1].core), "in the order of the cores: {counts:?}");
}

#[test]
fn a_counter_by_queue_counts_what_comes_from_no_queue_as_such_however_many_queues_it_tells_apart() {
    for queues in [0, 1, 64, 1023, u32::MAX] {
        let Some(counter) = permitted("counting by queue", CoreCounter::by_queue(queues)) else { return };
        let (_socket, address) = bound(Family::V4, |socket| counter.attach(socket).expect("attached"));
        send(address, [b"x"; 10]);
        let counts = counter.read().expect("counts");
        assert_eq!(arrived(&counter), 10, "{queues} queues: {counts:?}");
        assert!(counts.iter().all(|arrivals| arrivals.queue.is_none()), "loopback records none: {counts:?}");
    }
}

#[test]
fn a_socket_that_has_withdrawn_gets_nothing_more_and_can_be_read_to_its_end() {
    let (socket, address) = bound_v4();
    let sender = sender(Family::V4);
    sender.connect(address).expect("connected");
    sender.send(b"before").expect("sent");
    socket.withdraw().expect("no interface yet");
    sender.send(b"after").expect("the kernel takes it and finds no socket");
    let refused = sender.send(b"after").expect_err("the sender is told");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!((drain(&socket), drops(&socket)), (1, 0), "what was queued");
}
