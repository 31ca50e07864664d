//! Fuzz targets: what the kernel answers by netlink.

use crate::generic::{self, GenericFamily};
use crate::sock_diag;
use crate::socket::read_answer;
use crate::{Attributes, NetlinkMessage, NetlinkRequest, attribute, messages};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("netlink", datagram)]
}

/// Each step goes forward, what is read and written again is read as the same, and nothing is read twice.
fn datagram(input: &[u8]) {
    let mut read = messages(input);
    let all: Vec<NetlinkMessage<'_>> = read.by_ref().collect();
    assert!(all.len() <= input.len() / 16);
    assert!(all.iter().map(|message| message.payload.len() + 16).sum::<usize>() <= input.len());
    for message in &all {
        let again = NetlinkRequest::new(message.kind).bytes(message.payload).encode(message.flags, message.sequence);
        let mut again = messages(&again);
        assert_eq!(again.next(), Some(*message));
        assert!(again.next().is_none() && !again.is_cut_off());
        attributes(message.attributes(0), message.payload.len(), 4);
        attributes(message.attributes(generic::HEADER_BYTES), message.payload.len(), 4);
        let _ = GenericFamily::read(*message).map(|family| family.group("monitor"));
        let _ = sock_diag::read(message.payload);
    }
    let (mut is_consistent, mut visited) = (true, 0);
    let end = read_answer(input, 7, &mut is_consistent, &mut |message| {
        assert_eq!(message.sequence, 7);
        visited += 1;
    });
    assert!(visited <= all.iter().filter(|message| message.sequence == 7).count());
    let has_end = all.iter().any(|message| message.sequence == 7 && matches!(message.kind, 2 | 3));
    assert!(has_end || end.is_err() == read.is_cut_off());
    let _ = sock_diag::read(input);
}

/// Attributes in attributes, down to a depth.
fn attributes(own: Attributes<'_>, length: usize, depth: usize) {
    let each: Vec<(u16, &[u8])> = own.each().collect();
    assert!(each.iter().map(|(_, value)| value.len() + 4).sum::<usize>() <= length);
    for (kind, value) in each {
        let written = attribute(kind, value);
        assert_eq!(Attributes::new(&written).bytes(kind), Some(value));
        assert!(own.number(kind).is_none() || own.wide(kind) == own.number(kind).map(u64::from));
        assert!(own.text(kind).is_some_and(|text| !text.contains('\0')));
        if depth > 0 {
            attributes(Attributes::new(value), value.len(), depth - 1);
        }
    }
}
