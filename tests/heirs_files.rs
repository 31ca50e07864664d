//! A sink with other settings takes the place of the one before on the same file, while datagrams come: the file has
//! one writer at a time, and what arrives meanwhile waits.

use std::fs;
use std::net::UdpSocket;
use std::sync::Arc;

use serde_json::Value;

use crate::util::bed::{Bed, Load, configuration, listener, never, sink, with};
use crate::util::patience::until;

/// The sink that writes `stays.log`, with these lines besides.
fn writing(keys: &str, lines: &str) -> String {
    with(keys, "\"stays\"", "").replace("type = \"file\"", &format!("type = \"file\"\n{lines}"))
}

/// The numbers in a file of lines and of jsonl, in their order, and whether each is in a line of jsonl.
fn records(path: &std::path::Path) -> Vec<(u64, bool)> {
    let record = |line: &str| match line.parse() {
        Ok(number) => (number, false),
        Err(_) => {
            let line: Value = serde_json::from_str(line).expect("a line, or jsonl");
            (line["payload"].as_str().expect("a payload").parse().expect("a number"), true)
        }
    };
    fs::read_to_string(path).expect("the file").lines().map(record).collect()
}

#[test]
fn other_settings_of_a_file_are_in_force_when_the_writer_of_before_has_closed_it_and_nothing_is_lost() {
    let mut bed = Bed::start(&writing("lanes = 2", ""));
    let load = Load::begin(bed.address(), bed.pipeline.books());
    for (round, lines) in [
        "format = \"jsonl\"",
        "format = \"lines\"\nrotate = { bytes = \"1GiB\", every = \"0s\" }\nqueue_bytes = \"4MiB\"",
        "format = \"jsonl\"\nkeep = { files = 3, bytes = 0 }",
        "format = \"lines\"\nsync = \"never\"",
    ]
    .into_iter()
    .enumerate()
    {
        load.wait_for(2_000);
        bed = bed.reload(&writing(&format!("lanes = {}", 1 + round % 2), lines));
    }
    load.wait_for(2_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    let own = listener(&ledger, "in");
    assert_eq!((own.arrived, own.kernel_dropped, own.residual), (Some(sent), Some(0), Some(0)), "{ledger:#?}");
    let stays = sink(&ledger, "in", "stays");
    assert_eq!((stays.offered, stays.counts.delivered, stays.in_flight), (sent, sent, 0), "{stays:?}");
    let records = records(&directory.path().join("stays.log"));
    let mut numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>(), "each once");
    // Two writers at a time would have mixed their lines.
    let changes = records.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert_eq!(changes, 4);
}

#[test]
fn an_heir_that_is_given_up_leaves_the_file_of_its_forerunner_alone_and_no_empty_one_behind() {
    let mut bed = Bed::start(&writing("", ""));
    let threads = bed.crew.vitals().len();
    let load = Load::begin(bed.address(), bed.pipeline.books());
    load.wait_for(500);
    let second = "[sink.second]\ntype = \"file\"\npath = \"DIR/second.log\"\n";
    let text = with("", "\"stays\", \"second\"", second).replace("/stays.log\"", "/stays.log\"\nformat = \"jsonl\"");
    let config = Arc::new(configuration(&text, bed.port, bed.directory.path()));
    let plan = Arc::new(udpd_engine::plan::make(&config, &Default::default()).expect("a plan"));
    let heir = bed.pipeline.forerunner().make_heir(&config, &plan, &bed.crew).expect("made");
    assert!(bed.file("second.log").exists());
    drop(heir);
    until("the empty file is gone", || !bed.file("second.log").exists());
    until("no thread is left", || bed.crew.vitals().len() == threads);
    load.wait_for(500);
    bed = bed.reload(&with("", "\"stays\", \"second\"", second));
    load.wait_for(500);
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    assert_eq!(listener(&ledger, "in").residual, Some(0), "{ledger:#?}");
    let records = records(&directory.path().join("stays.log"));
    assert_eq!(records.len() as u64, sent);
    assert!(records.iter().all(|(_, is_jsonl)| !is_jsonl), "the heir wrote nothing");
    assert!(directory.path().join("second.log").metadata().expect("the file").len() > 0);
}

#[test]
fn a_file_that_cannot_be_opened_any_more_costs_what_is_counted_until_it_can() {
    let mut bed = Bed::start(&writing("", ""));
    let text = writing("", "format = \"jsonl\"");
    let config = Arc::new(configuration(&text, bed.port, bed.directory.path()));
    let plan = Arc::new(udpd_engine::plan::make(&config, &Default::default()).expect("a plan"));
    let heir = bed.pipeline.forerunner().make_heir(&config, &plan, &bed.crew).expect("nothing is in the way yet");
    fs::rename(bed.file("stays.log"), bed.file("moved.log")).expect("moved");
    fs::create_dir(bed.file("stays.log")).expect("a directory is in the way");
    bed.pipeline = bed.pipeline.hand_over_to(heir, never);
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let send = |number: u64| sender.send_to(format!("{number}").as_bytes(), bed.address()).expect("sent");
    let counts = || sink(&bed.pipeline.books().snapshot(), "in", "stays").counts;
    send(0);
    until("what could not be written is counted", || counts().dropped.sink_error == 1);
    fs::remove_dir(bed.file("stays.log")).expect("it is empty");
    until("the file is begun", || bed.file("stays.log").exists());
    // The file is there before its writer has it, so a few more may be counted as lost.
    let mut numbers = 1..;
    until("it is written again", || {
        numbers.next().map(send);
        counts().delivered >= 1
    });
    let (ledger, directory) = bed.stop();
    assert_eq!(listener(&ledger, "in").residual, Some(0), "{ledger:#?}");
    let records = records(&directory.path().join("stays.log"));
    assert_eq!(records.len() as u64, sink(&ledger, "in", "stays").counts.delivered, "{records:?}");
    assert!(records.iter().all(|(_, is_json)| *is_json), "{records:?}");
}
