//! How many records an IPFIX message has: its sets, as far as their headers and the lengths in templates tell. No field
//! of a record is looked at, so the records of a template with fields of variable length have a least and a greatest
//! number.

use super::header::short;

/// What a set says of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// Records of a template take so many bytes together.
    Records { template: u16, bytes: u16 },
    /// A template: how long a record of it is at least, and whether it can be longer.
    Template { template: u16, record_bytes: u16, is_variable: bool, is_options: bool },
}

const MESSAGE_HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
const FIRST_OF_RECORDS: u16 = 256;
const VARIABLE: u16 = u16::MAX;
const ENTERPRISE: u16 = 0x8000;

/// Visits what every set of a message says. False when some of it cannot be read: it is truncated or damaged.
pub(super) fn each_set(payload: &[u8], mut visit: impl FnMut(Set) -> bool) -> bool {
    let length = short(payload, 2).map_or(0, usize::from);
    let is_whole = (MESSAGE_HEADER_BYTES..=payload.len()).contains(&length);
    let length = length.min(payload.len());
    let mut rest = payload.get(MESSAGE_HEADER_BYTES..length).unwrap_or_default();
    while let (Some(id), Some(bytes)) = (short(rest, 0), short(rest, 2)) {
        let Some(content) = rest.get(SET_HEADER_BYTES..usize::from(bytes)) else { return false };
        let is_right = match id {
            TEMPLATES => each_template(content, false, &mut visit),
            OPTIONS_TEMPLATES => each_template(content, true, &mut visit),
            FIRST_OF_RECORDS.. => visit(Set::Records { template: id, bytes: content.len() as u16 }),
            _ => true,
        };
        if !is_right {
            return false;
        }
        rest = &rest[usize::from(bytes)..];
    }
    is_whole && rest.len() < SET_HEADER_BYTES
}

fn each_template(mut content: &[u8], is_options: bool, visit: &mut impl FnMut(Set) -> bool) -> bool {
    // Less than a header is padding, and so are zeros.
    while let (Some(template), Some(fields)) = (short(content, 0), short(content, 2)) {
        if template < FIRST_OF_RECORDS {
            return true;
        }
        let is_withdrawn = fields == 0;
        let mut at = if is_options && !is_withdrawn { 6 } else { 4 };
        let (mut record_bytes, mut is_variable) = (0_u16, false);
        for _ in 0..fields {
            let (Some(element), Some(length)) = (short(content, at), short(content, at + 2)) else { return false };
            at += if element & ENTERPRISE == 0 { 4 } else { 8 };
            is_variable |= length == VARIABLE;
            // A field of variable length begins with a byte that says how long it is.
            record_bytes = record_bytes.saturating_add(if length == VARIABLE { 1 } else { length });
        }
        let Some(rest) = content.get(at..) else { return false };
        if !visit(Set::Template { template, record_bytes, is_variable, is_options }) {
            return false;
        }
        content = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sets: &[&[u16]]) -> Vec<u8> {
        let words = sets.iter().flat_map(|set| [&[set[0], 2 * set.len() as u16 + 2], &set[1..]].concat());
        let mut payload: Vec<u8> = [0; 16].into_iter().chain(words.flat_map(u16::to_be_bytes)).collect();
        payload[1] = 10;
        let length = (payload.len() as u16).to_be_bytes();
        payload[2..4].copy_from_slice(&length);
        payload
    }

    fn read(payload: &[u8]) -> (Vec<Set>, bool) {
        let mut sets = Vec::new();
        let is_whole = each_set(payload, |set| {
            sets.push(set);
            true
        });
        (sets, is_whole)
    }

    #[test]
    fn templates_give_the_length_of_a_record_and_sets_the_bytes_of_all() {
        let payload = message(&[
            // Template 256: two fields of 4 and 2 bytes, one of an enterprise with 8, one of variable length.
            &[2, 256, 4, 8, 4, 7, 2, 0x8001, 8, 0, 9, 82, u16::MAX],
            // Options template 300 with one scope field of 4 bytes and a counter of 8; padding.
            &[3, 300, 2, 1, 149, 4, 41, 8, 0],
            &[256, 1, 2, 3],
        ]);
        let expected = [
            Set::Template { template: 256, record_bytes: 15, is_variable: true, is_options: false },
            Set::Template { template: 300, record_bytes: 12, is_variable: false, is_options: true },
            Set::Records { template: 256, bytes: 6 },
        ];
        assert_eq!(read(&payload), (expected.to_vec(), true));
    }

    #[test]
    fn what_is_cut_anywhere_says_so_and_never_panics() {
        let payload = message(&[&[2, 256, 2, 8, 4, 7, 2], &[256, 1, 2, 3]]);
        for length in 0..payload.len() {
            assert!(!read(&payload[..length]).1, "{length}");
        }
        for at in 0..payload.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = payload.clone();
                damaged[at] = byte;
                read(&damaged);
            }
        }
    }
}
