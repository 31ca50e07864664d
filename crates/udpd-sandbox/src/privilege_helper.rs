//! The rights that udpd needs again after its start, kept by a small process beside it.
//!
//! A thread in the sandbox has given up its capabilities for good. A socket that a reload adds, or that is made again
//! for an interface that came back, may need one: for a port below 1024, or for more receive buffer than
//! `net.core.rmem_max`. So before the first thread enters the sandbox, udpd starts itself once more as its privilege
//! helper (`udpd warden`). That process keeps these few rights. With them it does a [`PrivilegedOp`] to a UDP socket
//! that udpd passes it for a moment, or makes a [`PrivilegedFd`], and nothing else. It never looks at a datagram: all
//! that it reads is the requests of udpd.
//!
//! A process without such a right starts no helper. Without a helper, or when it has ended, the kernel's refusal is the
//! error.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use mmsg::{GrantedBuffer, Loader, Socket, SourceShape, xdp};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use udpd_base::os::threads;
use udpd_base::os::threads::lock;
use udpd_base::os::user::Account;

/// The command that is the helper.
pub const COMMAND: &str = "warden";

const FILTERS: &str = "--filters";
const QUEUES: &str = "--queues";
/// An address that it may put on an interface follows, and that interface.
const ADDRESS: &str = "--announce";
const INTERFACE: &str = "--on";
/// The numbers of a user and a group follow.
const USER: &str = "--user";

/// How long an answer may take, the first one included, before which the helper has to be started. A helper that is
/// slower is stopped, or gone; and then its rights are gone for the life of this process.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What a request for such an address begins with.
pub const ANNOUNCE: &str = "announce ";

/// The longest request or answer.
pub const MESSAGE_BYTES: usize = 128;

/// The most descriptors that something is made of.
const PARTS_MAX: usize = 4;

/// What a helper makes besides what it does to sockets. It is told at its start, and cannot be told again.
#[derive(Debug, Clone, Copy)]
pub struct HelperOptions {
    /// Filters of sources, and their tables.
    pub filters: bool,
    /// Sockets for queues past the kernel's stack.
    pub queues: bool,
}

impl HelperOptions {
    pub fn allows(self, wanted: &PrivilegedFd) -> bool {
        match wanted {
            PrivilegedFd::XdpSocket => self.queues,
            PrivilegedFd::Array { .. } | PrivilegedFd::Filter(_) => self.filters,
        }
    }
}

/// What is done to a socket that takes a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivilegedOp {
    /// Binds it; ports below 1024 take CAP_NET_BIND_SERVICE.
    Bind(SocketAddr),
    /// Gives it more than `net.core.rmem_max`, which takes CAP_NET_ADMIN; so do the next three.
    ReceiveBuffer(usize),
    BusyPoll(u32),
    PreferBusyPoll,
    BusyPollBudget(u16),
    /// Takes it out of its group; with an interface that takes CAP_NET_RAW.
    Withdraw,
}

impl PrivilegedOp {
    /// Does it, with the rights that this process has.
    pub fn perform(self, socket: &Socket) -> io::Result<()> {
        match self {
            Self::Bind(address) => socket.bind(address),
            Self::ReceiveBuffer(bytes) => socket.set_receive_buffer(bytes).map(drop),
            Self::BusyPoll(microseconds) => socket.set_busy_poll_us(microseconds),
            Self::PreferBusyPoll => socket.set_prefer_busy_poll(true),
            Self::BusyPollBudget(packets) => socket.set_busy_poll_budget(packets),
            Self::Withdraw => socket.withdraw(),
        }
    }
}

impl fmt::Display for PrivilegedOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(address) => write!(formatter, "bind {address}"),
            Self::ReceiveBuffer(bytes) => write!(formatter, "receive_buffer {bytes}"),
            Self::BusyPoll(microseconds) => write!(formatter, "busy_poll {microseconds}"),
            Self::PreferBusyPoll => formatter.write_str("prefer_busy_poll 1"),
            Self::BusyPollBudget(packets) => write!(formatter, "busy_poll_budget {packets}"),
            Self::Withdraw => formatter.write_str("withdraw 1"),
        }
    }
}

impl FromStr for PrivilegedOp {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once(' ').ok_or(())? {
            ("bind", address) => Ok(Self::Bind(parsed(address)?)),
            ("receive_buffer", bytes) => Ok(Self::ReceiveBuffer(parsed(bytes)?)),
            ("busy_poll", microseconds) => Ok(Self::BusyPoll(parsed(microseconds)?)),
            ("prefer_busy_poll", "1") => Ok(Self::PreferBusyPoll),
            ("busy_poll_budget", packets) => Ok(Self::BusyPollBudget(parsed(packets)?)),
            ("withdraw", "1") => Ok(Self::Withdraw),
            _ => Err(()),
        }
    }
}

fn parsed<T: FromStr>(text: &str) -> Result<T, ()> {
    text.parse().map_err(drop)
}

/// A descriptor that takes a right to make. The helper hands it over, so that this process uses it either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivilegedFd {
    /// A socket for a receive queue past the kernel's stack, which takes CAP_NET_RAW.
    XdpSocket,
    /// An array for a filter of sources: how many numbers a value has, and how many values there are. It takes CAP_BPF,
    /// and so does the next.
    Array { numbers: u32, entries: u32 },
    /// The program of such a filter, made of its arrays.
    Filter(SourceShape),
}

impl PrivilegedFd {
    /// Makes it, with the rights that this process has.
    pub fn make(self, parts: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        match self {
            Self::XdpSocket => xdp::socket().map_err(io::Error::from),
            Self::Array { numbers, entries } => mmsg::make_array(numbers, entries),
            Self::Filter(shape) => mmsg::load_program(&shape, parts),
        }
    }
}

impl fmt::Display for PrivilegedFd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XdpSocket => formatter.write_str("make queue_socket"),
            Self::Array { numbers, entries } => write!(formatter, "make array {numbers} {entries}"),
            Self::Filter(SourceShape { v4_first, v4_turns, v6_first, v6_turns, queues }) => {
                write!(formatter, "make filter {v4_first} {v4_turns} {v6_first} {v6_turns}")?;
                queues.iter().try_for_each(|queues| write!(formatter, " {queues}"))
            }
        }
    }
}

impl FromStr for PrivilegedFd {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("make ").ok_or(())?.split(' ').collect::<Vec<_>>()[..] {
            ["queue_socket"] => Ok(Self::XdpSocket),
            ["array", numbers, entries] => Ok(Self::Array { numbers: parsed(numbers)?, entries: parsed(entries)? }),
            ["filter", v4_first, v4_turns, v6_first, v6_turns, ref queues @ ..] => {
                let queues = match queues {
                    [] => None,
                    [queues] => Some(parsed(queues)?),
                    _ => return Err(()),
                };
                Ok(Self::Filter(SourceShape {
                    v4_first: parsed(v4_first)?,
                    v4_turns: parsed(v4_turns)?,
                    v6_first: parsed(v6_first)?,
                    v6_turns: parsed(v6_turns)?,
                    queues,
                }))
            }
            _ => Err(()),
        }
    }
}

/// The helper of this process. Rights belong to a process, and so does its helper.
static HELPER: Mutex<Helper> = Mutex::new(Helper { connection: None, process: None });

/// What this process has of its helper.
struct Helper {
    /// Where it is asked, while it answers.
    connection: Option<OwnedFd>,
    /// Until this process has seen that it has ended: the kernel keeps its remains until then.
    process: Option<Child>,
}

/// Starts the helper of this process, which ends when this process does. It reads its requests from standard input.
/// With an account it becomes that user, while this process is still root.
pub fn start(
    options: HelperOptions,
    (addresses, interface): (&[IpAddr], &str),
    account: Option<&Account>,
) -> io::Result<()> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&own, Timeout::Recv, Some(ANSWER_LIMIT))?;
    set_socket_timeout(&own, Timeout::Send, Some(ANSWER_LIMIT))?;
    // The file may have another content by now, or none; the kernel knows which one runs.
    let process = Command::new("/proc/self/exe")
        .arg0("udpd-warden")
        .arg(COMMAND)
        .args(options.filters.then_some(FILTERS))
        .args(options.queues.then_some(QUEUES))
        .args(addresses.iter().flat_map(|address| [ADDRESS.to_owned(), address.to_string()]))
        .args([INTERFACE, interface].into_iter().filter(|_| !addresses.is_empty()))
        .args(account.iter().flat_map(|account| [USER.to_owned(), account.uid.to_string(), account.gid.to_string()]))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(its))
        .stdout(Stdio::null())
        .spawn()?;
    let mut helper = lock(&HELPER);
    // A helper that was started before ends when its connection closes.
    helper.connection = None;
    if let Some(mut before) = helper.process.take() {
        let _ = before.wait();
    }
    // Also a helper whose start fails has an end to wait for.
    helper.process = Some(process);
    // It says that it is inside its own sandbox, so that udpd is never ready before.
    answer(own.as_fd())?.0?;
    helper.connection = Some(own);
    Ok(())
}

/// Looks whether it has ended, and logs once what that costs. Does not wait.
pub fn check_alive() {
    let mut helper = match HELPER.try_lock() {
        Ok(helper) => helper,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Another thread asks it now, and sees its end.
        Err(TryLockError::WouldBlock) => return,
    };
    let ended = match helper.process.as_mut().map(Child::try_wait) {
        None | Some(Ok(None)) => return,
        Some(Ok(Some(status))) => format!("it has ended ({status})"),
        // This process was started with SIGCHLD ignored, so the kernel has removed it already.
        Some(Err(error)) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => "it has ended".to_owned(),
        Some(Err(_)) => return,
    };
    helper.process = None;
    if helper.connection.take().is_some() {
        log_gone(&ended);
    }
}

/// Does this to a socket, or has the helper do it where this process lacks the right.
pub fn perform(socket: &Socket, op: PrivilegedOp) -> io::Result<()> {
    op.perform(socket).or_else(|refusal| match refusal.kind() {
        io::ErrorKind::PermissionDenied => have_performed(socket, op).unwrap_or(Err(refusal)),
        _ => Err(refusal),
    })
}

/// Binds a socket, as [`perform`].
pub fn bind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    perform(socket, PrivilegedOp::Bind(address))
}

/// Takes a socket out of its group, as [`perform`].
pub fn withdraw(socket: &Socket) -> io::Result<()> {
    perform(socket, PrivilegedOp::Withdraw)
}

/// Asks for a receive buffer, through the helper where the kernel grants this process less.
pub fn receive_buffer(socket: &Socket, wanted_bytes: usize) -> io::Result<GrantedBuffer> {
    let granted = socket.set_receive_buffer(wanted_bytes)?;
    if granted.granted_bytes >= 2 * wanted_bytes {
        return Ok(granted);
    }
    match have_performed(socket, PrivilegedOp::ReceiveBuffer(wanted_bytes)) {
        Some(Ok(())) => socket.receive_buffer(wanted_bytes),
        Some(Err(_)) | None => Ok(granted),
    }
}

/// `None` where there is no helper, or it does not answer.
fn have_performed(socket: &Socket, op: PrivilegedOp) -> Option<io::Result<()>> {
    ask(&[socket.as_fd()], &op.to_string()).map(|(outcome, _)| outcome)
}

/// Makes a descriptor of these parts, or has the helper make it where this process lacks the right.
pub fn make(wanted: PrivilegedFd, parts: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    wanted.make(parts).or_else(|refusal| match refusal.kind() {
        io::ErrorKind::PermissionDenied => match ask(parts, &wanted.to_string()) {
            Some((outcome, made)) => outcome.and_then(|()| made.ok_or_else(|| io::ErrorKind::InvalidData.into())),
            None => Err(refusal),
        },
        _ => Err(refusal),
    })
}

/// Has the helper put an address on its interface (`on`), take it away (`off`), or leave it to another process
/// (`leave`). Without a helper, and with one that lacks the right, that is not permitted.
pub fn announce(command: &str, address: IpAddr) -> io::Result<()> {
    let answered = ask(&[], &format!("{ANNOUNCE}{command} {address}"));
    answered.map_or_else(|| Err(Errno::PERM.into()), |(outcome, _)| outcome)
}

/// Loads filters of sources, as [`make`].
#[derive(Debug, Clone, Copy)]
pub struct HelperLoader;

impl Loader for HelperLoader {
    fn make_array(&self, numbers: u32, entries: u32) -> io::Result<OwnedFd> {
        make(PrivilegedFd::Array { numbers, entries }, &[])
    }

    fn load_program(&self, shape: &SourceShape, maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        make(PrivilegedFd::Filter(*shape), maps)
    }
}

fn ask(descriptors: &[BorrowedFd<'_>], request: &str) -> Option<Answer> {
    ask_over(&mut lock(&HELPER).connection, descriptors, request)
}

/// Asks over a connection, which is given up when no answer comes.
fn ask_over(helper: &mut Option<OwnedFd>, descriptors: &[BorrowedFd<'_>], request: &str) -> Option<Answer> {
    let connection = helper.as_ref()?.as_fd();
    let ask = || send(connection, descriptors, request.as_bytes()).and_then(|()| answer(connection));
    // A slow helper is no fault of this thread.
    let outcome = threads::blocking(ask);
    if let Err(why) = &outcome {
        // A later answer on this connection would be the one to this request.
        *helper = None;
        log_gone(&why.to_string());
    }
    outcome.ok()
}

fn log_gone(why: &str) {
    log::warn!(
        "the process that keeps the rights of udpd (udpd-warden) does not answer: {why}; ports below 1024, receive \
         buffers above net.core.rmem_max and queues of AF_XDP cannot be had by a reload any more: restart udpd"
    );
}

/// A message with descriptors, or without.
pub fn send(connection: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>], message: &[u8]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PARTS_MAX))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !passed.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    retry(|| sendmsg(connection, &[IoSlice::new(message)], &mut passed, SendFlags::NOSIGNAL)).map(drop)
}

type Answer = (io::Result<()>, Option<OwnedFd>);

/// An error number, or 0 and what was made.
fn answer(connection: BorrowedFd<'_>) -> io::Result<Answer> {
    let mut bytes = [0; MESSAGE_BYTES];
    let (length, made) = receive(connection, &mut bytes)?;
    let made = made.into_iter().next();
    match std::str::from_utf8(&bytes[..length]).ok().and_then(|text| text.parse().ok()) {
        Some(0) => Ok((Ok(()), made)),
        Some(number) => Ok((Err(io::Error::from_raw_os_error(number)), None)),
        None if length == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Waits for a message, and returns how long it is and the descriptors that came with it.
pub fn receive(connection: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PARTS_MAX))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut message = [IoSliceMut::new(bytes)];
    let received = retry(|| recvmsg(connection, &mut message, &mut passed, RecvFlags::CMSG_CLOEXEC))?;
    let descriptors = passed.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, descriptors.collect()))
}

/// Again, while signals come in between.
pub fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome.map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for address in ["0.0.0.0:514", "[::]:162", "[fe80::1%7]:514"] {
            let op = PrivilegedOp::Bind(address.parse().expect("an address"));
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        for op in [
            PrivilegedOp::ReceiveBuffer(usize::MAX),
            PrivilegedOp::BusyPoll(50),
            PrivilegedOp::PreferBusyPoll,
            PrivilegedOp::BusyPollBudget(64),
            PrivilegedOp::Withdraw,
        ] {
            assert!(op.to_string().len() <= MESSAGE_BYTES);
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        for text in ["", "bind", "bind 514", "receive_buffer -1", "busy_poll_budget 65536", "open /etc/shadow"] {
            assert_eq!(text.parse::<PrivilegedOp>(), Err(()), "{text:?}");
        }
    }

    #[test]
    fn a_descriptor_to_be_made_arrives_as_it_was_sent() {
        let shape = |queues| SourceShape { v4_first: true, v4_turns: 4_194_304, v6_first: false, v6_turns: 0, queues };
        for wanted in [
            PrivilegedFd::XdpSocket,
            PrivilegedFd::Array { numbers: 2, entries: u32::MAX },
            PrivilegedFd::Filter(shape(None)),
            PrivilegedFd::Filter(shape(Some(1023))),
        ] {
            assert!(wanted.to_string().len() <= MESSAGE_BYTES);
            assert_eq!(wanted.to_string().parse(), Ok(wanted));
        }
        for text in ["", "make", "make array 1", "make array -1 1", "make filter true 1 true 1 1 1", "array 1 1"] {
            assert_eq!(text.parse::<PrivilegedFd>(), Err(()), "{text:?}");
        }
    }

    #[test]
    fn without_a_helper_the_refusal_of_the_kernel_is_the_error() {
        let socket = Socket::new(mmsg::Family::V4).expect("a socket");
        let refused = perform(&socket, PrivilegedOp::Bind("192.0.2.1:514".parse().expect("an address")));
        assert!(refused.is_err());
        let asked = 1 << 40;
        let granted = receive_buffer(&socket, asked).expect("less than asked");
        assert!(granted.granted_bytes < asked);
    }

    #[test]
    fn a_helper_that_does_not_answer_in_time_is_not_asked_again_because_its_answer_would_be_to_another_request() {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, its) = pair.expect("a pair of sockets");
        set_socket_timeout(&own, Timeout::Recv, Some(Duration::from_millis(1))).expect("a limit");
        let mut helper = Some(own);
        assert!(ask_over(&mut helper, &[], "make queue_socket").is_none());
        assert!(helper.is_none(), "given up");
        let mut bytes = [0; MESSAGE_BYTES];
        let (length, _) = receive(its.as_fd(), &mut bytes).expect("it was asked");
        assert_eq!(&bytes[..length], b"make queue_socket");
    }
}
