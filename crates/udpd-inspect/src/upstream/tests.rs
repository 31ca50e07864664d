//! All of this but the sockets: notes of several lanes through rings into the table, and what is read of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::note_ring::{NOTES, NoteKind, NoteWriter, SequenceNote, StreamKey};
use super::testing::{Network, Random, sent, truth};
use super::tracker::StreamTracker;
use super::{Fixed, NumberOrder, Sequence, UpstreamMonitor};
use udpd_base::ledger::snapshot::UpstreamSnapshot;

const FIXED: Sequence = Sequence::Fixed(Fixed { offset: 0, bytes: 4, order: NumberOrder::Big });

/// A listener whose notes the test writes itself.
struct Listener {
    upstream: UpstreamMonitor,
    lanes: Vec<NoteWriter>,
    tracker: StreamTracker,
    /// By lane.
    kernel_dropped: Vec<u64>,
}

impl Listener {
    fn new(sequence: Sequence, lanes: usize, streams_max: usize) -> Self {
        Self::with_drops(sequence, lanes, streams_max, sequence.reads_drops(false))
    }

    fn with_drops(sequence: Sequence, lanes: usize, streams_max: usize, knows_drops: bool) -> Self {
        let upstream = UpstreamMonitor::new(sequence, lanes, knows_drops, Duration::ZERO);
        let lanes: Vec<NoteWriter> = upstream.0.rings.iter().map(|ring| NoteWriter::new(Arc::clone(ring))).collect();
        let tracker = StreamTracker::with_limit(&upstream.0, streams_max);
        Self { upstream, kernel_dropped: vec![0; lanes.len()], lanes, tracker }
    }

    /// A datagram of a stream comes by a lane.
    fn arrive(&mut self, lane: usize, stream: u64, number: u64) {
        let drops = self.kernel_dropped[lane] as u32;
        let key = StreamKey { source: 7, stream, ..StreamKey::default() };
        let note =
            SequenceNote { key, kind: NoteKind::Run, number, units: 1, datagrams: 1, drops, ..SequenceNote::default() };
        if !self.lanes[lane].write(&[note]) {
            self.take();
            assert!(self.lanes[lane].write(&[note]), "the ring has room");
        }
        self.lanes[lane].publish();
    }

    fn take(&mut self) {
        while self.tracker.take_notes(NOTES) > 0 {}
    }

    fn read(&mut self) -> UpstreamSnapshot {
        self.take();
        self.tracker.publish();
        self.upstream.read(self.kernel_dropped.iter().map(|dropped| Some(*dropped)), false, 0)
    }

    fn last_reading(&mut self) -> UpstreamSnapshot {
        self.take();
        self.tracker.settle_all();
        self.read()
    }
}

#[test]
fn streams_that_come_by_several_lanes_are_followed_across_them() {
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut listener = Listener::new(FIXED, 4, 64);
        let network = Network { lost_percent: 10, repeated_percent: 2, delay_max: 10 };
        let (mut missing, mut duplicate) = (0, 0);
        for stream in 0..20 {
            let arrived = network.carry(&sent(0, 2000, 1, &mut random), &mut random);
            (missing, duplicate) = (missing + truth(&arrived).missing, duplicate + truth(&arrived).duplicate);
            for (place, datagram) in arrived.iter().enumerate() {
                listener.arrive(random.below(4) as usize, stream, datagram.number);
                if place % 3 == 0 {
                    listener.take();
                }
            }
            listener.take();
        }
        let reading = listener.last_reading();
        assert_eq!((reading.missing, reading.counts.duplicate), (Some(missing), duplicate), "seed {seed}: {reading:?}");
        assert_eq!((reading.counts.streams, reading.unseen), (20, 0));
    }
}

#[test]
fn what_this_host_drops_of_the_one_stream_of_a_lane_is_taken_off_by_count() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut listener = Listener::new(FIXED, 2, 64);
        let mut expected = 0;
        for lane in 0..2 {
            let arrived =
                Network { lost_percent: 10, ..Network::default() }.carry(&sent(0, 3000, 1, &mut random), &mut random);
            expected += truth(&arrived).missing;
            for datagram in &arrived {
                // In bursts, and at the very end too.
                let is_stalled = datagram.number % 500 > 450;
                if is_stalled && random.below(2) == 0 {
                    listener.kernel_dropped[lane] += 1;
                    continue;
                }
                listener.arrive(lane, lane as u64, datagram.number);
            }
        }
        assert!(listener.kernel_dropped.iter().all(|dropped| *dropped > 100));
        // What was dropped last, or sent and lost after it, leaves no gap that could be seen.
        let reading = listener.last_reading();
        let after_the_last = 2 * 50;
        let (least, most) = (reading.missing_at_least, reading.missing_at_most);
        assert!(least <= expected && most + after_the_last >= expected, "seed {seed}: {expected} {reading:?}");
        for lane in 0..2 {
            listener.arrive(lane, lane as u64, 3000);
        }
        assert_eq!(listener.last_reading().missing, Some(expected), "seed {seed}");
    }
}

#[test]
fn where_drops_and_streams_cannot_be_matched_the_truth_lies_within_the_bounds() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut listener = Listener::new(FIXED, 1, 64);
        let network = Network { lost_percent: 5, repeated_percent: seed % 3, delay_max: seed % 7 };
        let streams: Vec<_> = (0..3).map(|_| network.carry(&sent(0, 1000, 1, &mut random), &mut random)).collect();
        let expected: u64 = streams.iter().map(|arrived| truth(arrived).missing).sum();
        for place in 0..1100 {
            for (stream, arrived) in streams.iter().enumerate() {
                let Some(datagram) = arrived.get(place) else { continue };
                if place + 1 < arrived.len() && random.below(20) == 0 {
                    listener.kernel_dropped[0] += 1;
                } else {
                    listener.arrive(0, stream as u64, datagram.number);
                }
            }
        }
        let UpstreamSnapshot { missing, missing_at_least: least, missing_at_most: most, .. } = listener.last_reading();
        assert_eq!(missing, None, "a guess, seed {seed}");
        assert!(least <= expected && expected <= most, "seed {seed}: {least} {expected} {most}");
    }
}

#[test]
fn while_drops_have_not_settled_there_are_bounds_and_afterwards_a_number() {
    let mut listener = Listener::new(FIXED, 1, 64);
    (0..100).for_each(|number| listener.arrive(0, 1, number));
    // 5 lost on the way, which settle; then 3 dropped here.
    (105..300).for_each(|number| listener.arrive(0, 1, number));
    assert_eq!(listener.read().missing, Some(5));
    listener.kernel_dropped[0] += 3;
    listener.arrive(0, 1, 303);
    let reading = listener.read();
    assert_eq!((reading.missing, reading.missing_at_least, reading.missing_at_most), (None, 2, 5));
    assert!(listener.tracker.sweep(), "something is open");
    listener.tracker.sweep();
    assert_eq!(listener.read().missing, Some(5));
}

#[test]
fn drops_before_a_jump_that_nothing_confirms_take_nothing_off() {
    let mut listener = Listener::new(FIXED, 1, 64);
    (0..100).for_each(|number| listener.arrive(0, 1, number));
    // 5 lost on the way; then 2000 dropped here.
    (105..300).for_each(|number| listener.arrive(0, 1, number));
    listener.kernel_dropped[0] += 2000;
    listener.arrive(0, 1, 2300);
    let reading = listener.read();
    assert_eq!((reading.missing_at_least, reading.missing_at_most), (0, 5));
    let reading = listener.last_reading();
    assert_eq!((reading.missing_at_least, reading.missing_at_most), (0, 5));
    let mut listener = Listener::new(FIXED, 1, 64);
    (0..100).for_each(|number| listener.arrive(0, 1, number));
    (105..300).for_each(|number| listener.arrive(0, 1, number));
    listener.kernel_dropped[0] += 2000;
    (2300..2400).for_each(|number| listener.arrive(0, 1, number));
    assert_eq!(listener.last_reading().missing, Some(5), "a jump that is confirmed");
}

#[test]
fn drops_of_a_socket_that_took_the_place_of_another_and_drops_beside_the_unseen_are_not_matched() {
    for is_other_socket in [true, false] {
        let mut listener = Listener::new(FIXED, 1, 64);
        (0..100).for_each(|number| listener.arrive(0, 1, number));
        (105..300).for_each(|number| listener.arrive(0, 1, number));
        let ring = &listener.upstream.0.rings[0];
        match is_other_socket {
            true => ring.is_other_socket.store(true, Ordering::Relaxed),
            false => ring.unseen.store(1, Ordering::Relaxed),
        }
        listener.kernel_dropped[0] += 3;
        (303..400).for_each(|number| listener.arrive(0, 1, number));
        let reading = listener.last_reading();
        let least = if is_other_socket { 5 } else { 4 };
        assert_eq!((reading.missing_at_least, reading.missing_at_most), (least, 8));
    }
}

#[test]
fn drops_that_no_datagram_tells_of_widen_the_bounds_and_without_any_the_number_is_exact() {
    let mut listener = Listener::with_drops(FIXED, 2, 64, false);
    (0..100).for_each(|number| listener.arrive(1, 1, number));
    (105..300).for_each(|number| listener.arrive(1, 1, number));
    assert_eq!(listener.read().missing_at_most, 5);
    // As those of a receive queue past the kernel's stack, which is the second lane here.
    listener.kernel_dropped[1] += 3;
    let key = StreamKey { source: 7, stream: 1, ..StreamKey::default() };
    let note =
        SequenceNote { key, kind: NoteKind::Run, number: 303, units: 97, datagrams: 97, ..SequenceNote::default() };
    assert!(listener.lanes[1].write(&[note]), "the ring has room");
    listener.lanes[1].publish();
    let reading = listener.last_reading();
    assert_eq!((reading.missing, reading.missing_at_least, reading.missing_at_most), (None, 5, 8));
    listener.kernel_dropped[1] = 0;
    assert_eq!(listener.read().missing, Some(8));
}

#[test]
fn a_lane_that_has_more_than_a_turn_keeps_the_thread_from_resting() {
    let mut listener = Listener::new(FIXED, 1, 64);
    (0..10).for_each(|number| listener.arrive(0, 1, number));
    let mut turn = || (listener.tracker.take_notes(8), listener.tracker.is_behind);
    assert_eq!((turn(), turn(), turn()), ((8, true), (2, false), (0, false)));
}

#[test]
fn a_hundred_thousand_sources_take_no_more_memory_and_the_forgotten_are_counted() {
    let mut listener = Listener::new(FIXED, 1, super::STREAMS_MAX);
    for round in 0..2 {
        for stream in 0..100_000 {
            // One number in three is lost.
            listener.arrive(0, stream, 3 * round);
            listener.arrive(0, stream, 3 * round + 2);
            listener.take();
        }
    }
    let reading = listener.last_reading();
    let (remembered, forgotten) = (super::STREAMS_MAX as u64, 200_000 - super::STREAMS_MAX as u64);
    assert_eq!((reading.counts.streams, reading.counts.forgotten), (remembered, forgotten));
    assert_eq!(reading.missing, Some(200_000), "what was seen missing before it was forgotten stays counted");
}

#[test]
fn what_finds_no_room_in_the_ring_is_unseen_and_widens_the_bounds() {
    let mut listener = Listener::new(FIXED, 1, 64);
    (0..1000).for_each(|number| listener.arrive(0, 1, number));
    listener.take();
    // 40 that were not observed, and 10 that never came.
    listener.upstream.0.rings[0].unseen.store(40, Ordering::Relaxed);
    (1050..1200).for_each(|number| listener.arrive(0, 1, number));
    let reading = listener.last_reading();
    assert_eq!((reading.unseen, reading.missing), (40, None));
    assert_eq!((reading.missing_at_least, reading.missing_at_most), (10, 50));
}

#[test]
fn of_drops_in_other_units_the_bounds_say_what_they_may_have_been() {
    let mut listener = Listener::new(Sequence::NetFlow5, 1, 64);
    listener.arrive(0, 1, 0);
    listener.arrive(0, 1, 101);
    listener.kernel_dropped[0] = 2;
    let reading = listener.last_reading();
    assert_eq!((reading.unit.as_str(), reading.missing), ("flows", None));
    assert_eq!((reading.missing_at_least, reading.missing_at_most), (40, 100), "30 flows a datagram");
    let mut listener = Listener::new(Sequence::Ipfix, 1, 64);
    listener.kernel_dropped[0] = 2;
    assert_eq!(listener.last_reading().missing, Some(0), "what is nowhere missing needs no bounds");
}

#[test]
fn what_may_be_missing_of_messages_that_wait_is_in_the_bounds_of_their_stream_from_the_first_sweep_on() {
    let mut listener = Listener::new(Sequence::Ipfix, 1, 64);
    let key = StreamKey { source: 7, stream: 1, ..StreamKey::default() };
    // Records of ten bytes. Whether the number of a message counts its own or not, 15 are missing, or 5.
    let template = SequenceNote { key, kind: NoteKind::Template, number: 256, units: 10, ..SequenceNote::default() };
    assert!(listener.lanes[0].write(&[template]));
    for (number, units) in [(0, 100), (25, 200)] {
        let records = SequenceNote { key, kind: NoteKind::Records, number: 256, units, ..SequenceNote::default() };
        let message = SequenceNote { key, kind: NoteKind::Message, number, datagrams: 1, ..SequenceNote::default() };
        assert!(listener.lanes[0].write(&[records, message]));
        listener.lanes[0].publish();
    }
    for _ in 0..5 {
        listener.take();
        listener.tracker.sweep();
        let (reading, streams) = (listener.read(), listener.upstream.streams());
        assert_eq!((reading.missing_at_least, reading.missing_at_most), (0, 15), "{reading:?}");
        assert_eq!((streams.len(), streams[0].missing_at_least, streams[0].missing_at_most), (1, 0, 15));
    }
}

#[test]
fn a_stream_of_several_on_a_lane_loses_only_once_more_is_missing_than_this_host_has_dropped() {
    let mut listener = Listener::new(FIXED, 1, 64);
    let mut said = Vec::new();
    for second in 0..120_u32 {
        listener.tracker.now_s = second;
        for number in 10 * u64::from(second)..10 * u64::from(second) + 10 {
            // This host drops 3 of the first stream; more than a minute later the network loses 2 of the second.
            match (second, number % 10) {
                (30, 0..3) => listener.kernel_dropped[0] += 1,
                _ => listener.arrive(0, 1, number),
            }
            if second != 100 || number % 10 >= 2 {
                listener.arrive(0, 2, number);
            }
        }
        listener.take();
        listener.tracker.sweep();
        let losing = listener.read().counts.losing;
        let (changes, _) = listener.upstream.changes();
        said.extend(changes.into_iter().map(|(change, _)| (second / 10, change, losing)));
    }
    use super::StreamChange::{BeginsToLose, HasGaps, LosesNoMore};
    assert_eq!(said, [(3, HasGaps, 0), (9, LosesNoMore, 0), (10, BeginsToLose, 1)]);
}

#[test]
fn before_anything_is_known_of_what_this_host_dropped_no_stream_is_judged() {
    let mut listener = Listener::with_drops(FIXED, 1, 64, false);
    for second in 0..40_u32 {
        listener.tracker.now_s = second;
        (0..10).filter(|number| second != 5 || *number > 2).for_each(|number| {
            listener.arrive(0, 1, 10 * u64::from(second) + number);
        });
        listener.take();
        listener.tracker.sweep();
        if second < 20 {
            assert_eq!(listener.upstream.streams()[0].missing_at_least, 0, "three may have been dropped here");
        } else {
            listener.kernel_dropped[0] = 3;
            listener.read();
        }
    }
    let said: Vec<_> = listener.upstream.changes().0.into_iter().map(|(change, _)| change).collect();
    assert_eq!(said, [super::StreamChange::HasGaps]);
    assert_eq!(listener.read().counts.losing, 0);
}

#[test]
fn a_flood_of_made_up_streams_takes_the_place_of_none_that_was_there_before_it() {
    let mut listener = Listener::new(FIXED, 1, 256);
    for second in 0..30_u32 {
        listener.tracker.now_s = second;
        // Of each exporter one number is lost.
        (0..100).filter(|_| second != 20).for_each(|stream| listener.arrive(0, stream, second.into()));
        if second > 12 {
            let flood = 1000 + u64::from(second) * 2000;
            (flood..flood + 2000).for_each(|stream| listener.arrive(0, stream, 7));
        }
        listener.take();
        listener.tracker.sweep();
        listener.read();
    }
    let reading = listener.last_reading();
    assert!(reading.counts.forgotten > 30_000 && reading.counts.streams == 256, "{reading:?}");
    assert_eq!((reading.missing, reading.counts.losing), (Some(100), 100), "{reading:?}");
    let losers = listener.upstream.streams().into_iter().filter(|one| one.missing == Some(1) && one.since > 0);
    assert_eq!(losers.count(), 100);
    let (changes, more) = listener.upstream.changes();
    assert_eq!(changes.len() as u64 + more, 100, "one line for each that begins to lose, and none for the flood");
}

#[test]
fn a_listener_of_netflow_tells_versions_and_both_sides_of_a_pair_apart() {
    let upstream = UpstreamMonitor::new(Sequence::NetFlow, 1, false, Duration::ZERO);
    let mut observer = upstream.observer(0, ([0, 0, 0, 0], 2055).into());
    let mut tracker = StreamTracker::with_limit(&upstream.0, 64);
    let v9 = |number: u8| [&[0, 9, 0, 1][..], &[0; 8], &[0, 0, 0, number], &[0, 0, 0, 3]].concat();
    let v5 = |number: u8| [&[0, 5, 0, 2][..], &[0; 12], &[0, 0, 0, 2 * number], &[0, 3, 0, 0]].concat();
    let mut batch = Vec::new();
    for number in 0..100_u8 {
        // One side of the pair loses number 50, and number 7 is missing of NetFlow 5, which comes by the same port.
        let all = [(1, v9(number), number != 50), (2, v9(number), true), (1, v5(number), number != 7)];
        for (side, payload, _) in all.iter().filter(|(.., comes)| *comes) {
            super::network_tests::push(&mut batch, ("192.0.2.1:2055".parse().expect("an address"), *side), payload, 0);
        }
    }
    super::network_tests::push(&mut batch, ("192.0.2.1:2055".parse().expect("an address"), 1), &[0, 7, 0, 1], 0);
    observer.observe_each(mmsg::PackedDatagrams::of(&batch));
    while tracker.take_notes(NOTES) > 0 {}
    tracker.settle_all();
    tracker.publish();
    let reading = upstream.read([Some(0)].into_iter(), false, 0);
    assert_eq!((reading.unit.as_str(), reading.missing, reading.unnumbered), ("units", Some(3), 1));
    let mut said: Vec<_> = upstream.streams().into_iter().collect();
    said.sort_by_key(|one| (one.protocol.clone(), one.destination));
    let said: Vec<String> = said
        .iter()
        .map(|one| {
            let to = one.destination.expect("a destination");
            format!("{} {to} {} {}: {} {}", one.protocol, one.domain, one.unit, one.arrived, one.missing_at_most)
        })
        .collect();
    let expected = [
        "netflow5 10.0.0.1:2055 0/3 flows: 198 2",
        "netflow9 10.0.0.1:2055 3 datagrams: 99 1",
        "netflow9 10.0.0.2:2055 3 datagrams: 100 0",
    ];
    assert_eq!(said, expected);
}
