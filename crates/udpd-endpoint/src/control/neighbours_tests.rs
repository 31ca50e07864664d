//! Daemons that answer, hang, lie or are none, and a host that hides its sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use nix::sys::socket::{Backlog, listen};

use super::super::BoundControlSocket;
use super::super::seats::tests::example;
use super::*;
use udpd_base::ledger;
use udpd_base::os::threads::ThreadRegistry;

/// A directory for sockets, and a /proc that lists those in it.
struct TestHost {
    directory: tempfile::TempDir,
}

impl TestHost {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("proc/net")).unwrap();
        let host = Self { directory };
        host.list(&[]);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn list(&self, names: &[&str]) {
        let line = |name: &&str| {
            format!("0000000000000000: 00000002 00000000 00010000 0001 01 77 {}\n", self.path(name).display())
        };
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned();
        fs::write(self.path("proc/net/unix"), head + &names.iter().map(line).collect::<String>()).unwrap();
    }

    fn search<'a>(&self, proc_root: &'a Path, named: &'a [PathBuf]) -> NeighbourSearch<'a> {
        NeighbourSearch { named, usual: &[], except: None, proc_root }
    }

    /// Asks, and takes this very process for a daemon.
    fn ask(&self, named: &[PathBuf]) -> Neighbours {
        self.ask_within(&patiently, named)
    }

    fn ask_within(&self, limit: &dyn Fn(&Path, Duration) -> Duration, named: &[PathBuf]) -> Neighbours {
        let own = i32::try_from(std::process::id()).unwrap();
        self.search(&self.path("proc"), named).ask_those(limit, &|_| true, &|pid, _| pid == own)
    }
}

/// As long as a machine that is busy may take over an answer that will come.
fn patiently(_: &Path, _: Duration) -> Duration {
    Duration::from_secs(60)
}

/// For those whose answer never comes.
const SHORT: Duration = Duration::from_millis(50);

fn serve(path: &Path) -> super::super::ControlServer {
    let socket = BoundControlSocket::bind(path).unwrap();
    socket
        .serve(
            &ThreadRegistry::new().0,
            (ledger::testing::example, Vec::new),
            || Ok(String::new()),
            || Ok(String::new()),
            example,
            (drop, drop),
        )
        .unwrap()
}

#[test]
fn a_daemon_is_found_by_its_name_and_in_the_kernels_table_and_counts_once() {
    let host = TestHost::new();
    let path = host.path("udpd-a.sock");
    let server = serve(&path);
    host.list(&["udpd-a.sock"]);
    let expected = Neighbours { daemons: vec![Neighbour { path: path.clone(), seats: example() }], silent: vec![] };
    assert_eq!(host.ask(&[]), expected);
    assert_eq!(host.ask(std::slice::from_ref(&path)), expected);
    let link = host.path("link.sock");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(host.ask(&[path.clone(), link]), expected);
    let (proc_root, named) = (host.path("proc"), [path.clone()]);
    let search = NeighbourSearch { except: Some(&path), ..host.search(&proc_root, &named) };
    assert_eq!(
        search.ask_those(&patiently, &|_| true, &|_, _| true),
        Neighbours::default(),
        "no daemon is its own neighbour"
    );
    server.stop();
    assert_eq!(host.ask(&[path]), Neighbours::default(), "where no daemon is there is nothing to say");
}

#[test]
fn a_process_that_is_no_daemon_is_never_asked_and_named_only_where_the_operator_meant_it() {
    let host = TestHost::new();
    let path = host.path("not-udpd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    host.list(&["not-udpd.sock"]);
    let proc_root = host.path("proc");
    let found = host.search(&proc_root, &[]).ask_those(&patiently, &|_| true, &|_, _| false);
    assert_eq!(found, Neighbours::default());
    let named = [path];
    let found = host.search(&proc_root, &named).ask_those(&patiently, &|_| true, &|_, _| false);
    assert!(matches!(found.silent.as_slice(), [one] if one.clause.contains("is not a udpd of root")), "{found:?}");
    listener.set_nonblocking(true).unwrap();
    for _ in 0..2 {
        let (mut client, _) = listener.accept().unwrap();
        assert_eq!(io::read_to_string(&mut client).unwrap(), "", "nothing was said to it");
    }
}

#[test]
fn one_that_hangs_is_named_within_its_limit_and_the_others_are_asked_all_the_same() {
    let host = TestHost::new();
    // Listens, and never accepts a client; the next one takes the question and never answers.
    let deaf = UnixListener::bind(host.path("udpd-1.sock")).unwrap();
    let mute = UnixListener::bind(host.path("udpd-2.sock")).unwrap();
    let server = serve(&host.path("udpd-3.sock"));
    host.list(&["udpd-1.sock", "udpd-2.sock", "udpd-3.sock"]);
    // Commands elsewhere on this host look at each socket with such a name, too, and hang up without a question.
    let taking = thread::spawn(move || {
        let mut asked = mute.incoming().map(|client| client.and_then(io::read_to_string));
        asked.find(|asked| asked.as_ref().is_ok_and(|asked| !asked.is_empty()))
    });
    let only_the_last_answers =
        |path: &Path, _| if path.ends_with("udpd-3.sock") { Duration::from_secs(60) } else { SHORT };
    let found = host.ask_within(&only_the_last_answers, &[]);
    assert_eq!(found.daemons.len(), 1, "{found:?}");
    let expected = ["udpd-1.sock", "udpd-2.sock"];
    assert_eq!(found.silent.len(), 2, "{found:?}");
    for (silent, name) in found.silent.iter().zip(expected) {
        assert_eq!(silent.path, Some(host.path(name)));
        assert!(silent.clause.contains("does not tell its seats: timed out"), "{silent}");
    }
    assert_eq!(taking.join().unwrap().unwrap().unwrap(), "seats\n");
    server.stop();
    drop(deaf);
}

#[test]
fn one_that_hangs_up_is_asked_again_but_not_for_ever() {
    let host = TestHost::new();
    let path = host.path("udpd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // Hangs up on so many, after their question, and answers the next one.
    let heard_after = |hang_ups: u32| {
        let listener = listener.try_clone().unwrap();
        let answering = thread::spawn(move || {
            for turn in 0..=hang_ups.min(ATTEMPTS - 1) {
                let (mut client, _) = listener.accept().unwrap();
                let mut question = [0; 6];
                client.read_exact(&mut question).unwrap();
                if turn == hang_ups {
                    client.write_all(&serde_json::to_vec(&example()).unwrap()).unwrap();
                }
            }
        });
        let found = host.ask(std::slice::from_ref(&path));
        answering.join().unwrap();
        (found.daemons.len(), found.silent)
    };
    assert_eq!(heard_after(2), (1, vec![]));
    let (daemons, silent) = heard_after(ATTEMPTS);
    assert_eq!((daemons, silent.len()), (0, 1), "{silent:?}");
    assert_eq!(silent[0].path, Some(path.clone()));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "there is no sixth attempt");
}

#[test]
fn an_answer_that_is_none_is_named() {
    let host = TestHost::new();
    let path = host.path("udpd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answering = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"{\"error\": \"unknown request\"}\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        io::read_to_string(client).unwrap()
    });
    let found = host.ask(&[path]);
    assert!(matches!(found.silent.as_slice(), [one] if one.clause.contains("restart it after an update")), "{found:?}");
    answering.join().unwrap();
}

#[test]
fn a_host_that_hides_its_sockets_says_so_once() {
    let host = TestHost::new();
    fs::remove_file(host.path("proc/net/unix")).unwrap();
    let found = host.ask(&[]);
    assert!(matches!(found.silent.as_slice(), [one] if one.clause.contains("net/unix")), "{found:?}");
}

#[test]
fn only_listening_streams_called_like_ours_are_looked_at() {
    let line = |flags: &str, kind: &str, path: &str| format!("00: 02 00 {flags} {kind} 01 77 {path}");
    assert_eq!(listening_path(&line("00010000", "0001", "/run/udpd x/a")), Some("/run/udpd x/a".into()));
    let others = [
        line("00000000", "0001", "/run/udpd/a"),
        line("00010000", "0002", "/run/udpd/a"),
        line("00010000", "0001", "@udpd"),
        line("00010000", "0001", "/run/dbus"),
        line("00010000", "0001", "udpd.sock"),
        "00: 02 00 00010000 0001 01 77".to_owned(),
        String::new(),
    ];
    for other in others {
        assert_eq!(listening_path(&other), None, "{other}");
    }
}

#[test]
fn a_process_of_another_name_is_no_daemon_of_any_user() {
    let host = TestHost::new();
    let comm = |name: &str| {
        fs::create_dir_all(host.path("proc/5")).unwrap();
        fs::write(host.path("proc/5/comm"), format!("{name}\n")).unwrap();
        is_daemon(&host.path("proc"), 5, geteuid().as_raw())
    };
    assert!(comm("udpd"));
    assert!(!comm("udpd-not") && !comm("bash"));
    comm("udpd");
    let stranger = 4_000_000_000;
    assert!(!is_daemon(&host.path("proc"), 5, stranger), "every user can call a process udpd");
    assert!(!is_daemon(&host.path("proc"), 0, 0), "a process of another pid namespace");
}

#[test]
fn a_socket_of_a_stranger_in_the_table_is_not_connected_to() {
    let host = TestHost::new();
    let path = host.path("udpd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    host.list(&["udpd.sock"]);
    let proc_root = host.path("proc");
    let is_daemon = |_: i32, _: u32| unreachable!("no process is asked");
    let found = host.search(&proc_root, &[]).ask_those(&patiently, &|uid| uid != geteuid().as_raw(), &is_daemon);
    assert_eq!(found, Neighbours::default());
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no client came");
    assert!(!is_believed(4_000_000_000) && is_believed(0) && is_believed(geteuid().as_raw()));
}

#[test]
fn a_daemon_that_accepts_no_client_is_named_and_a_stranger_who_does_so_costs_no_time() {
    let host = TestHost::new();
    let path = host.path("udpd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();
    host.list(&["udpd.sock"]);
    let proc_root = host.path("proc");
    let found = host.search(&proc_root, &[]).ask_those(&patiently, &|_| false, &|_, _| true);
    assert_eq!(found, Neighbours::default(), "a stranger's");
    let found = host.ask_within(&|_, _| SHORT, &[]);
    assert!(matches!(found.silent.as_slice(), [one] if one.clause.contains("timed out")), "{found:?}");
}

#[test]
fn one_may_take_a_second_and_all_of_them_three() {
    let left = |spent| limit(Path::new("any"), Duration::from_millis(spent)).as_millis();
    assert_eq!([0, 1_500, 2_000, 2_600, 3_000, 4_000].map(left), [1_000, 1_000, 1_000, 400, 0, 0]);
    let silence = ask(Path::new("/nonexistent"), Duration::ZERO, &|_, _| true).unwrap_err();
    assert!(silence.to_string().contains("others have taken all the time"), "{silence}");
}

#[test]
fn of_many_that_do_not_tell_eight_are_named_and_the_rest_is_counted() {
    let host = TestHost::new();
    let named: Vec<PathBuf> = (0..11).map(|number| host.path(&format!("udpd-{number}.sock"))).collect();
    let _listeners: Vec<UnixListener> = named.iter().map(|path| UnixListener::bind(path).unwrap()).collect();
    let proc_root = host.path("proc");
    let found = host.search(&proc_root, &named).ask_those(&patiently, &|_| true, &|_, _| false);
    assert_eq!(found.silent.len(), 9, "{found:?}");
    let rest = Silent { path: None, clause: "and 3 more do not tell their seats".to_owned() };
    assert_eq!(found.silent[8], rest);
}
