//! Both sides of a redundant pair, with losses and in no order: what either side had comes out once, and the ledger
//! says to the datagram what each side brought.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};

use seeds::Chance;
use serde_json::Value;

use crate::util::*;

/// How many datagrams a feed has.
const NUMBERS: u64 = 100_000 / SCALE;

/// What is sent between two looks at the ledger, so that no receive buffer overflows on a busy machine.
const ROUND: u64 = 400;

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Brought {
    /// By side: how many of its datagrams were sent.
    sent: [u64; 2],
    /// What either side had.
    numbers: BTreeSet<u64>,
}

fn received_by_all(ledger: &Value) -> u64 {
    list(ledger, "listeners").iter().map(|listener| count(listener, "received")).sum()
}

/// Sends the numbers on both sides, from several ports each: a tenth is lost on each side, and those of a round come in
/// any order.
fn send_both(daemon: &Daemon, sides: [SocketAddr; 2], payload: impl Fn(u64) -> Vec<u8>) -> Brought {
    let mut chance = Chance::new(33);
    let sockets: Vec<UdpSocket> = (0..4).map(|_| socket()).collect();
    let mut brought = Brought::default();
    for round in (0..NUMBERS).step_by(ROUND as usize) {
        let mut coming: Vec<(usize, u64)> =
            (round..(round + ROUND).min(NUMBERS)).flat_map(|number| [(0, number), (1, number)]).collect();
        coming.retain(|_| !chance.happens(1, 10));
        chance.shuffle(&mut coming);
        for (side, number) in coming {
            let bytes = payload(number);
            let sent = chance.pick(&sockets).send_to(&bytes, sides[side]).expect("loopback takes it");
            assert_eq!(sent, bytes.len());
            brought.sent[side] += 1;
            brought.numbers.insert(number);
        }
        let sent: u64 = brought.sent.iter().sum();
        daemon.stats_when("the round has come", |ledger| received_by_all(ledger) == sent);
    }
    brought
}

/// First, after another, repeated: of each side, from the counts of its lanes.
fn by_side(ledger: &Value) -> BTreeMap<String, [u64; 3]> {
    let mut sides: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for lane in list(ledger, "listeners").iter().flat_map(|listener| list(listener, "lanes")) {
        let own = sides.entry(lane["address"].as_str().expect("an address").to_owned()).or_default();
        own[0] += count(lane, "received") - sum(&lane["dropped"]);
        own[1] += dropped(lane, "duplicate");
        own[2] += dropped(lane, "repeated");
    }
    sides
}

/// Each number that either side had once, and each side with what it sent.
fn assert_whole(ledger: &Value, sides: [SocketAddr; 2], brought: &Brought) {
    let counted = by_side(ledger);
    let all: u64 = counted.values().map(|[first, ..]| first).sum();
    assert_eq!(all, brought.numbers.len() as u64, "{counted:?}");
    for (side, sent) in sides.iter().zip(brought.sent) {
        let [first, second, repeated] = counted[&side.to_string()];
        assert_eq!((first + second, repeated), (sent, 0), "{side}: {counted:?}");
        assert!(first > 0 && second > 0, "{counted:?}");
    }
    for listener in list(ledger, "listeners") {
        assert_eq!((count(listener, "deduplicate_overflow"), &listener["residual"]), (0, &0.into()), "{listener:#}");
    }
}

#[test]
fn a_feed_on_two_listeners_with_a_tenth_lost_on_each_side_is_written_whole_and_once() {
    let [a, b] = [free_address(), free_address()];
    let keys = "receive_buffer = '8MiB'\nlanes = 2\ndeduplicate = { window = '60s', feed = 'orders' }\n\
                absorb = { rate = 20000 }";
    let other = format!("[[listener]]\nname = 'b'\naddress = '{b}'\nsinks = ['archive']\n{keys}");
    let setup = Setup::at(a).named("a").keys(keys).file("archive", "feed.log").more(other);
    let daemon = setup.start();
    let brought = send_both(&daemon, [a, b], |number| format!("order {number}").into_bytes());
    let table = daemon.command("stats").text();
    let all = brought.numbers.len() as u64;
    for words in ["feed orders: what each of its sides brought", "after another"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let ended = daemon.terminate();
    assert_whole(&ended.ledger, [a, b], &brought);
    let mut written = BTreeSet::new();
    for line in ended.text("feed.log").lines() {
        let number = line.strip_prefix("order ").and_then(|number| number.parse().ok()).expect("a whole line");
        assert!(written.insert(number), "{number} is there twice");
    }
    assert_eq!(written, brought.numbers);
    let sinks = list(&ended.ledger, "listeners").iter().flat_map(|listener| list(listener, "sinks"));
    assert_eq!(sinks.map(|sink| count(sink, "delivered")).sum::<u64>(), all);
}

#[test]
fn one_listener_with_both_sides_compares_numbers_where_payloads_differ() {
    for engine in two_engines() {
        let [a, b] = [free_address(), free_address()];
        let keys = format!(
            "{engine}\nreceive_buffer = '8MiB'\nsequence = {{ offset = 4, bytes = 4 }}\nabsorb = {{ rate = 20000 }}\n\
             deduplicate = {{ window = '60s', key = 'sequence' }}"
        );
        let daemon = Setup::at(a).listens_at_each(&[a, b]).keys(keys).null("out").keys("inline = true").start();
        let turn = std::cell::Cell::new(0_u32);
        let brought = send_both(&daemon, [a, b], |number| {
            // What stands before the number is another each time.
            turn.set(turn.get() + 1);
            [turn.get().to_be_bytes(), (number as u32).to_be_bytes()].concat()
        });
        let ended = daemon.terminate();
        assert_whole(&ended.ledger, [a, b], &brought);
        assert_eq!(delivered(&ended.ledger), brought.numbers.len() as u64, "{engine}");
    }
}

#[test]
fn a_reload_remembers_what_came_before_it() {
    let address = free_address();
    let setup = Setup::at(address).keys("deduplicate = { window = '60s' }").null("out");
    let daemon = setup.start();
    send(address, b"the same", 3);
    daemon.until_received(3);
    daemon.reload(&setup.clone().keys("when_full = 'drop_oldest'")).ends(0, &[]);
    send(address, b"the same", 2);
    let ended = daemon.end_after(5);
    assert_eq!((delivered(&ended.ledger), dropped(ended.listener(), "repeated")), (1, 4), "{:#}", ended.ledger);
}

#[test]
fn what_finds_no_place_in_the_table_is_handed_on_counted_and_warned_of_once() {
    let address = free_address();
    // A window of 60 s for one datagram a second: 240 places in 15 buckets.
    let keys = "deduplicate = { window = '60s' }\nabsorb = { rate = 1 }\nreceive_buffer = '8MiB'";
    let daemon = Setup::at(address).keys(keys).null("out").start();
    for round in 0..2 {
        (0..1000).for_each(|number: u32| send(address, &number.to_be_bytes(), 1));
        daemon.until_received(1000 * (round + 1));
    }
    let ended = daemon.end_after(2000);
    let (overflow, repeated) = (count(ended.listener(), "deduplicate_overflow"), dropped(ended.listener(), "repeated"));
    // Those that were remembered were dropped when they came again, and no other was.
    assert_eq!(delivered(&ended.ledger), 2000 - repeated);
    assert_eq!(overflow, 2 * (1000 - repeated), "{:#}", ended.ledger);
    assert!((100..=240).contains(&repeated), "{repeated}");
    ended.assert_logged("counts them as deduplicate_overflow", 1);
}

#[test]
fn what_is_cut_off_cannot_be_compared_and_is_handed_on() {
    let address = free_address();
    let keys = "deduplicate = { window = '60s' }\nmax_length = 8";
    let daemon = Setup::at(address).keys(keys).null("out").start();
    for payload in [&b"12345678"[..], b"123456789", b"123456789", b"123456780", b"12345678"] {
        send(address, payload, 1);
    }
    let ended = daemon.end_after(5);
    assert_eq!((delivered(&ended.ledger), dropped(ended.listener(), "repeated")), (4, 1));
}
