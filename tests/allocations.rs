//! Memory is fixed at start: nothing is allocated while datagrams flow. A binary of its own, because the allocator that
//! counts is that of the whole process; the load comes from a second process, so that only the daemon's side is counted.

#[allow(dead_code)]
#[path = "util/load.rs"]
mod load;

use std::alloc::System;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use load::{Amount, Load};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use udpd::config::{Config, Host};
use udpd::pipeline::Pipeline;
use udpd::run;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How the second process knows where to send to.
const TARGET: &str = "UDPD_TEST_TARGET";

/// A debug build receives at a tenth of the speed.
const RATE: u64 = if cfg!(debug_assertions) { 30_000 } else { 300_000 };

#[test]
#[allow(clippy::print_stderr)]
fn nothing_is_allocated_between_the_second_and_the_eighth_second_of_a_run() {
    let Err(std::env::VarError::NotPresent) = std::env::var(TARGET) else { return send() };
    run_with("engine = \"recvmmsg\"");
    match mmsg::Uring::supported() {
        Ok(()) => run_with("engine = \"io_uring\"\ngather = \"1ms\""),
        Err(why) => eprintln!("NOT CHECKED: engine = \"io_uring\", because {why}"),
    }
}

fn run_with(engine: &str) {
    let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        {engine}
        deny = ["10.0.0.0/8"]
        rate_limit = {{ per_source = 10000000 }}
        sinks = ["archive", "nothing"]
        [sink.archive]
        type = "file"
        path = "{}/in.log"
        [sink.nothing]
        type = "null"
        "#,
        directory.path().display()
    );
    let config = Config::parse(&text, "test", &Host::default()).expect("a valid configuration");
    let (events, _inbox) = crossbeam_channel::unbounded();
    let pipeline =
        Pipeline::start(&config, &run::plan(&config).expect("a plan"), Instant::now(), &events).expect("started");
    let books = pipeline.books();
    let received = || books.snapshot().listeners[0].received;
    let mut sender = spawn_sender(address);
    wait_for(2 * RATE, &received);
    let region = Region::new(ALLOCATOR);
    let before = received();
    let cost_of_one_look = region.change().allocations;
    wait_with_few_looks(Duration::from_secs(6));
    let seen = region.change();
    let during = received() - before;
    assert!(sender.wait().expect("the sender ends").success());
    let snapshot = pipeline.stop(Duration::from_secs(5), |wait| {
        std::thread::park_timeout(wait);
        false
    });
    assert!(during > 4 * RATE, "the load flowed while allocations were counted: {during}");
    assert_eq!(seen.allocations, cost_of_one_look, "only the test's own look allocates: {seen:?}");
    assert_eq!(snapshot.listeners[0].residual, 0);
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
