//! The end: quick, orderly, and nothing that had arrived is lost.

use std::time::Duration;

use crate::delivery::SCALE;
use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::engines;
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load, read_text_header};

#[test]
fn sigterm_under_load_delivers_all_that_was_received_and_leaves_no_gap() {
    for engine in engines() {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            lanes = 1
            sinks = ["archive"]
            [sink.archive]
            type = "file"
            rotate.every = "0s"
            path = "@DIR@/in.log"
            "#
        ));
        let mut load = Load::new(address, Amount::Seconds(2.0));
        load.rate_per_second = 100_000 / SCALE;
        load.flows = 1;
        let sender = load.spawn();
        daemon
            .stats_when("the load is under way", |ledger| count(&ledger["listeners"][0], "received") > 20_000 / SCALE);
        let ended = daemon.terminate();
        let report = sender.join().expect("the sender ends");
        assert!(ended.status.success(), "{}", ended.stderr);
        let listener = &ended.ledger["listeners"][0];
        assert_closed(&ended.ledger, count(listener, "arrived"));
        assert!(report.sent >= count(listener, "arrived"));
        let text = std::fs::read(ended.directory.path().join("in.log")).expect("the file");
        let text = std::str::from_utf8(&text).expect("the load is text");
        let numbers: Vec<u64> =
            text.lines().map(|line| read_text_header(line).expect("a line of the load").1).collect();
        assert_eq!(numbers.len() as u64, count(listener, "received"), "what was received is in the file");
        let without_gap: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, without_gap, "one flow through one lane is in order and has no gap up to the cut");
        // Not a measurement: a bound on hanging that no machine should come near.
        assert!(ended.elapsed < Duration::from_secs(30), "the end took {:?}", ended.elapsed);
    }
}

#[test]
fn what_waits_in_the_socket_at_the_end_is_delivered() {
    for engine in engines() {
        let address = free_address();
        let daemon = Daemon::with_config(&format!(
            r#"
            [[listener]]
            name = "in"
            address = "{address}"
            {engine}
            sinks = ["nothing"]
            [sink.nothing]
            type = "null"
            "#
        ));
        let sent = Load::new(address, Amount::Count(5_000)).send().sent;
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, sent);
        assert_eq!(
            count(&ended.ledger["listeners"][0], "received"),
            sent,
            "nothing is left behind: {:#}",
            ended.ledger
        );
    }
}
