//! Exporters that count in each of the four ways, through networks that lose, repeat and reorder: what is missing is
//! exact, whichever way they count and however late it shows.

use super::*;
use crate::upstream::simulation::{Network, Random, Sent, truth};

/// One message of an exporter: its records, and those of them that are options.
#[derive(Debug, Clone, Copy)]
struct Written {
    data: u64,
    options: u64,
}

/// The messages of an exporter, and what each covers in its own way of counting.
fn sent(written: &[Written], convention: Convention) -> Vec<Sent> {
    let mut number = 0;
    let mut one = |(order, message): (usize, &Written)| {
        let units = message.data + if convention.counts_options { message.options } else { 0 };
        number += units;
        Sent { number: number - units, units, order: order as u64 }
    };
    written.iter().enumerate().map(&mut one).collect()
}

/// What of these messages counts as missing.
fn missing(written: &[Written], arrived: &[Sent], convention: Convention) -> Counts {
    let (mut learning, mut stream, mut counts) = (Learning::NEW, None, Counts::default());
    let rules = Rules::new(32, 32);
    for message in arrived {
        let Written { data, options } = written[message.order as usize];
        let records = |count: u64| Records { least: count as u16, most: count as u16 };
        let number = if convention.counts_itself { message.number + message.units } else { message.number };
        let made_at = message.order as u32 / 10;
        let (data, options) = (records(data), records(options));
        let message = Message { number: number as u32, made_at, data, options };
        learning.take(message, &mut stream, &rules, &mut counts);
    }
    learning.flush(&mut stream, &rules, &mut counts);
    stream.expect("a stream").settle_all(&mut counts);
    counts
}

#[test]
fn however_an_exporter_counts_what_is_missing_is_exact() {
    for convention in CONVENTIONS {
        for lost_percent in [0, 3, 20] {
            for delay_max in [0, 5] {
                for seed in 0..4 {
                    let mut random = Random(seed);
                    // As exporters do: mostly full messages, some shorter, now and then some options beside the data.
                    let mut write = |order: u64| Written {
                        data: if random.below(4) == 0 { 1 + random.below(29) } else { 30 },
                        options: u64::from(order % 50 == 3),
                    };
                    let written: Vec<Written> = (0..2000).map(&mut write).collect();
                    let sent = sent(&written, convention);
                    let network = Network { lost_percent, repeated_percent: 0, delay_max };
                    let arrived = network.carry(&sent, &mut random);
                    let counts = missing(&written, &arrived, convention);
                    let context = format!("{convention:?}, {network:?}, seed {seed}: {counts:?}");
                    // Options that stand alone between losses teach nothing: until a pair has shown that they are
                    // not counted, each may be taken for a record.
                    let unlearnt = if convention.counts_options || lost_percent == 0 { 0 } else { 4 };
                    let difference = counts.missing.abs_diff(truth(&arrived).missing);
                    assert!(difference <= unlearnt && counts.duplicate <= unlearnt, "{difference}: {context}");
                    assert_eq!((counts.restarts, counts.uncertain), (0, 0), "{context}");
                }
            }
        }
    }
}

#[test]
fn messages_that_are_all_alike_fit_every_way_and_what_tells_them_apart_may_come_much_later() {
    for convention in CONVENTIONS {
        // Only the five hundredth message is shorter, and only then come options.
        let write = |order| Written { data: if order % 500 == 499 { 7 } else { 30 }, options: u64::from(order > 600) };
        let written: Vec<Written> = (0..1500).map(write).collect();
        let sent = sent(&written, convention);
        let arrived: Vec<Sent> = sent.iter().filter(|sent| sent.order % 40 != 20).copied().collect();
        let counts = missing(&written, &arrived, convention);
        assert_eq!(counts.missing, truth(&arrived).missing, "{convention:?}: {counts:?}");
    }
}

#[test]
fn the_last_message_is_one_of_this_start_of_the_exporter() {
    let (mut learning, mut stream, mut counts) = (Learning::NEW, None, Counts::default());
    let rules = Rules::new(32, 32);
    // It starts anew at 0, a minute later.
    let numbers = (0..100).map(|message| (1_000_000 + 10 * message, 1000)).chain((0..10).map(|at| (10 * at, 1060)));
    for (number, made_at) in numbers {
        let data = Records { least: 10, most: 10 };
        let message = Message { number, made_at, data, options: Records::default() };
        learning.take(message, &mut stream, &rules, &mut counts);
    }
    learning.flush(&mut stream, &rules, &mut counts);
    assert_eq!((counts.restarts, learning.taken.map(|taken| taken.number)), (1, Some(90)));
}

#[test]
fn records_of_variable_length_give_bounds() {
    let (mut learning, mut stream, mut counts) = (Learning::NEW, None, Counts::default());
    let rules = Rules::new(32, 32);
    // Each message has 10 records, which may be 5 to 20; the numbers of the RFC; 100 records are lost on the way.
    let numbers = (0..10).chain(20..30).map(|message| 10 * message);
    for number in numbers {
        let data = Records { least: 5, most: 20 };
        let message = Message { number, made_at: 0, data, options: Records::default() };
        learning.take(message, &mut stream, &rules, &mut counts);
    }
    learning.flush(&mut stream, &rules, &mut counts);
    stream.expect("a stream").settle_all(&mut counts);
    let (least, most) = (counts.missing, counts.missing + counts.uncertain);
    assert!(least <= 100 && most >= 100, "{counts:?}");
    assert!(least >= 90, "a gap longer than any message is a loss: {counts:?}");
}
