//! A daemon of an ordinary user that has no runtime directory, as by `su`, cron and in containers: its control socket
//! is where its clients look, and no other user could have put it there.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::util::*;

/// No user of this host.
const USER: u32 = 61_357;

/// The directory that it has in the end. It goes with this, whatever was made of it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let place = Self(PathBuf::from(format!("/tmp/udpd-{USER}")));
        place.clear();
        place
    }

    fn clear(&self) {
        let is_directory = fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_dir());
        let _ = if is_directory { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
    }
}

/// By that user, with this runtime directory.
fn command(arguments: &[&str], runtime: Option<&Path>) -> Command {
    let user = USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", UDPD]).args(arguments);
    command.env_remove("NOTIFY_SOCKET").env_remove("RUNTIME_DIRECTORY").env_remove("XDG_RUNTIME_DIR");
    command.envs(runtime.map(|path| ("XDG_RUNTIME_DIR", path))).stdin(Stdio::null());
    command
}

/// A daemon, and what it said of its control socket until it was ready.
fn start(runtime: Option<&Path>) -> (Process, Vec<String>) {
    let address = free_address().to_string();
    let arguments = ["run", "--listen", &address, "--to", "null:"];
    let mut daemon = Process::start(command(&arguments, runtime).stdout(Stdio::null()));
    daemon.await_line("ready: ");
    let said = daemon.said().iter().filter(|line| line.contains("control socket")).cloned().collect();
    (daemon, said)
}

fn end(daemon: Process) {
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait(Path::new(""), "").status.success());
}

/// The exit code of `udpd stats`, and what it printed.
fn stats() -> (Option<i32>, String) {
    let outcome = Outcome::of(&mut command(&["stats"], None));
    (outcome.code, outcome.text())
}

#[test]
fn without_a_runtime_directory_the_control_socket_is_where_clients_look_and_no_other_user_gets_in() {
    let runs = || command(&["--version"], None).output().is_ok_and(|output| output.status.success());
    if !is_root() || !runs() {
        return not_checked("another user: it takes root, setpriv, and a place from which that user can run udpd");
    }
    let (place, elsewhere) = (Place::new(), tempfile::tempdir().expect("a directory"));
    // None, one that is not there, and one of root, which `su` leaves in the environment.
    for runtime in [None, Some(Path::new("/nonexistent")), Some(elsewhere.path())] {
        let (daemon, said) = start(runtime);
        assert_eq!(said, [""; 0], "no trouble");
        let found = fs::symlink_metadata(&place.0).expect("it was made");
        assert_eq!((found.uid(), found.mode() & 0o7777), (USER, 0o700));
        let (code, text) = stats();
        assert!(code == Some(0) && text.contains("null"), "{text}");
        end(daemon);
        let (code, text) = stats();
        assert!(code != Some(0) && text.contains(&format!("/tmp/udpd-{USER}/control.sock")), "{text}");
    }
    let cases: [(&str, &dyn Fn()); 3] = [
        ("it belongs to user 0", &|| fs::create_dir(&place.0).expect("made")),
        ("it is a symbolic link", &|| symlink(elsewhere.path(), &place.0).expect("made")),
        ("its mode is 0755", &|| {
            fs::create_dir(&place.0).expect("made");
            fs::set_permissions(&place.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
            std::os::unix::fs::chown(&place.0, Some(USER), Some(USER)).expect("root may");
        }),
    ];
    for (why, prepare) in cases {
        place.clear();
        prepare();
        let (daemon, said) = start(None);
        assert_eq!(said.len(), 1, "one warning: {said:?}");
        assert!(said[0].contains("running without a control socket") && said[0].contains(why), "{said:?}");
        let (code, text) = stats();
        // Where root's daemon runs as well, that it may not be asked.
        assert!(matches!(code, Some(69 | 77)), "{text}");
        assert!(!text.contains("/tmp/udpd-"), "no client asks there: {text}");
        end(daemon);
    }
    assert_eq!(fs::read_dir(elsewhere.path()).expect("readable").count(), 0, "nothing was made behind the link");
}
