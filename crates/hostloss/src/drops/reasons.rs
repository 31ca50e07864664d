//! Which of the kernel's reasons can be about a UDP datagram on its way in, by name, and the filters that keep out the
//! others.
//!
//! `skb:kfree_skb` fires for everything that the kernel throws away: duplicate segments of TCP, frames for other hosts,
//! what could not be sent. The names below leave those out. An unknown name is kept, so that new reasons of later
//! kernels are shown.

use std::fmt::Write;

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
