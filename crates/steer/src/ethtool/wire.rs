//! Requests and answers of the ethtool ioctl as bytes. Pure: what a driver answers is data like any other, and no answer
//! may make this read outside of it or allocate without bound.
//!
//! Fields are written and read at their offsets instead of through structures, because some of the kernel's structures
//! carry data inside their own padding (`rule_locs` of `ethtool_rxnfc` is at 188 of 192 bytes), and because bytes from
//! outside are easier to be right about than a `repr(C)` that must match on every machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Channels, Coalescing, DriverInfo, Family, NtupleRule, Rings};

/// Commands of the ioctl.
pub(super) mod command {
    pub(in super::super) const GET_DRIVER: u32 = 0x03;
    pub(in super::super) const GET_COALESCING: u32 = 0x0e;
    pub(in super::super) const SET_COALESCING: u32 = 0x0f;
    pub(in super::super) const GET_RINGS: u32 = 0x10;
    pub(in super::super) const SET_RINGS: u32 = 0x11;
    pub(in super::super) const GET_FLOW_HASH: u32 = 0x29;
    pub(in super::super) const SET_FLOW_HASH: u32 = 0x2a;
    pub(in super::super) const COUNT_RULES: u32 = 0x2e;
    pub(in super::super) const GET_RULE: u32 = 0x2f;
    pub(in super::super) const LIST_RULES: u32 = 0x30;
    pub(in super::super) const DELETE_RULE: u32 = 0x31;
    pub(in super::super) const INSERT_RULE: u32 = 0x32;
    pub(in super::super) const GET_INDIRECTION: u32 = 0x38;
    pub(in super::super) const SET_INDIRECTION: u32 = 0x39;
    pub(in super::super) const GET_CHANNELS: u32 = 0x3c;
    pub(in super::super) const SET_CHANNELS: u32 = 0x3d;
    pub(in super::super) const GET_RSS: u32 = 0x46;
    pub(in super::super) const SET_RSS: u32 = 0x47;
}

/// More entries than any indirection table has.
pub(super) const INDIRECTION_MAX: u32 = 65_536;
/// More bytes than any hash key has.
pub(super) const KEY_BYTES_MAX: u32 = 4_096;
/// More rules than any device holds.
pub(super) const RULES_MAX: u32 = 65_536;

/// The bytes of `ethtool_rxnfc`, and where its list of places begins: inside its tail padding.
pub(super) const RXNFC_BYTES: usize = 192;
pub(super) const RULE_LOCATIONS_AT: usize = 188;
const FLOW_SPEC_AT: usize = 16;
const RULE_COUNT_AT: usize = 184;
const FLOW_VALUES_AT: usize = FLOW_SPEC_AT + 4;
const FLOW_MASKS_AT: usize = FLOW_SPEC_AT + 76;
const RING_COOKIE_AT: usize = FLOW_SPEC_AT + 152;
const LOCATION_AT: usize = FLOW_SPEC_AT + 160;
const UDP_OVER_IPV4: u32 = 0x02;
const UDP_OVER_IPV6: u32 = 0x06;
const DROP: u64 = u64::MAX;
/// In the answer to a count of rules: places may be left to the driver.
pub(super) const PLACES_BY_DRIVER: u64 = 0x8000_0000;
/// A rule's place, left to the driver.
const ANY_PLACE: u32 = 0xffff_ffff;

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// A number at an offset; 0 where the answer is too short, which the kernel's answers never are.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

/// The text up to the first zero, without spaces around it; bytes that are no UTF-8 are replaced.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// The driver.
pub(super) fn driver(bytes: &[u8]) -> DriverInfo {
    let field = |number: usize| bytes.get(4 + 32 * number..36 + 32 * number).map(text).unwrap_or_default();
    DriverInfo { driver: field(0), version: field(1), firmware: field(2), bus: field(3) }
}

/// The counts of queues.
pub(super) fn channels(bytes: &[u8]) -> Channels {
    let field = |number: usize| u32_at(bytes, 4 * number);
    Channels {
        rx_max: field(1),
        tx_max: field(2),
        other_max: field(3),
        combined_max: field(4),
        rx: field(5),
        tx: field(6),
        other: field(7),
        combined: field(8),
    }
}

/// Writes the counts in use over an answer.
pub(super) fn put_channels(bytes: &mut [u8], channels: &Channels) {
    for (number, value) in [(5, channels.rx), (6, channels.tx), (7, channels.other), (8, channels.combined)] {
        put_u32(bytes, 4 * number, value);
    }
}

/// The lengths of the rings.
pub(super) fn rings(bytes: &[u8]) -> Rings {
    Rings { rx_max: u32_at(bytes, 4), tx_max: u32_at(bytes, 16), rx: u32_at(bytes, 20), tx: u32_at(bytes, 32) }
}

/// Writes the lengths in use over an answer, so that the mini and jumbo rings keep theirs.
pub(super) fn put_rings(bytes: &mut [u8], rings: &Rings) {
    put_u32(bytes, 20, rings.rx);
    put_u32(bytes, 32, rings.tx);
}

/// When the device announces.
pub(super) fn coalescing(bytes: &[u8]) -> Coalescing {
    Coalescing { rx_usecs: u32_at(bytes, 4), rx_frames: u32_at(bytes, 8), adaptive_rx: u32_at(bytes, 40) != 0 }
}

/// Writes the named fields over an answer, so that the other twenty keep their values.
pub(super) fn put_coalescing(bytes: &mut [u8], coalescing: &Coalescing) {
    put_u32(bytes, 4, coalescing.rx_usecs);
    put_u32(bytes, 8, coalescing.rx_frames);
    put_u32(bytes, 40, u32::from(coalescing.adaptive_rx));
}

/// The flow type of UDP over a family.
pub(super) fn flow_type(family: Family) -> u32 {
    match family {
        Family::V4 => UDP_OVER_IPV4,
        Family::V6 => UDP_OVER_IPV6,
    }
}

/// The numbers of an indirection table at `at`.
pub(super) fn table(bytes: &[u8], at: usize, entries: usize) -> Vec<u32> {
    bytes.get(at..).unwrap_or_default().chunks_exact(4).take(entries).map(|entry| u32_at(entry, 0)).collect()
}

/// Writes a rule into a zeroed request.
pub(super) fn put_rule(bytes: &mut [u8], rule: &NtupleRule) {
    put_u32(bytes, FLOW_SPEC_AT, flow_type(rule.family));
    let (address_bytes, ports_at) = match rule.family {
        Family::V4 => (4, 8),
        Family::V6 => (16, 32),
    };
    for (at, address) in [(0, rule.source), (address_bytes, rule.destination)] {
        let Some(address) = address else { continue };
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets.copy_from_slice(&address.octets()),
        }
        bytes[FLOW_VALUES_AT + at..][..address_bytes].copy_from_slice(&octets[..address_bytes]);
        bytes[FLOW_MASKS_AT + at..][..address_bytes].fill(0xff);
    }
    for (at, port) in [(ports_at, rule.source_port), (ports_at + 2, rule.destination_port)] {
        let Some(port) = port else { continue };
        bytes[FLOW_VALUES_AT + at..][..2].copy_from_slice(&port.to_be_bytes());
        bytes[FLOW_MASKS_AT + at..][..2].fill(0xff);
    }
    put_u64(bytes, RING_COOKIE_AT, rule.queue.map_or(DROP, u64::from));
    put_u32(bytes, LOCATION_AT, rule.location.unwrap_or(ANY_PLACE));
}

/// Reads a rule. `None` when it is about something else than UDP, or compares what [`NtupleRule`] has no field for.
pub(super) fn rule(bytes: &[u8]) -> Option<NtupleRule> {
    // The bits above are flags: an extended match, a MAC address, another RSS context. None of them is ours.
    let family = match u32_at(bytes, FLOW_SPEC_AT) {
        UDP_OVER_IPV4 => Family::V4,
        UDP_OVER_IPV6 => Family::V6,
        _ => return None,
    };
    let (address_bytes, ports_at) = match family {
        Family::V4 => (4, 8),
        Family::V6 => (16, 32),
    };
    let field = |base: usize, at: usize, length: usize| bytes.get(base + at..base + at + length);
    // Whole or not at all: a partial mask is a rule of somebody else, not to be shown as something it is not.
    let compared = |at: usize, length: usize| {
        let mask = field(FLOW_MASKS_AT, at, length)?;
        if mask.iter().all(|&byte| byte == 0) {
            return Some(None);
        }
        mask.iter().all(|&byte| byte == 0xff).then_some(Some(field(FLOW_VALUES_AT, at, length)?))
    };
    let address = |at: usize| compared(at, address_bytes).map(|value| value.and_then(ip_address));
    let port = |at: usize| compared(at, 2).map(|value| value.map(|port| u16::from_be_bytes([port[0], port[1]])));
    let cookie = u64_at(bytes, RING_COOKIE_AT);
    let queue = match cookie {
        DROP => None,
        // The upper half names a virtual function.
        cookie => Some(u32::try_from(cookie).ok()?),
    };
    Some(NtupleRule {
        location: Some(u32_at(bytes, LOCATION_AT)),
        family,
        source: address(0)?,
        destination: address(address_bytes)?,
        source_port: port(ports_at)?,
        destination_port: port(ports_at + 2)?,
        queue,
    })
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// Where the driver put a rule that was inserted.
pub(super) fn location(bytes: &[u8]) -> u32 {
    u32_at(bytes, LOCATION_AT)
}

/// Names the place of a rule that is asked for or deleted.
pub(super) fn put_location(bytes: &mut [u8], location: u32) {
    put_u32(bytes, LOCATION_AT, location);
}

/// How many rules there are.
pub(super) fn rule_count(bytes: &[u8]) -> u32 {
    u32_at(bytes, RULE_COUNT_AT)
}

/// Says how many places there is room for.
pub(super) fn put_rule_count(bytes: &mut [u8], count: u32) {
    put_u32(bytes, RULE_COUNT_AT, count);
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
