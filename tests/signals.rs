//! Every signal that can be sent, to a daemon that receives: it goes on with its ledger whole, or ends with it closed.

use std::process::Command;

use nix::sys::signal::Signal;
use udpd_base::os::signals::{EFFECTS, Effect, effect_of, name_of};

use crate::util::*;

fn to_file() -> Setup {
    Setup::new().file("archive", "in.log")
}

fn lines(ended: &Ended) -> u64 {
    contents(&ended.directory, "in.log").iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Those that leave the daemon as it is, the real-time ones included.
#[test]
fn no_signal_that_is_not_meant_to_end_it_ends_it_or_costs_a_datagram() {
    let daemon = to_file().start();
    let harmless = |&number: &i32| {
        !matches!(effect_of(number), Effect::End | Effect::EndForced | Effect::Default)
            || [17, 23, 28].contains(&number)
    };
    let numbers: Vec<i32> = (1..=64).filter(harmless).collect();
    assert!(numbers.len() > 40, "{numbers:?}");
    let mut sent = 0;
    for number in &numbers {
        Outcome::of(Command::new("kill").args([format!("-{number}"), daemon.pid().to_string()])).succeeds(&[]);
        sent += daemon.send(10);
        daemon.until_received(sent);
    }
    let ended = daemon.end(sent);
    assert_eq!(lines(&ended), sent);
    for meaningless in numbers.iter().filter(|number| effect_of(**number) == Effect::Say) {
        ended.assert_logged(&format!("ignored the signal {}", name_of(*meaningless)), 1);
    }
    assert!(ended.times("listener in: arrived ") > 0, "SIGUSR1 writes the ledger: {}", ended.stderr);
}

#[test]
fn every_signal_that_ends_it_closes_the_ledger_first() {
    for (number, effect) in EFFECTS.iter().filter(|(_, effect)| matches!(effect, Effect::End | Effect::EndForced)) {
        let daemon = to_file().start();
        let sent = daemon.send(2_000);
        let ended = daemon.end_by(Signal::try_from(*number).expect("one of the first 31"));
        let name = name_of(*number);
        assert_eq!(ended.status.success(), *effect == Effect::End, "{name}: {}", ended.stderr);
        ended.logged(&[&name]);
        assert_closed(&ended.ledger, sent);
        assert_eq!(lines(&ended), sent, "{name}");
    }
}

/// `ulimit -f`, `LimitFSIZE=`: the write beyond it fails, and the signal that comes with it ends nothing.
#[test]
fn a_limit_on_file_sizes_is_a_full_file_and_not_the_end() {
    let daemon = to_file().start();
    let limit = ["--fsize=20000:unlimited", "--pid", &daemon.pid().to_string()];
    Outcome::of(Command::new("prlimit").args(limit)).succeeds(&[]);
    let sent = daemon.load(5_000).rate(20_000).send().sent;
    let ended = daemon.end(sent);
    ended.logged(&["File too large"]);
    assert!(dropped(ended.sink(), "sink_error") > 0, "{:#}", ended.sink());
    assert_eq!(lines(&ended), delivered(&ended.ledger));
}

/// A parent that blocks SIGTERM, as some supervisors do while they start a child, does not make a daemon that cannot be
/// ended.
#[test]
fn a_signal_that_the_parent_has_blocked_is_heard() {
    let daemon = to_file().start_by(&["env", "--block-signal=TERM"]);
    let sent = daemon.send(100);
    daemon.end(sent);
}
