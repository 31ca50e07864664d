//! The control socket against stale files, rivals, bad requests and slow clients.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::server::LIMITS;
use super::*;
use crate::service::tests::raise_descriptor_limit;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::testing::example;
use udpd_base::os::threads::ThreadRegistry;

fn served(path: &Path) -> ControlServer {
    let reopen = || Ok("nothing to reopen".into());
    BoundControlSocket::bind(path)
        .unwrap()
        .serve(
            &ThreadRegistry::new().0,
            (example, Vec::new),
            reopen,
            || Ok(String::new()),
            Seats::default,
            (drop, drop),
        )
        .unwrap()
}

fn request_stats(path: &Path) -> Result<Snapshot, Failure> {
    Connection::open(path)?.stats()
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
    let socket = BoundControlSocket::bind(&path).unwrap();
    assert_eq!(mode(socket.path()), 0o660);
    assert_eq!(mode(path.parent().unwrap()), 0o750);
}

#[test]
fn a_daemon_that_fails_before_it_serves_leaves_no_file_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    drop(BoundControlSocket::bind(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn only_the_last_directory_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let failure = BoundControlSocket::bind(&directory.path().join("a/b/control.sock")).unwrap_err();
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
    assert!(failure.message.contains("no process serves it"), "{failure}");
    let server = served(&path);
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
}

#[test]
fn the_socket_of_a_running_daemon_is_refused_and_keeps_working() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    let failure = BoundControlSocket::bind(&path).unwrap_err();
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
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| BoundControlSocket::bind(&path))).collect();
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
    drop(BoundControlSocket::bind(&path).unwrap());
    reader.lock().unwrap();
    leave_stale(&path);
    drop(BoundControlSocket::bind(&path).unwrap());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the lock has gone with its holder");
}

#[test]
fn a_lock_that_another_of_the_same_user_holds_is_named_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let holder = fs::File::create(directory.path().join("control.sock.lock")).unwrap();
    holder.lock().unwrap();
    let failure = BoundControlSocket::bind(&path).unwrap_err();
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
        let failure = BoundControlSocket::bind(&path).unwrap_err();
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
fn a_path_that_no_socket_can_have_is_a_mistake_in_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let failure = BoundControlSocket::bind(&directory.path().join("x".repeat(120))).unwrap_err();
    assert_eq!(failure.code, ExitCode::Configuration);
}

/// A daemon whose files are reopened for as long as the test wants: it is told of each beginning, and says how each
/// ends.
fn reopening(path: &Path) -> (ControlServer, Receiver<()>, Sender<Result<String, String>>) {
    let ((begin, beginnings), (ends, end)) = (unbounded(), unbounded());
    let reopen = move || {
        begin.send(()).unwrap();
        end.recv().unwrap_or_else(|_| Err("the test is over".into()))
    };
    let server = BoundControlSocket::bind(path)
        .unwrap()
        .serve(
            &ThreadRegistry::new().0,
            (example, Vec::new),
            reopen,
            || Ok(String::new()),
            Seats::default,
            (drop, drop),
        )
        .unwrap();
    (server, beginnings, ends)
}

fn reopen_on_a_thread(path: &Path) -> thread::JoinHandle<Result<String, Failure>> {
    let daemon = Connection::open(path).unwrap();
    thread::spawn(move || daemon.reopen())
}

#[test]
fn the_ledger_is_there_while_files_are_reopened_and_the_answer_comes_when_that_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let (server, beginnings, ends) = reopening(&path);
    for (end, told) in [(Ok("3 files".to_owned()), "3 files"), (Err("no room".to_owned()), "refused: no room")] {
        let asking = reopen_on_a_thread(&path);
        beginnings.recv().unwrap();
        assert_eq!(request_stats(&path).unwrap(), example());
        assert!(!asking.is_finished());
        ends.send(end).unwrap();
        match asking.join().unwrap() {
            Ok(what) => assert_eq!(what, told),
            Err(failure) => {
                assert_eq!(failure.code, ExitCode::Failure);
                assert!(failure.message.ends_with(told), "{failure}");
            }
        }
    }
    server.stop();
}

#[test]
fn who_asks_for_new_files_during_a_round_shares_the_next_with_the_others_and_too_many_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let (server, beginnings, ends) = reopening(&path);
    let first = reopen_on_a_thread(&path);
    beginnings.recv().unwrap();
    let ask = |_| {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"reopen\n").unwrap();
        client
    };
    let others: Vec<UnixStream> = (0..16).map(ask).collect();
    // Requests are taken in their order, and an answer to this one means that all before it are.
    assert!(io::read_to_string(ask(17)).unwrap().contains("try again later"));
    ends.send(Ok("first round".into())).unwrap();
    assert_eq!(first.join().unwrap().unwrap(), "first round");
    beginnings.recv().unwrap();
    ends.send(Ok("second round".into())).unwrap();
    for client in others {
        assert_eq!(io::read_to_string(client).unwrap(), "{\"ok\":\"second round\"}\n");
    }
    // No client asks for a third, and one that comes later gets a round of its own.
    assert!(beginnings.try_recv().is_err());
    let later = reopen_on_a_thread(&path);
    beginnings.recv().unwrap();
    ends.send(Ok("third round".into())).unwrap();
    assert_eq!(later.join().unwrap().unwrap(), "third round");
    server.stop();
}

#[test]
fn who_hangs_up_while_files_are_reopened_makes_room_and_stopping_does_not_wait_for_that() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let (server, beginnings, ends) = reopening(&path);
    for round in 0..100 {
        // More than are served at once, had those stayed that have gone.
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"reopen\n").unwrap();
        if round == 0 {
            beginnings.recv().unwrap();
        }
        drop(client);
    }
    assert_eq!(request_stats(&path).unwrap(), example());
    server.stop();
    drop(ends);
}

#[test]
fn beside_a_thousand_idle_clients_the_ledger_is_there() {
    raise_descriptor_limit();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let server = served(&path);
    let idle: Vec<UnixStream> = (0..1_000).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert_eq!(request_stats(&path).unwrap(), example());
    let is_held = |client: &&UnixStream| {
        client.set_nonblocking(true).unwrap();
        (&mut &**client).read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let held = idle.iter().filter(is_held).count();
    assert!((LIMITS.held_max - 1..=LIMITS.held_max).contains(&held), "{held} idle clients are held");
    server.stop();
}
