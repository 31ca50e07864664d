//! Rules and features as bytes: what the kernel reads and writes for the rules by which a device sorts datagrams
//! (`struct ethtool_rxnfc`), and for what of it is on or off.
//!
//! A rule that compares anything a [`Rule`] has no field for is not shown as one: it belongs to somebody else, and is
//! neither counted on nor touched.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire::{FLOW_SPEC_AT, put_u32, put_u64, text, u32_at, u64_at};
use super::{Family, Feature, Rule, wire};

/// More rules than any device holds.
pub(super) const RULES_MAX: u32 = 65_536;
/// More features than any kernel has.
pub(super) const FEATURES_MAX: u32 = 4_096;

// struct ethtool_rxnfc, and struct ethtool_rx_flow_spec in it as fs. The list of places begins inside the tail padding.
const FLOW_VALUES_AT: usize = FLOW_SPEC_AT + 4; // fs.h_u
const FLOW_MASKS_AT: usize = FLOW_SPEC_AT + 76; // fs.m_u
const FURTHER_MASKS_AT: usize = FLOW_MASKS_AT + 52; // fs.m_ext
const FURTHER_MASKS_BYTES: usize = 20;
const HAS_FURTHER_FIELDS: u32 = 0x8000_0000; // FLOW_EXT
const RING_COOKIE_AT: usize = wire::RXNFC.ring_cookie_at; // fs.ring_cookie
const PLACE_AT: usize = wire::RXNFC.place_at; // fs.location
const RULE_COUNT_AT: usize = wire::RXNFC.rule_count_at; // rule_cnt
pub(super) const PLACES_AT: usize = wire::RXNFC.places_at; // rule_locs
/// In the answers about the whole table: the driver takes [`ANY_PLACE`]. The other bits are how many places there are.
pub(super) const DRIVER_CHOOSES: u64 = 0x8000_0000; // RX_CLS_LOC_SPECIAL
const ANY_PLACE: u32 = 0xffff_ffff; // RX_CLS_LOC_ANY

// struct ethtool_sset_info, ethtool_gstrings, ethtool_gfeatures and ethtool_sfeatures.
pub(super) const STRING_COUNT_BYTES: usize = 24; // struct ethtool_sset_info with one number behind it
const STRING_SETS_AT: usize = 8; // sset_mask
const STRING_COUNT_AT: usize = 16; // data
pub(super) const STRINGS_HEADER_BYTES: usize = 12; // struct ethtool_gstrings before data
const STRING_SET_AT: usize = 4; // string_set
const STRINGS_LENGTH_AT: usize = 8; // len
const STRING_BYTES: usize = 32; // ETH_GSTRING_LEN
pub(super) const FEATURE_NAMES: u32 = 4; // ETH_SS_FEATURES
pub(super) const STATISTIC_NAMES: u32 = 1; // ETH_SS_STATS
pub(super) const STATISTICS_HEADER_BYTES: usize = 8; // struct ethtool_stats before data
pub(super) const STATISTICS_COUNT_AT: usize = 4; // n_stats
const FEATURES_SIZE_AT: usize = 4; // size
pub(super) const FEATURES_HEADER_BYTES: usize = 8; // both structures before features
pub(super) const GET_BLOCK_BYTES: usize = 16; // struct ethtool_get_features_block
pub(super) const SET_BLOCK_BYTES: usize = 8; // struct ethtool_set_features_block
const BITS: usize = 32;

/// Where a rule has what it compares, from [`FLOW_VALUES_AT`] and [`FLOW_MASKS_AT`] on: struct ethtool_tcpip4_spec and
/// struct ethtool_tcpip6_spec.
struct Fields {
    address_bytes: usize,
    destination_at: usize, // ip4dst, ip6dst
    port_at: usize,        // pdst
    bytes: usize,          // up to and with tos, tclass
}

const fn fields(family: Family) -> Fields {
    match family {
        Family::V4 => Fields { address_bytes: 4, destination_at: 4, port_at: 10, bytes: 13 },
        Family::V6 => Fields { address_bytes: 16, destination_at: 16, port_at: 34, bytes: 37 },
    }
}

/// Writes a rule into a zeroed request.
pub(super) fn put_rule(bytes: &mut [u8], rule: &Rule, place: Option<u32>) {
    put_u32(bytes, FLOW_SPEC_AT, wire::flow_type(rule.family));
    let fields = fields(rule.family);
    if let Some(address) = rule.destination {
        let at = fields.destination_at;
        match address {
            IpAddr::V4(address) => bytes[FLOW_VALUES_AT + at..][..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes[FLOW_VALUES_AT + at..][..16].copy_from_slice(&address.octets()),
        }
        bytes[FLOW_MASKS_AT + at..][..fields.address_bytes].fill(0xff);
    }
    bytes[FLOW_VALUES_AT + fields.port_at..][..2].copy_from_slice(&rule.port.to_be_bytes());
    bytes[FLOW_MASKS_AT + fields.port_at..][..2].fill(0xff);
    put_u64(bytes, RING_COOKIE_AT, u64::from(rule.queue));
    put_place(bytes, place.unwrap_or(ANY_PLACE));
}

/// Reads a rule. `None` when it is about something else than UDP, compares what [`Rule`] has no field for, or sends
/// datagrams to anything else than a queue.
pub(super) fn rule(bytes: &[u8]) -> Option<Rule> {
    // Some drivers set the flag of further fields in every answer (ixgbe): their masks say whether one is compared. The
    // other bits above the type (FLOW_MAC_EXT, FLOW_RSS) stand for a MAC address or a context of queues.
    let flow_type = u32_at(bytes, FLOW_SPEC_AT) & !HAS_FURTHER_FIELDS;
    let family = [Family::V4, Family::V6].into_iter().find(|family| flow_type == wire::flow_type(*family))?;
    let further_masks = bytes.get(FURTHER_MASKS_AT..FURTHER_MASKS_AT + FURTHER_MASKS_BYTES)?;
    if further_masks.iter().any(|&byte| byte != 0) {
        return None;
    }
    let fields = fields(family);
    let masks = bytes.get(FLOW_MASKS_AT..FLOW_MASKS_AT + fields.bytes)?;
    let destination = fields.destination_at..fields.destination_at + fields.address_bytes;
    let port = fields.port_at..fields.port_at + 2;
    let is_ours = |at: &usize| destination.contains(at) || port.contains(at);
    let is_elsewhere_compared = (0..fields.bytes).filter(|at| !is_ours(at)).any(|at| masks[at] != 0);
    // Whole or not at all: a rule with a partial mask must not be shown as something it is not.
    let is_whole = |mask: &[u8]| mask.iter().all(|&byte| byte == 0xff);
    let is_none = |mask: &[u8]| mask.iter().all(|&byte| byte == 0);
    let (address_mask, port_mask) = (&masks[destination.clone()], &masks[port.clone()]);
    if is_elsewhere_compared || !is_whole(port_mask) || !(is_whole(address_mask) || is_none(address_mask)) {
        return None;
    }
    let values = bytes.get(FLOW_VALUES_AT..FLOW_VALUES_AT + fields.bytes)?;
    let address = if is_none(address_mask) { None } else { Some(ip_address(&values[destination])?) };
    let port = u16::from_be_bytes(values[port].try_into().ok()?);
    // RX_CLS_FLOW_DISC, RX_CLS_FLOW_WAKE and a virtual function (ETHTOOL_RX_FLOW_SPEC_RING_VF) have bits above a queue.
    let queue = u32::try_from(u64_at(bytes, RING_COOKIE_AT)).ok()?;
    Some(Rule { family, destination: address, port, queue })
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// Where the driver put a rule that was inserted.
pub(super) fn place(bytes: &[u8]) -> u32 {
    u32_at(bytes, PLACE_AT)
}

/// Names the place of a rule that is asked for or deleted.
pub(super) fn put_place(bytes: &mut [u8], place: u32) {
    put_u32(bytes, PLACE_AT, place);
}

/// How many rules there are.
pub(super) fn rule_count(bytes: &[u8]) -> u32 {
    u32_at(bytes, RULE_COUNT_AT)
}

/// Says for how many places there is room in the request.
pub(super) fn put_rule_count(bytes: &mut [u8], count: u32) {
    put_u32(bytes, RULE_COUNT_AT, count);
}

/// Asks how many names are in a set.
pub(super) fn put_string_set(bytes: &mut [u8], set: u32) {
    put_u64(bytes, STRING_SETS_AT, 1 << set);
}

/// How many are; 0 where the kernel does not know that set.
pub(super) fn string_count(bytes: &[u8], set: u32) -> u32 {
    if u64_at(bytes, STRING_SETS_AT) & (1 << set) == 0 { 0 } else { u32_at(bytes, STRING_COUNT_AT) }
}

pub(super) fn names_bytes(count: u32) -> usize {
    STRINGS_HEADER_BYTES + STRING_BYTES * count as usize
}

/// Asks for `count` names of a set.
pub(super) fn put_name_count(bytes: &mut [u8], set: u32, count: u32) {
    put_u32(bytes, STRING_SET_AT, set);
    put_u32(bytes, STRINGS_LENGTH_AT, count);
}

/// The names of an answer.
pub(super) fn names(bytes: &[u8]) -> impl Iterator<Item = String> {
    let names = bytes.get(STRINGS_HEADER_BYTES..).unwrap_or_default().chunks_exact(STRING_BYTES);
    names.take(u32_at(bytes, STRINGS_LENGTH_AT) as usize).map(text)
}

/// Which bit of the features has this name.
pub(super) fn bit_named(bytes: &[u8], name: &str) -> Option<usize> {
    names(bytes).position(|other| other == name)
}

/// How many words of 32 bits hold that many features.
pub(super) fn feature_words(count: u32) -> usize {
    (count as usize).div_ceil(BITS)
}

/// Says for how many words there is room, or how many are written.
pub(super) fn put_feature_words(bytes: &mut [u8], words: usize) {
    put_u32(bytes, FEATURES_SIZE_AT, u32::try_from(words).unwrap_or(u32::MAX));
}

/// One feature of an answer: `available`, `requested`, `active` and `never_changed` by words.
pub(super) fn feature(bytes: &[u8], bit: usize) -> Feature {
    let block = FEATURES_HEADER_BYTES + GET_BLOCK_BYTES * (bit / BITS);
    let has = |field: usize| u32_at(bytes, block + 4 * field) & (1 << (bit % BITS)) != 0;
    Feature { is_on: has(2), is_changeable: has(0) && !has(3) }
}

/// Asks for one feature to be on or off: `valid` and `requested` by words.
pub(super) fn put_feature(bytes: &mut [u8], bit: usize, on: bool) {
    let block = FEATURES_HEADER_BYTES + SET_BLOCK_BYTES * (bit / BITS);
    put_u32(bytes, block, 1 << (bit % BITS));
    put_u32(bytes, block + 4, u32::from(on) << (bit % BITS));
}

#[cfg(test)]
#[path = "wire_rules_tests.rs"]
mod tests;
