//! Whole lanes in every order of their threads, under each policy, with real datagrams: each comes out once and in
//! order or is counted, and all memory is home again when the consumer has ended.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use interleavings::explore::in_every_order;
use interleavings::handover::batch::exclusive;
use interleavings::handover::channel::{ConsumerInbox, Waited};
use interleavings::handover::pool::{Allowance, Blocks, Homes, Owner, Pool, Stock};
use interleavings::handover::route::{FullPolicy, NotTaken, RoomTimeout, SinkRoute};
use loom::thread;
use loom::thread::JoinHandle;
use mmsg::{BatchShape, Family, PackedBatch, RecvBatch, Socket, Wait};

const PAYLOAD_BYTES: usize = 100;
/// A block has room for two datagrams.
const BLOCK_BYTES: usize = 256;
const LEND_MAX: usize = 2;

/// Sends datagrams to itself.
#[derive(Clone)]
struct Wire(Arc<(Socket, UdpSocket)>);

impl Wire {
    fn new() -> Self {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        sender.connect(socket.local_addr().expect("bound")).expect("loopback");
        Self(Arc::new((socket, sender)))
    }

    fn receive(&self, number: u8, batch: &mut RecvBatch) {
        let (socket, sender) = &*self.0;
        assert_eq!(sender.send(&[number; PAYLOAD_BYTES]).expect("loopback takes it"), PAYLOAD_BYTES);
        batch.clear();
        batch.receive_more(socket, Wait::Block).expect("received");
        assert_eq!(batch.messages(), 1);
    }
}

/// A lane of two batches with a slot each. Each of its sinks has one block, which two datagrams fill.
struct Lane {
    pool: Pool,
    routes: Vec<SinkRoute>,
    blocks: Vec<Blocks>,
    patience: RoomTimeout,
    /// Datagrams that no consumer got, by route.
    dropped: Vec<u64>,
    consumers: Vec<JoinHandle<Vec<u8>>>,
}

impl Lane {
    fn new(policy: FullPolicy, sinks: usize) -> Self {
        let (batches, _) = RecvBatch::pool(2, &BatchShape::new(1, PAYLOAD_BYTES)).expect("a small pool");
        let (pool, home) = Pool::new(batches, sinks, Owner::default());
        let homes = Arc::from([home]);
        let mut lane = Self {
            pool,
            routes: Vec::new(),
            blocks: Vec::new(),
            patience: RoomTimeout::default(),
            dropped: vec![0; sinks],
            consumers: Vec::new(),
        };
        for sink in 0..sinks {
            let block = PackedBatch::pool(1, BLOCK_BYTES, false).expect("a small pool").0;
            let nothing = Stock::shared(Vec::new().into_iter());
            let blocks = Blocks::new(Stock::of_queue(block.into_iter()), nothing, Allowance::new(0));
            let mut inbox = ConsumerInbox::default();
            lane.routes.push(SinkRoute::new(inbox.attach(8), policy, sink, blocks.clone(), LEND_MAX));
            let homes = Homes::new(Arc::clone(&homes), vec![blocks.clone()]);
            lane.blocks.push(blocks);
            lane.consumers.push(thread::spawn(move || consume(inbox, &homes)));
        }
        lane
    }

    /// Receives datagrams and hands each over.
    fn hand(&mut self, wire: &Wire, numbers: std::ops::Range<u8>) {
        for number in numbers {
            let mut batch = self.pool.take().expect("there is always one to receive into");
            wire.receive(number, exclusive(&mut batch));
            for (route, dropped) in self.routes.iter_mut().zip(&mut self.dropped) {
                let drop = &mut |count, _: NotTaken| *dropped += count;
                route.hand(&batch, true, false, &mut self.pool, &self.patience, drop);
            }
            self.pool.put(batch);
        }
    }

    /// Ends the lane and checks its memory. Returns what each consumer took, and how many datagrams it did not get.
    fn end(mut self) -> Vec<(Vec<u8>, u64)> {
        self.routes.clear();
        let taken: Vec<Vec<u8>> =
            self.consumers.into_iter().map(|consumer| consumer.join().expect("it ends")).collect();
        assert!([self.pool.take(), self.pool.take()].iter().all(Option::is_some), "a batch is not home");
        for blocks in self.blocks {
            assert_eq!(Blocks::gauge(&[blocks]).expect("a node").in_use(), 0, "a block is not home");
        }
        taken.into_iter().zip(self.dropped).collect()
    }
}

fn consume(mut inbox: ConsumerInbox, homes: &Homes) -> Vec<u8> {
    let mut numbers = Vec::new();
    while let Waited::Batch(load) = inbox.wait(None) {
        numbers.extend(load.datagrams.datagrams().map(|datagram| datagram.payload()[0]));
        homes.send(load);
    }
    numbers
}

/// In order, none twice, and all the others are counted.
fn assert_accounted(sent: u8, (taken, dropped): &(Vec<u8>, u64)) {
    assert!(taken.is_sorted_by(|one, next| one < next), "{taken:?}");
    assert_eq!(taken.len() as u64 + dropped, u64::from(sent), "{taken:?}");
}

/// Hands over more than there may be room for, and has everything accounted for in every order, with losses in some.
fn with_too_little_room(policy: FullPolicy, gives_up: bool) {
    let (wire, lost) = (Wire::new(), Arc::new(AtomicU64::new(0)));
    let losses = Arc::clone(&lost);
    in_every_order(2, move || {
        let mut lane = Lane::new(policy, 1);
        lane.patience.gives_up.store(gives_up, Ordering::Relaxed);
        lane.hand(&wire, 0..4);
        let ended = lane.end();
        assert_accounted(4, &ended[0]);
        losses.fetch_add(ended[0].1, Ordering::Relaxed);
    });
    assert_ne!(lost.load(Ordering::Relaxed), 0, "there was room in every order");
}

#[test]
fn what_finds_no_room_is_counted_and_what_waits_comes_out_once_and_in_order() {
    with_too_little_room(FullPolicy::DropNewest, false);
}

#[test]
fn what_a_newer_datagram_displaces_is_counted_although_the_consumer_takes_at_the_same_time() {
    with_too_little_room(FullPolicy::DropOldest, false);
}

#[test]
fn a_receiver_that_is_told_to_give_up_counts_what_it_had_in_hand() {
    with_too_little_room(FullPolicy::Block, true);
}

#[test]
fn a_receiver_that_waits_for_room_gets_it_and_nothing_is_dropped() {
    let wire = Wire::new();
    in_every_order(2, move || {
        let mut lane = Lane::new(FullPolicy::Block, 1);
        lane.hand(&wire, 0..4);
        assert_eq!(lane.end(), [(vec![0, 1, 2, 3], 0)]);
    });
}

#[test]
fn two_sinks_of_a_lane_each_get_every_datagram_of_the_same_batches() {
    let wire = Wire::new();
    in_every_order(2, move || {
        let mut lane = Lane::new(FullPolicy::DropNewest, 2);
        lane.hand(&wire, 0..2);
        let ended = lane.end();
        assert_eq!(ended, [(vec![0, 1], 0), (vec![0, 1], 0)]);
    });
}
