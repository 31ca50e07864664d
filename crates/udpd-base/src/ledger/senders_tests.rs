//! The table against an exact count of the same datagrams.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::hash::DefaultHasher;
use std::net::Ipv4Addr;

use super::*;

/// A hash that is the same in every run.
fn senders(now: Instant) -> Senders<BuildHasherDefault<DefaultHasher>> {
    Senders::with_hasher(BuildHasherDefault::default(), now)
}

fn source(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 + number).into(), 5140)
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Where each of `count` senders ends in a distribution in which the n-th sends one n-th as much as the first.
fn zipf(count: u32) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=count)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect()
}

#[test]
fn of_a_hundred_thousand_senders_the_true_ten_busiest_are_named_in_constant_memory() {
    let now = Instant::now();
    let mut senders = senders(now);
    let ends = zipf(100_000);
    let (mut dice, mut exact) = (Dice(1), HashMap::<IpAddr, u64>::new());
    let memory = senders.places.capacity();
    for _ in 0..31_250 {
        let batch = (0..64).map(|_| {
            let at = dice.roll() * ends[ends.len() - 1];
            source(ends.partition_point(|&end| end <= at) as u32)
        });
        let batch: Vec<SocketAddr> = batch.collect();
        batch.iter().for_each(|source| *exact.entry(source.ip()).or_default() += 1);
        senders.count(batch.into_iter(), 1, now);
    }
    let found = senders.busiest(now);
    let mut busiest: Vec<(IpAddr, u64)> = exact.iter().map(|(&address, &count)| (address, count)).collect();
    busiest.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let named = |senders: &mut dyn Iterator<Item = IpAddr>| {
        let mut addresses: Vec<IpAddr> = senders.collect();
        addresses.sort();
        addresses
    };
    assert_eq!(
        named(&mut found.iter().map(|sender| sender.address)),
        named(&mut busiest[..10].iter().map(|&(address, _)| address))
    );
    for sender in &found {
        let count = exact[&sender.address];
        assert!(sender.datagrams >= count && sender.datagrams - sender.error <= count, "{sender:?} sent {count}");
        assert!((sender.share - sender.datagrams as f64 / 2_000_000.0).abs() < 1e-9, "{sender:?}");
    }
    assert_eq!(found[0].address, source(0).ip());
    assert!(exact.len() > 50_000, "{} senders", exact.len());
    assert_eq!((senders.places.len(), senders.places.capacity()), (PLACES, memory));
    assert!(size_of_val(&senders) + PLACES * size_of::<SenderSlot>() < 10 << 10, "ten kilobytes a lane");
}

#[test]
fn forged_addresses_drive_no_busy_sender_out() {
    let now = Instant::now();
    let mut senders = senders(now);
    for round in 0..10_000 {
        senders.count([source(u32::MAX - 0x0a00_0000)].into_iter(), 1, now);
        senders.count((0..63).map(|other| source(1 + round * 63 + other)), 1, now);
    }
    let first = &senders.busiest(now)[0];
    assert_eq!(first.address, IpAddr::from([255, 255, 255, 255]));
    assert!(first.datagrams - first.error <= 10_000 && first.datagrams >= 10_000, "{first:?}");
}

#[test]
fn few_senders_are_counted_exactly_and_weigh_what_their_sample_stands_for() {
    let now = Instant::now();
    let mut senders = senders(now);
    let row = |number, length| std::iter::repeat_n(source(number), length);
    senders.count(row(1, 5).chain(row(2, 2)).chain(row(1, 1)), 16, now);
    let found = senders.busiest(now);
    let seen: Vec<_> = found.iter().map(|sender| (sender.address, sender.datagrams, sender.error)).collect();
    assert_eq!(seen, [(source(1).ip(), 96, 0), (source(2).ip(), 32, 0)]);
    assert_eq!((found[0].share, found[1].share), (0.75, 0.25));
}

#[test]
fn what_was_counted_weighs_half_after_ten_seconds_and_is_forgotten_in_the_end() {
    let start = Instant::now();
    let mut senders = senders(start);
    let at = |seconds| start + Duration::from_secs(seconds);
    senders.count(std::iter::repeat_n(source(1), 100), 1, at(0));
    senders.count(std::iter::repeat_n(source(2), 60), 1, at(10));
    let found = senders.busiest(at(19));
    let seen: Vec<_> = found.iter().map(|sender| (sender.address, sender.datagrams)).collect();
    assert_eq!(seen, [(source(2).ip(), 60), (source(1).ip(), 50)]);
    assert_eq!(senders.busiest(at(20))[0].datagrams, 30);
    assert!(senders.busiest(at(1_000_000)).is_empty());
    senders.count([source(3)].into_iter(), 1, at(1_000_000));
    assert_eq!(senders.busiest(at(1_000_000))[0].address, source(3).ip());
}

#[test]
fn a_port_is_named_while_a_sender_uses_no_other() {
    let now = Instant::now();
    let mut senders = senders(now);
    let from = |number, port| SocketAddr::new(source(number).ip(), port);
    senders.count([from(1, 7), from(2, 8), from(1, 7), from(2, 9), from(2, 8)].into_iter(), 1, now);
    let ports: HashMap<_, _> = senders.busiest(now).into_iter().map(|sender| (sender.address, sender.port)).collect();
    assert_eq!((ports[&source(1).ip()], ports[&source(2).ip()]), (Some(7), None));
}

#[test]
fn an_ipv4_sender_is_one_whichever_kind_of_socket_saw_it() {
    let now = Instant::now();
    let mut senders = senders(now);
    let mapped = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().into(), 5140);
    senders.count([source(1), mapped].into_iter(), 1, now);
    let found = senders.busiest(now);
    assert_eq!((found.len(), found[0].address.to_string(), found[0].datagrams), (1, "10.0.0.1".to_owned(), 2));
}
