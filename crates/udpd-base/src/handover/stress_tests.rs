//! Several lanes, two consumers, all three policies, real threads and real datagrams: whatever the order in which they
//! run, what comes out is in order, nothing comes out twice, what does not come out was counted, and all memory is home
//! at the end.
//!
//! Datagrams carry their number, their length follows from it, and every sixteenth is empty. Nothing here believes a
//! counter of the hand-over but the number of datagrams that it says were dropped.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use mmsg::{BatchShape, Datagram, Family, PackedBatch, RecvBatch, Socket, Wait};

use super::batch::exclusive;
use super::channel::{ConsumerInbox, Waited};
use super::pool::{Allowance, Blocks, Stock};
use super::pool::{Home, Homes, Owner, Pool};
use super::route::{FullPolicy, RoomTimeout, SinkRoute};

/// So many that the last ones have marks.
const LANES: usize = 7;
const CONSUMERS: usize = 2;
const SLOTS: usize = 16;
const LENGTH_MAX: usize = 3000;
const BATCHES: usize = 6;
const LEND_MAX: usize = 4;
const OWN_BLOCKS: usize = 4;
const SHARED_BLOCKS: usize = 6;
const BORROWED_MAX: usize = 4;
const BLOCK_BYTES: usize = 8192;
const BATCHES_A_LANE: u32 = if cfg!(debug_assertions) { 1_500 } else { 15_000 };

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Lets others run for a while, now and then for a long while.
    fn pause(&mut self) {
        let turns = if self.below(64) == 0 { 200 } else { self.below(4) };
        (0..turns).for_each(|_| thread::yield_now());
    }
}

/// The datagram of a number: most are short, some are long, and every sixteenth is empty.
fn payload(number: u32, into: &mut [u8; LENGTH_MAX]) -> &[u8] {
    let length = match number % 16 {
        0 => 0,
        1 => LENGTH_MAX - number as usize % 100,
        rest => 4 + (number as usize * 7 + rest as usize * 31) % 250,
    };
    into[..length].fill(number as u8);
    if length > 0 {
        into[..4].copy_from_slice(&number.to_ne_bytes());
    }
    &into[..length]
}

/// What a consumer has got from one lane.
#[derive(Default, Clone, Copy)]
struct Got {
    datagrams: u64,
    next: u32,
}

impl Got {
    fn take(&mut self, datagram: &Datagram<'_>) {
        self.datagrams += 1;
        let Some(number) = datagram.payload().first_chunk().map(|first| u32::from_ne_bytes(*first)) else {
            assert_eq!((datagram.length(), datagram.payload().len()), (0, 0));
            return;
        };
        assert!(number >= self.next, "{number} comes after {}", self.next - 1);
        assert_eq!(datagram.payload(), payload(number, &mut [0; LENGTH_MAX]));
        self.next = number + 1;
    }
}

/// A consumer's ends: what it takes from, and the blocks of its queue.
struct Far {
    inbox: ConsumerInbox,
    blocks: Blocks,
}

/// Consumers with blocks of their own, and some that they share.
fn far_ends() -> [Far; CONSUMERS] {
    let blocks = |count| PackedBatch::pool(count, BLOCK_BYTES, false).expect("a small pool").0.into_iter();
    let shared = Stock::shared(blocks(SHARED_BLOCKS));
    [(); CONSUMERS].map(|()| {
        let own = Stock::of_queue(blocks(OWN_BLOCKS));
        let blocks = Blocks::new(own, shared.clone(), Allowance::new(BORROWED_MAX));
        Far { inbox: ConsumerInbox::default(), blocks }
    })
}

/// A receiver with everything it owns.
struct Lane {
    number: usize,
    socket: Socket,
    sender: UdpSocket,
    pool: Pool,
    routes: Vec<SinkRoute>,
    sent: u32,
    /// By route.
    dropped: [u64; CONSUMERS],
}

impl Lane {
    fn new(number: usize, far: &mut [Far], policies: [FullPolicy; CONSUMERS]) -> (Self, Arc<Home>) {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        sender.connect(socket.local_addr().expect("bound")).expect("loopback");
        let (batches, _) = RecvBatch::pool(BATCHES, &BatchShape::new(SLOTS, LENGTH_MAX)).expect("a small pool");
        let (pool, home) = Pool::new(batches, CONSUMERS, Owner { lane: number, ..Owner::default() });
        let route = |(sink, (far, policy)): (usize, (&mut Far, FullPolicy))| {
            SinkRoute::new(far.inbox.attach(64), policy, sink, far.blocks.clone(), LEND_MAX)
        };
        let routes = far.iter_mut().zip(policies).enumerate().map(route).collect();
        (Self { number, socket, sender, pool, routes, sent: 0, dropped: [0; CONSUMERS] }, home)
    }

    /// Receives so many new datagrams and hands them to every route.
    fn step(&mut self, datagrams: usize, patience: &RoomTimeout) {
        for _ in 0..datagrams {
            let mut buffer = [0; LENGTH_MAX];
            let payload = payload(self.sent, &mut buffer);
            assert_eq!(self.sender.send(payload).expect("loopback takes it"), payload.len());
            self.sent += 1;
        }
        let mut parcel = self.pool.take().expect("there is always one to receive into");
        let batch = exclusive(&mut parcel);
        batch.clear();
        while batch.messages() < datagrams {
            batch.receive_more(&self.socket, Wait::Block).expect("received");
        }
        let is_full = batch.is_full();
        // A batch that is not full is followed by a rest, so no consumer may be left asleep behind it.
        for (route, dropped) in self.routes.iter_mut().zip(&mut self.dropped) {
            route.hand(&parcel, is_full, is_full, &mut self.pool, patience, &mut |count, _| *dropped += count);
        }
        self.pool.put(parcel);
    }

    /// Hands over until the end; then every feed is gone and only the pool is left.
    fn run(mut self) -> (Pool, u32, [u64; CONSUMERS]) {
        let mut dice = Dice(self.number as u64);
        for _ in 0..BATCHES_A_LANE {
            let datagrams = [1, 1, 2, 7, SLOTS][dice.below(5) as usize];
            self.step(datagrams, &RoomTimeout::default());
            if datagrams < SLOTS {
                self.routes.iter_mut().for_each(SinkRoute::ring);
            }
            dice.pause();
        }
        (self.pool, self.sent, self.dropped)
    }
}

/// Takes everything, with pauses, and keeps some of it for a while.
fn consume(mut inbox: ConsumerInbox, homes: &Homes, seed: u64) -> [Got; LANES] {
    let mut dice = Dice(seed);
    let mut got = [Got::default(); LANES];
    let mut kept = Vec::new();
    loop {
        let parcel = match inbox.take() {
            Some(parcel) => parcel,
            None => match inbox.wait(None) {
                Waited::Batch(parcel) => parcel,
                Waited::Deadline => unreachable!("no thread calls"),
                Waited::Ended => break,
            },
        };
        parcel.datagrams.datagrams().for_each(|datagram| got[parcel.lane].take(&datagram));
        kept.push(parcel);
        if kept.len() > dice.below(3) as usize {
            kept.drain(..).for_each(|parcel| homes.send(parcel));
        }
        dice.pause();
    }
    kept.into_iter().for_each(|parcel| homes.send(parcel));
    got
}

/// Nothing is missing where it belongs, and nothing is there that belongs elsewhere.
fn assert_all_is_home<'a>(pools: impl Iterator<Item = &'a mut Pool>, blocks: &[Blocks; CONSUMERS]) {
    for pool in pools {
        assert_eq!(std::iter::from_fn(|| pool.take()).count(), BATCHES);
    }
    for blocks in blocks {
        assert_eq!(Blocks::gauge(std::slice::from_ref(blocks)).expect("a node").in_use(), 0);
    }
    let taken = blocks.each_ref().map(|blocks| std::iter::from_fn(|| blocks.take()).count());
    assert_eq!(taken, [OWN_BLOCKS + BORROWED_MAX, OWN_BLOCKS + SHARED_BLOCKS - BORROWED_MAX]);
}

#[test]
fn whatever_the_threads_do_each_datagram_comes_out_once_and_in_order_or_is_counted_and_all_memory_is_home_again() {
    use FullPolicy::{Block, DropNewest, DropOldest};
    let policies = [[DropNewest, Block], [DropOldest, DropNewest], [Block, DropOldest]];
    let mut far = far_ends();
    let (lanes, homes): (Vec<Lane>, Vec<_>) =
        policies.iter().enumerate().map(|(number, policies)| Lane::new(number, &mut far, *policies)).unzip();
    let (homes, blocks): (Arc<[_]>, _) = (homes.into(), far.each_ref().map(|far| far.blocks.clone()));
    let (mut ended, got) = thread::scope(|scope| {
        let consumers = far.into_iter().zip(1..).map(|(far, seed)| {
            let homes = Homes::new(Arc::clone(&homes), vec![far.blocks]);
            scope.spawn(move || consume(far.inbox, &homes, seed << 32))
        });
        let consumers: Vec<_> = consumers.collect();
        let receivers: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(|| lane.run())).collect();
        let ended: Vec<_> = receivers.into_iter().map(|thread| thread.join().expect("a receiver ends")).collect();
        let got: Vec<_> = consumers.into_iter().map(|thread| thread.join().expect("a consumer ends")).collect();
        (ended, got)
    });
    let mut dropped_in_all = 0;
    for (lane, (_, sent, dropped)) in ended.iter().enumerate() {
        for (consumer, got) in got.iter().enumerate() {
            let policy = policies[lane][consumer];
            let (got, dropped) = (got[lane].datagrams, dropped[consumer]);
            assert_eq!(got + dropped, u64::from(*sent), "lane {lane} to {consumer}, {policy:?}");
            assert!(dropped == 0 || policy != Block, "a receiver that waits drops nothing");
            dropped_in_all += dropped;
        }
    }
    assert!(dropped_in_all > 0, "no consumer was ever behind: this shows nothing");
    assert_all_is_home(ended.iter_mut().map(|(pool, ..)| pool), &blocks);
}

#[test]
fn a_receiver_that_waits_and_is_told_to_give_up_counts_exactly_what_does_not_come_out() {
    let mut far = far_ends();
    let (mut lane, home) = Lane::new(0, &mut far, [FullPolicy::Block, FullPolicy::DropNewest]);
    let (patience, handed_over) = (RoomTimeout::default(), AtomicU64::new(0));
    let (mut pool, sent, dropped) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            while !patience.gives_up.load(Ordering::Relaxed) {
                lane.step(SLOTS, &patience);
                handed_over.fetch_add(1, Ordering::Relaxed);
            }
            lane.step(1, &patience);
            (lane.pool, lane.sent, lane.dropped)
        });
        // The fewest that there is memory for; it may wait by then or not.
        while handed_over.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        patience.gives_up.store(true, Ordering::Relaxed);
        receiver.join().expect("the receiver ends")
    });
    let (homes, blocks): (Arc<[_]>, _) = ([home].into(), far.each_ref().map(|far| far.blocks.clone()));
    for (far, dropped) in far.into_iter().zip(dropped) {
        let got = consume(far.inbox, &Homes::new(Arc::clone(&homes), vec![far.blocks]), 1)[0].datagrams;
        assert_eq!(got + dropped, u64::from(sent));
    }
    assert_all_is_home(std::iter::once(&mut pool), &blocks);
}

#[test]
fn where_a_consumer_has_ended_the_other_gets_everything_and_what_cannot_be_given_away_is_counted() {
    use FullPolicy::{Block, DropNewest, DropOldest};
    for policy in [DropNewest, DropOldest, Block] {
        let mut far = far_ends();
        let (mut lane, home) = Lane::new(0, &mut far, [policy, Block]);
        let [gone, other] = far;
        lane.step(SLOTS, &RoomTimeout::default());
        let other = thread::spawn(move || consume(other.inbox, &Homes::new([home].into(), vec![other.blocks]), 1));
        drop(gone);
        (0..100).for_each(|_| lane.step(SLOTS, &RoomTimeout::default()));
        assert!(lane.dropped[0] > 0 && lane.dropped[0] < u64::from(lane.sent), "{policy:?}: {:?}", lane.dropped);
        // The pool stays until everything is home.
        drop(lane.routes);
        let got = other.join().expect("it ends")[0];
        assert_eq!(got.datagrams, u64::from(lane.sent), "{policy:?}");
    }
}
