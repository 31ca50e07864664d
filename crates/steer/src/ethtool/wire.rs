//! Requests and answers of the ethtool ioctl as bytes. Pure: what a driver answers is data like any other, and no
//! answer may make this read outside of it or allocate without bound.
//!
//! Fields are written and read at their offsets instead of through structures, because some of the kernel's structures
//! carry data inside their own padding (`rule_locs` of `ethtool_rxnfc` is at 188 of 192 bytes), and because bytes from
//! outside are easier to be right about than a `repr(C)` that must match on every machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Channels, Coalescing, DriverInfo, Family, NtupleRule, Rings};

/// Commands of the ioctl, each with its name in linux/ethtool.h.
pub(super) mod command {
    pub(in super::super) const GET_DRIVER: u32 = 0x03; // ETHTOOL_GDRVINFO
    pub(in super::super) const GET_COALESCING: u32 = 0x0e; // ETHTOOL_GCOALESCE
    pub(in super::super) const SET_COALESCING: u32 = 0x0f; // ETHTOOL_SCOALESCE
    pub(in super::super) const GET_RINGS: u32 = 0x10; // ETHTOOL_GRINGPARAM
    pub(in super::super) const SET_RINGS: u32 = 0x11; // ETHTOOL_SRINGPARAM
    pub(in super::super) const GET_FLOW_HASH: u32 = 0x29; // ETHTOOL_GRXFH
    pub(in super::super) const SET_FLOW_HASH: u32 = 0x2a; // ETHTOOL_SRXFH
    pub(in super::super) const COUNT_RULES: u32 = 0x2e; // ETHTOOL_GRXCLSRLCNT
    pub(in super::super) const GET_RULE: u32 = 0x2f; // ETHTOOL_GRXCLSRULE
    pub(in super::super) const LIST_RULES: u32 = 0x30; // ETHTOOL_GRXCLSRLALL
    pub(in super::super) const DELETE_RULE: u32 = 0x31; // ETHTOOL_SRXCLSRLDEL
    pub(in super::super) const INSERT_RULE: u32 = 0x32; // ETHTOOL_SRXCLSRLINS
    pub(in super::super) const GET_INDIRECTION: u32 = 0x38; // ETHTOOL_GRXFHINDIR
    pub(in super::super) const SET_INDIRECTION: u32 = 0x39; // ETHTOOL_SRXFHINDIR
    pub(in super::super) const GET_CHANNELS: u32 = 0x3c; // ETHTOOL_GCHANNELS
    pub(in super::super) const SET_CHANNELS: u32 = 0x3d; // ETHTOOL_SCHANNELS
    pub(in super::super) const GET_RSS: u32 = 0x46; // ETHTOOL_GRSSH
    pub(in super::super) const SET_RSS: u32 = 0x47; // ETHTOOL_SRSSH
}

/// More entries than any indirection table has.
pub(super) const INDIRECTION_MAX: u32 = 65_536;
/// More bytes than any hash key has.
pub(super) const KEY_BYTES_MAX: u32 = 4_096;
/// More rules than any device holds.
pub(super) const RULES_MAX: u32 = 65_536;

// The lengths of structures and the places of their fields.
pub(super) const COMMAND_AT: usize = 0; // cmd, the first field of each
pub(super) const DRVINFO_BYTES: usize = 196; // struct ethtool_drvinfo
const DRIVER_AT: usize = 4; // driver, version, fw_version, bus_info
const DRVINFO_TEXT_BYTES: usize = 32; // ETHTOOL_BUSINFO_LEN, ETHTOOL_FWVERS_LEN
pub(super) const CHANNELS_BYTES: usize = 36; // struct ethtool_channels: nine numbers
pub(super) const RINGS_BYTES: usize = 36; // struct ethtool_ringparam
const RX_MAX_PENDING_AT: usize = 4; // rx_max_pending
const TX_MAX_PENDING_AT: usize = 16; // tx_max_pending
const RX_PENDING_AT: usize = 20; // rx_pending
const TX_PENDING_AT: usize = 32; // tx_pending
pub(super) const COALESCING_BYTES: usize = 92; // struct ethtool_coalesce
const RX_USECS_AT: usize = 4; // rx_coalesce_usecs
const RX_FRAMES_AT: usize = 8; // rx_max_coalesced_frames
const ADAPTIVE_RX_AT: usize = 40; // use_adaptive_rx_coalesce
pub(super) const RSS_HEADER_BYTES: usize = 24; // struct ethtool_rxfh before rss_config
pub(super) const RSS_TABLE_SIZE_AT: usize = 8; // indir_size
pub(super) const RSS_KEY_SIZE_AT: usize = 12; // key_size
pub(super) const RSS_FUNCTION_AT: usize = 16; // hfunc
pub(super) const RSS_TRANSFORM_AT: usize = 17; // input_xfrm
pub(super) const TABLE_UNCHANGED: u32 = 0xffff_ffff; // ETH_RXFH_INDIR_NO_CHANGE
/// Kernels before 6.8 know only 0 there and refuse this.
pub(super) const TRANSFORM_UNCHANGED: u8 = 0xff; // RXH_XFRM_NO_CHANGE
pub(super) const INDIRECTION_HEADER_BYTES: usize = 8; // struct ethtool_rxfh_indir before ring_index
pub(super) const INDIRECTION_SIZE_AT: usize = 4; // size

// struct ethtool_rxnfc, and struct ethtool_rx_flow_spec in it as fs. The list of places begins inside the tail padding.
pub(super) const RXNFC_BYTES: usize = 192;
pub(super) const FLOW_TYPE_AT: usize = 4; // flow_type
pub(super) const DATA_AT: usize = 8; // data
const FLOW_SPEC_AT: usize = 16; // fs, whose first field is its flow_type
const FLOW_VALUES_AT: usize = FLOW_SPEC_AT + 4; // fs.h_u
const FLOW_MASKS_AT: usize = FLOW_SPEC_AT + 76; // fs.m_u
const RING_COOKIE_AT: usize = FLOW_SPEC_AT + 152; // fs.ring_cookie
const LOCATION_AT: usize = FLOW_SPEC_AT + 160; // fs.location
const RULE_COUNT_AT: usize = 184; // rule_cnt
pub(super) const RULE_LOCATIONS_AT: usize = 188; // rule_locs
const UDP_OVER_IPV4: u32 = 0x02; // UDP_V4_FLOW
const UDP_OVER_IPV6: u32 = 0x06; // UDP_V6_FLOW
const DROP: u64 = u64::MAX; // RX_CLS_FLOW_DISC
/// In the answer to a count of rules: places may be left to the driver.
pub(super) const PLACES_BY_DRIVER: u64 = 0x8000_0000; // RX_CLS_LOC_SPECIAL
/// A rule's place, left to the driver.
const ANY_PLACE: u32 = 0xffff_ffff; // RX_CLS_LOC_ANY

/// Where a rule has what it compares, from [`FLOW_VALUES_AT`] and [`FLOW_MASKS_AT`] on: struct ethtool_tcpip4_spec and
/// struct ethtool_tcpip6_spec.
struct Fields {
    address_bytes: usize,
    source_at: usize,           // ip4src, ip6src
    destination_at: usize,      // ip4dst, ip6dst
    source_port_at: usize,      // psrc
    destination_port_at: usize, // pdst
    service_at: usize,          // tos, tclass
}

const fn fields(family: Family) -> Fields {
    let address_bytes = match family {
        Family::V4 => 4,
        Family::V6 => 16,
    };
    let ports_at = 2 * address_bytes;
    Fields {
        address_bytes,
        source_at: 0,
        destination_at: address_bytes,
        source_port_at: ports_at,
        destination_port_at: ports_at + 2,
        service_at: ports_at + 4,
    }
}

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
    let field = |number: usize| {
        let at = DRIVER_AT + DRVINFO_TEXT_BYTES * number;
        bytes.get(at..at + DRVINFO_TEXT_BYTES).map(text).unwrap_or_default()
    };
    DriverInfo { driver: field(0), version: field(1), firmware: field(2), bus: field(3) }
}

/// The counts of queues: `cmd`, then `max_rx` to `max_combined`, then `rx_count` to `combined_count`.
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
    Rings {
        rx_max: u32_at(bytes, RX_MAX_PENDING_AT),
        tx_max: u32_at(bytes, TX_MAX_PENDING_AT),
        rx: u32_at(bytes, RX_PENDING_AT),
        tx: u32_at(bytes, TX_PENDING_AT),
    }
}

/// Writes the lengths in use over an answer, so that the mini and jumbo rings keep theirs.
pub(super) fn put_rings(bytes: &mut [u8], rings: &Rings) {
    put_u32(bytes, RX_PENDING_AT, rings.rx);
    put_u32(bytes, TX_PENDING_AT, rings.tx);
}

/// When the device announces.
pub(super) fn coalescing(bytes: &[u8]) -> Coalescing {
    Coalescing {
        rx_usecs: u32_at(bytes, RX_USECS_AT),
        rx_frames: u32_at(bytes, RX_FRAMES_AT),
        adaptive_rx: u32_at(bytes, ADAPTIVE_RX_AT) != 0,
    }
}

/// Writes the named fields over an answer, so that the other twenty keep their values.
pub(super) fn put_coalescing(bytes: &mut [u8], coalescing: &Coalescing) {
    put_u32(bytes, RX_USECS_AT, coalescing.rx_usecs);
    put_u32(bytes, RX_FRAMES_AT, coalescing.rx_frames);
    put_u32(bytes, ADAPTIVE_RX_AT, u32::from(coalescing.adaptive_rx));
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
    let fields = fields(rule.family);
    for (at, address) in [(fields.source_at, rule.source), (fields.destination_at, rule.destination)] {
        let Some(address) = address else { continue };
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets.copy_from_slice(&address.octets()),
        }
        let length = fields.address_bytes;
        bytes[FLOW_VALUES_AT + at..][..length].copy_from_slice(&octets[..length]);
        bytes[FLOW_MASKS_AT + at..][..length].fill(0xff);
    }
    for (at, port) in [(fields.source_port_at, rule.source_port), (fields.destination_port_at, rule.destination_port)] {
        let Some(port) = port else { continue };
        bytes[FLOW_VALUES_AT + at..][..2].copy_from_slice(&port.to_be_bytes());
        bytes[FLOW_MASKS_AT + at..][..2].fill(0xff);
    }
    put_u64(bytes, RING_COOKIE_AT, rule.queue.map_or(DROP, u64::from));
    put_u32(bytes, LOCATION_AT, rule.location.unwrap_or(ANY_PLACE));
}

/// Reads a rule. `None` when it is about something else than UDP, or compares what [`NtupleRule`] has no field for.
pub(super) fn rule(bytes: &[u8]) -> Option<NtupleRule> {
    // The bits above are flags: FLOW_EXT, FLOW_MAC_EXT and FLOW_RSS, which is an extended match, a MAC address or
    // another RSS context. None of them is ours.
    let family = match u32_at(bytes, FLOW_SPEC_AT) {
        UDP_OVER_IPV4 => Family::V4,
        UDP_OVER_IPV6 => Family::V6,
        _ => return None,
    };
    let fields = fields(family);
    let field = |base: usize, at: usize, length: usize| bytes.get(base + at..base + at + length);
    // Whole or not at all: a partial mask is a rule of somebody else, not to be shown as something it is not.
    let compared = |at: usize, length: usize| {
        let mask = field(FLOW_MASKS_AT, at, length)?;
        if mask.iter().all(|&byte| byte == 0) {
            return Some(None);
        }
        mask.iter().all(|&byte| byte == 0xff).then_some(Some(field(FLOW_VALUES_AT, at, length)?))
    };
    // What the kernel calls type of service or traffic class, which decides between rules and is nothing of ours.
    if *bytes.get(FLOW_MASKS_AT + fields.service_at)? != 0 {
        return None;
    }
    let address = |at: usize| compared(at, fields.address_bytes).map(|value| value.and_then(ip_address));
    let port = |at: usize| compared(at, 2).map(|value| value.map(|port| u16::from_be_bytes([port[0], port[1]])));
    let cookie = u64_at(bytes, RING_COOKIE_AT);
    let queue = match cookie {
        DROP => None,
        // The upper half names a virtual function: ETHTOOL_RX_FLOW_SPEC_RING_VF.
        cookie => Some(u32::try_from(cookie).ok()?),
    };
    Some(NtupleRule {
        location: Some(u32_at(bytes, LOCATION_AT)),
        family,
        source: address(fields.source_at)?,
        destination: address(fields.destination_at)?,
        source_port: port(fields.source_port_at)?,
        destination_port: port(fields.destination_port_at)?,
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
