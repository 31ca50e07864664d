//! Memory is fixed at start: nothing is allocated while datagrams flow, whatever the engine and the sinks. A binary of
//! its own, because the allocator that counts is that of the whole process; the load comes from a second process, so
//! that only the daemon's side is counted.

mod util;

use std::alloc::System;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use util::pipeline::Bed;
use util::{Amount, Load, Setup, address_of, count, dropped, received, sinks, socket, two_engines, until};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How the second process knows where to send to.
const TARGET: &str = "UDPD_TEST_TARGET";

/// A debug build receives at a tenth of the speed.
const RATE: u64 = if cfg!(debug_assertions) { 30_000 } else { 300_000 };

/// How long allocations are counted.
const SECONDS: u64 = if cfg!(debug_assertions) { 2 } else { 6 };

/// Of fewer datagrams than this nothing would be proved.
const LEAST: u64 = 10_000;

#[test]
fn nothing_is_allocated_while_datagrams_flow() {
    let Err(std::env::VarError::NotPresent) = std::env::var(TARGET) else { return send() };
    for engine in two_engines() {
        let setup = Setup::new().keys(engine).keys("deny = ['10.0.0.0/8']\nrate_limit = { per_source = 10000000 }");
        let setup = setup.keys("deduplicate = { window = '100ms' }");
        run_with(&setup.file("archive", "in.log").null("nothing"));
    }
    every_other_sink();
}

/// The formats, the relay and the Unix sockets, together behind one listener that looks for numbers.
fn every_other_sink() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let stream = UnixListener::bind(path("stream")).expect("bound");
    std::thread::spawn(move || {
        let (peer, _) = stream.accept().expect("a connection");
        swallow(|buffer| (&peer).read(buffer));
    });
    let messages = UnixDatagram::bind(path("messages")).expect("bound");
    std::thread::spawn(move || swallow(|buffer| messages.recv(buffer)));
    let relayed = socket();
    let setup = Setup::new().keys("sequence = { offset = 0, bytes = 4, order = 'big' }");
    let setup = setup.file("jsonl", "in.jsonl").keys("format = 'jsonl'");
    let setup = setup.file("pcapng", "in.pcapng").keys("format = 'pcapng'");
    let unix = |name: &str| format!("path = '{}'", path(name).display());
    let setup = setup.relay("relay", &[address_of(&relayed)]).sink("messages", "unix", unix("messages"));
    run_with(&setup.sink("stream", "unix", unix("stream")).keys("socket = 'stream'\nframing = 'length'"));
}

/// Reads until the other end is gone.
fn swallow(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) {
    let mut buffer = [0; 4096];
    while read(&mut buffer).is_ok_and(|count| count > 0) {}
}

fn run_with(setup: &Setup) {
    let bed = Bed::start(setup);
    let books = bed.pipeline.ledger();
    let received_now = || books.snapshot().listeners[0].counts.received;
    let mut sender = spawn_sender(setup.address);
    until("the load to flow", || received_now() >= 2 * RATE);
    let region = Region::new(ALLOCATOR);
    let before = received_now();
    let cost_of_one_look = region.change().allocations;
    // The time is what is measured here, and each look costs something.
    let end = Instant::now() + Duration::from_secs(SECONDS);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
    let seen = region.change();
    let during = received_now() - before;
    // It has more to send than is waited for here.
    sender.kill().and_then(|()| sender.wait()).expect("the sender ends");
    let (ledger, _directory) = bed.stop();
    // How much it was is the machine's affair; one allocation for each batch would be seen in far less.
    assert!(during > LEAST, "the load flowed while allocations were counted: {during}");
    assert_eq!(seen.allocations, cost_of_one_look, "only the test's own look allocates: {seen:?}");
    assert!(received(&ledger) > during);
    assert_eq!(ledger["listeners"][0]["residual"], 0);
    for sink in sinks(&ledger) {
        assert!(count(sink, "delivered") > LEAST, "it took part: {sink:#}");
        assert_eq!(dropped(sink, "sink_error"), 0, "{sink:#}");
    }
}

/// The second process: this test again, told where to send to.
fn spawn_sender(address: SocketAddr) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "nothing_is_allocated_while_datagrams_flow"])
        .env(TARGET, address.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("the sender starts")
}

fn send() {
    let address = std::env::var(TARGET).expect("set by the parent").parse().expect("an address");
    Load::new(address, Amount::Seconds(60.0)).rate(RATE).send();
}
