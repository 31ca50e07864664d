//! `udpd check --as USER`: what root may do says nothing of what a service may.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;

use crate::util::setup::in_directory;
use crate::util::*;

/// The user `nobody`, which every host has.
const OTHER: u32 = 65_534;

/// A configuration in a directory that all users may enter, with a directory for files that belongs to another user.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new(address: &str, more: &str) -> Self {
        let own = Self(tempfile::tempdir().expect("a directory"));
        own.allow("", 0o755);
        fs::create_dir(own.path("log")).expect("made");
        if is_root() {
            chown(own.path("log"), Some(OTHER), Some(OTHER)).expect("root may");
        }
        let setup = Setup::new().listens_at(address).file("archive", "log/a.log");
        fs::write(own.path("udpd.toml"), in_directory(&setup.daemon(more).text(), own.0.path())).expect("written");
        own.allow("udpd.toml", 0o644);
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn allow(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).expect("it is ours");
    }

    fn check(&self, arguments: &[&str]) -> Outcome {
        udpd(&[&["check", "-c", self.path("udpd.toml").to_str().expect("UTF-8")], arguments].concat())
    }
}

#[test]
fn what_another_user_may_not_read_write_or_bind_is_said_although_root_may() {
    if !is_root() {
        return not_checked("other users: only root may become one");
    }
    let other = ["--as", "nobody"];
    let scene = Scene::new("127.0.0.1:5140", "");
    scene.check(&other).succeeds(&["user nobody: may read 1 files, write at 1 places and bind 1"]);
    scene.check(&["--json", "--as", "nobody"]).succeeds(&["\"user\": \"nobody\""]);
    assert_eq!(files(&scene.path("log"), "").len(), 0, "nothing was made");

    // A file that is there and belongs to root; then the directory does; then it is not there.
    fs::write(scene.path("log/a.log"), "").expect("written");
    scene.allow("log/a.log", 0o600);
    scene.check(&other).ends(77, &["sink archive: cannot append to", "a.log", "namei -l"]);
    fs::remove_file(scene.path("log/a.log")).expect("ours");
    chown(scene.path("log"), Some(0), Some(0)).expect("ours");
    scene.check(&other).ends(77, &["sink archive: cannot make files in", "as user nobody"]);
    fs::remove_dir(scene.path("log")).expect("ours");
    scene.check(&other).ends(77, &["sink archive: cannot make", "as user nobody"]);
    scene.check(&[]).succeeds(&[]);

    let scene = Scene::new("127.0.0.1:5140", "");
    scene.allow("udpd.toml", 0o600);
    scene.check(&other).ends(78, &["udpd.toml", "cannot be read: Permission denied"]);
    scene.check(&[]).succeeds(&[]);

    let more = "stats_on_exit = '@DIR@/elsewhere/ledger.json'\ncontrol_socket = '@DIR@/control.sock'";
    let all = ["stats_on_exit: cannot make", "control_socket: cannot make files in"];
    Scene::new("127.0.0.1:5140", more).check(&other).ends(77, &all);
}

#[test]
fn a_port_below_1024_takes_a_capability_that_the_check_is_told_of() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if !is_root() || first.trim() != "1024" {
        return not_checked("a port below 1024: it takes root, and a host on which such ports take a capability");
    }
    let scene = Scene::new("127.0.0.1:514", "");
    let words = ["listener in: cannot bind 127.0.0.1:514 as user nobody", "AmbientCapabilities=CAP_NET_BIND_SERVICE"];
    scene.check(&["--as", "nobody"]).ends(77, &words);
    scene.check(&["--as", "nobody", "--capability", "CAP_NET_BIND_SERVICE"]).succeeds(&[]);
    let elsewhere = Scene::new("192.0.2.7:5140", "");
    elsewhere.check(&["--as", "nobody"]).ends(69, &["listener in: cannot bind 192.0.2.7:5140"]);
}

#[test]
fn without_a_name_the_rights_of_the_user_who_asks_are_tried() {
    let scene = Scene::new("127.0.0.1:5140", "");
    if is_root() {
        // In its sandbox root has no right over the files of others.
        scene.check(&["--as"]).ends(77, &["sink archive: cannot make files in", "as user root"]);
        chown(scene.path("log"), Some(0), Some(0)).expect("ours");
    }
    scene.check(&["--as"]).succeeds(&["may read 1 files, write at 1 places"]);
    scene.check(&["--as", "no-such-user"]).ends(2, &["no such user"]);
}
