//! The user that udpd becomes, as far as that can be tried with the users that every host has. tests/rigs/user.sh has
//! the rest.

use std::process::{Command, Output, Stdio};

use crate::util::daemon::{Daemon, free_address, udpd};

fn config(daemon: &str) -> String {
    format!(
        "[daemon]\n{daemon}\n[[listener]]\nname = \"in\"\naddress = \"{}\"\nsinks = [\"none\"]\n\
         [sink.none]\ntype = \"null\"\n",
        free_address()
    )
}

fn written(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("temporary paths are UTF-8").to_owned();
    (directory, path)
}

fn code_and_words(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_user_that_is_not_there_is_refused_with_78_line_and_column() {
    for (user, words) in [
        ("no-such-user", "this host has no user \"no-such-user\""),
        ("a:b", "\"a:b\" cannot be the name of a user"),
        ("", "\"\" is no user"),
    ] {
        let (_directory, path) = written(&config(&format!("user = \"{user}\"")));
        for command in ["check", "run"] {
            let (code, stderr) = code_and_words(&udpd(&[command, "-c", &path]));
            assert_eq!(code, Some(78), "{stderr}");
            assert!(stderr.contains(&format!("{path}:2:8: daemon.user: {words}")), "{stderr}");
        }
    }
}

#[test]
fn who_is_not_root_becomes_nobody_else() {
    let text = config("user = \"root\"\ncontrol_socket = \"\"\nmetrics_address = \"\"");
    let (directory, path) = written(&text);
    let output = if nix::unistd::geteuid().is_root() {
        // Another user has to reach both.
        let own = directory.path().join("udpd");
        std::fs::copy(env!("CARGO_BIN_EXE_udpd"), &own).expect("copied");
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), everybody).expect("set");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(own).args(["run", "-c", &path]);
        command.stdin(Stdio::null()).output().expect("setpriv is in util-linux")
    } else {
        udpd(&["run", "-c", &path])
    };
    let (code, stderr) = code_and_words(&output);
    assert_eq!(code, Some(77), "{stderr}");
    assert!(stderr.contains("only root can become another user"), "{stderr}");
}

#[test]
fn root_that_is_kept_on_purpose_is_said_once_and_by_check_as_well() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let text = config("user = \"root\"");
    let (_directory, path) = written(&text);
    let checked = udpd(&["check", "-c", &path]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(said.matches("warning: udpd would stay root: user = \"root\" says so").count(), 1, "{said}");
    assert!(said.contains("\nuser: root (uid 0)\n"), "{said}");
    let ended = Daemon::with_config(&text).terminate();
    assert!(ended.status.success());
    assert_eq!(ended.stderr.matches("udpd stays root: user = \"root\" says so").count(), 1, "{}", ended.stderr);
}
