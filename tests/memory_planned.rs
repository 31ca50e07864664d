//! Memory as it is planned: what `udpd check` says of it, and what becomes of a plan that does not fit.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};

/// What `udpd check` says of a configuration: for people, and for programs.
fn checked(text: &str) -> (String, Value) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    std::fs::write(&file, text).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let said = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let json = said(udpd(&["check", "--json", "-c", file]));
    (said(udpd(&["check", "-c", file])), serde_json::from_str(&json).expect("JSON"))
}

fn one_sink(listener: &str, sink: &str) -> String {
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nlanes = 1\nsinks = [\"out\"]\n{listener}\n\
         [sink.out]\ntype = \"null\"\n{sink}\n"
    )
}

#[test]
fn check_says_how_long_a_sink_may_stall_at_the_rate_and_size_of_absorb() {
    let (text, json) = checked(&one_sink("absorb = { rate = 1000, stall = \"20s\", size = 200 }", ""));
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
fn longer_datagrams_and_higher_rates_shorten_the_stall_that_a_queue_survives() {
    let stall = |absorb: &str| {
        let (_, json) = checked(&one_sink(absorb, "queue_bytes = \"8MiB\""));
        list(&json, "stalls")[0]["stall_ms"].as_f64().expect("a number")
    };
    let base = stall("absorb = { rate = 1000, size = 200 }");
    assert!((base / stall("absorb = { rate = 4000, size = 200 }") - 4.0).abs() < 0.01);
    assert!(base > 3.0 * stall("absorb = { rate = 1000, size = 1400 }"));
}

#[test]
fn the_parts_of_the_pool_are_labelled_and_add_up() {
    for (listener, sink, label) in [
        ("absorb = { rate = 10000, stall = \"1s\" }", "", Some("that absorb asks for")),
        ("", "queue_bytes = \"8MiB\"", Some("that queue_bytes asks for")),
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
fn a_pool_that_cannot_hold_what_is_asked_for_is_refused_with_the_sum() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    let text = format!("[daemon]\npool_bytes = \"16MiB\"\n{}", one_sink("", "queue_bytes = \"32MiB\""));
    std::fs::write(&file, text).expect("a file");
    for command in ["check", "run"] {
        let output = udpd(&[command, "-c", file.to_str().expect("UTF-8")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{command}: {said}");
        assert!(said.contains("[daemon] pool_bytes = 16.0 MiB") && said.contains("raise pool_bytes to"), "{said}");
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
        let output = udpd(&["check", "--json", "-c", file.path().to_str().expect("UTF-8")]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
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

/// Runs this command of udpd with so much address space, in KiB.
fn with_address_space(kibibytes: u64, command: &str, file: &Path) -> Output {
    let script = format!("ulimit -v {kibibytes} && exec \"$0\" {command} -c \"$1\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_udpd")]).arg(file).output().expect("a shell")
}

#[test]
fn a_plan_beyond_the_address_space_is_refused_by_check_and_run_with_the_sum_and_the_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    let address = free_address();
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n\
         queue_bytes = \"512MiB\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    for command in ["check", "run"] {
        let output = with_address_space(512 << 10, command, &file);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{command}: {said}");
        for words in [
            "the address space of this process is limited to 512.0 MiB (RLIMIT_AS, ulimit -v)",
            "the stacks of further threads take ",
            "lower queue_bytes (512MiB of sink out), or raise the limit to ",
        ] {
            assert!(said.contains(words), "{command}: {words}: {said}");
        }
    }
    let output = with_address_space(8 << 20, "check", &file);
    assert!(output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("address"), "{output:?}");
}

#[test]
fn a_daemon_with_little_address_space_takes_a_smaller_pool_and_receives() {
    let address = free_address();
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
    );
    let limited = ["sh", "-c", "ulimit -v 131072 && MALLOC_ARENA_MAX=1 exec \"$@\"", "sh"];
    let daemon = Daemon::with_config_under(&limited, &text);
    let report = Load::new(address, Amount::Count(1_000)).send();
    daemon.stats_when("all are delivered", |ledger| {
        count(&ledger["listeners"][0]["sinks"][0], "delivered") == report.sent
    });
    let ended = daemon.terminate();
    assert!(ended.stderr.contains("memory: "), "{}", ended.stderr);
    assert_closed(&ended.ledger, report.sent);
}
