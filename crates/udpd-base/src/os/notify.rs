//! Telling the service manager how far we are: the sd_notify protocol, which is one datagram of `NAME=value` lines.
//!
//! With `Type=notify`, systemd starts what depends on udpd when `READY=1` arrives, and shows the status line. Without
//! a service manager there is no NOTIFY_SOCKET, and nothing happens here. ARCHITECTURE.md says why no library
//! does this.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::pipe2;

/// How long to wait for a service manager that is busy. A missing status line is better than a late start.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// How long it may take to confirm which process is the main one.
const MAIN_LIMIT: Duration = Duration::from_secs(5);

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// How many descriptors the manager keeps, where it says so.
    pub keeps_at_most: Option<usize>,
    /// A manager that has gone is worth one line, not one for each status.
    warned: AtomicBool,
}

impl Notifier {
    /// Finds the service manager by NOTIFY_SOCKET. One that is set and cannot be used is logged and then ignored.
    pub fn from_environment() -> Self {
        let keeps_at_most = std::env::var("FDSTORE").ok().and_then(|text| text.parse().ok()).filter(|&limit| limit > 0);
        let own = match std::env::var_os("NOTIFY_SOCKET") {
            Some(name) if !name.is_empty() => Self::to(&name),
            _ => Self::new(None),
        };
        Self { keeps_at_most, ..own }
    }

    fn new(manager: Option<(UnixDatagram, SocketAddr)>) -> Self {
        Self { manager, keeps_at_most: None, warned: AtomicBool::new(false) }
    }

    /// The same by its name: a path, or with a leading `@` a name in the abstract namespace.
    pub fn to(name: &OsStr) -> Self {
        let manager = address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_LIMIT))?;
            if address.as_abstract_name().is_some() {
                // Inside the sandbox such a name is out of reach but for what was connected before.
                let _ = socket.connect_addr(&address);
            }
            Ok((socket, address))
        });
        match manager {
            Ok(manager) => Self::new(Some(manager)),
            Err(error) => {
                let name = name.display();
                log::warn!(
                    "cannot reach the service manager by NOTIFY_SOCKET={name}: {error}; it must be a path or @name"
                );
                Self::new(None)
            }
        }
    }

    /// Whether a service manager hears this.
    pub fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// Has the manager keep a second descriptor of a socket, under a name, and pass it to the next process. Without
    /// FDPOLL=0 it would let go of one with an error. Whether it could be told.
    pub fn keep(&self, name: &str, socket: impl AsFd) -> bool {
        self.pass(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0\n"), socket.as_fd())
    }

    /// Waits until the manager has done all it was told before, this long at most; false where that is not known. It
    /// closes a descriptor then, which is seen at the other end of a pipe.
    pub fn wait_until_heard(&self, limit: Duration) -> bool {
        let Ok((ours, theirs)) = pipe2(OFlag::O_CLOEXEC) else { return false };
        if !self.pass("BARRIER=1\n", theirs.as_fd()) {
            return false;
        }
        drop(theirs);
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(ours.as_fd(), PollFlags::empty())], limit).is_ok_and(|ready| ready > 0)
    }

    fn pass(&self, message: &str, descriptor: BorrowedFd<'_>) -> bool {
        let descriptor = [descriptor.as_raw_fd()];
        self.tell(message, |socket, address| {
            let address = match address.as_pathname() {
                Some(path) => UnixAddr::new(path),
                None => UnixAddr::new_abstract(address.as_abstract_name().unwrap_or_default()),
            }?;
            let (parts, rights) = ([IoSlice::new(message.as_bytes())], [ControlMessage::ScmRights(&descriptor)]);
            Ok(sendmsg(socket.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, Some(&address))?)
        })
    }

    /// Tells the manager that this process is the one that the service consists of from now on. Whether it has heard.
    pub fn take_the_place(&self) -> bool {
        self.send(&format!("MAINPID={}\n", std::process::id()));
        self.wait_until_heard(MAIN_LIMIT)
    }

    /// Has the manager close what it keeps under this name.
    pub fn forget(&self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
    }

    /// The configuration is read again, until [`Notifier::ready`].
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
        let micros = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
    }

    /// Start-up is complete: every socket is bound.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}\n", one_line(status)));
    }

    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}\n", one_line(status)));
    }

    /// A sign of life. A manager that hears none for longer than it has said restarts the process.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1\n");
    }

    /// The process has begun to leave, and takes this long at most: the manager is to wait as long, whatever its unit
    /// says.
    pub fn draining(&self, limit: Duration) {
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}\n", limit.as_micros()));
    }

    /// The process has begun to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, message: &str) {
        self.tell(message, |socket, address| socket.send_to_addr(message.as_bytes(), address));
    }

    /// Whether there was a manager and it could be told.
    fn tell(&self, message: &str, send: impl FnOnce(&UnixDatagram, &SocketAddr) -> io::Result<usize>) -> bool {
        let Some((socket, address)) = &self.manager else { return false };
        let outcome = send(socket, address);
        if let Err(error) = &outcome
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            let first = message.lines().next().unwrap_or_default();
            log::warn!(
                "cannot tell the service manager {first}: {error}; it may believe that udpd is still starting or \
                 running"
            );
        }
        outcome.is_ok()
    }
}

/// A path, or with a leading `@` a name in the abstract namespace.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A line break would begin another field of the message.
fn one_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 1024];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    fn tells_everything(manager: &UnixDatagram, name: &OsStr) {
        let notifier = Notifier::to(name);
        notifier.ready("2 lanes on 0.0.0.0:514");
        assert_eq!(next(manager), "READY=1\nSTATUS=2 lanes on 0.0.0.0:514\n");
        notifier.status("1,000 datagrams\nREADY=0");
        assert_eq!(next(manager), "STATUS=1,000 datagrams READY=0\n");
        notifier.watchdog();
        assert_eq!(next(manager), "WATCHDOG=1\n");
        notifier.stopping();
        assert_eq!(next(manager), "STOPPING=1\n");
    }

    #[test]
    fn a_manager_behind_a_path_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        tells_everything(&UnixDatagram::bind(&path).unwrap(), path.as_os_str());
    }

    #[test]
    fn a_manager_in_the_abstract_namespace_is_told() {
        let name = format!("udpd-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        tells_everything(&UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&format!("@{name}")));
    }

    #[test]
    fn without_a_manager_or_with_one_that_left_nothing_happens() {
        Notifier::new(None).ready("alone");
        Notifier::to(OsStr::new("vsock:2:1234")).ready("alone");
        let directory = tempfile::tempdir().unwrap();
        Notifier::to(directory.path().join("absent").as_os_str()).ready("alone");
    }
}
