//! The limiter against a model without a bound, and under floods of forged sources, with exact counts.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

fn limiter(per_source: u64, burst: u64) -> (RateLimiter, Arc<Offences>) {
    let offences = Arc::new(Offences::default());
    (RateLimiter::new(SourceLimit { per_source, burst }, Arc::clone(&offences)), offences)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// One forged source of each number.
fn forged(number: u32) -> IpAddr {
    if number.is_multiple_of(2) {
        IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 + number))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(number) << 40))
    }
}

/// How many of `count` datagrams of `source` are admitted now.
fn admitted(limiter: &mut RateLimiter, source: IpAddr, count: u64) -> u64 {
    (0..count).map(|_| u64::from(limiter.admits(source))).sum()
}

#[test]
fn a_source_may_send_its_burst_at_once_and_then_its_rate_to_the_datagram() {
    let (mut limiter, _) = limiter(100, 20);
    let source = ip("192.0.2.1");
    limiter.set_time(Duration::from_secs(5));
    assert_eq!(admitted(&mut limiter, source, 50), 20);
    limiter.set_time(Duration::from_millis(5_009));
    assert_eq!(admitted(&mut limiter, source, 50), 0, "a token takes 10 ms");
    limiter.set_time(Duration::from_millis(5_010));
    assert_eq!(admitted(&mut limiter, source, 50), 1);
    limiter.set_time(Duration::from_millis(5_095));
    assert_eq!(admitted(&mut limiter, source, 50), 8);
    limiter.set_time(Duration::from_secs(3600));
    assert_eq!(admitted(&mut limiter, source, 50), 20, "no more than the burst is ever saved up");
}

#[test]
fn each_address_has_a_bucket_of_its_own_and_a_mapped_one_that_of_its_ipv4_address() {
    let (mut limiter, _) = limiter(100, 3);
    assert_eq!(admitted(&mut limiter, ip("192.0.2.1"), 5), 3);
    assert_eq!(admitted(&mut limiter, ip("192.0.2.2"), 5), 3);
    assert_eq!(admitted(&mut limiter, ip("::ffff:192.0.2.1"), 5), 0);
    assert_eq!(admitted(&mut limiter, ip("2001:db8::1"), 5), 3);
    assert_eq!(admitted(&mut limiter, ip("::"), 5), 3, "also the address that a free place bears");
    assert_eq!(admitted(&mut limiter, ip("::"), 5), 0);
}

#[test]
fn high_limits_are_kept_and_never_rounded_to_less() {
    for per_source in [3, 7_000, 999_999, 10_000_000] {
        let (mut limiter, _) = limiter(per_source, 1);
        let mut count = 0;
        // Looked at every 100 ns, so that no token is missed.
        for step in 0..1_000_000_u64 {
            limiter.set_time(Duration::from_nanos(step * 100));
            count += u64::from(limiter.admits(ip("192.0.2.1")));
        }
        let expected = (per_source / 10).max(1);
        assert!((expected..=expected + 1).contains(&count), "{count} in 0.1 s at {per_source}/s");
    }
}

#[test]
fn a_million_forged_sources_cost_one_who_keeps_to_half_the_limit_nothing() {
    // Once with buckets that fill again at once, once with buckets so slow that the table is full of them.
    for (per_source, burst, honest_every_ms, table_fills_up) in [(1000, 1, 2, false), (1, 1, 2000, true)] {
        let (mut limiter, offences) = limiter(per_source, burst);
        let honest = ip("192.0.2.1");
        let (mut honest_sent, mut honest_lost, places) = (0, 0, limiter.entries.len());
        for number in 0..1_000_000_u32 {
            // Ten seconds, a hundred forged sources each millisecond.
            let millisecond = u64::from(number / 100);
            limiter.set_time(Duration::from_millis(millisecond));
            assert!(limiter.admits(forged(number)), "no source is limited for its first datagram");
            if number.is_multiple_of(100) && millisecond.is_multiple_of(honest_every_ms) {
                honest_sent += 1;
                honest_lost += u64::from(!limiter.admits(honest));
            }
        }
        limiter.publish();
        assert_eq!((honest_sent, honest_lost), (10_000 / honest_every_ms, 0));
        assert_eq!(limiter.entries.len(), places, "the table does not grow");
        assert_eq!(offences.others().unwatched > 0, table_fills_up, "{} went unwatched", offences.others().unwatched);
    }
}

#[test]
fn a_million_forged_sources_do_not_wash_out_the_bucket_of_one_who_floods() {
    let (mut limiter, offences) = limiter(1000, 50);
    let (flooder, mut passed) = (ip("192.0.2.66"), 0);
    for number in 0..1_000_000_u32 {
        // Twenty seconds; the flooder sends ten thousand a second.
        limiter.set_time(Duration::from_micros(u64::from(number) * 20));
        limiter.admits(forged(number));
        if number.is_multiple_of(5) {
            passed += u64::from(limiter.admits(flooder));
        }
    }
    limiter.publish();
    // The burst at once, and a token each millisecond; the last datagram comes 20 us before the end.
    assert_eq!(passed, 50 + 19_999);
    let flood = offences.read()[0].expect("the offence is noted");
    assert_eq!((flood.source, flood.refused), (flooder, 200_000 - passed));
    assert_eq!((offences.others().unnamed, offences.others().unwatched), (0, 0));
}

#[test]
fn while_there_is_room_every_answer_is_that_of_a_table_without_a_bound() {
    let (per_source, burst) = (200, 10);
    let (mut limiter, offences) = limiter(per_source, burst);
    let token = Duration::from_secs(1) / per_source as u32;
    let mut full_at: HashMap<IpAddr, Duration> = HashMap::new();
    let (mut now, mut noise, mut refused) = (Duration::from_secs(1), 0x5eed_u64, 0);
    for step in 0..300_000 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        now += Duration::from_micros(noise >> 58);
        // Some sources are busy, most are rare.
        let number = (noise >> 33) as u32 % if step % 2 == 0 { 30 } else { 20_000 };
        let (source, bucket) = (forged(number), full_at.entry(forged(number)).or_default());
        let begin = (*bucket).max(now);
        let admitted = begin - now <= token * (burst as u32 - 1);
        *bucket = if admitted { begin + token } else { *bucket };
        refused += u64::from(!admitted);
        limiter.set_time(now);
        assert_eq!(limiter.admits(source), admitted, "step {step}, {source}");
    }
    limiter.publish();
    assert_eq!(offences.others().unwatched, 0, "else the two may differ");
    assert!((10_000..290_000).contains(&refused), "{refused}: both answers were compared");
}

#[test]
fn a_full_table_admits_and_counts_a_new_source_and_forgets_none() {
    let offences = Arc::new(Offences::default());
    let limit = SourceLimit { per_source: 1, burst: 1 };
    let mut limiter = RateLimiter::with_entries(limit, Arc::clone(&offences), WAYS);
    for number in 0..WAYS as u32 {
        assert!(limiter.admits(forged(number)));
    }
    for _ in 0..3 {
        assert!(limiter.admits(ip("192.0.2.1")), "there is nothing that could be held against it");
    }
    limiter.publish();
    assert_eq!(offences.others().unwatched, 3);
    for number in 0..WAYS as u32 {
        assert!(!limiter.admits(forged(number)), "those who were first are still known");
    }
    limiter.set_time(Duration::from_secs(1));
    assert!(limiter.admits(ip("192.0.2.1")), "a full bucket has made room");
    assert!(!limiter.admits(ip("192.0.2.1")));
}
