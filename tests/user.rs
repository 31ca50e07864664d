//! The user that udpd becomes, as far as that can be tried with the users that every host has. tests/rigs/user.sh has
//! the rest.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use crate::util::*;

fn with(daemon: &str) -> Setup {
    Setup::new().daemon(daemon).null("none")
}

#[test]
fn a_user_that_is_not_there_is_refused_with_78_line_and_column() {
    for (user, words) in [
        ("no-such-user", "this host has no user \"no-such-user\""),
        ("a:b", "\"a:b\" cannot be the name of a user"),
        ("", "\"\" is no user"),
    ] {
        for command in ["check", "run"] {
            let refused = with(&format!("user = '{user}'")).udpd(command, &[]);
            refused.ends(78, &[&format!("udpd.toml:5:8: daemon.user: {words}")]);
        }
    }
}

#[test]
fn a_user_that_is_not_root_becomes_no_other_user() {
    let directory = tempfile::tempdir().expect("a directory");
    let setup = with("user = 'root'\ncontrol_socket = ''");
    let refused = if is_root() {
        // Another user has to reach both.
        let own = directory.path().join("udpd");
        std::fs::copy(UDPD, &own).expect("copied");
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("set");
        let script =
            "chmod 755 \"$(dirname \"$3\")\" && exec setpriv --reuid=65534 --regid=65534 --clear-groups $0 \"$@\"";
        setup.udpd_by(&["sh", "-c", script, own.to_str().expect("UTF-8")], "run", &[])
    } else {
        setup.udpd("run", &[])
    };
    refused.ends(77, &["only root can become another user"]);
}

#[test]
fn root_that_is_kept_on_purpose_is_said_once_and_by_check_as_well() {
    if !is_root() {
        return;
    }
    let setup = with("user = 'root'");
    let checked = setup.check().succeeds(&["\nuser: root (uid 0)\n"]).stdout;
    assert_eq!(checked.matches("warning: udpd would stay root: user = \"root\" says so").count(), 1, "{checked}");
    setup.start().end(0).assert_logged("udpd stays root: user = \"root\" says so", 1);
}
