//! What the kernel itself says of queues and their polling contexts: the `netdev` family of generic netlink, from Linux
//! 6.8 on. Written by hand, because it is two dumps, and the crates that know the family have ten thousand lines.
//!
//! Kernels without the family, drivers that tell it nothing, and devices that are down are all ordinary: the answer is
//! then empty, and the names of interrupts are looked at instead.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// What the kernel says of one receive queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetdevQueue {
    /// The number of the queue, from 0.
    pub queue: u32,
    /// The number of its polling context (NAPI).
    pub napi: Option<u32>,
    /// The interrupt of that context, when the driver told the kernel.
    pub interrupt: Option<u32>,
    /// The kernel thread that polls it, when one does.
    pub thread: Option<u32>,
}

/// Tells what the kernel knows of queues: [`Netlink`], or a test.
pub trait Netdev {
    /// The receive queues of the interface with this `ifindex`; empty when the kernel says nothing of them.
    fn receive_queues(&self, interface: u32) -> io::Result<Vec<NetdevQueue>>;
}

/// The running kernel, asked by netlink.
#[derive(Debug, Default, Clone, Copy)]
pub struct Netlink;

// Each number with its name in the kernel's headers: linux/netlink.h, linux/genetlink.h, linux/netdev.h.
const REQUEST: u16 = 0x1; // NLM_F_REQUEST
const DUMP: u16 = 0x300; // NLM_F_DUMP
const DUMP_INTERRUPTED: u16 = 0x10; // NLM_F_DUMP_INTR
const ERROR: u16 = 2; // NLMSG_ERROR
const DONE: u16 = 3; // NLMSG_DONE
const HEADER_BYTES: usize = 16; // NLMSG_HDRLEN
const ATTRIBUTE_HEADER_BYTES: usize = 4; // NLA_HDRLEN
const ATTRIBUTE_KIND: u16 = 0x3fff; // NLA_TYPE_MASK
const ALIGNMENT: usize = 4; // NLMSG_ALIGNTO, NLA_ALIGNTO
const GENERIC_HEADER_BYTES: usize = 4; // GENL_HDRLEN
const CONTROL_FAMILY: u16 = 0x10; // GENL_ID_CTRL
const GET_FAMILY: u8 = 3; // CTRL_CMD_GETFAMILY
const FAMILY_ID: u16 = 1; // CTRL_ATTR_FAMILY_ID
const FAMILY_NAME: u16 = 2; // CTRL_ATTR_FAMILY_NAME
const FAMILY: &[u8] = b"netdev\0"; // NETDEV_FAMILY_NAME
const VERSION: u8 = 1; // NETDEV_FAMILY_VERSION
const QUEUE_GET: u8 = 10; // NETDEV_CMD_QUEUE_GET
const QUEUE_ID: u16 = 1; // NETDEV_A_QUEUE_ID
const QUEUE_INTERFACE: u16 = 2; // NETDEV_A_QUEUE_IFINDEX
const QUEUE_TYPE: u16 = 3; // NETDEV_A_QUEUE_TYPE
const QUEUE_NAPI: u16 = 4; // NETDEV_A_QUEUE_NAPI_ID
const RECEIVES: u32 = 0; // NETDEV_QUEUE_TYPE_RX
const NAPI_GET: u8 = 11; // NETDEV_CMD_NAPI_GET
const NAPI_INTERFACE: u16 = 1; // NETDEV_A_NAPI_IFINDEX
const NAPI_ID: u16 = 2; // NETDEV_A_NAPI_ID
const NAPI_INTERRUPT: u16 = 3; // NETDEV_A_NAPI_IRQ
const NAPI_THREAD: u16 = 4; // NETDEV_A_NAPI_PID

/// How often queues may come and go while they are dumped.
const ATTEMPTS: usize = 4;
/// Answers come in messages of at most this; more of them than this bound is not the kernel.
const DATAGRAM_BYTES: usize = 64 * 1024;
const DATAGRAMS_MAX: usize = 4096;

impl Netdev for Netlink {
    fn receive_queues(&self, interface: u32) -> io::Result<Vec<NetdevQueue>> {
        let socket = open()?;
        let Some(family) = family(&socket)? else { return Ok(Vec::new()) };
        let queues = dump(&socket, family, QUEUE_GET, (QUEUE_INTERFACE, interface))?;
        let contexts = dump(&socket, family, NAPI_GET, (NAPI_INTERFACE, interface))?;
        Ok(join(&queues, &contexts))
    }
}

/// Brings queues and their contexts together.
fn join(queues: &[Attributes], contexts: &[Attributes]) -> Vec<NetdevQueue> {
    let contexts: BTreeMap<u32, &Attributes> =
        contexts.iter().filter_map(|context| Some((context.number(NAPI_ID)?, context))).collect();
    let mut found: Vec<NetdevQueue> = Vec::new();
    for queue in queues.iter().filter(|queue| queue.number(QUEUE_TYPE) == Some(RECEIVES)) {
        let Some(number) = queue.number(QUEUE_ID) else { continue };
        let napi = queue.number(QUEUE_NAPI).filter(|&napi| napi != 0);
        let context = napi.and_then(|napi| contexts.get(&napi));
        let of_context = |kind: u16| context.and_then(|context| context.number(kind));
        found.push(NetdevQueue {
            queue: number,
            napi,
            interrupt: of_context(NAPI_INTERRUPT),
            thread: of_context(NAPI_THREAD),
        });
    }
    found.sort_by_key(|queue| queue.queue);
    found
}

fn open() -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkGeneric)?;
    // The kernel answers at once; this only keeps a surprise from becoming a hang.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
    Ok(socket)
}

/// The number that this boot gave the family; `None` when the kernel does not have it.
fn family(socket: &OwnedFd) -> io::Result<Option<u16>> {
    let request = message(CONTROL_FAMILY, REQUEST, GET_FAMILY, FAMILY_NAME, FAMILY);
    match exchange(socket, &request, false) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(None),
        answer => {
            let id = answer?.messages.iter().find_map(|attributes| attributes.number(FAMILY_ID));
            Ok(id.and_then(|id| u16::try_from(id).ok()))
        }
    }
}

/// Everything of one kind that belongs to an interface.
fn dump(socket: &OwnedFd, family: u16, command: u8, (attribute, interface): (u16, u32)) -> io::Result<Vec<Attributes>> {
    let request = message(family, REQUEST | DUMP, command, attribute, &interface.to_ne_bytes());
    match whole(|| exchange(socket, &request, true)) {
        // A kernel that has the family but not yet this command, or a device that has gone.
        Err(error) if [Some(nix::libc::EOPNOTSUPP), Some(nix::libc::ENODEV)].contains(&error.raw_os_error()) => {
            Ok(Vec::new())
        }
        found => found,
    }
}

/// Asks until nothing has changed while the kernel answered: what it tells otherwise may lack a queue or have one
/// twice.
fn whole(mut ask: impl FnMut() -> io::Result<Dump>) -> io::Result<Vec<Attributes>> {
    for _ in 0..ATTEMPTS {
        let answer = ask()?;
        if !answer.interrupted {
            return Ok(answer.messages);
        }
    }
    Err(io::Error::other(format!("the queues changed while the kernel told of them, in each of {ATTEMPTS} attempts")))
}

fn message(kind: u16, flags: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let attribute_bytes = ATTRIBUTE_HEADER_BYTES + value.len();
    let length = HEADER_BYTES + GENERIC_HEADER_BYTES + attribute_bytes.next_multiple_of(ALIGNMENT);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).expect("a short message").to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // nlmsg_seq and nlmsg_pid: one question at a time on a socket of its own.
    bytes.extend([0; 8]);
    bytes.extend([command, VERSION, 0, 0]);
    bytes.extend(u16::try_from(attribute_bytes).expect("a short attribute").to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// What the kernel answered.
#[derive(Debug, Default)]
struct Dump {
    messages: Vec<Attributes>,
    /// Something changed while it answered.
    interrupted: bool,
}

fn exchange(socket: &OwnedFd, request: &[u8], dump: bool) -> io::Result<Dump> {
    sendto(socket.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let (mut buffer, mut answer) = (vec![0; DATAGRAM_BYTES], Dump::default());
    for _ in 0..DATAGRAMS_MAX {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if parse(&buffer[..length], &mut answer)? || !dump {
            return Ok(answer);
        }
    }
    Err(io::Error::other("the kernel's answer over netlink does not end"))
}

/// The attributes of one message: numbers by their kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Attributes(Vec<(u16, u32)>);

impl Attributes {
    fn number(&self, kind: u16) -> Option<u32> {
        self.0.iter().find(|(other, _)| *other == kind).map(|(_, value)| *value)
    }
}

/// Reads the messages of one datagram. True when the last one was the end of a dump. Whatever the lengths in it say,
/// nothing outside the datagram is read, and each step gets on by at least a header.
fn parse(mut datagram: &[u8], answer: &mut Dump) -> io::Result<bool> {
    while let Some(length) = length_at(datagram, 4, HEADER_BYTES) {
        let (message, kind) = (&datagram[HEADER_BYTES..length], u16_at(datagram, 4));
        answer.interrupted |= u16_at(datagram, 6).is_some_and(|flags| flags & DUMP_INTERRUPTED != 0);
        if let Some(DONE | ERROR) = kind {
            // Both carry an error, or 0: a dump that fails in the middle ends with its errno in the last message.
            let errno = message.get(..4).map_or(0, |bytes| i32::from_ne_bytes(bytes.try_into().expect("four")));
            return if errno < 0 { Err(io::Error::from_raw_os_error(errno.saturating_neg())) } else { Ok(true) };
        }
        answer.messages.push(attributes(message.get(GENERIC_HEADER_BYTES..).unwrap_or_default()));
        datagram = datagram.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
    Ok(false)
}

fn attributes(mut bytes: &[u8]) -> Attributes {
    let mut found = Attributes::default();
    while let Some(length) = length_at(bytes, 2, ATTRIBUTE_HEADER_BYTES) {
        // The two bits above are flags.
        let kind = u16_at(bytes, 2).unwrap_or_default() & ATTRIBUTE_KIND;
        let value = match bytes[ATTRIBUTE_HEADER_BYTES..length] {
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
            [a, b] => Some(u32::from(u16::from_ne_bytes([a, b]))),
            _ => None,
        };
        found.0.extend(value.map(|value| (kind, value)));
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
    found
}

/// The length that begins a message or an attribute, if it is one: not shorter than its header, not beyond the end.
fn length_at(bytes: &[u8], width: usize, header: usize) -> Option<usize> {
    let length = match width {
        2 => usize::from(u16_at(bytes, 0)?),
        _ => usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?,
    };
    (length >= header && length <= bytes.len()).then_some(length)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pairs: &[(u16, u32)]) -> Attributes {
        Attributes(pairs.to_vec())
    }

    #[test]
    fn a_message_is_read_back_as_it_was_written() {
        let mut datagram = message(0x20, 0, QUEUE_GET, 2, &7_u32.to_ne_bytes());
        datagram.extend(message(0x20, 0, QUEUE_GET, 1, &3_u32.to_ne_bytes()));
        let mut answer = Dump::default();
        assert!(!parse(&datagram, &mut answer).expect("no error in it"));
        assert_eq!(answer.messages, [numbers(&[(2, 7)]), numbers(&[(1, 3)])]);
        assert!(!answer.interrupted);
    }

    #[test]
    fn an_error_is_told_and_the_end_of_a_dump_is_seen() {
        for kind in [ERROR, DONE] {
            let mut last = message(kind, 0, 0, 0, &[]);
            let mut answer = Dump::default();
            assert!(parse(&last, &mut answer).expect("no error"));
            last[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-nix::libc::ENOBUFS).to_ne_bytes());
            let error = parse(&last, &mut answer).expect_err("an error, also at the end of a dump");
            assert_eq!(error.raw_os_error(), Some(nix::libc::ENOBUFS));
            assert_eq!(answer.messages, [], "neither has attributes");
        }
    }

    #[test]
    fn a_dump_that_something_changed_under_is_asked_for_again_and_not_for_ever() {
        let mut datagram = message(0x20, DUMP_INTERRUPTED, QUEUE_GET, 1, &3_u32.to_ne_bytes());
        datagram.extend(message(DONE, 0, 0, 0, &[]));
        let interrupted = || {
            let mut answer = Dump::default();
            assert!(parse(&datagram, &mut answer)?, "the end is seen");
            Ok(answer)
        };
        let mut asked = 0;
        let found = whole(|| {
            asked += 1;
            if asked < 3 { interrupted() } else { Ok(Dump { messages: vec![numbers(&[(1, 0)])], interrupted: false }) }
        });
        assert_eq!((found.expect("the third answer is whole"), asked), (vec![numbers(&[(1, 0)])], 3));
        let error = whole(interrupted).expect_err("it never ends");
        assert!(error.to_string().contains("the queues changed"), "{error}");
    }

    #[test]
    fn queues_are_joined_with_their_contexts() {
        let queues = [
            numbers(&[(1, 1), (3, 0), (4, 258)]),
            numbers(&[(1, 0), (3, 0), (4, 257)]),
            numbers(&[(1, 0), (3, 1), (4, 259)]),
            numbers(&[(1, 2), (3, 0)]),
        ];
        let contexts = [numbers(&[(2, 257), (3, 45)]), numbers(&[(2, 258), (4, 99)])];
        let expected = [
            NetdevQueue { queue: 0, napi: Some(257), interrupt: Some(45), thread: None },
            NetdevQueue { queue: 1, napi: Some(258), interrupt: None, thread: Some(99) },
            NetdevQueue { queue: 2, ..NetdevQueue::default() },
        ];
        assert_eq!(join(&queues, &contexts), expected);
    }

    #[test]
    fn the_running_kernel_is_asked_without_privileges_and_answers_for_loopback() {
        // Loopback has no polling contexts; a kernel without the family answers with nothing at all.
        let queues = Netlink.receive_queues(1).expect("an answer or none");
        assert!(queues.iter().all(|queue| queue.napi.is_none() && queue.interrupt.is_none()), "{queues:?}");
    }

    #[test]
    fn no_datagram_makes_the_parser_panic_or_hang() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let template = message(0x20, 0, QUEUE_GET, 2, &7_u32.to_ne_bytes());
        for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 1_000_000 } {
            let mut bytes = template.repeat(3);
            for _ in 0..next() % 6 {
                let at = usize::try_from(next()).unwrap_or_default() % bytes.len();
                bytes[at] = next().to_ne_bytes()[0];
            }
            bytes.truncate(usize::try_from(next() % 90).expect("small"));
            let mut answer = Dump::default();
            let _ = parse(&bytes, &mut answer);
            assert!(answer.messages.len() <= 6);
        }
    }
}
