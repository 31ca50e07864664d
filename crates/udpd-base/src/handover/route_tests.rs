//! Routes with real datagrams over loopback: what is kept, what is given up, in which order, under each policy.

use super::*;
use crate::handover::batch::{exclusive, put_stamp};
use crate::handover::channel::ConsumerInbox;
use crate::handover::pool::{Allowance, Stock};
use crate::handover::pool::{Homes, Owner};
use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use std::net::UdpSocket;
use std::time::Instant;

static NEVER: RoomTimeout = RoomTimeout { gives_up: AtomicBool::new(false), is_relieved: AtomicBool::new(false) };
static RELIEVED: RoomTimeout = RoomTimeout { gives_up: AtomicBool::new(false), is_relieved: AtomicBool::new(true) };

/// A lane with one sink: `batches` of four slots, `blocks` of 4 KiB, each with room for 32 datagrams of a hundred
/// bytes.
struct Lane {
    socket: Socket,
    sender: UdpSocket,
    pool: Pool,
    homes: Homes,
    inbox: ConsumerInbox,
    route: SinkRoute,
    sent: u32,
    /// What the next batch carries.
    stamp: Option<LatencyStamp>,
    patience: &'static RoomTimeout,
    dropped: Vec<(u64, NotTaken)>,
}

const SLOTS: usize = 4;
/// More than any lane here has batches.
const LEND_MAX: usize = 100;
const PAYLOAD_BYTES: usize = 100;
const PER_BLOCK: usize = 4096 / 128;

impl Lane {
    fn new(policy: FullPolicy, batches: usize, blocks: usize) -> Self {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        sender.connect(socket.local_addr().expect("bound")).expect("loopback");
        let (batches, _) = RecvBatch::pool(batches, &BatchShape::new(SLOTS, 9000)).expect("a small pool");
        let (blocks, _) = PackedBatch::pool(blocks, 4096, false).expect("a small pool");
        let nothing = Stock::shared(Vec::new().into_iter());
        let blocks = Blocks::new(Stock::of_queue(blocks.into_iter()), nothing, Allowance::new(0));
        let (pool, home) = Pool::new(batches, 1, Owner::default());
        let mut inbox = ConsumerInbox::default();
        let route = SinkRoute::new(inbox.attach(1024), policy, 0, blocks.clone(), LEND_MAX);
        let homes = Homes::new([home].into(), vec![blocks]);
        Self { socket, sender, pool, homes, inbox, route, sent: 0, stamp: None, patience: &NEVER, dropped: Vec::new() }
    }

    /// Sends so many numbered datagrams, receives them into one batch and hands it over.
    fn hand(&mut self, datagrams: usize) {
        self.hand_as(datagrams, false);
    }

    fn hand_as(&mut self, datagrams: usize, quietly: bool) {
        for _ in 0..datagrams {
            let mut payload = [0; PAYLOAD_BYTES];
            payload[..4].copy_from_slice(&self.sent.to_ne_bytes());
            self.sent += 1;
            assert_eq!(self.sender.send(&payload).expect("loopback takes it"), PAYLOAD_BYTES);
        }
        let mut parcel = self.pool.take().expect("there is always one to receive into");
        let batch = exclusive(&mut parcel);
        batch.clear();
        while batch.messages() < datagrams {
            batch.receive_more(&self.socket, Wait::Block).expect("received");
        }
        let is_full = batch.is_full();
        put_stamp(&mut parcel, self.stamp);
        let (dropped, patience) = (&mut self.dropped, self.patience);
        self.route.hand(&parcel, is_full, quietly, &mut self.pool, patience, &mut |count, why| {
            dropped.push((count, why));
        });
        self.pool.put(parcel);
    }

    /// Everything that waits, by number, and gives its memory back.
    fn consume(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some(parcel) = self.inbox.take() {
            let number = |payload: &[u8]| u32::from_ne_bytes(payload[..4].try_into().expect("four bytes"));
            numbers.extend(parcel.datagrams.datagrams().map(|datagram| number(datagram.payload())));
            self.homes.send(parcel);
        }
        numbers
    }

    fn dropped_total(&self) -> u64 {
        self.dropped.iter().map(|(count, _)| count).sum()
    }
}

#[test]
fn a_consumer_that_keeps_up_gets_the_batch_itself() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 2);
    for _ in 0..10 {
        lane.hand(1);
        let parcel = lane.inbox.take().expect("handed over");
        assert!(matches!(parcel.datagrams, LaneLoad::Received(_)));
        lane.homes.send(parcel);
    }
}

#[test]
fn a_batch_that_is_left_quietly_is_owed_a_ring_until_as_many_wait_as_may() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 8, 2);
    lane.route.lend_max = 4;
    for waiting in 0..3 {
        lane.hand_as(SLOTS, true);
        assert!(lane.route.owes_ring, "{waiting} waited");
    }
    lane.hand_as(SLOTS, true);
    assert!(!lane.route.owes_ring, "the next would be copied");
    lane.consume();
    lane.hand_as(SLOTS, true);
    lane.route.ring();
    assert!(!lane.route.owes_ring);
    assert_eq!((lane.consume().len(), lane.dropped_total()), (SLOTS, 0));
}

#[test]
fn lone_datagrams_that_wait_take_the_memory_of_what_they_are() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 4);
    // The first is lent as it is; the others are joined in blocks.
    let fitting = 1 + 4 * PER_BLOCK;
    (0..fitting).for_each(|_| lane.hand(1));
    assert_eq!(lane.dropped, []);
    lane.hand(1);
    assert_eq!(lane.dropped, [(1, NotTaken::Full)]);
    assert_eq!(lane.consume(), (0..fitting as u32).collect::<Vec<_>>());
    lane.hand(1);
    assert_eq!(lane.consume(), [fitting as u32 + 1], "there is room again");
}

#[test]
fn full_batches_are_lent_as_long_as_a_quarter_is_left_and_packed_then() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 8, 4);
    (0..8).for_each(|_| lane.hand(SLOTS));
    let mut forms = Vec::new();
    while let Some(parcel) = lane.inbox.take() {
        forms.push(matches!(parcel.datagrams, LaneLoad::Received(_)));
        lane.homes.send(parcel);
    }
    assert_eq!(forms, [true, true, true, true, true, false], "two are left to receive into, the rest is one block");
}

/// Of everything that waits, whether it is a batch as it was received, and how many datagrams it has.
fn waiting(lane: &mut Lane) -> Vec<(bool, u64)> {
    let mut forms = Vec::new();
    while let Some(parcel) = lane.inbox.take() {
        let is_received = matches!(parcel.datagrams, LaneLoad::Received(_));
        forms.push((is_received, parcel.datagrams.summary().datagrams));
        lane.homes.send(parcel);
    }
    forms
}

#[test]
fn as_many_batches_wait_as_may_and_half_as_many_that_are_not_full() {
    for (datagrams, lent) in [(SLOTS, 4), (1, 2)] {
        let mut lane = Lane::new(FullPolicy::DropNewest, 16, 4);
        lane.route.lend_max = 4;
        (0..8).for_each(|_| lane.hand(datagrams));
        let mut expected = vec![(true, datagrams as u64); lent];
        expected.push((false, ((8 - lent) * datagrams) as u64));
        assert_eq!((waiting(&mut lane), lane.dropped_total()), (expected, 0), "{datagrams} in each");
    }
}

#[test]
fn drop_oldest_gives_up_nothing_that_fits_then_a_lent_batch_for_a_batch_and_then_a_block_for_a_block() {
    let mut lane = Lane::new(FullPolicy::DropOldest, 8, 1);
    lane.route.lend_max = 2;
    (0..2 + PER_BLOCK / SLOTS).for_each(|_| lane.hand(SLOTS));
    assert_eq!(lane.dropped, [], "the last one fills the block to its end");
    let full = NotTaken::Full;
    (0..2).for_each(|_| lane.hand(SLOTS));
    assert_eq!(lane.dropped, [(SLOTS as u64, full); 2], "what comes takes the place of what was lent");
    lane.hand(SLOTS);
    assert_eq!(lane.dropped[2..], [(PER_BLOCK as u64, full)]);
    assert_eq!(waiting(&mut lane), [(true, 4), (true, 4), (false, 4)]);
}

#[test]
fn a_block_that_is_full_before_a_batch_begins_carries_nothing_of_its_stamp() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 2);
    (0..1 + PER_BLOCK / SLOTS).for_each(|_| lane.hand(SLOTS));
    lane.stamp = Some(LatencyStamp { arrived: Instant::now(), datagrams: SLOTS as u64 });
    lane.hand(SLOTS);
    let stamps = std::iter::from_fn(|| lane.inbox.take()).map(|parcel| parcel.stamp.map(|stamp| stamp.datagrams));
    assert_eq!(stamps.collect::<Vec<_>>(), [None, None, Some(SLOTS as u64)]);
}

#[test]
fn a_receiver_may_have_to_wait_under_block_alone_and_a_consumer_that_is_behind_does_not_await_it() {
    for (policy, may_block) in
        [(FullPolicy::Block, true), (FullPolicy::DropNewest, false), (FullPolicy::DropOldest, false)]
    {
        let mut lane = Lane::new(policy, 16, 1);
        assert_eq!((lane.route.may_block(), lane.route.is_awaited()), (may_block, true));
        (0..4).for_each(|_| lane.hand(SLOTS));
        assert!(!lane.route.is_awaited(), "four wait");
    }
}

#[test]
fn a_block_carries_the_oldest_stamp_of_what_is_packed_into_it_and_an_empty_one_none() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 1);
    let start = Instant::now();
    let stamp =
        |milliseconds, datagrams| LatencyStamp { arrived: start + Duration::from_millis(milliseconds), datagrams };
    // The first is lent; what comes then is packed into one block, two of them with a stamp.
    for stamp in [Some(stamp(1, 4)), None, Some(stamp(2, 1)), None, Some(stamp(3, 1))] {
        lane.stamp = stamp;
        lane.hand(1);
    }
    let mut stamps = Vec::new();
    while let Some(parcel) = lane.inbox.take() {
        stamps.push(parcel.stamp);
        lane.homes.send(parcel);
    }
    assert_eq!(stamps, [Some(stamp(1, 4)), Some(stamp(2, 2))]);
    lane.stamp = None;
    (0..2).for_each(|_| lane.hand(1));
    while let Some(parcel) = lane.inbox.take() {
        assert_eq!(parcel.stamp, None, "a stamp does not outlive its datagrams");
        lane.homes.send(parcel);
    }
}

#[test]
fn each_block_counts_those_that_it_has_of_a_batch_and_the_dropped_count_nowhere() {
    for (blocks, expected) in [(1, vec![2]), (2, vec![2, 2])] {
        let mut lane = Lane::new(FullPolicy::DropNewest, 2, blocks);
        lane.hand(SLOTS);
        assert_eq!(PER_BLOCK % SLOTS, 0);
        (0..PER_BLOCK / SLOTS - 1).for_each(|_| lane.hand(SLOTS));
        lane.hand(2);
        lane.stamp = Some(LatencyStamp { arrived: Instant::now(), datagrams: SLOTS as u64 });
        lane.hand(SLOTS);
        assert_eq!(lane.dropped_total() as usize, SLOTS - expected.iter().sum::<u64>() as usize);
        let mut stamped = Vec::new();
        while let Some(parcel) = lane.inbox.take() {
            stamped.extend(parcel.stamp.map(|stamp| stamp.datagrams));
            lane.homes.send(parcel);
        }
        assert_eq!(stamped, expected);
    }
}

#[test]
fn drop_newest_keeps_what_waits_and_counts_every_datagram_of_what_came_later() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 2);
    (0..30).for_each(|_| lane.hand(SLOTS));
    let kept = lane.consume();
    assert_eq!(kept, (0..kept.len() as u32).collect::<Vec<_>>(), "the first ones, none left out");
    assert_eq!(kept.len() as u64 + lane.dropped_total(), u64::from(lane.sent));
}

#[test]
fn drop_oldest_keeps_the_newest_and_gives_up_one_load_for_one() {
    let mut lane = Lane::new(FullPolicy::DropOldest, 8, 2);
    (0..60).for_each(|_| lane.hand(SLOTS));
    let kept = lane.consume();
    let last = lane.sent - 1;
    assert_eq!(kept, (last + 1 - kept.len() as u32..=last).collect::<Vec<_>>(), "the last ones, none left out");
    assert_eq!(kept.len() as u64 + lane.dropped_total(), u64::from(lane.sent));
    assert!(lane.dropped.iter().all(|(count, _)| *count <= PER_BLOCK as u64), "{:?}", lane.dropped);
    assert!(kept.len() >= PER_BLOCK, "a full block is kept beside the one that is being filled");
}

#[test]
fn block_waits_for_room_and_drops_nothing() {
    let mut lane = Lane::new(FullPolicy::Block, 2, 1);
    let mut inbox = std::mem::take(&mut lane.inbox);
    let homes = lane.homes.clone();
    let consumer = std::thread::spawn(move || {
        let mut taken = 0;
        while let crate::handover::channel::Waited::Batch(parcel) = inbox.wait(None) {
            taken += parcel.datagrams.summary().datagrams;
            std::thread::yield_now();
            homes.send(parcel);
        }
        taken
    });
    (0..500).for_each(|_| lane.hand(SLOTS));
    let sent = u64::from(lane.sent);
    assert_eq!(lane.dropped, []);
    drop(lane);
    assert_eq!(consumer.join().expect("the consumer ends"), sent);
}

#[test]
fn block_does_not_wait_for_a_consumer_that_is_gone_nor_when_told_to_give_up() {
    let mut lane = Lane::new(FullPolicy::Block, 2, 1);
    drop(std::mem::take(&mut lane.inbox));
    (0..30).for_each(|_| lane.hand(SLOTS));
    assert!(lane.dropped.iter().all(|(_, why)| *why == NotTaken::GivenUp) && !lane.dropped.is_empty());
}

#[test]
fn a_receiver_that_is_relieved_waits_for_no_room_and_loses_nothing_while_its_queue_has_places() {
    let mut lane = Lane::new(FullPolicy::Block, 2, 1);
    lane.patience = &RELIEVED;
    (0..50).for_each(|_| lane.hand(SLOTS));
    assert_eq!((lane.consume(), lane.dropped_total()), ((0..50 * SLOTS as u32).collect(), 0));
    // What was beside the stocks does not come back to them.
    (0..50).for_each(|_| lane.hand(SLOTS));
    assert_eq!(lane.consume().len(), 50 * SLOTS);
}

#[test]
fn a_train_or_a_long_datagram_takes_as_many_blocks_as_it_needs() {
    let mut lane = Lane::new(FullPolicy::DropNewest, 2, 8);
    lane.hand(1);
    let long = [7; 3000];
    for _ in 0..3 {
        assert_eq!(lane.sender.send(&long).expect("loopback takes it"), long.len());
    }
    let mut parcel = lane.pool.take().expect("a batch");
    let batch = exclusive(&mut parcel);
    batch.clear();
    while batch.messages() < 3 {
        batch.receive_more(&lane.socket, Wait::Block).expect("received");
    }
    lane.route.hand(&parcel, false, false, &mut lane.pool, &NEVER, &mut |_, _| panic!("there is room"));
    lane.pool.put(parcel);
    let loads: Vec<u64> =
        std::iter::from_fn(|| lane.inbox.take()).map(|parcel| parcel.datagrams.summary().datagrams).collect();
    assert_eq!(loads, [1, 1, 1, 1]);
}
