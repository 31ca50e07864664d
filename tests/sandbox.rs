//! The sandbox inside: what the threads of a daemon that runs have given up, that everything they are there for still
//! works, and what becomes of threads that try more.

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};

use crate::util::*;

/// A listener of each engine, a sink of every type, sequence numbers, and files that rotate by themselves.
fn everything(relayed: SocketAddr) -> (Setup, [SocketAddr; 2]) {
    let metrics = format!("metrics_address = '{}'\nsandbox = 'require'", free_address());
    let setup = Setup::new().named("first").daemon(&metrics).keys("lanes = 2\nsequence = 'rtp'");
    let setup = setup.file("file", "out/%Y/{listener}.log").keys("rotate.bytes = '64KiB'");
    let setup = setup.relay("relay", &[relayed]).sink("messages", "unix", "path = '@DIR@/messages'");
    let setup = setup.sink("stream", "unix", "path = '@DIR@/stream'\nsocket = 'stream'").null("null");
    let (first, second) = (setup.address, free_address());
    let sinks = ["file", "relay", "messages", "stream", "null"];
    (setup.also("second", second, &sinks).more("engine = 'io_uring'"), [first, second])
}

fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).trim()
}

/// Whether this machine has all parts; says so where it has not.
pub(crate) fn is_whole() -> bool {
    let text = udpd(&["check", "--sandbox", "-c", "config/udpd.toml"]).stdout;
    let missing: Vec<&str> = text.lines().filter(|line| line.starts_with("missing: ")).collect();
    if !missing.is_empty() {
        not_checked(&format!("the sandbox: this kernel has no whole one: {missing:?}"));
    }
    missing.is_empty()
}

/// Whether a daemon that this process starts has one of the rights that a warden keeps.
fn has_rights_over_sockets() -> bool {
    let own = fs::read_to_string("/proc/self/status").expect("readable");
    let permitted = u64::from_str_radix(field(&own, "CapPrm"), 16).expect("a set");
    // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_NET_RAW.
    permitted & (1 << 10 | 1 << 12 | 1 << 13) != 0
}

/// The process that keeps the rights of a daemon, where there is one.
pub(crate) fn warden_of(daemon: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).expect("it runs");
    children.trim().parse().ok()
}

/// Drains a socket until the test ends.
fn take_all(socket: UnixDatagram) {
    thread::spawn(move || while socket.recv(&mut [0; 2048]).is_ok() {});
}

#[test]
fn every_thread_of_a_ready_daemon_has_given_up_its_rights() {
    if !is_whole() {
        return;
    }
    let relayed = socket();
    let daemon = everything(address_of(&relayed)).0.start();
    let threads: Vec<_> = threads(daemon.pid()).iter().map(|thread| (thread.name(), thread.read("status"))).collect();
    for wanted in ["udpd-log", "udpd-signal", "udpd-keeper", "udpd-control", "rx0-first", "rx2-second", "seq0-first"] {
        assert!(threads.iter().any(|(name, _)| name == wanted), "{wanted}: {threads:?}");
    }
    for (name, status) in &threads {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(field(status, set), "0000000000000000", "{name}: {set}");
        }
        // What root has can be taken from the bounding set; others have nothing to take it with.
        let is_root = is_root();
        assert!(!is_root || field(status, "CapBnd") == "0000000000000000", "{name}");
        assert_eq!((field(status, "NoNewPrivs"), field(status, "Seccomp")), ("1", "2"), "{name}");
    }
    assert!(daemon.terminate().status.success());
}

#[test]
fn inside_the_sandbox_every_sink_delivers_files_rotate_and_are_reopened_and_nothing_is_denied() {
    if is_whole() {
        [false, true].into_iter().for_each(work_inside);
    }
}

fn work_inside(is_inline: bool) {
    let relayed = socket();
    let (mut setup, addresses) = everything(address_of(&relayed));
    if is_inline {
        // The two that connect, and one that has nothing to ask for.
        for sink in ["type = 'udp'\n", "/messages'\n", "type = 'null'\n"] {
            setup = setup.replace(sink, &format!("{sink}inline = true\n"));
        }
    }
    let daemon = setup.start();
    // They come only now, so the sinks have to connect inside.
    take_all(UnixDatagram::bind(daemon.directory().join("messages")).expect("bound"));
    let stream = UnixListener::bind(daemon.directory().join("stream")).expect("bound");
    thread::spawn(move || {
        for stream in stream.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut std::io::sink()));
        }
    });
    thread::spawn(move || while relayed.recv(&mut [0; 2048]).is_ok() {});
    let sender = socket();
    let mut sent = 0;
    for round in 1..=3_u64 {
        for number in 0..400_u32 {
            let payload = [&[0x80, 0, 0, number as u8][..], &number.to_be_bytes(), &[b'x'; 500]].concat();
            for address in addresses {
                sender.send_to(&payload, address).expect("sent");
            }
        }
        sent += 400;
        daemon.stats_when("all are received", |ledger| {
            let listeners = ledger["listeners"].as_array().expect("an array");
            listeners.iter().all(|listener| count(listener, "received") == sent)
        });
        let moved = daemon.directory().join("out");
        let newest = fs::read_dir(&moved).expect("years").flatten().next().expect("a year").path().join("first.log");
        let _ = fs::rename(&newest, newest.with_extension(format!("moved{round}")));
        let socket = daemon.control_socket();
        udpd(&["reopen", "--socket", socket.to_str().expect("UTF-8")]).succeeds(&[]);
        daemon.signal(Signal::SIGHUP);
    }
    let ended = daemon.end(2 * sent);
    for words in
        ["ENOSYS", "not implemented", "not permitted", "Permission denied", "less of a sandbox", "ring is stuck"]
    {
        assert!(!ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn code_that_takes_over_a_thread_is_refused_everything() {
    if !is_whole() {
        return;
    }
    let checked = everything(free_address()).0.udpd("check", &["--sandbox"]);
    let text = checked.succeeds(&[]).stdout;
    let through: Vec<&str> = text.lines().filter(|line| !line.ends_with("refused")).collect();
    let ring = "reload (io_uring)             make a ring of io_uring         granted";
    assert_eq!(through, [ring]);
    // All kinds of thread but those of a broker and of a relay that keeps sources; the warden where there is one.
    let kinds = 14 + usize::from(has_rights_over_sockets());
    assert_eq!(text.lines().count(), kinds * 13, "{text}");
}

#[test]
fn without_a_sandbox_nothing_is_given_up_and_the_log_says_so() {
    let daemon = Setup::new().daemon("sandbox = 'off'").null("n").start();
    let own = fs::read_to_string("/proc/self/status").expect("readable");
    for thread in threads(daemon.pid()) {
        let (name, status) = (thread.name(), thread.read("status"));
        for set in ["CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
            assert_eq!(field(&status, set), field(&own, set), "{name}: {set}");
        }
    }
    daemon.end(0).assert_logged("sandbox = \"off\": udpd keeps all of its rights", 1);
}

/// Hands a socket, or none, to a warden with these words, and returns the error number that it answers.
fn wish(warden: &OwnedFd, words: &str, socket: Option<BorrowedFd<'_>>) -> i32 {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    let sockets: Vec<_> = socket.into_iter().collect();
    if !sockets.is_empty() {
        passed.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    sendmsg(warden, &[IoSlice::new(words.as_bytes())], &mut passed, SendFlags::NOSIGNAL).expect("it lives");
    answer(warden)
}

fn answer(warden: &OwnedFd) -> i32 {
    let mut bytes = [0; 64];
    let (length, _) = recv(warden, &mut bytes[..], RecvFlags::empty()).expect("it answers");
    String::from_utf8_lossy(&bytes[..length]).parse().expect("a number")
}

#[test]
fn a_warden_that_is_killed_leaves_one_line_and_no_zombie() {
    if !is_whole() || !has_rights_over_sockets() {
        return;
    }
    let daemon = Setup::new().null("null").start();
    let warden = warden_of(daemon.pid()).expect("it has rights to keep");
    nix::sys::signal::kill(Pid::from_raw(warden.cast_signed()), Signal::SIGKILL).expect("it lives");
    until("nothing is left of it", || warden_of(daemon.pid()).is_none());
    let ended = daemon.end(0);
    let [line] = ended.lines("udpd-warden")[..] else { panic!("{}", ended.stderr) };
    assert!(line.contains("it has ended (signal: 9") && line.contains("restart udpd"), "{line}");
}

#[test]
fn the_warden_of_a_daemon_is_for_that_daemon_alone() {
    udpd(&["warden"]).ends(2, &[]);
    let (own, its) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two ends");
    let mut warden = Command::new(UDPD).arg("warden").stdin(its).spawn().expect("it starts");
    assert_eq!(answer(&own), 0, "it is inside");
    // A signal for all that is called udpd is for the daemon.
    let pid = Pid::from_raw(warden.id().cast_signed());
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        nix::sys::signal::kill(pid, signal).expect("it lives");
    }
    let socket = mmsg::Socket::new(mmsg::Family::V4).expect("a socket");
    let address = free_address();
    assert_eq!(wish(&own, &format!("bind {address}"), Some(socket.as_fd())), 0);
    assert_eq!(socket.local_addr().expect("bound"), address);
    assert_eq!(wish(&own, "receive_buffer 65536", Some(socket.as_fd())), 0);
    assert_eq!(socket.receive_buffer(65_536).expect("told").granted_bytes, 2 * 65_536);
    let invalid = Errno::EINVAL as i32;
    let stream = TcpListener::bind("127.0.0.1:0").expect("a socket");
    assert_eq!(wish(&own, "withdraw 1", Some(stream.as_fd())), invalid, "only sockets for UDP");
    let (unix, _) = UnixDatagram::pair().expect("two ends");
    assert_ne!(wish(&own, "bind 127.0.0.1:0", Some(unix.as_fd())), 0);
    assert_eq!(wish(&own, "bind 127.0.0.1:0", None), invalid);
    assert_eq!(wish(&own, "open /etc/shadow", Some(socket.as_fd())), invalid);
    for untold in ["make queue_socket", "make array 2 1", "make filter true 1 true 1"] {
        assert_eq!(wish(&own, untold, None), Errno::EPERM as i32, "{untold}: it was not told at its start");
    }
    assert_eq!(wish(&own, &"x".repeat(500), Some(socket.as_fd())), invalid);
    assert_eq!(wish(&own, "receive_buffer 65536", Some(socket.as_fd())), 0, "it goes on");
    drop(own);
    assert!(warden.wait().expect("it ends").success(), "the end of the daemon is its own");
}
