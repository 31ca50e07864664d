//! Tries on threads inside the sandbox what code would try that has taken one over (`udpd check --try-sandbox`). What
//! takes unsafe code to try (executable memory, signals by descriptors, terminals) `tests/rigs/sandbox.sh` tries from
//! outside.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use mmsg::{Family, Socket, Uring};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::{Pid, execv};

use super::sandbox::{PathRules, Sandbox};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::ThreadRegistry;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscapeAttempt {
    pub role: ThreadRole,
    pub what: &'static str,
    pub is_refused: bool,
}

impl EscapeAttempt {
    /// Whether the role needs it.
    pub fn is_granted(&self) -> bool {
        match self.what {
            LOAD => self.role == ThreadRole::FilterHelper,
            RAW_SOCKET => self.role == ThreadRole::SourceKeeper,
            STREAM_SOCKET => {
                use ThreadRole::{BrokerClient, BrokerReloader, HttpClient, Resolver, TcpClient};
                matches!(self.role, TcpClient | HttpClient | BrokerClient | Resolver | BrokerReloader)
            }
            RING => self.role == ThreadRole::RingReloader,
            _ => false,
        }
    }
}

const LOAD: &str = "load a program into the kernel";
const RAW_SOCKET: &str = "make a raw socket";
const STREAM_SOCKET: &str = "make a TCP socket";
const RING: &str = "make a ring of io_uring";

/// Something to try, which says whether it was let through.
type Try = fn() -> bool;

const TRIED: [(&str, Try); 13] = [
    ("start a program", starts_a_program),
    ("trace a process", traces_a_process),
    ("signal another process", signals_another_process),
    ("make a namespace", makes_a_namespace),
    (LOAD, loads_into_the_kernel),
    (RAW_SOCKET, makes_a_raw_socket),
    ("make a packet socket", makes_a_packet_socket),
    (STREAM_SOCKET, makes_a_stream_socket),
    ("ask netfilter", asks_netfilter),
    ("connect to an abstract name", connects_to_an_abstract_name),
    (RING, makes_a_ring),
    ("read a file outside", reads_outside),
    ("write a file outside", writes_outside),
];

/// Confines a thread for each of the roles as the daemon does, and lets it try everything.
pub fn attempts(
    path_rules: PathRules,
    roles: &[ThreadRole],
    registry: &ThreadRegistry,
) -> io::Result<(Vec<EscapeAttempt>, Vec<String>)> {
    let (sandbox, missing) = Sandbox::prepare(registry)?;
    sandbox.open_only(path_rules);
    let sandbox = Arc::new(sandbox);
    let inside = registry.clone().with_sandbox(Arc::clone(&sandbox) as _);
    // Outside of the sandbox every process may connect to it.
    let _listening = UnixListener::bind_addr(&abstract_name()?)?;
    let mut attempts = Vec::new();
    for &role in roles {
        let of_role = inside.spawn("udpd-trial", role, move || {
            TRIED.map(|(what, is_let_through)| EscapeAttempt { role, what, is_refused: !is_let_through() })
        });
        attempts.extend(of_role?.join().expect("a trial never panics"));
    }
    Ok((attempts, [missing, sandbox.refused()].concat()))
}

/// A name of this process in the abstract namespace of Unix sockets.
fn abstract_name() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("udpd-trial-{}", std::process::id()))
}

/// There is no such program: outside of a sandbox that is what the kernel says.
fn starts_a_program() -> bool {
    execv(c"/nonexistent/udpd-trial", &[c"udpd-trial"]) != Err(Errno::ENOSYS)
}

/// No process has this number: outside of a sandbox that is what the kernel says.
fn traces_a_process() -> bool {
    ptrace::attach(Pid::from_raw(i32::MAX)) != Err(Errno::ENOSYS)
}

/// As above.
fn signals_another_process() -> bool {
    kill(Pid::from_raw(i32::MAX), None) != Err(Errno::ENOSYS)
}

/// None, and nothing is wrong with that: outside of a sandbox the kernel does it.
fn makes_a_namespace() -> bool {
    unshare(CloneFlags::empty()) != Err(Errno::ENOSYS)
}

fn asks_netfilter() -> bool {
    let kind = SockProtocol::NetlinkNetFilter;
    let made: nix::Result<OwnedFd> = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, kind);
    made.is_ok()
}

fn connects_to_an_abstract_name() -> bool {
    abstract_name().and_then(|name| UnixStream::connect_addr(&name)).is_ok()
}

fn makes_a_ring() -> bool {
    Uring::supported().is_ok()
}

fn loads_into_the_kernel() -> bool {
    mmsg::CoreCounter::new().is_ok()
}

fn makes_a_raw_socket() -> bool {
    Socket::raw(Family::V4).is_ok()
}

fn makes_a_packet_socket() -> bool {
    let made: nix::Result<OwnedFd> = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
    made.is_ok()
}

fn makes_a_stream_socket() -> bool {
    let made: nix::Result<OwnedFd> = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    made.is_ok()
}

/// Every user may read the root directory, and no thread needs it.
fn reads_outside() -> bool {
    OpenOptions::new().read(true).open("/").is_ok()
}

/// Every user may write to this device, and no thread needs it.
fn writes_outside() -> bool {
    OpenOptions::new().write(true).open("/dev/null").is_ok()
}
