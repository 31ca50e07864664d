//! `udpd warden`: the process that keeps the rights of a daemon (`privilege_helper` of udpd-sandbox). Only the daemon
//! starts it. It first enters a sandbox of its own, which leaves it three capabilities, or four, and the calls for what
//! is requested. It ends when the daemon does.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mmsg::Socket;
use nix::sys::signal::SigSet;
use rustix::net::{SocketType, sockopt};

use crate::announcer::Announcer;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::{ThreadRegistry, ThreadSandbox};
use udpd_base::os::user;
use udpd_base::os::user::Account;
use udpd_sandbox::privilege_helper::{self, ANNOUNCE, HelperOptions, MESSAGE_BYTES, PrivilegedFd, PrivilegedOp};
use udpd_sandbox::{PathRules, Sandbox};

/// Serves the daemon at standard input until that is gone. It becomes the `user` and group of these numbers first,
/// if there are any. `announce`: the addresses that it may put on an interface.
pub fn execute(options: HelperOptions, announce: (&[IpAddr], &str), user: &[u32]) -> Result<(), Failure> {
    let stdin = io::stdin();
    let daemon = stdin.as_fd();
    if sockopt::socket_type(daemon) != Ok(SocketType::SEQPACKET) {
        let message = "this command is for udpd run, which starts it where it needs it; there is nothing to type";
        return Err(Failure::new(ExitCode::Usage, message));
    }
    // Signals meant for the daemon reach it, and this process ends when the daemon ends.
    let _ = SigSet::all().thread_block();
    let _ = rustix::thread::set_name(c"udpd-warden");
    if let &[uid, gid] = user {
        // It would keep root otherwise, and with it every file of root.
        user::become_user(&Account::of_numbers(uid, gid)).map_err(|why| {
            Failure::new(ExitCode::Permission, format!("cannot become user {uid}: {why}; see udpd's own log"))
        })?;
    }
    let (registry, _events) = ThreadRegistry::new();
    let (sandbox, _) = Sandbox::prepare(&registry).map_err(|error| threads::start_failure("udpd-trial", &error))?;
    sandbox.open_only(PathRules::default());
    let mut roles = vec![if options.filters { ThreadRole::FilterHelper } else { ThreadRole::PrivilegeHelper }];
    let (addresses, interface) = announce;
    let mut announcer = None;
    if !addresses.is_empty() {
        let fail = |error| Failure::new(ExitCode::Failure, format!("cannot ask the kernel for its addresses: {error}"));
        announcer = Some(Announcer::open(addresses, interface).map_err(fail)?);
        roles.push(ThreadRole::Announcer);
    }
    sandbox.enter(&roles);
    let served = serve(daemon, options, announcer).or_else(|error| match error.kind() {
        // The daemon has gone before its answer came, or with one unread.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(()),
        _ => Err(error),
    });
    served.map_err(|error| Failure::new(ExitCode::Failure, format!("cannot hear the daemon: {error}")))
}

fn serve(daemon: BorrowedFd<'_>, options: HelperOptions, mut announcer: Option<Announcer>) -> io::Result<()> {
    answer(daemon, Ok(None))?;
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        let (length, descriptors) = privilege_helper::receive(daemon, &mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
        if let Some(request) = text.strip_prefix(ANNOUNCE) {
            let outcome = announcer.as_mut().map_or_else(|| Err(refusal()), |own| own.answer(request));
            answer(daemon, outcome.map(|()| None))?;
            continue;
        }
        let outcome = match text.parse::<PrivilegedFd>() {
            Ok(wanted) if !options.allows(&wanted) => Err(rustix::io::Errno::PERM.into()),
            Ok(wanted) => {
                let parts: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
                wanted.make(&parts).map(Some)
            }
            Err(()) => perform(text, descriptors).map(|()| None),
        };
        answer(daemon, outcome)?;
    }
}

fn refusal() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::INVAL.raw_os_error())
}

/// Does what is requested, to a UDP socket and nothing else.
fn perform(request: &str, descriptors: Vec<OwnedFd>) -> io::Result<()> {
    let op: PrivilegedOp = request.parse().map_err(|()| refusal())?;
    let descriptor = descriptors.into_iter().next().ok_or_else(refusal)?;
    if sockopt::socket_type(&descriptor)? != SocketType::DGRAM {
        return Err(refusal());
    }
    op.perform(&Socket::try_from(descriptor)?)
}

/// An error number, or 0 and what was made. What the verifier says of a program is not passed on.
fn answer(daemon: BorrowedFd<'_>, outcome: io::Result<Option<OwnedFd>>) -> io::Result<()> {
    let (number, made) = match outcome {
        Ok(made) => (0, made),
        Err(error) => (error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()), None),
    };
    let made: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
    privilege_helper::send(daemon, &made, number.to_string().as_bytes())
}
