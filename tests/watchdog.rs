//! The watchdog as a service manager sees it: signs of life for as long as every thread works or waits. That they stop
//! when a thread is stopped takes a debugger and a real systemd: `tests/rigs/systemd.sh`.

use std::io::ErrorKind;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::Duration;

use crate::util::*;

/// Within this time the manager wants to hear something, so the daemon looks at its threads every 100 ms.
const LIMIT: Duration = Duration::from_millis(400);

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

/// Signs of life of one engine.
fn signs_of_life(engine: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let stream = UnixListener::bind(directory.path().join("stream")).expect("bound");
    let messages = UnixDatagram::bind(directory.path().join("messages")).expect("bound");
    let peers = directory.path().display();
    let unix = |kind: &str, name: &str| format!("socket = '{kind}'\npath = '{peers}/{name}'\nqueue_bytes = '64KiB'");
    let (daemon, manager) = Setup::new()
        .keys(format!("{engine}\nbatch_size = 16\nreceive_buffer = '64KiB'"))
        .file("archive", "in.log")
        .keys("queue_bytes = '64KiB'")
        .sink("stream", "unix", unix("stream", "stream"))
        .keys("format = 'lines'\nwhen_full = 'block'")
        .sink("messages", "unix", unix("datagram", "messages"))
        .start_watched(LIMIT);
    forget(&manager);
    hear(&manager, 12, &format!("{engine}, idle"));
    // Nothing is read from either peer, so both consumers come to wait in their writes, and the receiver for one of
    // them.
    let sent = daemon.load(4_000).rate(20_000).bytes(1_000).overrunning().send().sent;
    daemon.stats_when("the kernel drops, because the receiver waits", |ledger| {
        count(listener(ledger), "kernel_dropped") > 0
    });
    forget(&manager);
    hear(&manager, 12, &format!("{engine}, waiting"));
    drop((stream, messages));
    daemon.end(sent).assert_logged("watchdog:", 0);
}

#[test]
fn signs_of_life_come_while_it_is_idle_and_while_its_sinks_and_receivers_wait() {
    // All at once: most of it is waiting.
    std::thread::scope(|scope| engines().into_iter().for_each(|engine| drop(scope.spawn(|| signs_of_life(engine)))));
}
