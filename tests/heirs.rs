//! A pipeline takes the place of another under load, on the same sockets: nothing is lost, nothing is twice, what stays
//! is not touched.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use udpd_base::ledger::Snapshot;

use crate::util::bed::{Bed, LIMIT, Load, assert_each_once, configuration, listener, never, numbers, sink, with};
use crate::util::engines::two_engines;
use crate::util::patience::until;

fn loses_nothing(engine: &str) {
    let keys = |more: &str| format!("{engine}\n{more}");
    let null = "[sink.nowhere]\ntype = \"null\"\n";
    let second = "[sink.second]\ntype = \"file\"\npath = \"DIR/second.log\"\n";
    let mut bed = Bed::start(&with(&keys("lanes = 2"), "\"stays\"", ""));
    let inode = fs::metadata(bed.file("stays.log")).expect("the file").ino();
    let load = Load::begin(bed.address(), bed.pipeline.books());
    let mut before: Option<Snapshot> = None;
    for text in [
        with(&keys("lanes = 4"), "\"stays\"", ""),
        with(&keys("lanes = 4\nmax_length = \"4KiB\""), "\"stays\", \"nowhere\"", null),
        with(&keys("lanes = 1"), "\"nowhere\", \"second\", \"stays\"", &format!("{second}{null}")),
        with(&keys("lanes = 1\ndeny = [\"192.0.2.0/24\"]"), "\"stays\", \"second\"", second),
        with(&keys("lanes = 3"), "\"stays\"", ""),
        with(&keys("lanes = 2\nbatch_size = 16"), "\"stays\"", ""),
    ] {
        load.wait_for(2_000);
        bed = bed.reload(&text);
        let now = bed.pipeline.books().snapshot();
        if let Some(before) = &before {
            let counts = |snapshot: &Snapshot| {
                let own = listener(snapshot, "in");
                (own.counts.received, own.arrived, sink(snapshot, "in", "stays").counts.delivered)
            };
            let (earlier, later) = (counts(before), counts(&now));
            assert!(earlier.0 <= later.0 && earlier.1 <= later.1 && earlier.2 <= later.2, "{earlier:?} {later:?}");
        }
        before = Some(now);
    }
    load.wait_for(2_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    let own = listener(&ledger, "in");
    assert_eq!((own.arrived, own.kernel_dropped, own.counts.received), (Some(sent), Some(0), sent), "{ledger:#?}");
    assert_eq!(own.residual, Some(0), "{ledger:#?}");
    let stays = sink(&ledger, "in", "stays");
    assert_eq!((stays.offered, stays.counts.delivered, stays.in_flight), (sent, sent, 0), "{stays:?}");
    assert_eq!(stays.files.as_ref().expect("it writes files").counts.written_bytes, sent * 9);
    let path = directory.path().join("stays.log");
    assert_each_once(&path, sent);
    assert_eq!(fs::metadata(&path).expect("the file").ino(), inode, "the same file");
    let second = sink(&ledger, "in", "second");
    assert!(second.removed && second.counts.delivered == second.offered && second.offered > 2_000, "{second:?}");
    let in_file = numbers(&directory.path().join("second.log"));
    assert_eq!(in_file.len() as u64, second.offered);
}

#[test]
fn a_reload_under_load_loses_nothing_and_leaves_the_file_of_a_sink_that_stays_alone() {
    two_engines().into_iter().for_each(loses_nothing);
}

#[test]
fn a_listener_comes_and_goes_and_stays_in_the_books() {
    let other = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let more = format!("[[listener]]\nname = \"guest\"\naddress = \"{other}\"\nsinks = [\"stays\"]\n");
    let mut bed = Bed::start(&with("", "\"stays\"", ""));
    bed = bed.reload(&with("", "\"stays\"", &more));
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for number in 0..50 {
        sender.send_to(format!("{number}").as_bytes(), other).expect("loopback takes it");
    }
    // At once: what waits in its socket is delivered before that is closed.
    bed = bed.reload(&with("", "\"stays\"", ""));
    bed.pipeline.wait_for_those_before(LIMIT);
    // Soon: a program that another test starts has what this one has open for the moment between fork and exec.
    until("its address is free again", || UdpSocket::bind(other).is_ok());
    let (ledger, directory) = bed.stop();
    let guest = listener(&ledger, "guest");
    assert!(guest.removed && !listener(&ledger, "in").removed);
    assert_eq!((guest.arrived, guest.residual), (Some(50), Some(0)), "{guest:#?}");
    assert_eq!(sink(&ledger, "guest", "stays").counts.delivered, 50);
    assert_each_once(&directory.path().join("stays.log"), 50);
}

#[test]
fn a_connection_of_a_sink_that_stays_is_not_made_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("peer.sock");
    let peer = UnixListener::bind(&path).expect("a socket");
    let unix = format!("[sink.peer]\ntype = \"unix\"\nsocket = \"stream\"\npath = \"{}\"\n", path.display());
    let mut bed = Bed::start(&with("lanes = 2", "\"stays\", \"peer\"", &unix));
    let (connection, _) = peer.accept().expect("it connects at its start");
    let load = Load::begin(bed.address(), bed.pipeline.books());
    let reader = std::thread::spawn(move || std::io::read_to_string(connection).expect("text"));
    for lanes in [1, 3] {
        load.wait_for(500);
        bed = bed.reload(&with(&format!("lanes = {lanes}"), "\"peer\", \"stays\"", &unix));
    }
    let sent = load.end();
    bed.stop();
    assert_eq!(reader.join().expect("the reader").lines().count() as u64, sent);
    peer.set_nonblocking(true).expect("an option");
    assert!(peer.accept().is_err(), "it connected once more");
}

#[test]
fn an_heir_that_nobody_waits_for_takes_no_address() {
    let mut bed = Bed::start(&with("lanes = 2", "\"stays\"", ""));
    let config = Arc::new(configuration(&with("lanes = 4", "\"stays\"", ""), bed.port, bed.directory.path()));
    let plan = Arc::new(udpd_engine::plan::make(&config, &Default::default()).expect("a plan"));
    let forerunner = bed.pipeline.forerunner();
    assert!(forerunner.turn().give_up());
    let refused = forerunner.make_heir(&config, &plan, &bed.crew).expect_err("it was given up");
    assert!(refused.message.contains("nobody waits"), "{refused}");
    let forerunner = bed.pipeline.forerunner();
    let heir = forerunner.make_heir(&config, &plan, &bed.crew).expect("made");
    assert!(!forerunner.turn().give_up(), "it has addresses");
    bed.pipeline = bed.pipeline.hand_over_to(heir, never);
    assert_eq!(bed.pipeline.lanes().len(), 4);
    bed.stop();
}

#[test]
fn what_cannot_be_had_is_refused_and_the_pipeline_goes_on() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound");
    let more = format!("[[listener]]\nname = \"other\"\naddress = \"{address}\"\nsinks = [\"stays\"]\n");
    let mut bed = Bed::start(&with("lanes = 2", "\"stays\"", ""));
    let inodes = bed.pipeline.socket_inodes();
    let load = Load::begin(bed.address(), bed.pipeline.books());
    let capture = with("", "\"stays\"", "").replace("type = \"file\"", "type = \"file\"\nformat = \"pcapng\"");
    for (text, reason) in [
        (with("lanes = 3", "\"stays\"", &more), "cannot bind"),
        (capture, "it is not a capture"),
        (
            with("", "\"stays\", \"bad\"", "[sink.bad]\ntype = \"file\"\npath = \"/proc/no/such.log\"\n"),
            "/proc/no/such.log",
        ),
    ] {
        load.wait_for(500);
        let (same, refused) = bed.try_reload(&text);
        let failure = refused.unwrap_or_else(|| panic!("it is not refused: {text}"));
        assert!(failure.message.contains(reason), "{failure}");
        bed = same;
        assert_eq!(bed.pipeline.socket_inodes(), inodes);
    }
    load.wait_for(500);
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    let own = listener(&ledger, "in");
    assert_eq!((own.arrived, own.residual, ledger.listeners.len()), (Some(sent), Some(0), 1), "{ledger:#?}");
    assert_each_once(&directory.path().join("stays.log"), sent);
}

#[test]
fn two_hundred_reloads_leave_one_set_of_books_and_no_thread() {
    let mut bed = Bed::start(&with("lanes = 2", "\"stays\"", ""));
    let load = Load::begin(bed.address(), bed.pipeline.books());
    let mut most = 0;
    for round in 0..200 {
        bed = bed.reload(&with(&format!("lanes = {}", 1 + round % 2), "\"stays\"", ""));
        most = most.max(bed.crew.vitals().len());
    }
    assert!(most < 20, "{most} threads");
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    let own = listener(&ledger, "in");
    assert_eq!((own.arrived, own.residual, own.lanes.len()), (Some(sent), Some(0), 2));
    assert_each_once(&directory.path().join("stays.log"), sent);
}
