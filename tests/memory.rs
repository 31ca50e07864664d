//! Memory and wake-ups as the host sees them, and memory as `udpd check` plans it.

use std::path::Path;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::util::*;

/// How long the load runs after the first reading. The claim is about a minute; `UDPD_TEST_LONG=1` takes one.
fn load_seconds() -> f64 {
    if std::env::var_os("UDPD_TEST_LONG").is_some() {
        58.0
    } else if cfg!(debug_assertions) {
        2.0
    } else {
        6.0
    }
}

/// How often the threads of a process went to sleep, which is how often they were woken.
fn wake_ups(pid: u32) -> u64 {
    let of_thread = |thread: &Thread| {
        let status = thread.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    threads(pid).iter().map(of_thread).sum()
}

/// Signs of life are among what it does all the time.
fn start(engine: &str) -> Daemon {
    let setup = Setup::new().keys(format!("{engine}\nlanes = 2")).file("archive", "in.log").null("nothing");
    setup.start_watched(Duration::from_secs(10)).0
}

#[test]
fn resident_memory_does_not_grow_under_load() {
    for engine in two_engines() {
        let daemon = start(engine);
        let mut load = Load::new(daemon.address(), Amount::Seconds(2.0)).rate(100_000 / SCALE);
        let mut sent = load.clone().send().sent;
        let before = daemon.resident_bytes();
        load.amount = Amount::Seconds(load_seconds());
        sent += load.send().sent;
        let after = daemon.resident_bytes();
        daemon.end(sent);
        let grown = after.saturating_sub(before);
        assert!(grown <= 1 << 20, "{engine}: resident memory grew by {grown} bytes, from {before} to {after}");
    }
}

#[test]
fn without_traffic_no_thread_wakes_up_beyond_the_housekeeping() {
    const SECONDS: u64 = 4;
    let daemons: Vec<_> = engines().into_iter().map(|engine| (engine, start(engine))).collect();
    // Start-up has its wake-ups, and the claim is about a time, so this one waits for a time.
    park_timeout(Duration::from_secs(1));
    let before: Vec<u64> = daemons.iter().map(|(_, daemon)| wake_ups(daemon.pid())).collect();
    let end = Instant::now() + Duration::from_secs(SECONDS);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        park_timeout(left);
    }
    for ((engine, daemon), before) in daemons.into_iter().zip(before) {
        let woken = wake_ups(daemon.pid()) - before;
        daemon.end(0);
        assert!(woken <= 5 * SECONDS, "{engine}: {woken} wake-ups in {SECONDS} s without traffic");
    }
}

/// What `udpd check` says of a configuration: for people, and for programs.
fn checked(setup: &Setup) -> (String, Value) {
    (setup.check().succeeds(&[]).stdout, setup.udpd("check", &["--json"]).json())
}

/// One lane and one sink with these keys.
fn one_sink(listener: &str, sink: &str) -> Setup {
    Setup::new().keys("lanes = 1").keys(listener).null("out").keys(sink)
}

#[test]
fn check_says_how_long_a_sink_may_stall_at_the_rate_and_size_of_absorb() {
    let (text, json) = checked(&one_sink("absorb = { rate = 1000, stall = '20s', size = 200 }", ""));
    let [stall] = list(&json, "stalls") else { panic!("{json:#}") };
    assert_eq!((&stall["listener"], &stall["sink"]), (&Value::from("in"), &Value::from("out")));
    assert_eq!((count(stall, "rate"), count(stall, "size_bytes")), (1000, 200));
    // What is asked for is kept free for this sink; what is shared comes to it.
    let milliseconds = |key: &str| stall[key].as_f64().expect("a number");
    assert!(count(stall, "own_datagrams") >= 20_000, "{stall:#}");
    assert!((20_000.0..21_000.0).contains(&milliseconds("own_stall_ms")), "{stall:#}");
    assert!(count(stall, "datagrams") > count(stall, "own_datagrams"), "{stall:#}");
    let line = text.lines().find(|line| line.contains("may stall for")).expect("a line");
    let (own, whole) = (milliseconds("own_stall_ms") / 1000.0, milliseconds("stall_ms") / 1000.0);
    let expected = format!(
        "  out  may stall for {whole:.1} s before listener in loses datagrams, at 1000/s of 200 bytes; {own:.1} s of \
         that even when everything else waits too"
    );
    assert_eq!(line, expected);
}

#[test]
fn the_parts_of_the_pool_are_labelled_and_add_up() {
    for (listener, sink, label) in [
        ("absorb = { rate = 10000, stall = '1s' }", "", Some("that absorb asks for")),
        ("", "queue_bytes = '8MiB'", Some("that queue_bytes asks for")),
        ("", "", None),
    ] {
        let (text, json) = checked(&one_sink(listener, sink));
        assert_eq!(count(&json, "batches_bytes") + count(&json, "waiting_bytes"), count(&json, "pool_bytes"));
        assert_eq!(text.contains(" for\n"), label.is_some(), "{text}");
        assert!(label.is_none_or(|label| text.contains(label)), "{text}");
        assert_eq!(count(&json, "asked_bytes") > 0, label.is_some(), "{json:#}");
        for line in [
            "in batches, which lanes receive into",
            "two blocks of each queue, the rest shared",
            "in all, fixed at the start",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
        }
    }
}

#[test]
fn longer_datagrams_and_higher_rates_shorten_the_stall_that_a_queue_survives() {
    let stall = |absorb: &str| {
        let (_, json) = checked(&one_sink(absorb, "queue_bytes = '8MiB'"));
        list(&json, "stalls")[0]["stall_ms"].as_f64().expect("a number")
    };
    let base = stall("absorb = { rate = 1000, size = 200 }");
    assert!((base / stall("absorb = { rate = 4000, size = 200 }") - 4.0).abs() < 0.01);
    assert!(base > 3.0 * stall("absorb = { rate = 1000, size = 1400 }"));
}

#[test]
fn a_pool_that_cannot_hold_what_is_asked_for_is_refused_with_the_sum() {
    let setup = one_sink("", "queue_bytes = '32MiB'").daemon("pool_bytes = '16MiB'");
    for command in ["check", "run"] {
        setup.udpd(command, &[]).ends(78, &["[daemon] pool_bytes = 16.0 MiB", "raise pool_bytes to"]);
    }
}

#[test]
fn the_examples_take_at_most_64_mib_beside_what_absorb_asks_for() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples");
    for file in std::fs::read_dir(directory).expect("config/examples").flatten() {
        // Another build has it.
        if !cfg!(feature = "kafka") && file.file_name() == "telemetry.toml" {
            continue;
        }
        let json = udpd(&["check", "--json", "-c", file.path().to_str().expect("UTF-8")]).json();
        // What librdkafka may hold is asked for as well: a message that waits for a broker lies there.
        let is_broker = file.file_name() == "telemetry.toml";
        let parts =
            if is_broker { &["pool_bytes", "policy_bytes"][..] } else { &["pool_bytes", "policy_bytes", "sink_bytes"] };
        let taken = parts.iter().map(|part| count(&json, part)).sum::<u64>();
        let asked = count(&json, "asked_bytes");
        assert!(asked > 0, "{file:?} says what its site needs");
        assert!(taken - asked <= 60 << 20, "{file:?}: {json:#}");
    }
}

#[test]
fn a_plan_beyond_the_address_space_is_refused_by_check_and_run_with_the_sum_and_the_key() {
    let setup = Setup::new().null("out").keys("queue_bytes = '512MiB'");
    let limited = |mebibytes: u64| format!("ulimit -v {} && exec \"$0\" \"$@\"", mebibytes << 10);
    let with_address_space =
        |mebibytes: u64, command: &str| setup.udpd_by(&["sh", "-c", &limited(mebibytes), UDPD], command, &[]);
    let words = [
        "the address space of this process is limited to 512.0 MiB (RLIMIT_AS, ulimit -v)",
        "the stacks of further threads take ",
        "lower queue_bytes (512MiB of sink out), or raise the limit to ",
    ];
    for command in ["check", "run"] {
        with_address_space(512, command).ends(78, &words);
    }
    let enough = with_address_space(8 << 10, "check").succeeds(&[]);
    assert!(!enough.stdout.contains("address"), "{enough:?}");
}

#[test]
fn a_daemon_with_little_address_space_takes_a_smaller_pool_and_receives() {
    let limited = ["sh", "-c", "ulimit -v 131072 && MALLOC_ARENA_MAX=1 exec \"$@\"", "sh"];
    let daemon = Setup::new().null("out").start_by(&limited);
    let sent = daemon.send(1_000);
    daemon.until_delivered(sent);
    let ended = daemon.end(sent);
    ended.logged(&["memory: "]);
}
