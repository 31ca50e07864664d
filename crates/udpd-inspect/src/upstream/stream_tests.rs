//! Streams against the model: whatever the network loses, repeats and reorders within the window is counted exactly,
//! past every wrap and through restarts of the exporter.

use super::*;
use crate::upstream::testing::{Network, Random, SentDatagram, Truth, sent, truth};

/// What a protocol of the simulation is like.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    bits: u32,
    units_max: u64,
    /// Its header has the clocks.
    has_uptime: bool,
    has_time: bool,
}

const PROTOCOLS: &[Protocol] = &[
    Protocol { bits: 32, units_max: 30, has_uptime: true, has_time: true },
    Protocol { bits: 32, units_max: 1, has_uptime: true, has_time: true },
    Protocol { bits: 32, units_max: 40, has_uptime: false, has_time: true },
    Protocol { bits: 32, units_max: 1, has_uptime: true, has_time: false },
    Protocol { bits: 16, units_max: 1, has_uptime: false, has_time: false },
    Protocol { bits: 8, units_max: 1, has_uptime: false, has_time: false },
    Protocol { bits: 24, units_max: 1, has_uptime: false, has_time: false },
    Protocol { bits: 64, units_max: 1, has_uptime: false, has_time: false },
];

impl Protocol {
    fn rules(&self) -> SequenceRules {
        SequenceRules::new(self.bits, if self.units_max > 1 { 32 } else { 1 })
    }

    /// One datagram every 10 ms. An exporter that starts anew does so 2 s after the last datagram of the one before.
    fn arrival(&self, sent: &SentDatagram, started_ms: u64) -> Arrival {
        let uptime = 10 * sent.order;
        Arrival {
            number: sent.number & (u64::MAX >> (64 - self.bits)),
            units: sent.units as u32,
            datagrams: 1,
            clock: ExporterClock {
                uptime_ms: self.has_uptime.then_some(uptime as u32),
                made_at: self.has_time.then_some(((started_ms + uptime) / 1000) as u32),
            },
            ..Arrival::default()
        }
    }
}

/// Follows several lives of an exporter, each with its first number and its count of datagrams.
fn follow(protocol: Protocol, lives: &[(u64, u64)], network: Network, seed: u64) -> (StreamCounts, Truth) {
    let (mut random, mut counts, mut expected) = (Random(seed), StreamCounts::default(), Truth::default());
    let (mut stream, mut started_ms) = (None::<NumberedStream>, 1_000_000);
    for &(first, count) in lives {
        let sent = sent(first, count, protocol.units_max, &mut random);
        let arrived = network.carry(&sent, &mut random);
        let of_life = truth(&arrived);
        expected.missing += of_life.missing;
        expected.duplicate += of_life.duplicate;
        for datagram in &arrived {
            let arrival = protocol.arrival(datagram, started_ms);
            match &mut stream {
                None => stream = Some(NumberedStream::new(&arrival)),
                Some(stream) => stream.take(&protocol.rules(), &arrival, &mut counts),
            }
        }
        started_ms += 10 * count + 2000;
    }
    stream.expect("something arrives").settle_all(&mut counts);
    (counts, expected)
}

#[test]
fn whatever_is_lost_repeated_and_overtaken_within_the_window_is_counted_exactly() {
    for &protocol in PROTOCOLS {
        for lost_percent in [0, 1, 5, 20] {
            for (repeated_percent, delay_max) in [(0, 0), (3, 0), (0, 15), (3, 15)] {
                let network = Network { lost_percent, repeated_percent, delay_max };
                for seed in 0..3 {
                    let (counts, truth) = follow(protocol, &[(5, 3000)], network, seed);
                    let context = format!("{protocol:?}, {network:?}, seed {seed}: {counts:?}");
                    assert_eq!(counts.missing, truth.missing, "{context}");
                    assert_eq!(counts.duplicate, truth.duplicate, "{context}");
                    assert_eq!((counts.late, counts.restarts, counts.uncertain), (0, 0, 0), "{context}");
                }
            }
        }
    }
}

#[test]
fn numbers_that_wrap_are_counted_on() {
    let network = Network { lost_percent: 10, repeated_percent: 1, delay_max: 10 };
    for &protocol in PROTOCOLS {
        let end = 1_u128 << protocol.bits;
        let first = end.saturating_sub(700) as u64 & (u64::MAX >> (64 - protocol.bits));
        // The model numbers without a wrap, which 64 bits cannot.
        let first = if protocol.bits == 64 { 1 << 62 } else { first };
        for seed in 0..5 {
            let (counts, truth) = follow(protocol, &[(first, 2000)], network, seed);
            assert_eq!((counts.missing, counts.restarts), (truth.missing, 0), "{protocol:?}, seed {seed}: {counts:?}");
        }
    }
    // 16 bits go round 6 times.
    let (counts, truth) = follow(PROTOCOLS[4], &[(0, 400_000)], network, 1);
    assert_eq!((counts.missing, counts.duplicate, counts.restarts), (truth.missing, truth.duplicate, 0));
}

#[test]
fn an_exporter_that_starts_anew_is_a_restart_and_no_loss() {
    for &protocol in PROTOCOLS.iter().filter(|protocol| protocol.bits > 8) {
        let scale = protocol.units_max.max(1);
        for lost_percent in [0, 5, 20] {
            let network = Network { lost_percent, repeated_percent: 0, delay_max: 8 };
            for seed in 0..5 {
                // Long lives and short ones; what has no clock is told by its numbers alone, which needs long ones.
                let short = if protocol.has_time { 40 } else { 2500 };
                let lives = [(0, 3000), (0, short), (0, 5000), (7000 * scale, 2600)];
                // That numbers go on higher after a restart only an uptime can tell.
                let lives = if protocol.has_uptime { &lives[..] } else { &lives[..3] };
                let (counts, truth) = follow(protocol, lives, network, seed);
                let context = format!("{protocol:?}, {lost_percent} %, seed {seed}: {counts:?}");
                assert_eq!(counts.restarts, lives.len() as u64 - 1, "{context}");
                assert_eq!((counts.missing, counts.duplicate, counts.late), (truth.missing, 0, 0), "{context}");
            }
        }
    }
}

fn arrival(number: u64) -> Arrival {
    Arrival { number, units: 1, datagrams: 1, ..Arrival::default() }
}

/// Takes these numbers of 32 bits, one datagram each.
fn take(numbers: impl IntoIterator<Item = u64>) -> (NumberedStream, StreamCounts) {
    let mut counts = StreamCounts::default();
    let mut numbers = numbers.into_iter();
    let mut stream = NumberedStream::new(&arrival(numbers.next().expect("a first number")));
    numbers.for_each(|number| stream.take(&SequenceRules::new(32, 1), &arrival(number), &mut counts));
    (stream, counts)
}

#[test]
fn a_number_is_missing_once_it_leaves_the_window_and_is_taken_back_when_it_comes_late() {
    let window = u64::from(WINDOW);
    let (_, counts) = take((0..10).chain(11..11 + window));
    assert_eq!(counts.missing, 0, "it may still come");
    let (_, counts) = take((0..10).chain(11..12 + window));
    assert_eq!(counts.missing, 1);
    let (_, counts) = take((0..10).chain(11..12 + window).chain([10]));
    assert_eq!((counts.missing, counts.late, counts.duplicate), (0, 1, 0));
    let (mut stream, mut counts) = take((0..10).chain(11..12 + window).chain([10, 10]));
    stream.settle_all(&mut counts);
    assert_eq!((counts.missing, counts.late, counts.duplicate), (0, 1, 1));
}

#[test]
fn numbers_of_another_start_never_counted_as_repetitions_before() {
    let (mut stream, mut counts) = take(0..500);
    let mut duplicate = 0;
    for number in 0..200 {
        stream.take(&SequenceRules::new(32, 1), &arrival(number), &mut counts);
        assert!(counts.duplicate >= duplicate, "a counter fell at {number}");
        duplicate = counts.duplicate;
    }
    assert_eq!((counts.duplicate, counts.restarts), (0, 1));
    let (mut stream, mut counts) = take((0..500).chain(400..410));
    assert!(stream.is_repeating());
    stream.take(&SequenceRules::new(32, 1), &arrival(500), &mut counts);
    assert_eq!((counts.duplicate, counts.restarts), (10, 0), "their row has ended without one");
}

#[test]
fn one_damaged_number_is_no_loss_of_millions_and_a_long_outage_is_a_loss() {
    let (mut stream, mut counts) = take((0..100).chain([5_000_000]).chain(100..200));
    stream.settle_all(&mut counts);
    assert_eq!((counts.missing, counts.restarts), (0, 0));
    let (mut stream, mut counts) = take((0..100).chain(5_000_000..5_000_100));
    stream.settle_all(&mut counts);
    assert_eq!((counts.missing, counts.restarts), (5_000_000 - 100, 0));
}

#[test]
fn what_was_sent_before_a_restart_and_comes_after_it_is_late_and_opens_no_gap() {
    let clock = |uptime_ms, made_at| ExporterClock { uptime_ms: Some(uptime_ms), made_at: Some(made_at) };
    let (rules, mut counts) = (SequenceRules::new(32, 1), StreamCounts::default());
    let at = |number, clock| Arrival { clock, ..arrival(number) };
    let mut stream = NumberedStream::new(&at(900, clock(90_000, 1000)));
    stream.take(&rules, &at(0, clock(10, 1005)), &mut counts);
    stream.take(&rules, &at(901, clock(90_010, 1000)), &mut counts);
    stream.take(&rules, &at(1, clock(20, 1005)), &mut counts);
    stream.settle_all(&mut counts);
    assert_eq!(counts, StreamCounts { restarts: 1, late: 1, ..StreamCounts::default() });
}

#[test]
fn the_wrap_of_the_uptime_is_no_restart() {
    let (rules, mut counts) = (SequenceRules::new(32, 1), StreamCounts::default());
    let at = |number, uptime| {
        let clock = ExporterClock { uptime_ms: Some(uptime), made_at: Some(1000) };
        Arrival { clock, ..arrival(number) }
    };
    let mut stream = NumberedStream::new(&at(10, u32::MAX - 5));
    stream.take(&rules, &at(12, 3), &mut counts);
    stream.settle_all(&mut counts);
    assert_eq!(counts, StreamCounts { missing: 1, ..StreamCounts::default() });
}

#[test]
fn a_restart_of_sixteen_bits_has_bounds_wherever_it_goes_on_and_invents_no_loss() {
    let rules = SequenceRules::new(16, 1);
    // Near where it ended it looks like some repetitions or a loss.
    for new in (0..1 << 16).step_by(97).filter(|new| !(29_900..31_100).contains(new)) {
        let mut counts = StreamCounts::default();
        let mut stream = NumberedStream::new(&arrival(28_000));
        // 5 are lost for certain.
        let before = (28_001..30_000).filter(|number| !(28_500..28_505).contains(number));
        for number in before.chain(new..new + 200) {
            stream.take(&rules, &arrival(number & 0xffff), &mut counts);
        }
        stream.settle_all(&mut counts);
        let most = counts.missing + counts.uncertain;
        assert_eq!(counts.missing, 5, "restarted at {new}: {counts:?}");
        // Up to 64 numbers that came before are taken for repetitions first.
        let beyond = most - 5 - (new + (1 << 16) - 30_000) % (1 << 16);
        assert!(beyond <= 64, "restarted at {new}: {counts:?}");
    }
}
