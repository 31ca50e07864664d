//! The transport: a socket, a request with its sequence number, and the answer up to its end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::groups;
use crate::message::{NetlinkMessage, NetlinkRequest, field, messages};

// Each number with its name in linux/netlink.h.
const REQUEST: u16 = 0x1; // NLM_F_REQUEST
const ACKNOWLEDGE: u16 = 0x4; // NLM_F_ACK
const DUMP: u16 = 0x300; // NLM_F_DUMP
const DUMP_INTERRUPTED: u16 = 0x10; // NLM_F_DUMP_INTR
const ERROR: u16 = 2; // NLMSG_ERROR
const DONE: u16 = 3; // NLMSG_DONE

/// The kernel's datagrams have at most half of this.
const DATAGRAM_BYTES: usize = 64 << 10;
/// An answer of more datagrams than this is not the kernel's.
const DATAGRAMS_MAX: usize = 65_536;
const TIMEOUT_SECONDS: i64 = 2;
/// How often a dump is asked for again because something changed meanwhile.
const ATTEMPTS: usize = 4;

/// Which part of the kernel a socket talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetlinkProtocol {
    /// Interfaces, addresses, routes and neighbours (`NETLINK_ROUTE`).
    Route,
    /// The sockets of the network namespace (`NETLINK_SOCK_DIAG`).
    SockDiag,
    /// The families of generic netlink (`NETLINK_GENERIC`).
    Generic,
}

impl fmt::Display for NetlinkProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Route => "rtnetlink",
            Self::SockDiag => "sock_diag netlink",
            Self::Generic => "generic netlink",
        })
    }
}

/// What failed: the operation, the protocol, and why.
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    protocol: NetlinkProtocol,
    source: io::Error,
}

/// What an operation returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno of the system call, or the one in the kernel's answer.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    pub(crate) fn malformed(protocol: NetlinkProtocol) -> Self {
        Self { operation: "read the answer of", protocol, source: malformed() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {} {}: {}", self.operation, self.protocol, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind and the text. The errno is only in [`Error::errno`].
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), error)
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is malformed")
}

/// A netlink socket, in the network namespace of the thread that opened it. Needs no privilege.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    protocol: NetlinkProtocol,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket that waits for an answer for as long as it takes.
    pub fn open(protocol: NetlinkProtocol) -> Result<Self> {
        let number = match protocol {
            NetlinkProtocol::Route => SockProtocol::NetlinkRoute,
            NetlinkProtocol::SockDiag => SockProtocol::NetlinkSockDiag,
            NetlinkProtocol::Generic => SockProtocol::NetlinkGeneric,
        };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, number)
            .map_err(|errno| Error { operation: "open", protocol, source: errno.into() })?;
        Ok(Self { fd, protocol, sequence: 0, buffer: vec![0; DATAGRAM_BYTES] })
    }

    /// Opens a socket that gives up on an answer after two seconds. The kernel answers at once, so this only keeps a
    /// surprise from becoming a hang.
    pub fn open_with_timeout(protocol: NetlinkProtocol) -> Result<Self> {
        let socket = Self::open(protocol)?;
        setsockopt(&socket.fd, sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_SECONDS))
            .map_err(|errno| socket.error("limit the wait for", errno))?;
        Ok(socket)
    }

    /// Joins a multicast group, whose notifications [`read_notifications`](Self::read_notifications) then reads.
    pub fn join(&self, group: u32) -> Result<()> {
        groups::join(&self.fd, group).map_err(|errno| self.error("join a group of", errno))
    }

    /// Sends a request about one thing, and calls `visit` with each message of the answer before its acknowledgement.
    pub fn ask(&mut self, request: NetlinkRequest, visit: impl FnMut(NetlinkMessage<'_>)) -> Result<()> {
        self.exchange(request, REQUEST | ACKNOWLEDGE, visit).map(drop)
    }

    /// Sends a request for everything of a kind, and calls `visit` with each message of the answer. What comes or goes
    /// meanwhile may be missing or be there twice.
    pub fn dump(&mut self, request: NetlinkRequest, visit: impl FnMut(NetlinkMessage<'_>)) -> Result<()> {
        self.exchange(request, REQUEST | DUMP, visit).map(drop)
    }

    /// The same, asked again until nothing has changed while the kernel answered. Returns what stands in each message
    /// behind a fixed structure of `structure_bytes`.
    pub fn consistent_dump(&mut self, request: &NetlinkRequest, structure_bytes: usize) -> Result<Vec<Vec<u8>>> {
        let protocol = self.protocol;
        until_consistent(protocol, || {
            let mut found = Vec::new();
            let keep = |message: NetlinkMessage<'_>| {
                found.push(message.payload.get(structure_bytes..).unwrap_or_default().to_vec());
            };
            let is_consistent = self.exchange(request.clone(), REQUEST | DUMP, keep)?;
            Ok(is_consistent.then_some(found))
        })
    }

    /// Sends a request and reads the answer to its end. False where something changed while the kernel answered.
    fn exchange(
        &mut self,
        request: NetlinkRequest,
        flags: u16,
        mut visit: impl FnMut(NetlinkMessage<'_>),
    ) -> Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request.encode(flags, self.sequence);
        uninterrupted(|| send(self.fd.as_raw_fd(), &request, MsgFlags::empty()))
            .map_err(|errno| self.error("ask", errno))?;
        let mut is_consistent = true;
        for _ in 0..DATAGRAMS_MAX {
            let length = uninterrupted(|| recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()))
                .map_err(|errno| self.error("hear the answer of", errno))?;
            let end = read_answer(&self.buffer[..length], self.sequence, &mut is_consistent, &mut visit);
            if end.map_err(|error| self.error("get an answer of", error))? {
                return Ok(is_consistent);
            }
        }
        Err(self.error("get an answer of", io::Error::other("it does not end")))
    }

    /// Reads one datagram of notifications, without waiting, and calls `visit` with each message in it. False where
    /// the kernel had more to say than the socket had room for, so that anything may have changed.
    pub fn read_notifications(&mut self, visit: impl FnMut(NetlinkMessage<'_>)) -> Result<bool> {
        match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => messages(&self.buffer[..length]).for_each(visit),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(Errno::ENOBUFS) => return Ok(false),
            Err(errno) => return Err(self.error("hear", errno)),
        }
        Ok(true)
    }

    fn error(&self, operation: &'static str, source: impl Into<io::Error>) -> Error {
        Error { operation, protocol: self.protocol, source: source.into() }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Asks until an answer is consistent.
fn until_consistent<T>(protocol: NetlinkProtocol, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
    }
    let why = format!("something changed while the kernel answered, in each of {ATTEMPTS} attempts");
    Err(Error { operation: "get a consistent answer of", protocol, source: io::Error::other(why) })
}

/// A signal that the process handles interrupts a call, and says nothing of the kernel's answer.
fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}

/// Reads one datagram of the answer to the request with this sequence number. True when it has the end of the answer.
/// Messages to an earlier request, which was given up, are passed over.
pub(crate) fn read_answer(
    datagram: &[u8],
    sequence: u32,
    is_consistent: &mut bool,
    visit: &mut impl FnMut(NetlinkMessage<'_>),
) -> io::Result<bool> {
    let mut read = messages(datagram);
    for message in read.by_ref().filter(|message| message.sequence == sequence) {
        *is_consistent &= message.flags & DUMP_INTERRUPTED == 0;
        if matches!(message.kind, DONE | ERROR) {
            // Both carry an errno, or 0: a dump that fails in the middle ends with it in its last message.
            return match field(message.payload, 0).map_or(0, i32::from_ne_bytes) {
                errno if errno < 0 => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
                _ => Ok(true),
            };
        }
        visit(message);
    }
    if read.is_cut_off() { Err(malformed()) } else { Ok(false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mutate;

    /// A message of the kernel, behind others.
    fn answer(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        NetlinkRequest::new(kind).bytes(payload).encode(flags, sequence)
    }

    /// Reads a datagram as the answer to request 7: whether it ended, whether it is consistent, and the kinds in it.
    fn read(datagram: &[u8]) -> io::Result<(bool, bool, Vec<u16>)> {
        let (mut is_consistent, mut kinds) = (true, Vec::new());
        let is_end = read_answer(datagram, 7, &mut is_consistent, &mut |message| kinds.push(message.kind))?;
        Ok((is_end, is_consistent, kinds))
    }

    #[test]
    fn the_end_of_an_answer_and_the_error_in_it_are_seen() {
        for kind in [ERROR, DONE] {
            let last = |errno: i32| [answer(20, 0, 7, &[1; 4]), answer(kind, 0, 7, &errno.to_ne_bytes())].concat();
            assert_eq!(read(&last(0)).expect("no error"), (true, true, vec![20]));
            let error = read(&last(-nix::libc::ENOBUFS)).expect_err("an error, also at the end of a dump");
            assert_eq!(error.raw_os_error(), Some(nix::libc::ENOBUFS));
        }
        assert_eq!(read(&answer(DONE, 0, 7, &[])).expect("no error"), (true, true, vec![]));
        assert_eq!(read(&answer(20, 0, 7, &[1; 4])).expect("no error"), (false, true, vec![20]));
    }

    #[test]
    fn the_rest_of_an_answer_that_was_given_up_is_passed_over() {
        let old = [answer(20, DUMP_INTERRUPTED, 6, &[1; 4]), answer(DONE, 0, 6, &[0; 4])].concat();
        assert_eq!(read(&old).expect("no error"), (false, true, vec![]));
        let both = [old, answer(21, 0, 7, &[1; 4]), answer(DONE, 0, 7, &[0; 4])].concat();
        assert_eq!(read(&both).expect("no error"), (true, true, vec![21]));
    }

    #[test]
    fn a_cut_off_answer_is_an_error() {
        let datagram = answer(20, 0, 7, &[1; 4]);
        assert_eq!(read(&datagram[..19]).expect_err("malformed").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_dump_that_something_changed_under_is_asked_for_again_and_not_for_ever() {
        let changed = [answer(20, DUMP_INTERRUPTED, 7, &[1; 4]), answer(DONE, 0, 7, &[0; 4])].concat();
        assert_eq!(read(&changed).expect("no error"), (true, false, vec![20]));
        let mut asked = 0;
        let found = until_consistent(NetlinkProtocol::Generic, || {
            asked += 1;
            Ok((asked == 3).then_some("whole"))
        });
        assert_eq!((found.expect("the third answer is consistent"), asked), ("whole", 3));
        let error = until_consistent(NetlinkProtocol::Generic, || Ok(None::<()>)).expect_err("never consistent");
        let text = "cannot get a consistent answer of generic netlink: something changed while the kernel answered, ";
        assert_eq!(error.to_string(), format!("{text}in each of 4 attempts"));
    }

    #[test]
    fn a_call_that_a_signal_interrupted_is_made_again() {
        let mut outcomes = [Err(Errno::EINTR), Err(Errno::EINTR), Ok(7), Ok(8)].into_iter();
        assert_eq!(uninterrupted(|| outcomes.next().expect("one more")), Ok(7));
        let mut outcomes = [Err::<usize, _>(Errno::EAGAIN), Ok(8)].into_iter();
        assert_eq!(uninterrupted(|| outcomes.next().expect("one more")), Err(Errno::EAGAIN));
    }

    #[test]
    fn the_running_kernel_answers_a_request_a_dump_and_a_refusal_on_one_socket() {
        const GET_LINK: u16 = 18; // RTM_GETLINK
        let mut socket = NetlinkSocket::open_with_timeout(NetlinkProtocol::Route).expect("rtnetlink");
        let link =
            |index: u32| NetlinkRequest::new(GET_LINK).bytes(&[[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat());
        let mut indices = Vec::new();
        let index = |message: NetlinkMessage<'_>| field(message.payload, 4).map(u32::from_ne_bytes);
        socket.ask(link(1), |message| indices.extend(index(message))).expect("loopback");
        assert_eq!(indices, [1]);
        let error = socket.ask(link(u32::MAX >> 1), |_| {}).expect_err("no such interface");
        assert_eq!(error.errno(), Some(nix::libc::ENODEV));
        assert_eq!(error.to_string(), "cannot get an answer of rtnetlink: No such device (os error 19)");
        assert_eq!(
            io::Error::from(error).to_string(),
            "cannot get an answer of rtnetlink: No such device (os error 19)"
        );
        indices.clear();
        socket.dump(link(0), |message| indices.extend(index(message))).expect("every link");
        assert!(indices.contains(&1), "{indices:?}");
        let bodies = socket.consistent_dump(&link(0), 4).expect("every link");
        assert!(bodies.iter().any(|body| body.starts_with(&1_u32.to_ne_bytes())));
        assert!(socket.read_notifications(|_| panic!("no group was joined")).expect("nothing to read"));
    }

    #[test]
    fn a_member_of_a_group_is_open_to_notifications_without_privileges() {
        let mut socket = NetlinkSocket::open(NetlinkProtocol::Route).expect("rtnetlink");
        socket.join(1).expect("RTNLGRP_LINK");
        socket.read_notifications(|_| {}).expect("something or nothing");
    }

    #[test]
    fn no_datagram_makes_the_reader_panic_or_hang() {
        let template = [answer(20, 0, 7, &[1; 8]).repeat(2), answer(DONE, 0, 7, &[0; 4])].concat();
        mutate(&template, |bytes| {
            if let Ok((_, _, kinds)) = read(bytes) {
                assert!(kinds.len() <= 4);
            }
        });
    }
}
