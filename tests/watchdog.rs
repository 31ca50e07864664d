//! The watchdog as a service manager sees it: signs of life for as long as every thread works or waits. That they stop
//! when a thread is stopped takes a debugger and a real systemd: `tests/rigs/systemd.sh`.

use std::io::ErrorKind;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::Duration;

use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::engines;
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load};

/// Within this time the manager wants to hear something, so the daemon looks at its threads every 100 ms.
const LIMIT: Duration = Duration::from_millis(400);

/// Longer than any machine needs; only a daemon that has fallen silent ever sees it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for so many signs of life and checks that nothing else was said meanwhile but the usual status.
fn hear(manager: &UnixDatagram, signs: usize, when: &str) {
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit above zero");
    let mut heard = 0;
    while heard < signs {
        let mut message = [0; 4096];
        let length = match manager.recv(&mut message) {
            Ok(length) => length,
            // A time limit makes the wait one that stopping and continuing this process ends.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("{when}: silence after {heard} signs of life: {error}"),
        };
        let message = String::from_utf8_lossy(&message[..length]).into_owned();
        assert!(!message.contains("thread"), "{when}: a thread is said not to be well: {message}");
        heard += usize::from(message == "WATCHDOG=1\n");
    }
}

/// What the manager has not heard yet is of no interest: signs of life would pile up, and are to be fresh ones.
fn forget(manager: &UnixDatagram) {
    manager.set_nonblocking(true).expect("switched");
    let end = loop {
        if let Err(error) = manager.recv(&mut [0; 4096]) {
            break error.kind();
        }
    };
    assert_eq!(end, ErrorKind::WouldBlock);
    manager.set_nonblocking(false).expect("switched");
}

#[test]
fn signs_of_life_come_while_it_is_idle_and_while_its_sinks_and_receivers_wait() {
    for engine in engines() {
        let address = free_address();
        let directory = tempfile::tempdir().expect("a directory");
        let stream = UnixListener::bind(directory.path().join("stream")).expect("bound");
        let messages = UnixDatagram::bind(directory.path().join("messages")).expect("bound");
        let peers = directory.path().display();
        let (daemon, manager) = Daemon::with_config_and_watchdog(
            &format!(
                r#"
                [[listener]]
                name = "in"
                address = "{address}"
                {engine}
                batch_size = 16
                receive_buffer = "64KiB"
                sinks = ["archive", "stream", "messages"]
                [sink.archive]
                type = "file"
                path = "@DIR@/in.log"
                queue_bytes = "64KiB"
                [sink.stream]
                type = "unix"
                socket = "stream"
                format = "lines"
                path = "{peers}/stream"
                when_full = "block"
                queue_bytes = "64KiB"
                [sink.messages]
                type = "unix"
                socket = "datagram"
                path = "{peers}/messages"
                queue_bytes = "64KiB"
                "#
            ),
            LIMIT,
        );
        forget(&manager);
        hear(&manager, 12, &format!("{engine}, idle"));
        // Nobody reads from either peer, so both consumers come to wait in their writes, and the receiver for one of
        // them.
        let mut load = Load::new(address, Amount::Count(4_000));
        (load.rate_per_second, load.overruns) = (20_000, true);
        load.payload_bytes = 1_000;
        let report = load.send();
        daemon.stats_when("the kernel drops, because the receiver waits", |ledger| {
            count(&ledger["listeners"][0], "kernel_dropped") > 0
        });
        forget(&manager);
        hear(&manager, 12, &format!("{engine}, waiting"));
        drop((stream, messages));
        let ended = daemon.terminate();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(!ended.stderr.contains("watchdog:"), "{}", ended.stderr);
        assert_closed(&ended.ledger, report.sent);
    }
}
