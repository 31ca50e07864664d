//! A take-over that fails when there is no way back: the daemon that has stopped ends with a failure, says why, and
//! counts what came when nobody received.

use std::io::Read as _;
use std::os::unix::net::UnixListener;

use crate::take_over::{load, service};
use crate::take_over_fails::Challenger;
use crate::util::daemon::free_address;
use crate::util::ledger::{assert_closed, count};
use crate::util::succession::{Finished, Succession};

/// It has ended by itself with a failure that says this, and its books close over so many datagrams.
fn assert_stranded(ended: &Finished, why: &str, sent: u64) {
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let said: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(why)).collect();
    assert!(said.iter().any(|line| line.contains("stopping: ")), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
}

#[test]
fn a_daemon_that_has_stopped_and_cannot_open_its_file_again_ends_and_counts_what_came_meanwhile() {
    let (mut succession, address) = (Succession::new(), free_address());
    let old = succession.start(&service(address, 2, ""));
    let first = load(address, 500).send().sent;
    succession.stats_when("it is received", |ledger| count(&ledger["listeners"][0], "received") == first);
    let mut challenger = Challenger::of(&succession);
    let names = challenger.take_sockets();
    challenger.stop(&names);
    // What comes now waits in the sockets for somebody.
    let waiting = load(address, 300).send().sent;
    let file = succession.directory().join("in.log");
    std::fs::rename(&file, file.with_extension("moved")).expect("it is there");
    std::os::unix::fs::symlink("/nonexistent", &file).expect("a link");
    drop(challenger);
    let ended = old.wait();
    assert_stranded(&ended, "this process cannot receive again: ", first + waiting);
    assert!(ended.stderr.contains("it is a symbolic link"), "{}", ended.stderr);
    let listener = &ended.ledger["listeners"][0];
    let delivered = count(&listener["sinks"][0], "delivered");
    assert_eq!((delivered, count(&listener["dropped"], "unread")), (first, waiting), "{listener:#}");
}

#[test]
fn a_daemon_that_was_to_give_up_a_socket_ends_when_the_other_process_dies_while_it_delivers_the_rest() {
    let (mut succession, address) = (Succession::new(), free_address());
    let peer = UnixListener::bind(succession.directory().join("peer")).expect("bound");
    let stream = "type = \"unix\"\nsocket = \"stream\"\npath = \"@DIR@/peer\"\n";
    let sink = "type = \"file\"\n        rotate.every = \"0s\"\n        path = \"@DIR@/in.log\"\n";
    let text = service(address, 2, "");
    assert!(text.contains(sink), "{text}");
    let mut old = succession.start(&text.replace(sink, stream));
    let (mut reader, _) = peer.accept().expect("it connects");
    // More than a socket takes from somebody who does not read.
    let mut load_ahead = load(address, 2_000);
    load_ahead.payload_bytes = 1000;
    let first = load_ahead.send().sent;
    succession.stats_when("it is received", |ledger| count(&ledger["listeners"][0], "received") == first);
    let mut challenger = Challenger::of(&succession);
    let names = challenger.take_sockets();
    challenger.be_ready(&names[..1]);
    old.await_line("this process receives no more");
    drop(challenger);
    // Of two sockets one waits for the other process, and one refuses.
    let waiting = load(address, 300).send().sent;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map(|_| text.iter().filter(|byte| **byte == b'\n').count() as u64)
    });
    let ended = old.wait();
    assert_stranded(&ended, "its configuration left no way back", first + waiting);
    let listener = &ended.ledger["listeners"][0];
    // A receiver may have had some of it before it heard that it is to end.
    let (offered, unread) = (count(&listener["sinks"][0], "offered"), count(&listener["dropped"], "unread"));
    assert_eq!(offered + unread + count(listener, "kernel_dropped"), first + waiting, "{listener:#}");
    let read = reader.join().expect("it ends").expect("readable");
    assert_eq!((count(&listener["sinks"][0], "delivered"), read), (offered, offered), "{listener:#}");
}
