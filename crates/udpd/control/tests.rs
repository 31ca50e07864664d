//! The control socket against stale files, rivals, bad requests and slow clients.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::thread;

use super::*;
use crate::stats::tests::example;

fn served(path: &Path) -> ControlServer {
    ControlSocket::bind(path).unwrap().serve(&crate::crew::Crew::new().0, example).unwrap()
}

fn ask(path: &Path, request: &[u8]) -> serde_json::Value {
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(request).unwrap();
    serde_json::from_str(&io::read_to_string(client).unwrap()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The file that a daemon leaves behind when it is killed.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
}

#[test]
fn the_client_gets_the_ledger_that_the_daemon_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    assert_eq!(request_stats(&path).unwrap(), example());
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
    assert!(!path.exists());
}

#[test]
fn socket_and_directory_are_for_owner_and_group_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("udpd/control.sock");
    let socket = ControlSocket::bind(&path).unwrap();
    assert_eq!(mode(socket.path()), 0o660);
    assert_eq!(mode(path.parent().unwrap()), 0o750);
}

#[test]
fn a_daemon_that_fails_before_it_serves_leaves_no_file_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    drop(ControlSocket::bind(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn only_the_last_directory_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let failure = ControlSocket::bind(&directory.path().join("a/b/control.sock")).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("a/b/control.sock"), "{failure}");
    assert!(!directory.path().join("a").exists());
}

#[test]
fn a_stale_file_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    leave_stale(&path);
    let failure = request_stats(&path).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("nobody serves it"), "{failure}");
    let server = served(&path);
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
}

#[test]
fn the_socket_of_a_running_daemon_is_refused_and_keeps_working() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    let failure = ControlSocket::bind(&path).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains(path.to_str().unwrap()), "{failure}");
    assert!(failure.message.contains(&format!("pid {}", std::process::id())), "{failure}");
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
}

#[test]
fn of_many_that_start_at_once_on_a_stale_file_exactly_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    leave_stale(&path);
    let outcomes: Vec<_> = thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| ControlSocket::bind(&path))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
}

#[test]
fn a_lock_that_a_reader_holds_on_the_directory_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let reader = fs::File::open(directory.path()).unwrap();
    reader.lock_shared().unwrap();
    drop(ControlSocket::bind(&path).unwrap());
    reader.lock().unwrap();
    leave_stale(&path);
    drop(ControlSocket::bind(&path).unwrap());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the lock has gone with its holder");
}

#[test]
fn a_lock_that_another_of_the_same_user_holds_is_named_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let holder = fs::File::create(directory.path().join("control.sock.lock")).unwrap();
    holder.lock().unwrap();
    let failure = ControlSocket::bind(&path).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("control.sock.lock"), "{failure}");
    assert!(!path.exists());
}

#[test]
fn what_is_not_a_socket_is_never_removed_or_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, target, link) =
        (directory.path().join("file"), directory.path().join("target"), directory.path().join("link"));
    fs::write(&file, "precious").unwrap();
    leave_stale(&target);
    symlink(&target, &link).unwrap();
    for path in [&file, &link, directory.path()].map(Path::to_path_buf) {
        let failure = ControlSocket::bind(&path).unwrap_err();
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("not a socket"), "{failure}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(fs::symlink_metadata(&target).unwrap().file_type().is_socket());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn stopping_works_without_the_file_and_leaves_another_daemons_file_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let first = served(&path);
    fs::remove_file(&path).unwrap();
    let second = served(&path);
    first.stop();
    assert_eq!(request_stats(&path).unwrap(), example());
    second.stop();
    assert!(!path.exists());
}

#[test]
fn any_other_request_is_answered_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    assert!(ask(&path, b"reboot\n")["error"].as_str().unwrap().contains("reboot"));
    assert!(ask(&path, b"\xff\n")["error"].is_string());
    assert!(ask(&path, &[b'x'; 10_000])["error"].as_str().unwrap().contains("4096 bytes"));
    server.stop();
}

#[test]
fn a_silent_client_does_not_keep_the_next_one_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    let _silent = UnixStream::connect(&path).unwrap();
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
}

#[test]
fn a_daemon_that_is_not_there_is_named_by_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let failure = request_stats(&path).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("no such file"), "{failure}");
    assert!(failure.message.contains(path.to_str().unwrap()), "{failure}");
}

#[test]
fn a_missing_right_is_told_apart_from_a_missing_daemon() {
    let failure = not_connected(Path::new("/run/udpd/control.sock"), &io::ErrorKind::PermissionDenied.into());
    assert_eq!(failure.code, ExitCode::Permission);
}

#[test]
fn an_answer_that_is_no_ledger_is_an_error_with_the_daemons_own_words() {
    let path = Path::new("control.sock");
    assert!(understand(path, b"{\"error\": \"not today\"}\n").unwrap_err().message.contains("not today"));
    assert!(understand(path, b"").unwrap_err().message.contains("not a ledger"));
}

#[test]
fn a_path_that_no_socket_can_have_is_a_mistake_in_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let failure = ControlSocket::bind(&directory.path().join("x".repeat(120))).unwrap_err();
    assert_eq!(failure.code, ExitCode::Configuration);
}
