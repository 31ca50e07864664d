//! Netlink, as far as this crate speaks it: a question and its answer, the families of generic netlink and their
//! groups. Written by hand, because it is a handful of messages, and the crates that know the families have ten
//! thousand lines.
//!
//! Whatever the lengths in a datagram say, nothing outside of it is read, and each step gets on by at least a header.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

// Each number with its name in the kernel's headers: linux/netlink.h, linux/genetlink.h.
pub(crate) const REQUEST: u16 = 0x1; // NLM_F_REQUEST
pub(crate) const DUMP: u16 = 0x300; // NLM_F_DUMP
const DUMP_INTERRUPTED: u16 = 0x10; // NLM_F_DUMP_INTR
const ERROR: u16 = 2; // NLMSG_ERROR
const DONE: u16 = 3; // NLMSG_DONE
const HEADER_BYTES: usize = 16; // NLMSG_HDRLEN
const ATTRIBUTE_HEADER_BYTES: usize = 4; // NLA_HDRLEN
const ATTRIBUTE_KIND: u16 = 0x3fff; // NLA_TYPE_MASK
const ALIGNMENT: usize = 4; // NLMSG_ALIGNTO, NLA_ALIGNTO
pub(crate) const GENERIC_HEADER_BYTES: usize = 4; // GENL_HDRLEN
const CONTROL_FAMILY: u16 = 0x10; // GENL_ID_CTRL
const GET_FAMILY: u8 = 3; // CTRL_CMD_GETFAMILY
const FAMILY_ID: u16 = 1; // CTRL_ATTR_FAMILY_ID
const FAMILY_NAME: u16 = 2; // CTRL_ATTR_FAMILY_NAME
const FAMILY_GROUPS: u16 = 7; // CTRL_ATTR_MCAST_GROUPS
const GROUP_NAME: u16 = 1; // CTRL_ATTR_MCAST_GRP_NAME
const GROUP_ID: u16 = 2; // CTRL_ATTR_MCAST_GRP_ID
const VERSION: u8 = 1; // NETDEV_FAMILY_VERSION, ETHTOOL_GENL_VERSION, and what the control family takes as well

/// How often something may come and go while it is dumped.
const ATTEMPTS: usize = 4;
/// Answers come in messages of at most this; more of them than this bound is not the kernel.
pub(crate) const DATAGRAM_BYTES: usize = 64 * 1024;
const DATAGRAMS_MAX: usize = 4096;

/// A socket to ask with.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let socket = listen(SockProtocol::NetlinkGeneric)?;
    // The kernel answers at once; this only keeps a surprise from becoming a hang.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
    Ok(socket)
}

/// A socket that waits for as long as it takes.
pub(crate) fn listen(protocol: SockProtocol) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?)
}

/// The numbers that this boot gave to a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) id: u16,
    /// Its multicast groups, each by its name.
    groups: Vec<(String, u32)>,
}

impl Family {
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(own, _)| own == name).map(|(_, id)| *id)
    }
}

/// Asks for a family; `None` when the kernel does not have it.
pub(crate) fn family(socket: &OwnedFd, name: &str) -> io::Result<Option<Family>> {
    let zero_ended = [name.as_bytes(), b"\0"].concat();
    let request = message(CONTROL_FAMILY, REQUEST, GET_FAMILY, FAMILY_NAME, &zero_ended);
    match exchange(socket, &request, false) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(None),
        answer => Ok(answer?.messages.iter().find_map(|answer| family_in(Attributes(answer)))),
    }
}

fn family_in(answer: Attributes<'_>) -> Option<Family> {
    let id = u16::try_from(answer.number(FAMILY_ID)?).ok()?;
    let group = |(_, bytes)| Some((Attributes(bytes).text(GROUP_NAME)?, Attributes(bytes).number(GROUP_ID)?));
    Some(Family { id, groups: answer.nested(FAMILY_GROUPS).each().filter_map(group).collect() })
}

/// Asks until nothing has changed while the kernel answered: what it tells otherwise may lack something or have it
/// twice.
pub(crate) fn whole(mut ask: impl FnMut() -> io::Result<Dump>) -> io::Result<Vec<Vec<u8>>> {
    for _ in 0..ATTEMPTS {
        let answer = ask()?;
        if !answer.interrupted {
            return Ok(answer.messages);
        }
    }
    Err(io::Error::other(format!("the queues changed while the kernel told of them, in each of {ATTEMPTS} attempts")))
}

/// The header of a question about everything, with this many bytes to come.
pub(crate) fn header(kind: u16, payload_bytes: usize) -> Vec<u8> {
    begin(kind, REQUEST | DUMP, HEADER_BYTES + payload_bytes)
}

fn begin(kind: u16, flags: u16, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).expect("a short message").to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // nlmsg_seq and nlmsg_pid: one question at a time on a socket of its own.
    bytes.extend([0; 8]);
    bytes
}

/// A message of generic netlink with one attribute.
pub(crate) fn message(kind: u16, flags: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let attribute_bytes = ATTRIBUTE_HEADER_BYTES + value.len();
    let length = HEADER_BYTES + GENERIC_HEADER_BYTES + attribute_bytes.next_multiple_of(ALIGNMENT);
    let mut bytes = begin(kind, flags, length);
    bytes.extend([command, VERSION, 0, 0]);
    bytes.extend(u16::try_from(attribute_bytes).expect("a short attribute").to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// What the kernel answered.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    /// What stands behind the header of each message: attributes, to be read as [`Attributes`].
    pub(crate) messages: Vec<Vec<u8>>,
    /// Something changed while it answered.
    interrupted: bool,
}

/// One question and its answer, which goes on until its end is told when it is a dump.
pub(crate) fn exchange(socket: &OwnedFd, request: &[u8], dump: bool) -> io::Result<Dump> {
    let kernel = NetlinkAddr::new(0, 0);
    uninterrupted(|| sendto(socket.as_raw_fd(), request, &kernel, MsgFlags::empty()))?;
    let (mut buffer, mut answer) = (vec![0; DATAGRAM_BYTES], Dump::default());
    for _ in 0..DATAGRAMS_MAX {
        let length = uninterrupted(|| recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()))?;
        if parse(&buffer[..length], &mut answer)? || !dump {
            return Ok(answer);
        }
    }
    Err(io::Error::other("the kernel's answer over netlink does not end"))
}

/// A signal that somebody handles ends a call, and says nothing of the kernel's answer.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}

/// Reads the messages of one datagram. True when the last one was the end of a dump.
fn parse(datagram: &[u8], answer: &mut Dump) -> io::Result<bool> {
    for message in messages(datagram) {
        answer.interrupted |= message.flags & DUMP_INTERRUPTED != 0;
        if let Some(end) = dump_end(message) {
            return end.map(|()| true);
        }
        answer.messages.push(message.payload.get(GENERIC_HEADER_BYTES..).unwrap_or_default().to_vec());
    }
    Ok(false)
}

/// What the last message of an answer says; `None` for every other.
pub(crate) fn dump_end(Message { kind, payload, .. }: Message<'_>) -> Option<io::Result<()>> {
    if !matches!(kind, DONE | ERROR) {
        return None;
    }
    // Both carry an error, or 0: a dump that fails in the middle ends with its errno in the last message.
    let errno = payload.get(..4).map_or(0, |bytes| i32::from_ne_bytes(bytes.try_into().expect("four")));
    Some(if errno < 0 { Err(io::Error::from_raw_os_error(errno.saturating_neg())) } else { Ok(()) })
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    flags: u16,
    pub(crate) payload: &'a [u8],
}

/// The messages of one datagram.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let payload = datagram.get(HEADER_BYTES..length)?;
        let message = Message { kind: u16_at(datagram, 4)?, flags: u16_at(datagram, 6)?, payload };
        datagram = datagram.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes of a message, or of an attribute that has some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn each(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut bytes = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16_at(bytes, 0)?);
            let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
            // The two bits above are flags.
            let kind = u16_at(bytes, 2)? & ATTRIBUTE_KIND;
            bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub(crate) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.each().find(|(other, _)| *other == kind).map(|(_, value)| value)
    }

    /// A number of two or four bytes.
    pub(crate) fn number(self, kind: u16) -> Option<u32> {
        match *self.bytes(kind)? {
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
            [a, b] => Some(u32::from(u16::from_ne_bytes([a, b]))),
            _ => None,
        }
    }

    /// A number of four or eight bytes, as long as the kernel found it.
    pub(crate) fn wide(self, kind: u16) -> Option<u64> {
        match *self.bytes(kind)? {
            [a, b, c, d, e, f, g, h] => Some(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => self.number(kind).map(u64::from),
        }
    }

    /// A text, without the zero that ends it.
    pub(crate) fn text(self, kind: u16) -> Option<String> {
        let text = self.bytes(kind)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The attributes inside of an attribute; none where there is no such one.
    pub(crate) fn nested(self, kind: u16) -> Self {
        Self(self.bytes(kind).unwrap_or_default())
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One attribute, padded.
    pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()).expect("a short attribute");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    /// Attributes that are numbers.
    pub(crate) fn numbers(pairs: &[(u16, u32)]) -> Vec<u8> {
        pairs.iter().flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes())).collect()
    }

    /// A message with this behind its header.
    pub(crate) fn raw(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_BYTES + payload.len()).expect("a short message");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(payload);
        bytes
    }

    /// Damages a template in a few places and cuts it off somewhere, a million times (fewer in a slow build).
    pub(crate) fn mutate(template: &[u8], mut read: impl FnMut(&[u8])) {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state).unwrap_or_default()
        };
        for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 1_000_000 } {
            let mut bytes = template.to_vec();
            for _ in 0..next() % 6 {
                let at = next() % bytes.len();
                bytes[at] = next().to_ne_bytes()[0];
            }
            bytes.truncate(next() % (template.len() + 1));
            read(&bytes);
        }
    }

    #[test]
    fn a_message_is_read_back_as_it_was_written() {
        let mut datagram = message(0x20, 0, 10, 2, &7_u32.to_ne_bytes());
        datagram.extend(message(0x20, 0, 10, 1, &3_u32.to_ne_bytes()));
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
            assert!(answer.messages.is_empty(), "neither has attributes");
        }
    }

    #[test]
    fn a_dump_that_something_changed_under_is_asked_for_again_and_not_for_ever() {
        let mut datagram = message(0x20, DUMP_INTERRUPTED, 10, 1, &3_u32.to_ne_bytes());
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
    fn a_call_that_a_signal_ended_is_made_again() {
        let mut outcomes = [Err(Errno::EINTR), Err(Errno::EINTR), Ok(7), Ok(8)].into_iter();
        assert_eq!(uninterrupted(|| outcomes.next().expect("one more")), Ok(7));
        let mut outcomes = [Err::<usize, _>(Errno::EAGAIN), Ok(8)].into_iter();
        assert_eq!(uninterrupted(|| outcomes.next().expect("one more")), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_family_is_read_with_its_groups() {
        let group = |name: &[u8], id: u32| [attribute(GROUP_NAME, name), numbers(&[(GROUP_ID, id)])].concat();
        let groups = [attribute(1, &group(b"other\0", 4)), attribute(2, &group(b"monitor\0", 40))].concat();
        let answer = [attribute(FAMILY_ID, &21_u16.to_ne_bytes()), attribute(FAMILY_GROUPS, &groups)].concat();
        let family = family_in(Attributes(&answer)).expect("a family");
        assert_eq!((family.id, family.group("monitor"), family.group("none")), (21, Some(40), None));
    }

    #[test]
    fn no_datagram_makes_the_parser_panic_or_hang() {
        let template = message(0x20, 0, 10, 2, &7_u32.to_ne_bytes()).repeat(3);
        mutate(&template, |bytes| {
            let mut answer = Dump::default();
            let _ = parse(bytes, &mut answer);
            assert!(answer.messages.len() <= 6);
            for message in &answer.messages {
                let _ = family_in(Attributes(message));
            }
        });
    }
}
