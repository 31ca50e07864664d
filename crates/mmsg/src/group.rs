//! A reuseport group that can grow and shrink under load without losing a datagram.
//!
//! Four facts of the kernel make this more than a list of sockets. Members are numbered in the order of `bind`, and
//! when one is closed the *last* takes its number, so only the last can leave without moving another. The program has
//! to be on the first socket before the first `bind`, or datagrams go astray meanwhile. What is queued at a socket that
//! is closed vanishes without any counter. And it is not enough that no program names a socket any more before it is
//! closed: for a moment it is out of its group and still in the kernel's table of sockets, and a lookup in that moment
//! takes it for an ordinary socket and chooses it. At 50,000 datagrams a second about one close in a hundred loses one
//! that way.
//!
//! So a member that leaves is first bound to an interface that does not exist. That takes it out of the group and out
//! of every later lookup, while it stays open and readable. Once every softirq that had chosen it before has ended,
//! nothing more is queued there; it is read to the end, and then the close loses nothing.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libc::c_int;

use crate::reuseport::GroupSpread;
use crate::socket::Socket;
use crate::sys;

/// Sockets that share one address, numbered from 0.
///
/// ```
/// # if cfg!(miri) { return Ok::<(), std::io::Error>(()) } // an interpreter has no sockets
/// use std::sync::Arc;
/// use mmsg::{Family, Group, GroupSpread, Socket};
///
/// let first = Arc::new(Socket::new(Family::V4)?);
/// let mut group = Group::new(vec![first], GroupSpread::Random)?;
/// group.bind("127.0.0.1:0".parse().expect("an address"))?;
/// group.grow(Arc::new(Socket::new(Family::V4)?))?;
/// group.shrink(|leaving| {
///     // Nothing more can come: read `leaving` until it is empty, and drop it.
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Group {
    members: Vec<Arc<Socket>>,
    spread: GroupSpread,
    /// Where it is bound, with the port the kernel chose.
    address: Option<SocketAddr>,
}

impl Group {
    /// Takes sockets that are not bound yet, in the order of their future numbers, and prepares them for
    /// [`bind`](Self::bind): the program of `spread` is on the first before any datagram can arrive.
    pub fn new(members: Vec<Arc<Socket>>, spread: GroupSpread) -> io::Result<Self> {
        let Some(first) = members.first() else {
            return Err(refuse("a group needs at least one socket"));
        };
        for member in &members {
            member.set_reuse_port(true)?;
        }
        // A new socket has no program to remove.
        if spread != GroupSpread::Flow {
            first.attach_reuseport(&spread, count(members.len())?)?;
        }
        Ok(Self { members, spread, address: None })
    }

    /// Adopts sockets that are a group already, bound to one address, in the order in which they were bound. A single
    /// one need not be in a group yet: the next member makes it one.
    pub fn adopt(members: Vec<Arc<Socket>>, spread: GroupSpread) -> io::Result<Self> {
        let Some(first) = members.first() else {
            return Err(refuse("a group needs at least one socket"));
        };
        let address = Some(first.local_addr()?);
        for member in &members {
            member.set_reuse_port(true)?;
        }
        let group = Self { members, spread, address };
        match group.set_program(group.members.len()) {
            // It is in no group, so it has no program either.
            Err(error) if group.members.len() == 1 && error.raw_os_error() == Some(libc::EINVAL) => Ok(group),
            result => result.map(|()| group),
        }
    }

    /// Binds every member, in order, from this one thread. The first decides the port when `address` leaves it open.
    ///
    /// `EADDRINUSE` with a spread other than [`GroupSpread::Flow`] may also mean that another process has a group with
    /// a program on this address: two such groups do not become one. After an error drop the group and its sockets.
    pub fn bind(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.bind_by(address, Socket::bind)
    }

    /// The same with another way to bind: `bind` gets each member, in order, and the address for it.
    pub fn bind_by(
        &mut self,
        address: SocketAddr,
        mut bind: impl FnMut(&Socket, SocketAddr) -> io::Result<()>,
    ) -> io::Result<SocketAddr> {
        let mut address = address;
        for member in &self.members {
            bind(member, address)?;
            address = member.local_addr()?;
        }
        self.address = Some(address);
        Ok(address)
    }

    /// The members, in the order of their numbers.
    pub fn members(&self) -> &[Arc<Socket>] {
        &self.members
    }

    /// Replaces the spread, in one step for the whole group.
    pub fn set_spread(&mut self, spread: GroupSpread) -> io::Result<()> {
        let before = std::mem::replace(&mut self.spread, spread);
        let result = self.set_program(self.members.len());
        if result.is_err() {
            self.spread = before;
        }
        result
    }

    /// Binds one more member and spreads over it too. It gets nothing before it is bound. When the program cannot be
    /// replaced the socket is a member all the same, and gets only what the old program leaves to the kernel.
    pub fn grow(&mut self, socket: Arc<Socket>) -> io::Result<()> {
        self.grow_by(socket, Socket::bind)
    }

    /// The same with another way to bind it.
    pub fn grow_by(
        &mut self,
        socket: Arc<Socket>,
        bind: impl FnOnce(&Socket, SocketAddr) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(address) = self.address else {
            return Err(refuse("a group grows after its bind: give all first members to Group::new"));
        };
        socket.set_reuse_port(true)?;
        bind(&socket, address)?;
        self.members.push(socket);
        self.set_program(self.members.len())
    }

    /// Takes the last member out and loses nothing.
    ///
    /// It leaves the group at once and its number is free. The call waits for every softirq that had chosen it, and
    /// then gives it to `drain`, to read it until it is empty, or to tell the thread that reads it to do so. Only then
    /// may its last handle be dropped, which closes it.
    ///
    /// The wait is a `membarrier` call of some ten milliseconds. Where that is refused the call looks at the receive
    /// queue until it has stayed the same twice, which is all that can be seen from outside.
    ///
    /// `EPERM`, and nothing has changed: members that are bound to an interface may leave only with `CAP_NET_RAW`.
    pub fn shrink<R>(&mut self, drain: impl FnOnce(Arc<Socket>) -> R) -> io::Result<R> {
        self.shrink_by(Socket::withdraw, drain)
    }

    /// The same with another way to [withdraw](Socket::withdraw) it.
    pub fn shrink_by<R>(
        &mut self,
        withdraw: impl FnOnce(&Socket) -> io::Result<()>,
        drain: impl FnOnce(Arc<Socket>) -> R,
    ) -> io::Result<R> {
        let stay = self.members.len() - 1;
        if stay == 0 {
            return Err(refuse("the last member of a group cannot leave: drop the group instead"));
        }
        self.set_program(stay)?;
        if let Err(error) = withdraw(&self.members[stay]) {
            self.set_program(stay + 1)?;
            return Err(error);
        }
        let leaving = self.members.pop().expect("more than one");
        if sys::wait_for_every_core().is_err() {
            wait_until_unchanged(&leaving);
        }
        Ok(drain(leaving))
    }

    /// Gives the group the program of its spread over the first so many members.
    fn set_program(&self, members: usize) -> io::Result<()> {
        self.members[0].attach_reuseport(&self.spread, count(members)?)
    }
}

/// No interface has this number: the kernel counts upwards from 1.
const NO_INTERFACE: c_int = c_int::MAX;

impl Socket {
    /// Takes the socket out of the kernel's lookups for good: nothing more arrives, senders are told that the port is
    /// closed, and what is queued stays readable. It is bound to an interface that does not exist, which takes
    /// `CAP_NET_RAW` if it is bound to one already.
    pub fn withdraw(&self) -> io::Result<()> {
        self.set_interface_index(NO_INTERFACE)
    }

    /// Whether it was [withdrawn](Self::withdraw).
    pub fn is_withdrawn(&self) -> bool {
        self.bound_interface().is_ok_and(|index| index == NO_INTERFACE.cast_unsigned())
    }

    fn set_interface_index(&self, index: c_int) -> io::Result<()> {
        sys::set_option_int(self.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
    }
}

fn count(members: usize) -> io::Result<u32> {
    u32::try_from(members).map_err(|_| refuse("a group of more sockets than 32 bits can count"))
}

/// How long a softirq may hold a datagram before queueing it, as far as can be seen from outside.
const LOOK: Duration = Duration::from_millis(5);

/// Looks at the queue until two looks in a row have found it unchanged; at worst a reader empties it meanwhile.
fn wait_until_unchanged(socket: &Socket) {
    let mut before = socket.memory_info().ok();
    let mut same = 0;
    while same < 2 {
        thread::sleep(LOOK);
        let now = socket.memory_info().ok();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
}

/// Returns once every datagram that the kernel had begun to deliver is in its socket or dropped: after
/// [`Socket::refuse_arrivals`] nothing more comes into the socket then. Takes some ten milliseconds; `EINVAL` where the
/// kernel cannot ask cores that are free of its tick (`nohz_full`).
pub fn wait_for_arrivals_under_way() -> io::Result<()> {
    sys::wait_for_every_core()
}

fn refuse(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
