//! What the kernel counts of interfaces and of their receive queues: the standard counters of every interface
//! (rtnetlink), and those of a queue where its driver tells the kernel (the `netdev` family, from Linux 6.9 on).
//!
//! Made to be asked once a second: the sockets and their buffers stay, and one question is about all interfaces of the
//! network namespace.

use std::io;

use netlink::generic::{self, GenericFamily};
use netlink::{Attributes, NetlinkProtocol, NetlinkRequest, NetlinkSocket, field};

// Each number with its name in the kernel's headers: linux/rtnetlink.h, linux/if_link.h, linux/netdev.h.
const GET_LINK: u16 = 18; // RTM_GETLINK
const GET_STATISTICS: u16 = 94; // RTM_GETSTATS
const LINK_HEADER_BYTES: usize = 16; // sizeof(struct ifinfomsg)
const STATISTICS_HEADER_BYTES: usize = 12; // sizeof(struct if_stats_msg)
const INDEX_AT: usize = 4; // ifi_index, ifindex: the same in both
const LINK_NAME: u16 = 3; // IFLA_IFNAME
const LINK_INFO: u16 = 18; // IFLA_LINKINFO
const LINK_KIND: u16 = 1; // IFLA_INFO_KIND
const LINK_EXTENSIONS: u16 = 29; // IFLA_EXT_MASK
const WITHOUT_STATISTICS: u32 = 1 << 3; // RTEXT_FILTER_SKIP_STATS
const STATISTICS_64: u16 = 1; // IFLA_STATS_LINK_64
const FAMILY: &str = "netdev"; // NETDEV_FAMILY_NAME
const QUEUE_STATISTICS: u8 = 12; // NETDEV_CMD_QSTATS_GET
const QUEUE_INTERFACE: u16 = 1; // NETDEV_A_QSTATS_IFINDEX
const QUEUE_TYPE: u16 = 2; // NETDEV_A_QSTATS_QUEUE_TYPE
const QUEUE_ID: u16 = 3; // NETDEV_A_QSTATS_QUEUE_ID
const QUEUE_SCOPE: u16 = 4; // NETDEV_A_QSTATS_SCOPE
const BY_QUEUE: u32 = 1; // NETDEV_QSTATS_SCOPE_QUEUE
const RECEIVES: u32 = 0; // NETDEV_QUEUE_TYPE_RX
const QUEUE_PACKETS: u16 = 8; // NETDEV_A_QSTATS_RX_PACKETS
const QUEUE_ALLOC_FAIL: u16 = 12; // NETDEV_A_QSTATS_RX_ALLOC_FAIL
const QUEUE_HW_DROPS: u16 = 13; // NETDEV_A_QSTATS_RX_HW_DROPS
const QUEUE_HW_OVERRUNS: u16 = 14; // NETDEV_A_QSTATS_RX_HW_DROP_OVERRUNS

/// One interface, as the kernel lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedLink {
    /// Its `ifindex`.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What made it, as in "bond" or "vlan"; empty for hardware.
    pub kind: String,
}

/// What an interface has received and lost, by the names of `struct rtnl_link_stats64`. `None` is what a kernel does
/// not tell yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // linux/if_link.h and the kernel's documentation of statistics say what each is.
pub struct LinkStatistics {
    pub rx_packets: Option<u64>,
    pub rx_bytes: Option<u64>,
    pub rx_errors: Option<u64>,
    pub rx_dropped: Option<u64>,
    pub multicast: Option<u64>,
    pub rx_length_errors: Option<u64>,
    pub rx_over_errors: Option<u64>,
    pub rx_crc_errors: Option<u64>,
    pub rx_frame_errors: Option<u64>,
    pub rx_fifo_errors: Option<u64>,
    pub rx_missed_errors: Option<u64>,
    pub rx_nohandler: Option<u64>,
}

/// What a receive queue has received and lost. `None` is what its driver does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Packets received.
    pub packets: Option<u64>,
    /// There was no memory for a buffer.
    pub alloc_fail: Option<u64>,
    /// Dropped by the device.
    pub hw_drops: Option<u64>,
    /// Of those, because the ring was full.
    pub hw_drop_overruns: Option<u64>,
}

/// Asks the kernel for statistics, in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Statistics {
    route: NetlinkSocket,
    /// The socket for the `netdev` family, where the kernel has it.
    queues: Option<(NetlinkSocket, GenericFamily)>,
}

impl Statistics {
    /// Opens the sockets. Needs no privilege.
    pub fn new() -> io::Result<Self> {
        let route = NetlinkSocket::open_with_timeout(NetlinkProtocol::Route)?;
        let mut generic = NetlinkSocket::open_with_timeout(NetlinkProtocol::Generic)?;
        let family = GenericFamily::find(&mut generic, FAMILY)?;
        Ok(Self { route, queues: family.map(|family| (generic, family)) })
    }

    /// The interfaces of the network namespace.
    pub fn links(&mut self) -> io::Result<Vec<ListedLink>> {
        let request = NetlinkRequest::new(GET_LINK).bytes(&[0; LINK_HEADER_BYTES]);
        let request = request.attribute(LINK_EXTENSIONS, &WITHOUT_STATISTICS.to_ne_bytes());
        let mut links = Vec::new();
        self.route.dump(request, |message| links.extend(link(message.payload)))?;
        Ok(links)
    }

    /// Calls `visit` with the number of each interface and its statistics.
    pub fn each_link(&mut self, mut visit: impl FnMut(u32, LinkStatistics)) -> io::Result<()> {
        // IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)
        let filter: u32 = 1 << (STATISTICS_64 - 1);
        let request = NetlinkRequest::new(GET_STATISTICS).bytes(&[0; 8]).bytes(&filter.to_ne_bytes());
        self.route.dump(request, |message| {
            if let Some((index, statistics)) = link_statistics(message.payload) {
                visit(index, statistics);
            }
        })?;
        Ok(())
    }

    /// Calls `visit` with the number of each interface, each of its receive queues and its statistics, where the
    /// driver tells them. Other drivers are passed over.
    pub fn each_queue(&mut self, mut visit: impl FnMut(u32, u32, QueueStatistics)) -> io::Result<()> {
        let Some((socket, family)) = &mut self.queues else { return Ok(()) };
        let request = family.request(QUEUE_STATISTICS).attribute(QUEUE_SCOPE, &BY_QUEUE.to_ne_bytes());
        let answer = socket.dump(request, |message| {
            if let Some((index, queue, statistics)) = queue_statistics(message.payload) {
                visit(index, queue, statistics);
            }
        });
        match answer {
            // A kernel that has the family but not yet this command.
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                self.queues = None;
                Ok(())
            }
            answer => Ok(answer?),
        }
    }
}

pub(crate) fn link(payload: &[u8]) -> Option<ListedLink> {
    let index = field(payload, INDEX_AT).map(u32::from_ne_bytes)?;
    let attributes = Attributes::new(payload.get(LINK_HEADER_BYTES..)?);
    let kind = attributes.nested(LINK_INFO).text(LINK_KIND).unwrap_or_default();
    Some(ListedLink { index, name: attributes.text(LINK_NAME)?, kind })
}

pub(crate) fn link_statistics(payload: &[u8]) -> Option<(u32, LinkStatistics)> {
    let index = field(payload, INDEX_AT).map(u32::from_ne_bytes)?;
    let counts = Attributes::new(payload.get(STATISTICS_HEADER_BYTES..)?).bytes(STATISTICS_64)?;
    // The place in struct rtnl_link_stats64, which only ever grows.
    let at = |place: usize| field(counts, 8 * place).map(u64::from_ne_bytes);
    let statistics = LinkStatistics {
        rx_packets: at(0),
        rx_bytes: at(2),
        rx_errors: at(4),
        rx_dropped: at(6),
        multicast: at(8),
        rx_length_errors: at(10),
        rx_over_errors: at(11),
        rx_crc_errors: at(12),
        rx_frame_errors: at(13),
        rx_fifo_errors: at(14),
        rx_missed_errors: at(15),
        rx_nohandler: at(23),
    };
    Some((index, statistics))
}

pub(crate) fn queue_statistics(payload: &[u8]) -> Option<(u32, u32, QueueStatistics)> {
    let attributes = Attributes::new(payload.get(generic::HEADER_BYTES..)?);
    if attributes.number(QUEUE_TYPE)? != RECEIVES {
        return None;
    }
    let statistics = QueueStatistics {
        packets: attributes.wide(QUEUE_PACKETS),
        alloc_fail: attributes.wide(QUEUE_ALLOC_FAIL),
        hw_drops: attributes.wide(QUEUE_HW_DROPS),
        hw_drop_overruns: attributes.wide(QUEUE_HW_OVERRUNS),
    };
    Some((attributes.number(QUEUE_INTERFACE)?, attributes.number(QUEUE_ID)?, statistics))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mutate, numbers};
    use netlink::attribute;

    /// An answer about interface 7 with this many counters, which are 100, 101 and so on.
    fn of_interface_7(counters: u64) -> Vec<u8> {
        let counts: Vec<u8> = (100..100 + counters).flat_map(u64::to_ne_bytes).collect();
        let mut payload = vec![0, 0, 0, 0, 7, 0, 0, 0];
        payload.extend(1_u32.to_ne_bytes());
        payload.extend(attribute(STATISTICS_64, &counts));
        payload
    }

    #[test]
    fn each_counter_of_an_interface_is_read_at_its_place_and_an_older_kernel_tells_fewer() {
        let (index, new) = link_statistics(&of_interface_7(25)).expect("statistics");
        assert_eq!((index, new.rx_packets, new.rx_bytes, new.rx_dropped), (7, Some(100), Some(102), Some(106)));
        assert_eq!((new.rx_missed_errors, new.rx_nohandler), (Some(115), Some(123)));
        let (_, old) = link_statistics(&of_interface_7(23)).expect("statistics");
        assert_eq!(old, LinkStatistics { rx_nohandler: None, ..new });
    }

    #[test]
    fn a_queue_tells_what_its_driver_tells_and_a_send_queue_is_passed_over() {
        let answer = |kind: u32| {
            let head = numbers(&[(QUEUE_INTERFACE, 4), (QUEUE_TYPE, kind), (QUEUE_ID, 2), (QUEUE_PACKETS, 70)]);
            [vec![0; 4], head, attribute(QUEUE_HW_DROPS, &(1_u64 << 40).to_ne_bytes())].concat()
        };
        let expected = QueueStatistics { packets: Some(70), hw_drops: Some(1 << 40), ..QueueStatistics::default() };
        assert_eq!(queue_statistics(&answer(RECEIVES)), Some((4, 2, expected)));
        assert_eq!(queue_statistics(&answer(1)), None);
    }

    #[test]
    fn no_answer_makes_the_readers_panic() {
        mutate(&of_interface_7(25), |bytes| {
            let _ = (link(bytes), link_statistics(bytes), queue_statistics(bytes));
        });
    }

    #[test]
    fn the_running_kernel_tells_of_loopback_without_privileges() {
        let mut statistics = Statistics::new().expect("netlink");
        let links = statistics.links().expect("links");
        let loopback = links.iter().find(|link| link.name == "lo").expect("every namespace has one");
        let mut found = None;
        let mut look = |index, told| found = if index == loopback.index { Some(told) } else { found };
        statistics.each_link(&mut look).expect("statistics");
        assert!(found.expect("of loopback").rx_packets.is_some());
        statistics.each_queue(|_, _, _| {}).expect("an answer, or none");
    }
}
