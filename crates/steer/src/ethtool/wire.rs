//! Requests and answers of the ethtool ioctl as bytes. Pure: what a driver answers is data like any other, and no
//! answer may make this read outside of it or allocate without bound.
//!
//! Fields are written and read at their offsets instead of through structures, because bytes from outside are easier to
//! be right about than a `repr(C)` that must match on every machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Channels, Coalescing, Family, Feature, Rings, Rule};

/// Commands of the ioctl, each with its name in linux/ethtool.h.
pub(super) mod command {
    pub(crate) const GET_DRIVER: u32 = 0x03; // ETHTOOL_GDRVINFO
    pub(crate) const GET_COALESCING: u32 = 0x0e; // ETHTOOL_GCOALESCE
    pub(crate) const SET_COALESCING: u32 = 0x0f; // ETHTOOL_SCOALESCE
    pub(crate) const GET_RINGS: u32 = 0x10; // ETHTOOL_GRINGPARAM
    pub(crate) const SET_RINGS: u32 = 0x11; // ETHTOOL_SRINGPARAM
    pub(crate) const GET_STRINGS: u32 = 0x1b; // ETHTOOL_GSTRINGS
    pub(crate) const GET_STATISTICS: u32 = 0x1d; // ETHTOOL_GSTATS
    pub(crate) const GET_FLOW_HASH: u32 = 0x29; // ETHTOOL_GRXFH
    pub(crate) const SET_FLOW_HASH: u32 = 0x2a; // ETHTOOL_SRXFH
    pub(crate) const COUNT_RULES: u32 = 0x2e; // ETHTOOL_GRXCLSRLCNT
    pub(crate) const GET_RULE: u32 = 0x2f; // ETHTOOL_GRXCLSRULE
    pub(crate) const LIST_RULES: u32 = 0x30; // ETHTOOL_GRXCLSRLALL
    pub(crate) const DELETE_RULE: u32 = 0x31; // ETHTOOL_SRXCLSRLDEL
    pub(crate) const INSERT_RULE: u32 = 0x32; // ETHTOOL_SRXCLSRLINS
    pub(crate) const COUNT_STRINGS: u32 = 0x37; // ETHTOOL_GSSET_INFO
    pub(crate) const GET_INDIRECTION: u32 = 0x38; // ETHTOOL_GRXFHINDIR
    pub(crate) const SET_INDIRECTION: u32 = 0x39; // ETHTOOL_SRXFHINDIR
    pub(crate) const GET_FEATURES: u32 = 0x3a; // ETHTOOL_GFEATURES
    pub(crate) const SET_FEATURES: u32 = 0x3b; // ETHTOOL_SFEATURES
    pub(crate) const GET_CHANNELS: u32 = 0x3c; // ETHTOOL_GCHANNELS
    pub(crate) const SET_CHANNELS: u32 = 0x3d; // ETHTOOL_SCHANNELS
    pub(crate) const GET_RSS: u32 = 0x46; // ETHTOOL_GRSSH
    pub(crate) const SET_RSS: u32 = 0x47; // ETHTOOL_SRSSH
}

/// More entries than any indirection table has.
pub(super) const INDIRECTION_MAX: u32 = 65_536;
/// More bytes than any hash key has.
pub(super) const KEY_BYTES_MAX: u32 = 4_096;

// The lengths of structures and the places of their fields.
pub(super) const COMMAND_AT: usize = 0; // cmd, the first field of each
pub(super) const DRVINFO_BYTES: usize = 196; // struct ethtool_drvinfo
const DRIVER_AT: usize = 4; // driver
const DRVINFO_TEXT_BYTES: usize = 32; // sizeof(driver)
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
pub(super) const RSS_TRANSFORM_AT: usize = 17; // input_xfrm
pub(super) const TABLE_UNCHANGED: u32 = 0xffff_ffff; // ETH_RXFH_INDIR_NO_CHANGE
/// Kernels before 6.8 know only 0 there and refuse this.
pub(super) const TRANSFORM_UNCHANGED: u8 = 0xff; // RXH_XFRM_NO_CHANGE
pub(super) const INDIRECTION_HEADER_BYTES: usize = 8; // struct ethtool_rxfh_indir before ring_index
pub(super) const INDIRECTION_SIZE_AT: usize = 4; // size
pub(super) const RXNFC_BYTES: usize = RXNFC.bytes; // struct ethtool_rxnfc
pub(super) const FLOW_SPEC_AT: usize = 16; // fs, whose first field is its flow_type
const MASKS_END: usize = FLOW_SPEC_AT + 148; // behind fs.m_ext
pub(super) const RXNFC: Rxnfc = Rxnfc::new(align_of::<u64>());
pub(super) const FLOW_TYPE_AT: usize = 4; // flow_type
pub(super) const DATA_AT: usize = 8; // data
const UDP_OVER_IPV4: u32 = 0x02; // UDP_V4_FLOW
const UDP_OVER_IPV6: u32 = 0x06; // UDP_V6_FLOW

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// The end of struct ethtool_rxnfc. It lies where numbers of 64 bits may: on i386 those are aligned to 4 bytes only,
/// and the kernel reads the structure of such a process as it is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rxnfc {
    pub(super) ring_cookie_at: usize, // fs.ring_cookie
    pub(super) place_at: usize,       // fs.location
    pub(super) rule_count_at: usize,  // rule_cnt
    pub(super) places_at: usize,      // rule_locs
    pub(super) bytes: usize,
}

impl Rxnfc {
    pub(super) const fn new(alignment: usize) -> Self {
        let ring_cookie_at = MASKS_END.next_multiple_of(alignment);
        let place_at = ring_cookie_at + 8;
        let rule_count_at = (place_at + 4).next_multiple_of(alignment);
        let places_at = rule_count_at + 4;
        Self { ring_cookie_at, place_at, rule_count_at, places_at, bytes: places_at.next_multiple_of(alignment) }
    }
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

/// The name of the driver.
pub(super) fn driver(bytes: &[u8]) -> String {
    bytes.get(DRIVER_AT..DRIVER_AT + DRVINFO_TEXT_BYTES).map(text).unwrap_or_default()
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

// Rules (`struct ethtool_rxnfc`) and features. A rule that compares anything a [`Rule`] has no field for is not shown
// as one: it is not ours, and it is neither counted on nor touched.

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
const RING_COOKIE_AT: usize = RXNFC.ring_cookie_at; // fs.ring_cookie
pub(super) const PLACE_AT: usize = RXNFC.place_at; // fs.location
pub(super) const RULE_COUNT_AT: usize = RXNFC.rule_count_at; // rule_cnt
pub(super) const PLACES_AT: usize = RXNFC.places_at; // rule_locs
/// In the answers about the whole table: the driver takes [`ANY_PLACE`]. The other bits are how many places there are.
pub(super) const DRIVER_CHOOSES: u64 = 0x8000_0000; // RX_CLS_LOC_SPECIAL
const ANY_PLACE: u32 = 0xffff_ffff; // RX_CLS_LOC_ANY

// struct ethtool_sset_info, ethtool_gstrings, ethtool_gfeatures and ethtool_sfeatures.
pub(super) const STRING_COUNT_BYTES: usize = 24; // struct ethtool_sset_info with one number behind it
pub(super) const STRING_SETS_AT: usize = 8; // sset_mask
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
    put_u32(bytes, FLOW_SPEC_AT, flow_type(rule.family));
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
    put_u32(bytes, PLACE_AT, place.unwrap_or(ANY_PLACE));
}

/// Reads a rule. `None` when it is about something else than UDP, compares what [`Rule`] has no field for, or sends
/// datagrams to anything else than a queue.
pub(super) fn rule(bytes: &[u8]) -> Option<Rule> {
    // Some drivers set the flag of further fields in every answer (ixgbe): their masks say whether one is compared. The
    // other bits above the type (FLOW_MAC_EXT, FLOW_RSS) stand for a MAC address or a context of queues.
    let flow = u32_at(bytes, FLOW_SPEC_AT) & !HAS_FURTHER_FIELDS;
    let family = [Family::V4, Family::V6].into_iter().find(|family| flow == flow_type(*family))?;
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

/// Writes the numbers of an indirection table at `at`.
pub(super) fn put_table(bytes: &mut [u8], at: usize, table: &[u32]) {
    for (number, queue) in table.iter().enumerate() {
        put_u32(bytes, at + 4 * number, *queue);
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
