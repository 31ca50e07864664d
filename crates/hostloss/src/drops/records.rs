//! The records in a ring that the kernel writes: where the new ones lie, and what each of them is.
//!
//! Pure: takes positions and bytes, follows no pointer, and trusts nothing. A record has its own length, so an
//! impossible length ends the reading of that piece, and what is behind it counts as torn.

use std::fmt::Write;
use std::ops::Range;

/// `PERF_RECORD_SAMPLE`
const SAMPLE: u32 = 9;
/// `struct perf_event_header`: kind, misc, length.
const HEADER_BYTES: usize = 8;

/// Where the bytes between two positions lie in a ring of `bytes`: a piece up to its end and one from its beginning.
/// `None` when there would be more of them than the ring is long, which no kernel does.
pub(super) fn pieces(from: u64, to: u64, bytes: usize) -> Option<(Range<usize>, Range<usize>)> {
    let length = usize::try_from(to.wrapping_sub(from)).ok().filter(|length| *length <= bytes)?;
    if bytes == 0 {
        return Some((0..0, 0..0));
    }
    let start = usize::try_from(from % bytes as u64).ok()?;
    let before_the_end = length.min(bytes - start);
    Some((start..start + before_the_end, 0..length - before_the_end))
}

/// One record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PerfRecord<'a> {
    /// What a tracepoint wrote, without its envelope.
    Sample(&'a [u8]),
    /// A record of another kind, such as that some were lost: the counters of the events know that more exactly.
    Other,
    /// Bytes that are no record. Nothing is read after it.
    Torn,
}

/// The records in `bytes`, one behind the other.
#[derive(Debug)]
pub(super) struct PerfRecords<'a> {
    left: &'a [u8],
}

impl<'a> PerfRecords<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> PerfRecords<'a> {
        PerfRecords { left: bytes }
    }
}

impl<'a> Iterator for PerfRecords<'a> {
    type Item = PerfRecord<'a>;

    fn next(&mut self) -> Option<PerfRecord<'a>> {
        if self.left.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.left);
        let Some((kind, length)) = header(all) else { return Some(PerfRecord::Torn) };
        if length < HEADER_BYTES || length > all.len() {
            return Some(PerfRecord::Torn);
        }
        let (record, after) = all.split_at(length);
        self.left = after;
        if kind != SAMPLE {
            return Some(PerfRecord::Other);
        }
        Some(sample(&record[HEADER_BYTES..]).map_or(PerfRecord::Torn, PerfRecord::Sample))
    }
}

fn header(bytes: &[u8]) -> Option<(u32, usize)> {
    let kind = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let length = u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?);
    Some((kind, length.into()))
}

/// The payload of a sample that has nothing but `PERF_SAMPLE_RAW`: its length, then so many bytes.
fn sample(body: &[u8]) -> Option<&[u8]> {
    let length = u32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    body[4..].get(..usize::try_from(length).ok()?)
}

// Which of the kernel's reasons can be about a UDP datagram on its way in, by name, and the filters that keep out the
// others.
//
// `skb:kfree_skb` fires for everything that the kernel throws away: duplicate segments of TCP, frames for other hosts,
// what could not be sent. The names below leave those out. An unknown name is kept, so that new reasons of later
// kernels are shown.

/// The name of the kernel for "no reason".
pub(super) const UNNAMED: &str = "NOT_SPECIFIED";

/// What `udp:udp_fail_queue_rcv_skb` calls by an error number, under the name that `skb:kfree_skb` has for it.
pub(super) fn name_of_error(error: i64) -> Option<&'static str> {
    match i32::try_from(error.checked_neg()?).ok()? {
        libc::ENOMEM => Some("SOCKET_RCVBUFF"),
        libc::ENOBUFS => Some("PROTO_MEM"),
        _ => None,
    }
}

/// Whether only UDP gives this reason.
pub(super) fn is_of_udp_alone(name: &str) -> bool {
    name.starts_with("UDP_")
}

/// Reasons of other protocols, of what this host sends, and of copies and frames that were meant for others.
const BEGINNINGS_OF_OTHERS: &[&str] = &[
    "TCP_",
    "UNIX_",
    "NEIGH_",
    "QDISC_",
    "CAKE_",
    "FQ_",
    "DUALPI2_",
    "VXLAN_",
    "CAN_",
    "CANFD_",
    "CANXL_",
    "BRIDGE_",
    "ARP_",
    "TAP_",
    "IPV6_NDISC_",
];
const OTHERS: &[&str] = &[
    "ICMP_CSUM",
    "IP_OUTNOROUTES",
    "BPF_CGROUP_EGRESS",
    "TC_EGRESS",
    "NO_TX_TARGET",
    "TUNNEL_TXINFO",
    "PSP_OUTPUT",
    "RECURSION_LIMIT",
    "OTHERHOST",
    "PACKET_SOCK_ERROR",
    "MAX",
];

/// Whether a reason can be about a datagram that was on its way to a socket here.
pub(super) fn can_be_input(name: &str) -> bool {
    !OTHERS.contains(&name) && !BEGINNINGS_OF_OTHERS.iter().any(|beginning| name.starts_with(beginning))
}

/// The protocols of a frame, as `skb:kfree_skb` has them: `ETH_P_IP` and `ETH_P_IPV6`.
const IP: &str = "(protocol == 0x800 || protocol == 0x86dd)";

/// The filter for drops whose reason can be about input.
pub(super) fn filter_of_named(names: &[(u32, String)]) -> String {
    let mut left_out: Vec<u32> =
        names.iter().filter(|(_, name)| name == UNNAMED || !can_be_input(name)).map(|(value, _)| *value).collect();
    left_out.sort_unstable();
    let mut filter = IP.to_owned();
    for run in left_out.chunk_by(|a, b| a + 1 == *b) {
        // Writing to a string cannot fail.
        let _ = match run {
            [only] => write!(filter, " && reason != {only}"),
            [first, .., last] => write!(filter, " && (reason < {first} || reason > {last})"),
            [] => Ok(()),
        };
    }
    filter
}

/// The filter for drops without a reason; `None` where the kernel does not say which number that is.
pub(super) fn filter_of_unnamed(names: &[(u32, String)]) -> Option<String> {
    let (value, _) = names.iter().find(|(_, name)| name == UNNAMED)?;
    Some(format!("{IP} && reason == {value}"))
}
