//! What the kernel says of interfaces, of their queues and of the polling contexts of those: the `netdev` family of
//! generic netlink, from Linux 6.8 on.
//!
//! A kernel without the family, a driver that tells it nothing, and a device that is down are no errors: the answer is
//! then empty, and the names of interrupts are read instead. sysfs shows the interfaces of the network namespace in
//! which it was mounted, which need not be this one: so the list of the kernel is compared with that of sysfs.

use std::collections::BTreeMap;
use std::io;

use netlink::generic::{GenericFamily, HEADER_BYTES};
use netlink::{Attributes, NetlinkProtocol, NetlinkSocket};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nameindex;

/// What the kernel says of one receive queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetdevQueue {
    /// The number of the queue, from 0.
    pub queue: u32,
    /// The number of its polling context (NAPI).
    pub napi: Option<u32>,
    /// The interrupt of that context, when the driver told the kernel.
    pub interrupt: Option<u32>,
    /// The kernel thread that polls it, when one does.
    pub thread: Option<u32>,
    /// Whether that thread polls it, where the kernel says so of each queue; before that a device says it of all.
    pub threaded: Option<bool>,
}

/// Tells what the kernel knows of queues: [`Netlink`], or a test.
pub trait Netdev {
    /// The receive queues of the interface with this `ifindex`; empty when the kernel says nothing of them.
    fn receive_queues(&self, interface: u32) -> io::Result<Vec<NetdevQueue>>;

    /// The interfaces of this network namespace, whatever sysfs shows.
    fn links(&self) -> io::Result<Vec<Link>>;
}

/// The running kernel, asked by netlink.
#[derive(Debug, Default, Clone, Copy)]
pub struct Netlink;

// Each number with its name in the kernel's header linux/netdev.h.
const FAMILY: &str = "netdev"; // NETDEV_FAMILY_NAME
const QUEUE_GET: u8 = 10; // NETDEV_CMD_QUEUE_GET
const QUEUE_ID: u16 = 1; // NETDEV_A_QUEUE_ID
const QUEUE_INTERFACE: u16 = 2; // NETDEV_A_QUEUE_IFINDEX
const QUEUE_TYPE: u16 = 3; // NETDEV_A_QUEUE_TYPE
const QUEUE_NAPI: u16 = 4; // NETDEV_A_QUEUE_NAPI_ID
const RECEIVES: u32 = 0; // NETDEV_QUEUE_TYPE_RX
const NAPI_GET: u8 = 11; // NETDEV_CMD_NAPI_GET
const NAPI_INTERFACE: u16 = 1; // NETDEV_A_NAPI_IFINDEX
const NAPI_ID: u16 = 2; // NETDEV_A_NAPI_ID
const NAPI_INTERRUPT: u16 = 3; // NETDEV_A_NAPI_IRQ
const NAPI_THREAD: u16 = 4; // NETDEV_A_NAPI_PID
const NAPI_THREADED: u16 = 8; // NETDEV_A_NAPI_THREADED

impl Netdev for Netlink {
    fn receive_queues(&self, interface: u32) -> io::Result<Vec<NetdevQueue>> {
        let mut socket = NetlinkSocket::open_with_timeout(NetlinkProtocol::Generic)?;
        let Some(family) = GenericFamily::find(&mut socket, FAMILY)? else { return Ok(Vec::new()) };
        let mut dump = |command: u8, attribute: u16| {
            let request = family.request(command).attribute(attribute, &interface.to_ne_bytes());
            match socket.consistent_dump(&request, HEADER_BYTES) {
                // A kernel that has the family but not yet this command, or a device that has gone.
                Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => Ok(Vec::new()),
                found => found,
            }
        };
        let queues = dump(QUEUE_GET, QUEUE_INTERFACE)?;
        let contexts = dump(NAPI_GET, NAPI_INTERFACE)?;
        Ok(join(&queues, &contexts))
    }

    fn links(&self) -> io::Result<Vec<Link>> {
        links()
    }
}

/// Joins queues with their contexts.
pub(crate) fn join(queues: &[Vec<u8>], contexts: &[Vec<u8>]) -> Vec<NetdevQueue> {
    let contexts = contexts.iter().map(|context| Attributes::new(context));
    let contexts: BTreeMap<u32, Attributes<'_>> =
        contexts.filter_map(|context| Some((context.number(NAPI_ID)?, context))).collect();
    let mut found: Vec<NetdevQueue> = Vec::new();
    let queues = queues.iter().map(|queue| Attributes::new(queue));
    for queue in queues.filter(|queue| queue.number(QUEUE_TYPE) == Some(RECEIVES)) {
        let Some(number) = queue.number(QUEUE_ID) else { continue };
        let napi = queue.number(QUEUE_NAPI).filter(|&napi| napi != 0);
        let context = napi.and_then(|napi| contexts.get(&napi));
        let of_context = |kind: u16| context.and_then(|context| context.number(kind));
        found.push(NetdevQueue {
            queue: number,
            napi,
            interrupt: of_context(NAPI_INTERRUPT),
            thread: of_context(NAPI_THREAD),
            threaded: of_context(NAPI_THREADED).map(|threaded| threaded != 0),
        });
    }
    found.sort_by_key(|queue| queue.queue);
    found
}

/// One interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address, where it has one of six bytes.
    pub address: Option<String>,
}

/// Asks the kernel, in the network namespace of this thread.
pub(crate) fn links() -> io::Result<Vec<Link>> {
    let mut addresses = BTreeMap::new();
    for interface in getifaddrs()? {
        let link = interface.address.as_ref().and_then(|address| address.as_link_addr());
        if let Some(bytes) = link.and_then(|link| link.addr()) {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            addresses.insert(interface.interface_name, bytes.join(":"));
        }
    }
    let mut links: Vec<Link> = Vec::new();
    for interface in &if_nameindex()? {
        let name = interface.name().to_string_lossy().into_owned();
        let address = addresses.get(&name).cloned();
        links.push(Link { index: interface.index(), name, address });
    }
    links.sort();
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn queues_are_joined_with_their_contexts() {
        let queues = [
            numbers(&[(1, 1), (3, 0), (4, 258)]),
            numbers(&[(1, 0), (3, 0), (4, 257)]),
            numbers(&[(1, 0), (3, 1), (4, 259)]),
            numbers(&[(1, 2), (3, 0)]),
        ];
        let contexts = [numbers(&[(2, 257), (3, 45), (8, 0)]), numbers(&[(2, 258), (4, 99)])];
        let expected = [
            NetdevQueue { queue: 0, napi: Some(257), interrupt: Some(45), thread: None, threaded: Some(false) },
            NetdevQueue { queue: 1, napi: Some(258), interrupt: None, thread: Some(99), threaded: None },
            NetdevQueue { queue: 2, ..NetdevQueue::default() },
        ];
        assert_eq!(join(&queues, &contexts), expected);
    }

    #[test]
    fn the_running_kernel_is_asked_without_privileges_and_answers_for_loopback() {
        // Loopback has no polling contexts; a kernel without the family answers with nothing at all.
        let queues = Netlink.receive_queues(1).expect("an answer or none");
        assert!(queues.iter().all(|queue| queue.napi.is_none() && queue.interrupt.is_none()), "{queues:?}");
    }

    #[test]
    fn the_kernel_lists_the_loopback_with_its_number() {
        let links = links().expect("the kernel answers");
        let loopback = links.iter().find(|link| link.name == "lo").expect("every namespace has one");
        assert_eq!(loopback.index, 1);
    }
}
