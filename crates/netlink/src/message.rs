//! The bytes of netlink: requests are written, messages and their attributes are read.
//!
//! Whatever the lengths in a datagram claim, nothing outside of it is read, and each step goes on by at least a header.

// Each number with its name in linux/netlink.h and linux/genetlink.h.
pub(crate) const HEADER_BYTES: usize = 16; // NLMSG_HDRLEN
const ATTRIBUTE_HEADER_BYTES: usize = 4; // NLA_HDRLEN
const ATTRIBUTE_KIND: u16 = 0x3fff; // NLA_TYPE_MASK
const ALIGNMENT: usize = 4; // NLMSG_ALIGNTO, NLA_ALIGNTO

/// A message to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkRequest {
    bytes: Vec<u8>,
    flags: u16,
}

impl NetlinkRequest {
    /// A request of this kind (`nlmsg_type`), with nothing behind its header yet.
    pub fn new(kind: u16) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        Self { bytes, flags: 0 }
    }

    /// Adds flags of the kind's own (`nlmsg_flags`), as in `NLM_F_CREATE`. The socket adds those of the transport.
    #[must_use]
    pub fn flags(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }

    /// Adds bytes as they are: the fixed structure of the kind, or attributes that are already written.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.bytes(&attribute(kind, value))
    }

    /// The whole message.
    pub fn encode(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("a request is short");
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&(self.flags | flags).to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// The bytes of one attribute, padded, so that another one may follow. An attribute with attributes in it has their
/// bytes as its value.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()).expect("an attribute is short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}

/// A message from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetlinkMessage<'a> {
    /// What it is (`nlmsg_type`).
    pub kind: u16,
    /// Its `nlmsg_flags`.
    pub flags: u16,
    /// The sequence number of the request that it answers (`nlmsg_seq`).
    pub sequence: u32,
    /// Everything behind its header.
    pub payload: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    /// The attributes behind a fixed structure of this length; none where the message is too short for them.
    pub fn attributes(&self, structure_bytes: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(structure_bytes..).unwrap_or_default())
    }
}

/// The messages of one datagram.
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

/// Goes through the messages of one datagram, up to the first one that is cut off.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl Messages<'_> {
    /// Whether the iteration has ended before a message that is cut off or shorter than its own header.
    pub fn is_cut_off(&self) -> bool {
        self.rest.len() >= HEADER_BYTES
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = NetlinkMessage<'a>;

    fn next(&mut self) -> Option<NetlinkMessage<'a>> {
        let length = usize::try_from(u32::from_ne_bytes(field(self.rest, 0)?)).ok()?;
        let message = NetlinkMessage {
            kind: u16::from_ne_bytes(field(self.rest, 4)?),
            flags: u16::from_ne_bytes(field(self.rest, 6)?),
            sequence: u32::from_ne_bytes(field(self.rest, 8)?),
            payload: self.rest.get(HEADER_BYTES..length)?,
        };
        self.rest = self.rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(message)
    }
}

/// The attributes of a message, or of an attribute that has some in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Reads these bytes as attributes, one after the other.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Each attribute: its kind without the flags in it, and its value. What is cut off is left out.
    pub fn each(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_ne_bytes(field(rest, 0)?));
            let kind = u16::from_ne_bytes(field(rest, 2)?) & ATTRIBUTE_KIND;
            let value = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
            rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    /// The value of the first attribute of this kind.
    pub fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.each().find(|(other, _)| *other == kind).map(|(_, value)| value)
    }

    /// A number of two or four bytes.
    pub fn number(self, kind: u16) -> Option<u32> {
        match *self.bytes(kind)? {
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
            [a, b] => Some(u32::from(u16::from_ne_bytes([a, b]))),
            _ => None,
        }
    }

    /// A number of four or eight bytes: the kernel writes a counter (`NLA_UINT`) as short as its value allows.
    pub fn wide(self, kind: u16) -> Option<u64> {
        match *self.bytes(kind)? {
            [a, b, c, d, e, f, g, h] => Some(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => self.number(kind).map(u64::from),
        }
    }

    /// A text, without the zero that ends it.
    pub fn text(self, kind: u16) -> Option<String> {
        let text = self.bytes(kind)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The attributes inside of an attribute; none where there is no such one.
    pub fn nested(self, kind: u16) -> Self {
        Self(self.bytes(kind).unwrap_or_default())
    }
}

/// The bytes of a field at a place in a structure; `None` where the structure ends before.
pub fn field<const BYTES: usize>(structure: &[u8], at: usize) -> Option<[u8; BYTES]> {
    structure.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mutate, numbers, recorded};

    /// What `ip link add udpd0 type veth` (iproute2) sends.
    const NEW_LINK: &str = "3800000010000506 014a056b00000000 00000000000000000000000000000000
        0a000300 756470643000 0000 0c001200 08000100 76657468";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_request_is_written_as_iproute2_writes_it_and_read_back_as_it_was_written() {
        const SEQUENCE: u32 = 1_795_508_737;
        let recorded = recorded(NEW_LINK);
        let request = NetlinkRequest::new(16).flags(0x600).bytes(&[0; 16]).attribute(3, b"udpd0\0");
        assert_eq!(request.attribute(18, &attribute(1, b"veth")).encode(0x5, SEQUENCE), recorded);
        let mut read = messages(&recorded);
        let message = read.next().expect("one message");
        assert_eq!((message.kind, message.flags, message.sequence), (16, 0x605, SEQUENCE));
        assert_eq!(message.attributes(16).text(3).as_deref(), Some("udpd0"));
        assert_eq!(message.attributes(16).nested(18).bytes(1), Some(&b"veth"[..]));
        assert_eq!((read.next(), read.is_cut_off()), (None, false));
    }

    #[test]
    fn numbers_are_read_at_each_length_that_the_kernel_writes() {
        let bytes =
            [attribute(1, &7_u16.to_ne_bytes()), numbers(&[(2, 8)]), attribute(3, &(1_u64 << 40).to_ne_bytes())];
        let bytes = bytes.concat();
        let read = Attributes::new(&bytes);
        assert_eq!((read.number(1), read.number(2), read.number(3)), (Some(7), Some(8), None));
        assert_eq!((read.wide(1), read.wide(2), read.wide(3)), (Some(7), Some(8), Some(1 << 40)));
        let flagged = attribute(0x8004, &8_u32.to_ne_bytes());
        assert_eq!(Attributes::new(&flagged).number(4), Some(8), "the two bits above are flags");
    }

    #[test]
    fn a_message_that_is_cut_off_ends_the_iteration_and_is_noticed() {
        let whole = NetlinkRequest::new(20).bytes(&[1; 8]).encode(0, 1).repeat(2);
        for (length, count, is_cut_off) in
            [(48, 2, false), (47, 1, true), (40, 1, true), (39, 1, false), (24, 1, false)]
        {
            let mut read = messages(&whole[..length]);
            assert_eq!((read.by_ref().count(), read.is_cut_off()), (count, is_cut_off), "{length} bytes");
        }
        let short = [&[15, 0, 0, 0][..], &[0; 12]].concat();
        let mut read = messages(&short);
        assert_eq!((read.next(), read.is_cut_off()), (None, true), "a length that is less than a header");
    }

    #[test]
    fn no_datagram_makes_the_reader_panic_or_hang() {
        let template = NetlinkRequest::new(20).bytes(&[0; 4]).attribute(2, &numbers(&[(1, 3)])).encode(0, 1).repeat(3);
        mutate(&template, |bytes| {
            let read: Vec<NetlinkMessage<'_>> = messages(bytes).collect();
            assert!(read.len() <= bytes.len() / HEADER_BYTES);
            for message in read {
                let attributes = message.attributes(4);
                let _ = (attributes.nested(2).each().count(), attributes.wide(2), attributes.text(2));
            }
        });
    }
}
