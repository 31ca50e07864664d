//! `udpd steer apply --watch` as a service manager sees it, on any machine: it waits, it ends, and it refuses at the
//! start. What it sets again is in `crates/udpd-tools/src/steer/keeper_tests.rs`, and on a card in
//! `tests/rigs/steering_in_guest.sh`.

use crate::util::*;

/// No interface has this name.
const ABSENT: &str = "nosuch7";

#[test]
fn an_interface_that_is_not_there_is_waited_for_until_sigterm_which_ends_it_with_0() {
    let daemon = Daemon::of_command(&["steer", "apply", ABSENT, "--watch", "--state", "@DIR@/state"], "");
    let ended = daemon.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    for words in ["nosuch7 is not there: waits for it", "SIGTERM; the settings stay as they are"] {
        ended.logged(&[words]);
    }
    assert!(!ended.path("state").exists(), "nothing was changed, so nothing is saved");
}

#[test]
fn what_cannot_be_steered_is_refused_at_the_start_with_its_exit_code() {
    udpd(&["steer", "apply", "lo", "--watch"]).ends(78, &[]);
}

#[test]
fn a_file_that_names_an_interface_which_comes_later_is_no_bad_file() {
    let text = Setup::new().null("out").more(format!("[steer]\ninterfaces = ['{ABSENT}']")).text();
    let daemon =
        Daemon::of_command(&["steer", "apply", "-c", "@DIR@/udpd.toml", "--watch", "--state", "@DIR@/state"], &text);
    let file = daemon.configuration();
    udpd(&["steer", "apply", "-c", file.to_str().expect("UTF-8")]).ends(69, &[]);
    let ended = daemon.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_file_that_names_no_interface_is_nothing_to_do_and_no_failure() {
    for watch in [&[][..], &["--watch"]] {
        let by = [UDPD, "steer"];
        let done = Setup::new().null("out").udpd_by(&by, "apply", watch).succeeds(&[]);
        assert_eq!(done.stdout, "nothing to do: [steer] interfaces names none\n");
    }
}
