//! The rights that udpd needs again later, kept by a small process beside it.
//!
//! A thread in the sandbox has given up its capabilities for good. A socket that a reload adds, or that is made again
//! for an interface that came back, may need one: for a port below 1024, or for more receive buffer than
//! `net.core.rmem_max`. So before the first thread goes in, udpd starts itself once more as its warden. That process
//! keeps these few rights, and does with them only what stands in [`Wish`], to sockets for UDP that udpd hands it for a
//! moment, and makes only what is a [`Product`]. It never looks at a datagram: all it reads is the wishes of udpd.
//!
//! A process that has no such right has no warden. Where there is none, or no longer, everything is as if nobody had
//! been asked: the kernel's refusal is the error.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use mmsg::{GrantedBuffer, Loader, Socket, SourceShape};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::products::{PARTS_MAX, Product};
use udpd_base::os::threads;
use udpd_base::os::user::Account;

/// The command that is the warden.
pub const COMMAND: &str = "warden";

/// Its options.
const FILTERS: &str = "--filters";
const QUEUES: &str = "--queues";
/// The numbers of a user and a group follow.
const USER: &str = "--user";

/// What a warden makes besides what it does to sockets. It is told when it is started, and never anything else.
#[derive(Debug, Clone, Copy)]
pub struct Makes {
    /// Filters of sources, and their tables.
    pub filters: bool,
    /// Sockets for queues past the kernel's stack.
    pub queues: bool,
}

impl Makes {
    /// Whether it makes this.
    pub fn has(self, product: &Product) -> bool {
        match product {
            Product::QueueSocket => self.queues,
            Product::Array { .. } | Product::Filter(_) => self.filters,
        }
    }
}

/// How long an answer may take, the first one included, before which it has to be started. A warden that is slower is
/// stopped, or gone; and once it was, its rights are gone for the life of this process.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The longest wish or answer.
pub const MESSAGE_BYTES: usize = 128;

/// The warden of this process. Rights belong to a process, and so does who keeps them.
static WARDEN: Mutex<Warden> = Mutex::new(Warden { connection: None, process: None });

/// What this process has of its warden.
struct Warden {
    /// Where it is asked, while it answers.
    connection: Option<OwnedFd>,
    /// Until it has ended and this process has seen that: the kernel keeps what is left of it until then.
    process: Option<Child>,
}

/// What is done to a socket that takes a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
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

impl Wish {
    /// Does it, with the rights that this process has.
    pub fn fulfil(self, socket: &Socket) -> io::Result<()> {
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

/// As it is sent.
impl fmt::Display for Wish {
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

impl FromStr for Wish {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        fn value<T: FromStr>(text: &str) -> Result<T, ()> {
            text.parse().map_err(drop)
        }
        match text.split_once(' ').ok_or(())? {
            ("bind", address) => Ok(Self::Bind(value(address)?)),
            ("receive_buffer", bytes) => Ok(Self::ReceiveBuffer(value(bytes)?)),
            ("busy_poll", microseconds) => Ok(Self::BusyPoll(value(microseconds)?)),
            ("prefer_busy_poll", "1") => Ok(Self::PreferBusyPoll),
            ("busy_poll_budget", packets) => Ok(Self::BusyPollBudget(value(packets)?)),
            ("withdraw", "1") => Ok(Self::Withdraw),
            _ => Err(()),
        }
    }
}

/// Starts the warden of this process, which ends when this process does. It takes its wishes at its standard input.
/// With an account it becomes that user, while this process is still root.
pub fn start(makes: Makes, account: Option<&Account>) -> io::Result<()> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&own, Timeout::Recv, Some(ANSWER_LIMIT))?;
    set_socket_timeout(&own, Timeout::Send, Some(ANSWER_LIMIT))?;
    // The file may have another content by now, or none; the kernel knows which one runs.
    let process = Command::new("/proc/self/exe")
        .arg0("udpd-warden")
        .arg(COMMAND)
        .args(makes.filters.then_some(FILTERS))
        .args(makes.queues.then_some(QUEUES))
        .args(account.iter().flat_map(|account| [USER.to_owned(), account.uid.to_string(), account.gid.to_string()]))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(its))
        .stdout(Stdio::null())
        .spawn()?;
    let mut warden = WARDEN.lock().unwrap_or_else(PoisonError::into_inner);
    // One that was started before ends when nobody asks it any more.
    warden.connection = None;
    if let Some(mut before) = warden.process.take() {
        let _ = before.wait();
    }
    // Also one that comes to nothing ends.
    warden.process = Some(process);
    // It says that it is inside its own sandbox, so that udpd is never ready before.
    answer(own.as_fd())?.0?;
    warden.connection = Some(own);
    Ok(())
}

/// Sees whether it has ended, and says what that costs unless somebody has heard no answer before. Does not wait.
pub fn look() {
    let mut warden = match WARDEN.try_lock() {
        Ok(warden) => warden,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Somebody asks it now, and hears its end.
        Err(TryLockError::WouldBlock) => return,
    };
    let ended = match warden.process.as_mut().map(Child::try_wait) {
        None | Some(Ok(None)) => return,
        Some(Ok(Some(status))) => format!("it has ended ({status})"),
        // The kernel has cleared it away already: somebody had this process started so.
        Some(Err(error)) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => "it has ended".to_owned(),
        Some(Err(_)) => return,
    };
    warden.process = None;
    if warden.connection.take().is_some() {
        say_gone(&ended);
    }
}

/// Does this to a socket, or has the warden do it where this process lacks the right.
pub fn have(socket: &Socket, wish: Wish) -> io::Result<()> {
    wish.fulfil(socket).or_else(|refusal| match refusal.kind() {
        io::ErrorKind::PermissionDenied => wish_for(socket, wish).unwrap_or(Err(refusal)),
        _ => Err(refusal),
    })
}

/// Binds a socket, as [`have`].
pub fn bind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    have(socket, Wish::Bind(address))
}

/// Takes a socket out of its group, as [`have`].
pub fn withdraw(socket: &Socket) -> io::Result<()> {
    have(socket, Wish::Withdraw)
}

/// Asks for a receive buffer, by the warden where the kernel gives this process less.
pub fn receive_buffer(socket: &Socket, wanted_bytes: usize) -> io::Result<GrantedBuffer> {
    let granted = socket.set_receive_buffer(wanted_bytes)?;
    if granted.granted_bytes >= 2 * wanted_bytes {
        return Ok(granted);
    }
    match wish_for(socket, Wish::ReceiveBuffer(wanted_bytes)) {
        Some(Ok(())) => socket.receive_buffer(wanted_bytes),
        Some(Err(_)) | None => Ok(granted),
    }
}

/// What the warden has done about it; `None` where there is no warden, or it does not answer.
fn wish_for(socket: &Socket, wish: Wish) -> Option<io::Result<()>> {
    ask(&[socket.as_fd()], &wish.to_string()).map(|(outcome, _)| outcome)
}

/// Makes something, or has the warden make it where this process lacks the right.
pub fn have_made(product: Product, parts: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    product.make(parts).or_else(|refusal| match refusal.kind() {
        io::ErrorKind::PermissionDenied => make(product, parts).unwrap_or(Err(refusal)),
        _ => Err(refusal),
    })
}

/// Loads filters of sources, as [`have_made`].
#[derive(Debug, Clone, Copy)]
pub struct ByRight;

impl Loader for ByRight {
    fn make_array(&self, numbers: u32, entries: u32) -> io::Result<OwnedFd> {
        have_made(Product::Array { numbers, entries }, &[])
    }

    fn load_program(&self, shape: &SourceShape, maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        have_made(Product::Filter(*shape), maps)
    }
}

/// What the warden has made of these parts; `None` as above.
fn make(product: Product, parts: &[BorrowedFd<'_>]) -> Option<io::Result<OwnedFd>> {
    let (outcome, made) = ask(parts, &product.to_string())?;
    Some(outcome.and_then(|()| made.ok_or_else(|| io::ErrorKind::InvalidData.into())))
}

fn ask(descriptors: &[BorrowedFd<'_>], wish: &str) -> Option<Answer> {
    ask_by(&mut WARDEN.lock().unwrap_or_else(PoisonError::into_inner).connection, descriptors, wish)
}

/// Asks by a connection, which is given up when no answer comes.
fn ask_by(warden: &mut Option<OwnedFd>, descriptors: &[BorrowedFd<'_>], wish: &str) -> Option<Answer> {
    let connection = warden.as_ref()?.as_fd();
    // It may be slow, and that is no fault of this thread.
    let ask = || send(connection, descriptors, wish.as_bytes()).and_then(|()| answer(connection));
    let outcome = threads::blocking(ask);
    if let Err(why) = &outcome {
        // What it says from now on would be the answer to something else.
        *warden = None;
        say_gone(&why.to_string());
    }
    outcome.ok()
}

fn say_gone(why: &str) {
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

/// What came of a wish, and what was made.
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
    fn a_wish_arrives_as_it_was_sent() {
        for address in ["0.0.0.0:514", "[::]:162", "[fe80::1%7]:514"] {
            let wish = Wish::Bind(address.parse().expect("an address"));
            assert_eq!(wish.to_string().parse(), Ok(wish));
        }
        for wish in [
            Wish::ReceiveBuffer(usize::MAX),
            Wish::BusyPoll(50),
            Wish::PreferBusyPoll,
            Wish::BusyPollBudget(64),
            Wish::Withdraw,
        ] {
            assert!(wish.to_string().len() <= MESSAGE_BYTES);
            assert_eq!(wish.to_string().parse(), Ok(wish));
        }
        for text in ["", "bind", "bind 514", "receive_buffer -1", "busy_poll_budget 65536", "open /etc/shadow"] {
            assert_eq!(text.parse::<Wish>(), Err(()), "{text:?}");
        }
    }

    #[test]
    fn without_a_warden_the_refusal_of_the_kernel_is_the_error() {
        let socket = Socket::new(mmsg::Family::V4).expect("a socket");
        let refused = have(&socket, Wish::Bind("192.0.2.1:514".parse().expect("an address")));
        assert!(refused.is_err());
        let asked = 1 << 40;
        let granted = receive_buffer(&socket, asked).expect("less than asked");
        assert!(granted.granted_bytes < asked);
    }

    #[test]
    fn a_warden_that_does_not_answer_in_time_is_not_asked_again_because_its_answer_would_be_to_something_else() {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, its) = pair.expect("a pair of sockets");
        set_socket_timeout(&own, Timeout::Recv, Some(Duration::from_millis(1))).expect("a limit");
        let mut warden = Some(own);
        assert!(ask_by(&mut warden, &[], "make queue_socket").is_none());
        assert!(warden.is_none(), "given up");
        let mut bytes = [0; MESSAGE_BYTES];
        let (length, _) = receive(its.as_fd(), &mut bytes).expect("it was asked");
        assert_eq!(&bytes[..length], b"make queue_socket");
    }
}
