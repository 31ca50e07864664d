//! Memory, wake-ups and idle cost, as the host sees them.

use crate::delivery::SCALE;
use crate::util::daemon::{Daemon, free_address};
use crate::util::engines::{engines, two_engines};
use crate::util::load::{Amount, Load};

/// How long the load runs after the first reading. The claim is about a minute; `UDPD_TEST_LONG=1` takes one.
fn load_seconds() -> f64 {
    if std::env::var_os("UDPD_TEST_LONG").is_some() { 58.0 } else { 6.0 }
}

/// How often the threads of a process went to sleep, which is how often they were woken.
fn wake_ups(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon runs");
    let of_task = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(of_task).sum()
}

/// Signs of life are among what it does all the time.
fn start(address: std::net::SocketAddr, engine: &str) -> Daemon {
    let text = format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        {engine}
        lanes = 2
        sinks = ["archive", "nothing"]
        [sink.archive]
        type = "file"
        rotate.every = "0s"
        path = "@DIR@/in.log"
        [sink.nothing]
        type = "null"
        "#
    );
    Daemon::with_config_and_watchdog(&text, std::time::Duration::from_secs(10)).0
}

#[test]
fn resident_memory_does_not_grow_under_load() {
    for engine in two_engines() {
        let address = free_address();
        let daemon = start(address, engine);
        let mut load = Load::new(address, Amount::Seconds(2.0));
        load.rate_per_second = 100_000 / SCALE;
        load.clone().send();
        let before = daemon.resident_bytes();
        load.amount = Amount::Seconds(load_seconds());
        load.send();
        let after = daemon.resident_bytes();
        daemon.terminate();
        let grown = after.saturating_sub(before);
        assert!(grown <= 1 << 20, "{engine}: resident memory grew by {grown} bytes, from {before} to {after}");
    }
}

#[test]
fn without_traffic_nobody_wakes_up_beyond_the_housekeeping() {
    const SECONDS: u64 = 4;
    for engine in engines() {
        let daemon = start(free_address(), engine);
        // Start-up has its wake-ups; two equal readings a housekeeping apart would be an event, a fixed window is the
        // claim.
        std::thread::park_timeout(std::time::Duration::from_secs(1));
        let before = wake_ups(daemon.pid());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(SECONDS);
        while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
            std::thread::park_timeout(left);
        }
        let woken = wake_ups(daemon.pid()) - before;
        daemon.terminate();
        assert!(woken <= 5 * SECONDS, "{engine}: {woken} wake-ups in {SECONDS} s without traffic");
    }
}
