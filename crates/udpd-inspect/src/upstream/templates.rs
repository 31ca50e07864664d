//! The templates of NetFlow 9 and IPFIX: found in a datagram, kept as sets, and made into datagrams again.
//!
//! A collector reads no record of an exporter before it has the exporter's template, which most exporters send every
//! few minutes. So who leads the datagrams of an exporter to another collector has to send the templates first.
//!
//! A datagram made here has the header of the one that it goes before, so that domain and clocks are right. Collectors
//! count numbers that do not come, so its number is one that leaves no gap: in NetFlow 9, which counts datagrams, the
//! numbers just before that one, and in IPFIX, which counts records and no templates, the same.

use super::header::{short, version};

/// What tells one exporter from others of the same address and port: the version and its domain (source ID).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExporterDomain {
    version: u16,
    domain: u32,
}

impl ExporterDomain {
    pub fn of(payload: &[u8]) -> Option<Self> {
        let wire = Wire::of(payload)?;
        let domain = u32::from_be_bytes(*payload.get(wire.header_bytes - 4..)?.first_chunk()?);
        Some(Self { version: wire.version, domain })
    }
}

/// How a version is laid out.
#[derive(Debug, Clone, Copy)]
struct Wire {
    version: u16,
    /// The domain is at its end.
    header_bytes: usize,
    /// The number of sets of templates; the next one is of sets of templates for options.
    templates: u16,
}

const NETFLOW9: Wire = Wire { version: 9, header_bytes: 20, templates: 0 };
const IPFIX: Wire = Wire { version: 10, header_bytes: 16, templates: 2 };

/// Sets begin with their number and their length.
const SET_HEADER_BYTES: usize = 4;
const TEMPLATE_ID_MIN: u16 = 256;
const ENTERPRISE: u16 = 0x8000;

impl Wire {
    #[inline]
    fn of(payload: &[u8]) -> Option<Wire> {
        match version(payload)? {
            9 => Some(NETFLOW9),
            10 => Some(IPFIX),
            _ => None,
        }
    }

    /// The sets of templates in a datagram.
    fn template_sets(self, payload: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
        let is_of_templates = move |&(id, _): &(u16, &[u8])| id == self.templates || id == self.templates + 1;
        each_set(payload.get(self.header_bytes..).unwrap_or_default()).filter(is_of_templates)
    }

    /// How long the first template of a set is; `None` where it is padding or cut off.
    fn template_bytes(self, set: u16, content: &[u8]) -> Option<usize> {
        let is_options = set != self.templates;
        let (id, count) = (short(content, 0)?, usize::from(short(content, 2)?));
        let bytes = match self.version {
            _ if id < TEMPLATE_ID_MIN => return None,
            // Two lengths in bytes: of the scope, and of the options.
            9 if is_options => 6 + count + usize::from(short(content, 4)?),
            9 => 4 + 4 * count,
            // A withdrawal.
            _ if count == 0 => 4,
            _ => {
                let mut at = if is_options { 6 } else { 4 };
                for _ in 0..count {
                    at += if short(content, at)? & ENTERPRISE == 0 { 4 } else { 8 };
                }
                at
            }
        };
        (bytes <= content.len()).then_some(bytes)
    }
}

/// Numbers and contents of sets that stand one behind the other, up to one that is damaged.
fn each_set(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (id, bytes) = (short(rest, 0)?, usize::from(short(rest, 2)?));
        let content = rest.get(SET_HEADER_BYTES..bytes)?;
        rest = &rest[bytes..];
        Some((id, content))
    })
}

/// Whether there is a template in a datagram. Of most datagrams this reads a version and the length of a set.
#[inline]
pub fn has_templates(payload: &[u8]) -> bool {
    Wire::of(payload).is_some_and(|wire| wire.template_sets(payload).next().is_some())
}

/// The templates of one exporter, each in a set of its own, which is how every collector reads them.
#[derive(Debug)]
pub struct TemplateSets<'a> {
    /// Room for them, of a fixed size.
    pub room: &'a mut [u8],
    /// How much of it is in use.
    pub bytes: &'a mut usize,
}

impl TemplateSets<'_> {
    /// Takes the templates of a datagram, in place of those with the same numbers. Returns how many others were
    /// forgotten for want of room, the oldest first.
    pub fn take(&mut self, payload: &[u8]) -> u64 {
        let Some(wire) = Wire::of(payload) else { return 0 };
        let mut forgotten = 0;
        for (set, mut content) in wire.template_sets(payload) {
            while let Some(bytes) = wire.template_bytes(set, content) {
                let (template, rest) = content.split_at(bytes);
                forgotten += self.take_one(set, template);
                content = rest;
            }
        }
        forgotten
    }

    fn take_one(&mut self, set: u16, template: &[u8]) -> u64 {
        let set_bytes = SET_HEADER_BYTES + template.len().next_multiple_of(4);
        let (mut at, mut replaced) = (0, None);
        for (own_set, own) in each_set(&self.room[..*self.bytes]) {
            if own[..2] == template[..2] {
                if own_set == set && own.starts_with(template) && SET_HEADER_BYTES + own.len() == set_bytes {
                    return 0;
                }
                replaced = Some(at);
                break;
            }
            at += SET_HEADER_BYTES + own.len();
        }
        if let Some(at) = replaced {
            self.remove(at);
        }
        // A withdrawal, of IPFIX.
        let is_withdrawn = template.len() == 4;
        if is_withdrawn || set_bytes > self.room.len() {
            return u64::from(!is_withdrawn);
        }
        let mut forgotten = 0;
        while *self.bytes + set_bytes > self.room.len() {
            self.remove(0);
            forgotten += 1;
        }
        let room = &mut self.room[*self.bytes..][..set_bytes];
        room.fill(0);
        room[..2].copy_from_slice(&set.to_be_bytes());
        // A set in a datagram is no longer than this number holds.
        room[2..4].copy_from_slice(&(set_bytes as u16).to_be_bytes());
        room[SET_HEADER_BYTES..][..template.len()].copy_from_slice(template);
        *self.bytes += set_bytes;
        forgotten
    }

    /// Removes the set that begins at this byte.
    fn remove(&mut self, at: usize) {
        let end = at + short(self.room, at + 2).map_or(0, usize::from);
        self.room.copy_within(end..*self.bytes, at);
        *self.bytes -= end - at;
    }
}

/// How many templates such sets are.
pub fn count_templates(sets: &[u8]) -> u64 {
    each_set(sets).count() as u64
}

/// Any route takes a datagram of this length whole, also over IPv6 and with a PROXY header before it.
const REPEAT_BYTES_MAX: usize = 1180;

/// Makes datagrams of these sets that go before `next`, a datagram of the same exporter. Each is built in `buffer`.
pub fn repeat(sets: &[u8], next: &[u8], buffer: &mut Vec<u8>, mut send: impl FnMut(&[u8])) {
    let Some((wire, header)) = Wire::of(next).and_then(|wire| Some((wire, next.get(..wire.header_bytes)?))) else {
        return;
    };
    let parts = || {
        let mut rest = sets;
        std::iter::from_fn(move || {
            let room = REPEAT_BYTES_MAX - wire.header_bytes;
            let (mut bytes, mut templates) = (0, 0_u16);
            for (_, content) in each_set(rest) {
                let with_next = bytes + SET_HEADER_BYTES + content.len();
                if templates > 0 && with_next > room {
                    break;
                }
                (bytes, templates) = (with_next, templates + 1);
            }
            let (part, behind) = rest.split_at(bytes);
            rest = behind;
            (templates > 0).then_some((part, templates))
        })
    };
    let mut before = parts().count() as u32;
    for (part, templates) in parts() {
        buffer.clear();
        buffer.extend_from_slice(header);
        buffer.extend_from_slice(part);
        if wire.version == NETFLOW9.version {
            buffer[2..4].copy_from_slice(&templates.to_be_bytes());
            let number = u32::from_be_bytes([header[12], header[13], header[14], header[15]]).wrapping_sub(before);
            buffer[12..16].copy_from_slice(&number.to_be_bytes());
        } else {
            // Above REPEAT_BYTES_MAX it is one set, and a set has such a length.
            let length = buffer.len() as u16;
            buffer[2..4].copy_from_slice(&length.to_be_bytes());
        }
        before -= 1;
        send(buffer);
    }
}

#[cfg(test)]
#[path = "templates_tests.rs"]
mod tests;
