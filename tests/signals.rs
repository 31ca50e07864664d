//! Every signal that somebody can send, to a daemon that receives: it goes on with its books whole, or ends with them
//! closed.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use udpd_base::os::signals::{EFFECTS, Effect, effect_of, name_of};

use crate::util::daemon::{Daemon, free_address};
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load};

fn to_file(address: SocketAddr) -> Daemon {
    Daemon::with_config(&configuration(address))
}

fn configuration(address: SocketAddr) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        path = "@DIR@/in.log"
        "#
    )
}

fn lines(ended: &crate::util::daemon::Ended) -> u64 {
    let files = std::fs::read_dir(ended.directory.path()).expect("readable").flatten();
    let logs = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("in.log"));
    logs.map(|entry| std::fs::read_to_string(entry.path()).expect("text").lines().count() as u64).sum()
}

/// Those that leave the daemon as it is, the real-time ones included.
#[test]
fn no_signal_that_is_not_meant_to_end_it_ends_it_or_costs_a_datagram() {
    let address = free_address();
    let daemon = to_file(address);
    let (mut sent, mut received) = (0, 0);
    let harmless = |&number: &i32| {
        !matches!(effect_of(number), Effect::End | Effect::EndForced | Effect::Default)
            || [17, 23, 28].contains(&number)
    };
    let numbers: Vec<i32> = (1..=64).filter(harmless).collect();
    assert!(numbers.len() > 40, "{numbers:?}");
    for number in &numbers {
        let status =
            std::process::Command::new("kill").arg(format!("-{number}")).arg(daemon.pid().to_string()).status();
        assert!(status.expect("kill is there").success(), "{}", name_of(*number));
        sent += Load::new(address, Amount::Count(10)).send().sent;
        let ledger = daemon.stats_when(&format!("datagrams after {}", name_of(*number)), |ledger| {
            count(&ledger["listeners"][0], "received") >= sent
        });
        received = count(&ledger["listeners"][0], "received");
    }
    assert_eq!(received, sent);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    assert_eq!(lines(&ended), sent);
    for meaningless in numbers.iter().filter(|number| effect_of(**number) == Effect::Say) {
        let said = format!("ignored the signal {}", name_of(*meaningless));
        assert_eq!(ended.stderr.matches(&said).count(), 1, "{said}: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("listener in: arrived "), "SIGUSR1 writes the ledger: {}", ended.stderr);
}

#[test]
fn every_signal_that_ends_it_closes_the_books_first() {
    for (number, effect) in EFFECTS.iter().filter(|(_, effect)| matches!(effect, Effect::End | Effect::EndForced)) {
        let address = free_address();
        let daemon = to_file(address);
        let sent = Load::new(address, Amount::Count(2_000)).send().sent;
        let ended = daemon.end_by(Signal::try_from(*number).expect("one of the first 31"));
        assert_eq!(ended.status.success(), *effect == Effect::End, "{}: {}", name_of(*number), ended.stderr);
        assert!(ended.stderr.contains(&name_of(*number)), "{}", ended.stderr);
        assert_closed(&ended.ledger, sent);
        assert_eq!(lines(&ended), sent, "{}", name_of(*number));
    }
}

/// `ulimit -f`, `LimitFSIZE=`: the write beyond it fails, and the signal that comes with it kills nobody.
#[test]
fn a_limit_on_file_sizes_is_a_full_file_and_not_the_end() {
    let address = free_address();
    let daemon = to_file(address);
    let limited = std::process::Command::new("prlimit")
        .args(["--fsize=20000:unlimited", "--pid", &daemon.pid().to_string()])
        .status();
    assert!(limited.expect("prlimit is in util-linux, as kill is").success());
    let mut load = Load::new(address, Amount::Count(5_000));
    load.rate_per_second = 20_000;
    let sent = load.send().sent;
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    assert!(ended.stderr.contains("File too large"), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    let sink = &ended.ledger["listeners"][0]["sinks"][0];
    assert!(count(&sink["dropped"], "sink_error") > 0, "{sink:#}");
    assert_eq!(lines(&ended), count(sink, "delivered"));
}

/// A parent that blocks SIGTERM, as some supervisors do while they start a child, does not make a daemon that cannot be
/// ended.
#[test]
fn a_signal_that_was_blocked_by_whoever_started_it_is_heard() {
    let address = free_address();
    let daemon = Daemon::with_config_by("env", &["--block-signal=TERM"], &configuration(address));
    let sent = Load::new(address, Amount::Count(100)).send().sent;
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    assert_closed(&ended.ledger, sent);
}
