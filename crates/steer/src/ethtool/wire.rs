//! Requests and answers of the ethtool ioctl as bytes. Pure: what a driver answers is data like any other, and no
//! answer may make this read outside of it or allocate without bound.
//!
//! Fields are written and read at their offsets instead of through structures, because bytes from outside are easier to
//! be right about than a `repr(C)` that must match on every machine.

use super::{Channels, Coalescing, DriverInfo, Family, Rings};

/// Commands of the ioctl, each with its name in linux/ethtool.h.
pub(super) mod command {
    pub(in super::super) const GET_DRIVER: u32 = 0x03; // ETHTOOL_GDRVINFO
    pub(in super::super) const GET_COALESCING: u32 = 0x0e; // ETHTOOL_GCOALESCE
    pub(in super::super) const SET_COALESCING: u32 = 0x0f; // ETHTOOL_SCOALESCE
    pub(in super::super) const GET_RINGS: u32 = 0x10; // ETHTOOL_GRINGPARAM
    pub(in super::super) const SET_RINGS: u32 = 0x11; // ETHTOOL_SRINGPARAM
    pub(in super::super) const GET_STRINGS: u32 = 0x1b; // ETHTOOL_GSTRINGS
    pub(in super::super) const GET_STATISTICS: u32 = 0x1d; // ETHTOOL_GSTATS
    pub(in super::super) const GET_FLOW_HASH: u32 = 0x29; // ETHTOOL_GRXFH
    pub(in super::super) const SET_FLOW_HASH: u32 = 0x2a; // ETHTOOL_SRXFH
    pub(in super::super) const COUNT_RULES: u32 = 0x2e; // ETHTOOL_GRXCLSRLCNT
    pub(in super::super) const GET_RULE: u32 = 0x2f; // ETHTOOL_GRXCLSRULE
    pub(in super::super) const LIST_RULES: u32 = 0x30; // ETHTOOL_GRXCLSRLALL
    pub(in super::super) const DELETE_RULE: u32 = 0x31; // ETHTOOL_SRXCLSRLDEL
    pub(in super::super) const INSERT_RULE: u32 = 0x32; // ETHTOOL_SRXCLSRLINS
    pub(in super::super) const COUNT_STRINGS: u32 = 0x37; // ETHTOOL_GSSET_INFO
    pub(in super::super) const GET_INDIRECTION: u32 = 0x38; // ETHTOOL_GRXFHINDIR
    pub(in super::super) const SET_INDIRECTION: u32 = 0x39; // ETHTOOL_SRXFHINDIR
    pub(in super::super) const GET_FEATURES: u32 = 0x3a; // ETHTOOL_GFEATURES
    pub(in super::super) const SET_FEATURES: u32 = 0x3b; // ETHTOOL_SFEATURES
    pub(in super::super) const GET_CHANNELS: u32 = 0x3c; // ETHTOOL_GCHANNELS
    pub(in super::super) const SET_CHANNELS: u32 = 0x3d; // ETHTOOL_SCHANNELS
    pub(in super::super) const GET_RSS: u32 = 0x46; // ETHTOOL_GRSSH
    pub(in super::super) const SET_RSS: u32 = 0x47; // ETHTOOL_SRSSH
}

/// More entries than any indirection table has.
pub(super) const INDIRECTION_MAX: u32 = 65_536;
/// More bytes than any hash key has.
pub(super) const KEY_BYTES_MAX: u32 = 4_096;

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

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
