//! `udpd steer apply --watch` as a service manager sees it, on any machine: it waits, it ends, and it refuses at the
//! start. What it sets again is in `crates/udpd-tools/src/steer/keeper_tests.rs`, and on a card in
//! `tests/rigs/steering_in_guest.sh`.

use crate::util::daemon::{Daemon, udpd};

/// No interface has this name.
const NOBODY: &str = "nosuch7";

/// The least that a file has.
const LISTENER: &str =
    "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5140\"\nsinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n";

#[test]
fn an_interface_that_is_not_there_is_waited_for_until_sigterm_which_ends_it_with_0() {
    let daemon = Daemon::of_command(&["steer", "apply", NOBODY, "--watch", "--state", "@DIR@/state"]);
    let ended = daemon.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("{NOBODY} is not there: waits for it")), "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGTERM; the settings stay as they are"), "{}", ended.stderr);
    assert!(!ended.directory.path().join("state").exists(), "nothing was changed, so nothing is saved");
}

#[test]
fn what_cannot_be_steered_is_refused_at_the_start_with_its_exit_code() {
    let refused = udpd(&["steer", "apply", "lo", "--watch"]);
    assert_eq!(refused.status.code(), Some(78), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_file_that_names_an_interface_which_comes_later_is_no_bad_file() {
    let daemon = Daemon::of_command_with(
        &["steer", "apply", "--watch", "--state", "@DIR@/state"],
        &format!("{LISTENER}[steer]\ninterfaces = [\"{NOBODY}\"]\n"),
    );
    let file = daemon.directory().join("udpd.toml");
    let once = udpd(&["steer", "apply", "-c", file.to_str().expect("temporary paths are UTF-8")]);
    assert_eq!(once.status.code(), Some(69), "{}", String::from_utf8_lossy(&once.stderr));
    let ended = daemon.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_file_that_names_no_interface_is_nothing_to_do_and_no_failure() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("udpd.toml");
    std::fs::write(&file, LISTENER).expect("a file");
    let file = file.to_str().expect("temporary paths are UTF-8");
    for arguments in [&["steer", "apply", "-c", file][..], &["steer", "apply", "--watch", "-c", file]] {
        let done = udpd(arguments);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(String::from_utf8_lossy(&done.stdout), "nothing to do: [steer] interfaces names none\n");
    }
}
