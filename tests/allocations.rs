//! Memory is fixed at start: nothing is allocated while datagrams flow, whatever the engine and the sinks. A binary of
//! its own, because the allocator that counts is that of the whole process; the load comes from a second process, so
//! that only the daemon's side is counted.

#[allow(dead_code)]
#[path = "util/load.rs"]
mod load;

use std::alloc::System;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use load::{Amount, Load};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use udpd_engine::config::{Config, Host};
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How the second process knows where to send to.
const TARGET: &str = "UDPD_TEST_TARGET";

/// A debug build receives at a tenth of the speed.
const RATE: u64 = if cfg!(debug_assertions) { 30_000 } else { 300_000 };

/// Of fewer datagrams than this nothing would be proved.
const LEAST: u64 = 10_000;

#[test]
#[allow(clippy::print_stderr)]
fn nothing_is_allocated_between_the_second_and_the_eighth_second_of_a_run() {
    let Err(std::env::VarError::NotPresent) = std::env::var(TARGET) else { return send() };
    let policies = "deny = [\"10.0.0.0/8\"]\nrate_limit = { per_source = 10000000 }";
    let sinks = "[sink.archive]\n\
                 type = \"file\"\n\
                 path = \"@DIR@/in.log\"\n\
                 rotate.every = \"0s\"\n\
                 [sink.nothing]\n\
                 type = \"null\"\n";
    run_with(&format!("engine = \"recvmmsg\"\n{policies}"), sinks);
    match mmsg::Uring::supported() {
        Ok(()) => run_with(&format!("engine = \"io_uring\"\ngather = \"1ms\"\n{policies}"), sinks),
        Err(why) => eprintln!("NOT CHECKED: engine = \"io_uring\", because {why}"),
    }
    every_other_sink();
}

/// The formats, the relay and the Unix sockets, together behind one listener that looks for numbers.
fn every_other_sink() {
    let directory = tempfile::tempdir().expect("a directory");
    let relayed = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let stream = UnixListener::bind(directory.path().join("stream")).expect("bound");
    std::thread::spawn(move || {
        let (peer, _) = stream.accept().expect("a connection");
        swallow(|buffer| (&peer).read(buffer));
    });
    let messages = UnixDatagram::bind(directory.path().join("messages")).expect("bound");
    std::thread::spawn(move || swallow(|buffer| messages.recv(buffer)));
    let sinks = format!(
        r#"
        [sink.jsonl]
        type = "file"
        rotate.every = "0s"
        format = "jsonl"
        path = "@DIR@/in.jsonl"
        [sink.pcapng]
        type = "file"
        rotate.every = "0s"
        format = "pcapng"
        path = "@DIR@/in.pcapng"
        [sink.relay]
        type = "udp"
        destinations = ["{}"]
        [sink.stream]
        type = "unix"
        path = "{directory}/stream"
        socket = "stream"
        framing = "length"
        [sink.messages]
        type = "unix"
        path = "{directory}/messages"
        "#,
        relayed.local_addr().expect("bound"),
        directory = directory.path().display()
    );
    run_with("sequence = { offset = 0, bytes = 4, order = \"big\" }", &sinks);
}

/// Reads until the other end is gone.
fn swallow(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) {
    let mut buffer = [0; 4096];
    while read(&mut buffer).is_ok_and(|count| count > 0) {}
}

fn run_with(keys: &str, sinks: &str) {
    let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let directory = tempfile::tempdir().expect("a directory");
    let names: Vec<&str> =
        sinks.lines().filter_map(|line| line.trim().strip_prefix("[sink.")?.strip_suffix(']')).collect();
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\n{keys}\nsinks = {names:?}\n{}",
        sinks.replace("@DIR@", directory.path().to_str().expect("UTF-8"))
    );
    let config = Config::parse(&text, "test", &Host::default()).unwrap_or_else(|problems| panic!("{problems}"));
    let (crew, _events) = udpd_base::os::crew::Crew::new();
    let pipeline =
        Pipeline::start(&config, &plan::make(&config, &Default::default()).expect("a plan"), Instant::now(), &crew)
            .expect("started");
    let books = pipeline.books();
    let received = || books.snapshot().listeners[0].counts.received;
    let mut sender = spawn_sender(address);
    wait_for(2 * RATE, &received);
    let region = Region::new(ALLOCATOR);
    let before = received();
    let cost_of_one_look = region.change().allocations;
    wait_with_few_looks(Duration::from_secs(6));
    let seen = region.change();
    let during = received() - before;
    // It has more to send than anybody here waits for.
    sender.kill().and_then(|()| sender.wait()).expect("the sender ends");
    let snapshot = pipeline.stop(Duration::from_secs(5), |wait| {
        std::thread::park_timeout(wait);
        false
    });
    // How much it was is the machine's affair; one allocation for each batch would be seen in far less.
    assert!(during > LEAST, "the load flowed while allocations were counted: {during}");
    assert_eq!(seen.allocations, cost_of_one_look, "only the test's own look allocates: {seen:?}");
    assert_eq!(snapshot.listeners[0].residual, Some(0));
    for sink in &snapshot.listeners[0].sinks {
        assert!(sink.counts.delivered > LEAST, "{} took part: {sink:?}", sink.name);
        assert_eq!(sink.counts.dropped.sink_error, 0, "{sink:?}");
    }
}

/// The second process: this test again, told where to send to.
fn spawn_sender(address: SocketAddr) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "nothing_is_allocated_between_the_second_and_the_eighth_second_of_a_run"])
        .env(TARGET, address.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("the sender starts")
}

fn send() {
    let address = std::env::var(TARGET).expect("set by the parent").parse().expect("an address");
    let mut load = Load::new(address, Amount::Seconds(10.0));
    load.rate_per_second = RATE;
    load.send();
}

fn wait_for(count: u64, received: &impl Fn() -> u64) {
    let started = Instant::now();
    while received() < count {
        assert!(started.elapsed() < Duration::from_secs(60), "the load never came");
        std::thread::yield_now();
    }
}

/// The time of the measurement is the thing measured here, so this one waits for a time.
fn wait_with_few_looks(duration: Duration) {
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}
