//! The connection of a take-over: lines of JSON, and descriptors between them.
//!
//! The kernel passes 253 descriptors with one message at most, and a message that carries some has at least one byte.
//! That byte is a space, which JSON skips, so the line behind them says what they are. A reader that asks for bytes
//! alone would lose the descriptors that come with them, so all that is read here is read with room for them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::TakeOverMessage;
use udpd_base::seams::{clock, waits};

/// The kernel's SCM_MAX_FD.
const AT_ONCE: usize = 253;

/// The longest line: what the kernel has dropped at some hundred thousand sockets.
const LINE_BYTES_MAX: usize = 8 << 20;

/// How long the other end may take to read a line.
const SAYING_LIMIT: Duration = Duration::from_secs(5);

/// The pause when too many descriptors are on their way that the other end has not yet taken.
const SENDING_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Wire {
    stream: UnixStream,
    /// What has come of the next line.
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// The process at the other end.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pub(super) user: u32,
    /// `None` where it is in a container of its own and has no process id here.
    pub(super) process: Option<u32>,
    /// Becomes readable when it ends.
    watch: Option<OwnedFd>,
}

impl Wire {
    /// Goes on with a connection on which a question was asked and nothing more is under way.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(SAYING_LIMIT))?;
        Ok(Self { stream, bytes: Vec::new(), descriptors: Vec::new() })
    }

    pub(super) fn peer(&self) -> io::Result<PeerProcess> {
        let credentials = getsockopt(&self.stream, PeerCredentials)?;
        let pid = Some(credentials.pid()).filter(|&pid| pid > 0);
        let watch = pid
            .filter(|&pid| !is_own(pid))
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(PeerProcess { user: credentials.uid(), process: pid.map(i32::cast_unsigned), watch })
    }

    pub(super) fn say(&mut self, message: &TakeOverMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        #[cfg(test)]
        let line = faults::changed(self, line)?;
        self.stream.write_all(&line).map_err(timed_out)
    }

    /// The next message, if it comes within this time. What has come of it by then is kept.
    pub(super) fn hear(&mut self, limit: Duration) -> io::Result<TakeOverMessage> {
        let deadline = clock::now() + limit;
        #[cfg(test)]
        faults::pass(self);
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| {
                    let said: String = String::from_utf8_lossy(&line).chars().take(80).collect();
                    io::Error::new(ErrorKind::InvalidData, format!("it said {:?} ({error})", said.trim_end()))
                });
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("a line of more than {LINE_BYTES_MAX} B")));
            }
            if !is_readable(self.stream.as_fd(), deadline)? {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.receive() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same; when it does not come, this end hangs up. What was said in the last moment is heard.
    pub(super) fn hear_or_hang_up(&mut self, limit: Duration) -> io::Result<TakeOverMessage> {
        match self.hear(limit) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                self.stream.shutdown(Shutdown::Both)?;
                self.hear(SAYING_LIMIT).map_err(|_| error)
            }
            heard => heard,
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut piece = [0; 4096];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut piece)];
        let received = recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let text = "this process may not open as many sockets as it is sent: raise the limit on open files \
                        (ulimit -n, LimitNOFILE=)";
            return Err(io::Error::other(text));
        }
        self.bytes.extend_from_slice(&piece[..received.bytes]);
        Ok(received.bytes)
    }

    /// Sends descriptors, which the next message has to explain.
    pub(super) fn send(&mut self, descriptors: &[impl AsFd]) -> io::Result<()> {
        let deadline = clock::now() + SAYING_LIMIT;
        #[cfg(test)]
        faults::pass(self);
        for some in descriptors.chunks(AT_ONCE) {
            let numbers: Vec<RawFd> = some.iter().map(|one| one.as_fd().as_raw_fd()).collect();
            let rights = [ControlMessage::ScmRights(&numbers)];
            let send =
                || sendmsg::<()>(self.stream.as_raw_fd(), &[IoSlice::new(b" ")], &rights, MsgFlags::MSG_NOSIGNAL, None);
            loop {
                match send() {
                    Ok(_) => break,
                    Err(Errno::EINTR) => {}
                    // As many as this process may open are on their way.
                    Err(Errno::ETOOMANYREFS) if clock::now() < deadline => clock::sleep(SENDING_PAUSE),
                    Err(error) => return Err(timed_out(error.into())),
                }
            }
        }
        Ok(())
    }

    /// The descriptors that have come so far.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }
}

impl PeerProcess {
    /// Waits until the process has ended and its files are closed; `None` where that cannot be seen.
    pub(super) fn wait_for_end(&self, limit: Duration) -> Option<bool> {
        is_readable(self.watch.as_ref()?.as_fd(), clock::now() + limit).ok()
    }
}

/// Whether both ends are of one process, as in a simulation: that it lives says nothing of the other end.
fn is_own(pid: i32) -> bool {
    u32::try_from(pid) == Ok(std::process::id())
}

/// Whether there is something to read before the deadline, or nothing more ever will be.
pub(in super::super) fn is_readable(file: BorrowedFd<'_>, deadline: Instant) -> nix::Result<bool> {
    let poll_for = |left: Duration| {
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(file, PollFlags::POLLIN)], left).map(|ready| ready > 0)
    };
    let wait = || loop {
        match poll_for(deadline.saturating_duration_since(clock::now())) {
            Err(Errno::EINTR) => {}
            readable => return Some(readable),
        }
    };
    let now = || Some(poll_for(Duration::ZERO)).filter(|readable| *readable != Ok(false));
    waits::until(Some(deadline), now, wait).unwrap_or(Ok(false))
}

impl std::fmt::Display for PeerProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process {
            Some(process) => write!(formatter, "process {process}"),
            None => write!(formatter, "a process in another container"),
        }
    }
}

/// This is how a socket reports that its timeout is over.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
#[path = "faults_tests.rs"]
pub(super) mod faults;

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().expect("a pair");
        (Wire::new(one).expect("a wire"), Wire::new(other).expect("a wire"))
    }

    const AT_ONCE_AND_MORE: usize = 2 * AT_ONCE + 1;

    #[test]
    fn descriptors_come_before_the_message_that_explains_them_however_many_there_are() {
        let (mut one, mut other) = pair();
        for count in [0, 1, AT_ONCE, AT_ONCE_AND_MORE] {
            let file = File::open("/dev/null").expect("every host has it");
            let sending = vec![file.as_fd(); count];
            one.send(&sending).expect("they are sent");
            one.say(&TakeOverMessage::Sockets(vec!["in.0".to_owned(); count])).expect("it is said");
            one.say(&TakeOverMessage::Open).expect("it is said");
            let Ok(TakeOverMessage::Sockets(names)) = other.hear(SAYING_LIMIT) else { panic!("the names come first") };
            assert_eq!((names.len(), other.take_descriptors().len()), (count, count));
            assert!(matches!(other.hear(SAYING_LIMIT), Ok(TakeOverMessage::Open)));
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_heard_when_the_rest_has_come() {
        let (mut one, mut other) = pair();
        one.stream.write_all(b"\"go").expect("room");
        assert_eq!(other.hear(Duration::from_millis(1)).expect_err("nothing yet").kind(), ErrorKind::TimedOut);
        one.stream.write_all(b"ne\"\n").expect("room");
        assert!(matches!(other.hear(SAYING_LIMIT), Ok(TakeOverMessage::Gone)));
        one.stream.write_all(b"nonsense\n").expect("room");
        assert_eq!(other.hear(SAYING_LIMIT).expect_err("no message").kind(), ErrorKind::InvalidData);
        drop(one);
        assert_eq!(other.hear(SAYING_LIMIT).expect_err("the end").kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_end_that_hangs_up_hears_what_was_said_before_and_nothing_can_be_said_after() {
        let (mut one, mut other) = pair();
        let error = other.hear_or_hang_up(Duration::from_millis(1)).expect_err("nothing is said");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(one.say(&TakeOverMessage::Gone).is_err(), "too late");
        let (mut one, mut other) = pair();
        one.say(&TakeOverMessage::Gone).expect("in time");
        other.stream.shutdown(Shutdown::Both).expect("it can be shut");
        assert!(matches!(other.hear(SAYING_LIMIT), Ok(TakeOverMessage::Gone)), "what was said before is heard");
    }

    #[test]
    fn the_other_end_is_known_by_its_user_and_process() {
        let (one, _other) = pair();
        let peer = one.peer().expect("the kernel tells");
        assert_eq!((peer.user, peer.process), (nix::unistd::geteuid().as_raw(), Some(std::process::id())));
        assert_eq!(peer.wait_for_end(Duration::ZERO), None, "both ends are of this process");
    }
}
