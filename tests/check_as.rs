//! `udpd check --as USER`: what root may do says nothing of what a service may.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::util::daemon::udpd;

/// Every host has it.
const NOBODY: u32 = 65_534;

/// A configuration in a directory that all users may enter, with a directory for files that belongs to `nobody`.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new(address: &str, keys: &str) -> Self {
        let own = Self(tempfile::tempdir().expect("a directory"));
        own.allow("", 0o755);
        fs::create_dir(own.path("log")).expect("made");
        if nix::unistd::geteuid().is_root() {
            chown(own.path("log"), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"archive\"]\n\
             [sink.archive]\ntype = \"file\"\npath = \"@DIR@/log/a.log\"\n{keys}"
        );
        fs::write(own.path("udpd.toml"), text.replace("@DIR@", own.0.path().to_str().expect("UTF-8")))
            .expect("written");
        own.allow("udpd.toml", 0o644);
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn allow(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).expect("it is ours");
    }

    fn check(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let file = self.path("udpd.toml");
        let whole = [&["check", "-c", file.to_str().expect("UTF-8")], arguments].concat();
        said(&udpd(&whole))
    }
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).expect("readable").flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[track_caller]
fn assert_refused(found: (Option<i32>, String), code: i32, words: &[&str]) {
    assert_eq!(found.0, Some(code), "{}", found.1);
    words.iter().for_each(|word| assert!(found.1.contains(word), "says nothing of {word}: {}", found.1));
}

#[test]
fn what_another_user_may_not_read_write_or_bind_is_said_although_root_may() {
    if !nix::unistd::geteuid().is_root() {
        return not_checked("other users: only root may become one");
    }
    let scene = Scene::new("127.0.0.1:5140", "");
    let (code, text) = scene.check(&["--as", "nobody"]);
    assert!(code == Some(0) && text.contains("user nobody: may read 1 files, write at 1 places and bind 1"), "{text}");
    let (_, json) = scene.check(&["--json", "--as", "nobody"]);
    assert!(json.contains("\"user\": \"nobody\""), "{json}");
    assert_eq!(names(&scene.path("log")), [""; 0], "nothing was made");

    // A file that is there and belongs to root; then the directory does; then it is not there.
    fs::write(scene.path("log/a.log"), "").expect("written");
    scene.allow("log/a.log", 0o600);
    assert_refused(scene.check(&["--as", "nobody"]), 77, &["sink archive: cannot append to", "a.log", "namei -l"]);
    fs::remove_file(scene.path("log/a.log")).expect("ours");
    chown(scene.path("log"), Some(0), Some(0)).expect("ours");
    assert_refused(scene.check(&["--as", "nobody"]), 77, &["sink archive: cannot make files in", "as user nobody"]);
    fs::remove_dir(scene.path("log")).expect("ours");
    assert_refused(scene.check(&["--as", "nobody"]), 77, &["sink archive: cannot make", "as user nobody"]);
    assert_eq!(scene.check(&[]).0, Some(0), "root may");

    let scene = Scene::new("127.0.0.1:5140", "");
    scene.allow("udpd.toml", 0o600);
    assert_refused(scene.check(&["--as", "nobody"]), 78, &["udpd.toml", "cannot be read: Permission denied"]);
    assert_eq!(scene.check(&[]).0, Some(0), "root may");

    let more = "[daemon]\nstats_on_exit = \"@DIR@/elsewhere/ledger.json\"\ncontrol_socket = \"@DIR@/control.sock\"\n";
    let scene = Scene::new("127.0.0.1:5140", more);
    let all = ["stats_on_exit: cannot make", "control_socket: cannot make files in"];
    assert_refused(scene.check(&["--as", "nobody"]), 77, &all);
}

#[test]
fn a_port_below_1024_takes_a_capability_that_the_check_is_told_of() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if !nix::unistd::geteuid().is_root() || first.trim() != "1024" {
        return not_checked("a port below 1024: it takes root, and a host on which such ports take a capability");
    }
    let scene = Scene::new("127.0.0.1:514", "");
    let words = ["listener in: cannot bind 127.0.0.1:514 as user nobody", "AmbientCapabilities=CAP_NET_BIND_SERVICE"];
    assert_refused(scene.check(&["--as", "nobody"]), 77, &words);
    let (code, text) = scene.check(&["--as", "nobody", "--capability", "CAP_NET_BIND_SERVICE"]);
    assert_eq!(code, Some(0), "{text}");
    let elsewhere = Scene::new("192.0.2.7:5140", "");
    assert_refused(elsewhere.check(&["--as", "nobody"]), 69, &["listener in: cannot bind 192.0.2.7:5140"]);
}

#[test]
fn without_a_name_the_rights_of_who_asks_are_tried() {
    let scene = Scene::new("127.0.0.1:5140", "");
    if nix::unistd::geteuid().is_root() {
        // In its sandbox root has no right over the files of others.
        assert_refused(scene.check(&["--as"]), 77, &["sink archive: cannot make files in", "as user root"]);
        chown(scene.path("log"), Some(0), Some(0)).expect("ours");
    }
    let (code, text) = scene.check(&["--as"]);
    assert!(code == Some(0) && text.contains("may read 1 files, write at 1 places"), "{text}");
    assert_refused(scene.check(&["--as", "no-such-user"]), 2, &["no such user"]);
}

#[allow(clippy::print_stderr)]
fn not_checked(what: &str) {
    eprintln!("NOT CHECKED: {what}");
}
