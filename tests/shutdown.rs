//! The end: quick, orderly, and nothing that had arrived is lost.

use crate::util::*;

#[test]
fn sigterm_under_load_delivers_all_that_was_received_and_leaves_no_gap() {
    for engine in engines() {
        let daemon = Setup::new().keys(format!("{engine}\nlanes = 1")).file("archive", "in.log").start();
        let sender = Load::new(daemon.address(), Amount::Seconds(1.0)).rate(100_000 / SCALE).flows(1).spawn();
        daemon.stats_when("the load is under way", |ledger| received(ledger) > 20_000 / SCALE);
        let ended = daemon.terminate();
        let report = sender.join().expect("the sender ends");
        let arrived = arrived(&ended.ledger);
        let ended = ended.closed(arrived);
        assert!(report.sent >= arrived);
        let text = ended.text("in.log");
        let numbers: Vec<u64> =
            text.lines().map(|line| read_text_header(line).expect("a line of the load").1).collect();
        assert_eq!(numbers.len() as u64, received(&ended.ledger), "what was received is in the file");
        let without_gap: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, without_gap, "one flow through one lane is in order and has no gap up to the cut");
    }
}

#[test]
fn what_waits_in_the_socket_at_the_end_is_delivered() {
    for engine in engines() {
        let daemon = Setup::new().keys(engine).null("nothing").start();
        let sent = daemon.send(5_000);
        let ended = daemon.end(sent);
        assert_eq!(received(&ended.ledger), sent, "nothing is left behind: {:#}", ended.ledger);
    }
}
