//! What messages of IPFIX say of their records, and how exporters count: in each of the four ways, through networks
//! that lose, repeat and reorder, what is missing is exact, however late the way of counting shows.

use super::*;
use crate::upstream::testing::{Network, Random, SentDatagram, truth};

/// One message of an exporter: its records, and those of them that are options.
#[derive(Debug, Clone, Copy)]
struct Written {
    data: u64,
    options: u64,
}

/// The messages of an exporter, and what each covers in its own way of counting.
fn sent(written: &[Written], convention: Convention) -> Vec<SentDatagram> {
    let mut number = 0;
    let mut one = |(order, message): (usize, &Written)| {
        let units = message.data + if convention.counts_options { message.options } else { 0 };
        number += units;
        SentDatagram { number: number - units, units, order: order as u64 }
    };
    written.iter().enumerate().map(&mut one).collect()
}

/// A message as it arrives.
fn as_message(written: &[Written], sent: &SentDatagram, convention: Convention) -> IpfixMessage {
    let Written { data, options } = written[sent.order as usize];
    let records = |count: u64| RecordCount { least: count as u16, most: count as u16 };
    let number = if convention.counts_itself { sent.number + sent.units } else { sent.number };
    let records = MessageRecords { data: records(data), options: records(options) };
    IpfixMessage { number: number as u32, made_at: sent.order as u32 / 10, records }
}

/// What of these messages counts as missing.
fn missing(written: &[Written], arrived: &[SentDatagram], convention: Convention) -> StreamCounts {
    let (mut learning, mut stream, mut counts) = (Learning::default(), None, StreamCounts::default());
    let rules = SequenceRules::new(32, 32);
    for message in arrived {
        let message = as_message(written, message, convention);
        learning.take(message, &mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
    }
    learning.flush(&mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
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
        let arrived: Vec<SentDatagram> = sent.iter().filter(|sent| sent.order % 40 != 20).copied().collect();
        let counts = missing(&written, &arrived, convention);
        assert_eq!(counts.missing, truth(&arrived).missing, "{convention:?}: {counts:?}");
    }
}

#[test]
fn the_last_message_is_one_of_this_start_of_the_exporter() {
    let (mut learning, mut stream, mut counts) = (Learning::default(), None, StreamCounts::default());
    let rules = SequenceRules::new(32, 32);
    // It starts anew at 0, a minute later.
    let numbers = (0..100).map(|message| (1_000_000 + 10 * message, 1000)).chain((0..10).map(|at| (10 * at, 1060)));
    for (number, made_at) in numbers {
        let data = RecordCount { least: 10, most: 10 };
        let records = MessageRecords { data, ..MessageRecords::default() };
        let message = IpfixMessage { number, made_at, records };
        learning.take(message, &mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
    }
    learning.flush(&mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
    assert_eq!((counts.restarts, learning.taken.map(|taken| taken.number)), (1, Some(90)));
}

#[test]
fn records_of_variable_length_give_bounds() {
    let (mut learning, mut stream, mut counts) = (Learning::default(), None, StreamCounts::default());
    let rules = SequenceRules::new(32, 32);
    // Each message has 10 records, which may be 5 to 20; the numbers of the RFC; 100 records are lost on the way.
    let numbers = (0..10).chain(20..30).map(|message| 10 * message);
    for number in numbers {
        let data = RecordCount { least: 5, most: 20 };
        let records = MessageRecords { data, ..MessageRecords::default() };
        let message = IpfixMessage { number, made_at: 0, records };
        learning.take(message, &mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
    }
    learning.flush(&mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
    stream.expect("a stream").settle_all(&mut counts);
    let (least, most) = (counts.missing, counts.missing + counts.uncertain);
    assert!(least <= 100 && most >= 100, "{counts:?}");
    assert!(least >= 90, "a gap longer than any message is a loss: {counts:?}");
}

#[test]
fn few_messages_with_pauses_invent_no_loss_and_hide_none_whichever_way_they_are_numbered() {
    for convention in CONVENTIONS {
        for seed in 0..200 {
            let mut random = Random(seed);
            let (mut learning, mut stream, mut counts) = (Learning::default(), None, StreamCounts::default());
            let rules = SequenceRules::new(32, 32);
            let write = |_| Written { data: 1 + random.below(30), options: 0 };
            let written: Vec<Written> = (0..2 + seed % 8).map(write).collect();
            let sent = sent(&written, convention);
            let mut arrived = Vec::new();
            for (place, one) in sent.iter().enumerate() {
                let is_end = place == 0 || place + 1 == sent.len();
                if !is_end && random.below(10) == 0 {
                    continue;
                }
                arrived.push(*one);
                let mut counted = CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts };
                learning.take(as_message(&written, one, convention), &mut counted);
                // A minute passes, and after each second it is within the bounds, but for a gap that is not settled.
                let missing = truth(&arrived).missing;
                for second in 0..60 {
                    let mut counted = CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts };
                    let (_, held) = learning.sweep(&mut counted);
                    let is_settled = stream.as_ref().is_none_or(|stream| !stream.has_open_gaps());
                    stream.iter_mut().for_each(|stream| stream.sweep(&mut counts));
                    let (least, most) = (counts.missing, counts.missing + counts.uncertain + held);
                    let context = format!("{convention:?}, seed {seed}, {second} s: {missing}, {held}, {counts:?}");
                    assert!(least <= missing && (missing <= most || !is_settled), "{context}");
                }
            }
            learning.flush(&mut CountedStream { stream: &mut stream, rules: &rules, counts: &mut counts });
            stream.expect("a stream").settle_all(&mut counts);
            let missing = truth(&arrived).missing;
            let (least, most) = (counts.missing, counts.missing + counts.uncertain);
            assert!(least <= missing && missing <= most, "{convention:?}, seed {seed}: {missing}, {counts:?}");
        }
    }
}

fn message(sets: &[&[u16]]) -> Vec<u8> {
    let words = sets.iter().flat_map(|set| [&[set[0], 2 * set.len() as u16 + 2], &set[1..]].concat());
    let mut payload: Vec<u8> = [0; 16].into_iter().chain(words.flat_map(u16::to_be_bytes)).collect();
    payload[1] = 10;
    let length = (payload.len() as u16).to_be_bytes();
    payload[2..4].copy_from_slice(&length);
    payload
}

fn read(payload: &[u8]) -> (Vec<Set>, bool) {
    let mut sets = Vec::new();
    let is_whole = each_set(payload, |set| {
        sets.push(set);
        true
    });
    (sets, is_whole)
}

#[test]
fn templates_give_the_length_of_a_record_and_sets_the_bytes_of_all() {
    let payload = message(&[
        // Template 256: two fields of 4 and 2 bytes, one of an enterprise with 8, one of variable length.
        &[2, 256, 4, 8, 4, 7, 2, 0x8001, 8, 0, 9, 82, u16::MAX],
        // Options template 300 with one scope field of 4 bytes and a counter of 8; padding.
        &[3, 300, 2, 1, 149, 4, 41, 8, 0],
        &[256, 1, 2, 3],
    ]);
    let expected = [
        Set::Template { template: 256, format: RecordFormat { bytes: 15, is_variable: true, is_options: false } },
        Set::Template { template: 300, format: RecordFormat { bytes: 12, is_variable: false, is_options: true } },
        Set::Records { template: 256, bytes: 6 },
    ];
    assert_eq!(read(&payload), (expected.to_vec(), true));
}

#[test]
fn what_is_cut_anywhere_says_so_and_never_panics() {
    let payload = message(&[&[2, 256, 2, 8, 4, 7, 2], &[256, 1, 2, 3]]);
    for length in 0..payload.len() {
        assert!(!read(&payload[..length]).1, "{length}");
    }
    for at in 0..payload.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = payload.clone();
            damaged[at] = byte;
            read(&damaged);
        }
    }
}

#[test]
fn the_records_of_a_set_follow_from_its_template_or_have_bounds() {
    let mut templates = Templates::new();
    let key = |stream| StreamKey { source: 9, stream, ..StreamKey::default() };
    for (template, bytes, is_variable, is_options) in
        [(256, 20, false, false), (257, 12, false, true), (258, 10, true, false)]
    {
        let format = RecordFormat { bytes, is_variable, is_options };
        templates.learn(&key(1), template, RecordFormat::from_units(format.to_units()));
    }
    let mut count = |stream, template, bytes| {
        let mut records = MessageRecords::default();
        templates.count(&key(stream), template, bytes, &mut records);
        let is_options = records.data == RecordCount::default();
        let RecordCount { least, most } = if is_options { records.options } else { records.data };
        (least, most, is_options)
    };
    assert_eq!(count(1, 256, 103), (5, 5, false), "three bytes are padding");
    assert_eq!(count(1, 257, 12), (1, 1, true));
    assert_eq!(count(1, 258, 100), (1, 10, false));
    assert_eq!(count(1, 259, 100), (1, 100, false));
    assert_eq!(count(2, 256, 100), (1, 100, false), "a template is of one stream alone");
}
