//! A sink that takes nothing: as many datagrams wait as `udpd check` says, whatever their length and however they come.
//!
//! No clock is involved. `check` says how many datagrams may wait for a sink; here a sink stalls on a pipe that is not
//! read, datagrams come until the ledger says that the queue was full for the first time, and then what is under way
//! is what could wait. And it is said that the sink takes nothing, and that it does again.

use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::Instant;

use crate::util::*;

/// What may wait, in MiB. The consumer holds a batch beside it, and the first one that came behind that, which together
/// are less than a tenth of this; and what it gathers for one call of write.
fn queue_mebibytes(payload_bytes: usize) -> usize {
    match payload_bytes {
        ..=100 => 4,
        101..=2048 => 8,
        _ => 16,
    }
}

/// What a consumer gathers at most before it writes. How much it finds depends on when it gets a core.
const GATHERED_BYTES: u64 = 256 * 1024;

/// Between the load and the ledger there is no more than this, so that nothing is lost in the kernel.
const CHUNKS_OF_QUEUE: u64 = 8;

/// What `check` says of the only listener and sink.
fn promised(daemon: &Daemon) -> u64 {
    let plan = daemon.by_file("check", &["--json"]).json();
    let [stall] = list(&plan, "stalls") else { panic!("one listener and one sink are one line: {plan:#}") };
    let datagrams = count(stall, "datagrams");
    let seconds = stall["stall_ms"].as_f64().expect("a time") / 1000.0;
    let of_the_time = seconds * count(stall, "rate") as f64;
    assert!((of_the_time - datagrams as f64).abs() <= 1.0, "the time and the number are the same: {stall:#}");
    datagrams
}

/// Stalls a sink and counts what can wait for it; `burst` datagrams come at once.
fn stall(engine: &str, payload_bytes: usize, burst: usize) {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let daemon = Setup::new()
        .keys(format!("{engine}\nmax_length = {}\nreceive_buffer = '32MiB'", payload_bytes.max(2048)))
        .keys(format!("absorb = {{ rate = 10000, stall = '1s', size = {payload_bytes} }}"))
        .sink("out", "stdout", format!("queue_bytes = '{}MiB'", queue_mebibytes(payload_bytes)))
        .start_with_stdout(writer);
    let promised = promised(&daemon);
    let mut sent = 0;
    let ledger = loop {
        let mut load = daemon.load((promised / CHUNKS_OF_QUEUE).max(burst as u64)).bytes(payload_bytes).flows(1);
        load.burst = burst;
        sent += load.send().sent;
        let ledger = daemon.stats_when("the receiver has taken it", |ledger| {
            arrived(ledger) == sent && count(&lanes(ledger)[0], "receive_buffer_used_bytes") == 0
        });
        if dropped(sink(&ledger), "queue_full") > 0 {
            break ledger;
        }
        assert!(sent < promised * 2, "twice as many as promised wait, and nothing is full: {ledger:#}");
    };
    let waiting = count(sink(&ledger), "in_flight");
    let case = format!("{} with {payload_bytes} bytes, {burst} at once", name_in(engine));
    let drained = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).expect("readable"));
    daemon.end(sent);
    drained.join().expect("the reader ends");
    assert!(waiting * 10 >= promised * 9, "{case}: {promised} promised, {waiting} could wait");
    let gathered = GATHERED_BYTES / (payload_bytes as u64 + 1);
    let most = promised * 11 / 10 + gathered;
    assert!(waiting <= most, "{case}: {promised} promised, {waiting} could wait, {gathered} of them at the consumer");
}

#[test]
fn as_many_datagrams_wait_for_a_stalled_sink_as_check_says() {
    for engine in engines().into_iter().filter(|line| !line.contains("gather")) {
        for payload_bytes in [20, 200, 1400, 9000] {
            [1, 16].into_iter().for_each(|burst| stall(engine, payload_bytes, burst));
        }
    }
}

/// Waits until the service manager is told a status that begins so.
fn told(manager: &UnixDatagram, status: &str) {
    let (mut message, begun) = ([0; 4096], Instant::now());
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit above zero");
    loop {
        let length = manager.recv(&mut message).expect("it says something");
        if message[..length].starts_with(format!("STATUS={status}").as_bytes()) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "never told: {status}");
    }
}

#[test]
fn a_sink_that_takes_nothing_is_said_in_the_log_once_and_in_the_status_until_it_takes_something_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("peer.sock");
    let peer = UnixListener::bind(&path).expect("a socket");
    let keys = format!("socket = 'stream'\npath = '{}'", path.display());
    let (daemon, manager) = Setup::new().sink("stuck", "unix", keys).start_watched(PATIENCE);
    // Several times what the socket of its peer holds.
    for sent in (100..=1_000).step_by(100) {
        send(daemon.address(), &[b'x'; 1_000], 100);
        daemon.until_received(sent);
    }
    told(&manager, "sink stuck takes nothing for ");
    let (connection, _) = peer.accept().expect("a connection");
    let reading = std::thread::spawn(move || std::io::read_to_string(connection).expect("text").lines().count());
    told(&manager, "receives ");
    let ended = daemon.end(1_000);
    assert_eq!(reading.join().expect("the reader"), 1_000);
    for said in ["sink stuck: has handed on nothing for ", "sink stuck: hands on again"] {
        ended.assert_logged(said, 1);
    }
}
