//! The options of a [`Socket`], typed: what goes in is what the option means, and what comes out is what was granted.
//!
//! Reports about each datagram are off unless switched on, and each kind needs room in the batch
//! ([`Control`](crate::Control)): the kernel cuts off a message without room, and with GRO that may be the one that a
//! train cannot be split without.
//!
//! Multicast uses the requests that do not depend on the family (`MCAST_JOIN_GROUP` and its like): they name the
//! interface by its index, which then needs no address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SOL_UDP, c_int};

use crate::addr::{self, Family};
use crate::reuseport::{self, GroupSpread};
use crate::socket::Socket;
use crate::sys;

/// The most that this crate sets; a larger wish shows as clamped. The kernel doubles what is set, and its arithmetic
/// has had faults beyond 1 GiB.
const MAX_BUFFER_BYTES: usize = 512 << 20;

/// The kernel keeps the name with a zero behind it.
const MAX_INTERFACE_NAME_BYTES: usize = libc::IFNAMSIZ - 1;

/// How many numbers `SO_MEMINFO` gives; the drops come last.
const MEMORY_WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// An option of UDP that no kernel has; programs that own groups of sockets answer it.
const GROUP_OWNER: c_int = 200;

/// What the kernel granted when it was asked for a buffer.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedBuffer {
    /// The bytes that the caller asked for.
    pub asked_bytes: usize,
    /// The bytes the kernel accounts with: twice the value set, because it counts its own overhead too.
    pub granted_bytes: usize,
    /// Whether the buffer was set past the administrator's limit, which `CAP_NET_ADMIN` permits.
    pub forced: bool,
}

impl GrantedBuffer {
    /// Whether less was granted than asked for. The cure is `CAP_NET_ADMIN`, or a higher `net.core.rmem_max` (for
    /// sending `net.core.wmem_max`).
    pub fn is_clamped(&self) -> bool {
        self.granted_bytes < self.asked_bytes.saturating_mul(2)
    }
}

/// What the kernel knows of a socket's receive queue (`SO_MEMINFO`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Memory charged for what is queued. While datagrams are read it may exceed that by up to a quarter of the buffer.
    pub receive_used_bytes: u32,
    /// The receive buffer, as in [`GrantedBuffer::granted_bytes`].
    pub receive_buffer_bytes: u32,
    /// Datagrams dropped at this socket since it was made. Wraps: take differences with `wrapping_sub`. With GRO a
    /// dropped train counts one.
    pub drops: u32,
}

impl Socket {
    pub(crate) fn set(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        sys::set_option_int(self.as_fd(), level, option, value)
    }

    /// Lets several sockets of one user bind the same address and share its datagrams (`SO_REUSEPORT`). Before `bind`.
    pub fn set_reuse_port(&self, on: bool) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_REUSEPORT, on.into())
    }

    /// Whether an IPv6 socket takes IPv6 only (`IPV6_V6ONLY`). Before `bind`.
    pub fn set_v6_only(&self, on: bool) -> io::Result<()> {
        self.set(IPPROTO_IPV6, libc::IPV6_V6ONLY, on.into())
    }

    /// Takes datagrams from this interface only (`SO_BINDTODEVICE`). The socket stays bound to that very interface:
    /// when it is deleted and made again under the same name, the socket receives nothing any more.
    pub fn bind_to_device(&self, interface: &str) -> io::Result<()> {
        if interface.is_empty() || interface.len() > MAX_INTERFACE_NAME_BYTES || interface.contains('\0') {
            let text = format!(
                "no interface can be called {interface:?}: a name has 1 to {MAX_INTERFACE_NAME_BYTES} bytes, \
                 none of them zero"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        sys::set_option(self.as_fd(), SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_bytes())
    }

    /// The index of the interface that the socket is bound to (`SO_BINDTOIFINDEX`); 0 = none. It stays the same when
    /// that interface is gone.
    pub fn bound_interface(&self) -> io::Result<u32> {
        Ok(sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_BINDTOIFINDEX)?.cast_unsigned())
    }

    /// Receives consecutive datagrams of one sender glued together (`UDP_GRO`). Only batches with `control.gro` take
    /// such a socket.
    ///
    /// # Errors
    /// `InvalidInput` for switching it off again: queued trains would then come out as datagrams that were never sent.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        if !on {
            let text = "GRO cannot be switched off, because trains that are queued already would look like datagrams: \
                        make a new socket";
            return if self.has_gro() { Err(io::Error::new(io::ErrorKind::InvalidInput, text)) } else { Ok(()) };
        }
        self.switch_gro_on(|| self.set(SOL_UDP, libc::UDP_GRO, 1))
    }

    /// Cuts everything sent into datagrams of this size (`UDP_SEGMENT`); 0 switches it off.
    /// [`SendBatch::push_segmented`](crate::SendBatch::push_segmented) does it for one message, with a fallback.
    pub fn set_segment_size(&self, bytes: u16) -> io::Result<()> {
        self.set(SOL_UDP, libc::UDP_SEGMENT, bytes.into())
    }

    /// Polls the device's queue for this long before sleeping in a receive call (`SO_BUSY_POLL`). Raising it needs
    /// `CAP_NET_ADMIN`.
    pub fn set_busy_poll_us(&self, microseconds: u32) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_BUSY_POLL, c_int::try_from(microseconds).unwrap_or(c_int::MAX))
    }

    /// The time that [`set_busy_poll_us`](Self::set_busy_poll_us) has set, or the system's default.
    pub fn busy_poll_us(&self) -> io::Result<u32> {
        Ok(sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_BUSY_POLL)?.cast_unsigned())
    }

    /// While this socket is polled, leaves the device's queue to it instead of to interrupts, as far as
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` of the device allow (`SO_PREFER_BUSY_POLL`). Needs
    /// `CAP_NET_ADMIN`.
    pub fn set_prefer_busy_poll(&self, on: bool) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, on.into())
    }

    /// How many packets one poll of the device's queue takes (`SO_BUSY_POLL_BUDGET`); the kernel's default is 8.
    /// Raising it needs `CAP_NET_ADMIN`.
    pub fn set_busy_poll_budget(&self, packets: u16) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, packets.into())
    }

    /// Prefers this socket of its reuseport group for what arrives on `cpu` (`SO_INCOMING_CPU`). The kernel walks all
    /// members for each datagram; [`GroupSpread::Cpu`] finds the member at once.
    pub fn set_incoming_cpu(&self, cpu: usize) -> io::Result<()> {
        let cpu = c_int::try_from(cpu).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {cpu}: the kernel counts in 32 bits"))
        })?;
        self.set(SOL_SOCKET, libc::SO_INCOMING_CPU, cpu)
    }

    /// The core set by [`set_incoming_cpu`](Self::set_incoming_cpu); for a connected socket the one that handled the
    /// last datagram.
    pub fn incoming_cpu(&self) -> io::Result<Option<usize>> {
        Ok(usize::try_from(sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_INCOMING_CPU)?).ok())
    }

    /// The device queue (NAPI) that fed this socket first (`SO_INCOMING_NAPI_ID`); 0 where the device has none, as
    /// loopback.
    pub fn incoming_napi_id(&self) -> io::Result<u32> {
        Ok(sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_INCOMING_NAPI_ID)?.cast_unsigned())
    }

    /// Whether another program owns the groups of sockets with one address and chooses the member for each datagram, as
    /// udpgrm does. Such a program answers an option that the kernel does not have (number 200 of UDP), and its choice
    /// replaces any [`GroupSpread`](crate::GroupSpread).
    pub fn group_has_owner(&self) -> bool {
        sys::get_option_int(self.as_fd(), SOL_UDP, GROUP_OWNER).is_ok()
    }

    /// Asks for a receive buffer, beyond the administrator's limit where the process may (`SO_RCVBUFFORCE`, else
    /// `SO_RCVBUF`), and reads back what was granted.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<GrantedBuffer> {
        self.set_buffer(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// The receive buffer as it is, compared with `asked_bytes`. It does not say how it was set.
    pub fn receive_buffer(&self, asked_bytes: usize) -> io::Result<GrantedBuffer> {
        let granted = sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_RCVBUF)?;
        Ok(GrantedBuffer { asked_bytes, granted_bytes: usize::try_from(granted).unwrap_or(0), forced: false })
    }

    /// Asks for a send buffer in the same way (`SO_SNDBUFFORCE`, else `SO_SNDBUF`).
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<GrantedBuffer> {
        self.set_buffer(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    fn set_buffer(&self, bytes: usize, force: c_int, plain: c_int) -> io::Result<GrantedBuffer> {
        let value = bytes.min(MAX_BUFFER_BYTES) as c_int;
        let forced = match self.set(SOL_SOCKET, force, value) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                self.set(SOL_SOCKET, plain, value)?;
                false
            }
            Err(error) => return Err(error),
        };
        let granted = sys::get_option_int(self.as_fd(), SOL_SOCKET, plain)?;
        Ok(GrantedBuffer { asked_bytes: bytes, granted_bytes: usize::try_from(granted).unwrap_or(0), forced })
    }

    /// Makes sends report what the kernel otherwise keeps to itself (`IP_RECVERR`): that a full queue of the device
    /// lost the datagram ([`ENOBUFS`](libc::ENOBUFS)), and answers of the network that may be temporary, such as that
    /// no host has the address. The kernel keeps a record of each answer on the socket, up to its receive buffer; a
    /// receive call that polls ([`Wait::UpTo`](crate::Wait::UpTo), or any wait on a nonblocking socket) drops them.
    pub fn set_report_errors(&self, on: bool) -> io::Result<()> {
        match self.family() {
            Family::V4 => self.set(IPPROTO_IP, libc::IP_RECVERR, on.into()),
            Family::V6 => self.set(IPPROTO_IPV6, libc::IPV6_RECVERR, on.into()),
        }
    }

    /// Sets the traffic class of what is sent (`IP_TOS`, `IPV6_TCLASS`): DSCP in the upper six bits, ECN in the lower
    /// two.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_TCLASS, class.into())?;
        }
        // An IPv6 socket sends to IPv4 addresses too, by the options of IPv4.
        self.v4_too(self.set(IPPROTO_IP, libc::IP_TOS, class.into()))
    }

    /// A raw socket of IPv6 sends to no IPv4 address, and does not know the options of IPv4.
    fn v4_too(&self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Err(error) if self.family() == Family::V6 && error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Sets how many routers a sent datagram may pass (`IP_TTL`, `IPV6_UNICAST_HOPS`); at least 1.
    pub fn set_hop_limit(&self, hops: u8) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops.into())?;
        }
        self.v4_too(self.set(IPPROTO_IP, libc::IP_TTL, hops.into()))
    }

    /// Permits sending to broadcast addresses (`SO_BROADCAST`), which the kernel refuses otherwise.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_BROADCAST, on.into())
    }

    /// Sets how many routers a datagram to a multicast group may pass (`IP_MULTICAST_TTL`, `IPV6_MULTICAST_HOPS`). The
    /// default of the kernel is 1, the own network; 0 stays on this host.
    pub fn set_multicast_hops(&self, hops: u8) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, hops.into())?;
        }
        self.v4_too(self.set(IPPROTO_IP, libc::IP_MULTICAST_TTL, hops.into()))
    }

    /// Sends what goes to multicast groups by this interface, whatever the routes say (`IP_MULTICAST_IF`,
    /// `IPV6_MULTICAST_IF`); 0 leaves it to the routes.
    pub fn set_multicast_interface(&self, interface_index: u32) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface_index.cast_signed())?;
        }
        // A `struct ip_mreqn`, of which only the index counts.
        let mut request = [0; size_of::<libc::ip_mreqn>()];
        request[std::mem::offset_of!(libc::ip_mreqn, imr_ifindex)..].copy_from_slice(&interface_index.to_ne_bytes());
        self.v4_too(sys::set_option(self.as_fd(), IPPROTO_IP, libc::IP_MULTICAST_IF, &request))
    }

    /// Whether sockets of this host that have joined the group get what is sent to it (`IP_MULTICAST_LOOP`,
    /// `IPV6_MULTICAST_LOOP`). The default of the kernel is yes.
    pub fn set_multicast_loop(&self, on: bool) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, on.into())?;
        }
        self.v4_too(self.set(IPPROTO_IP, libc::IP_MULTICAST_LOOP, on.into()))
    }

    /// The longest packet that the route of a connected socket takes whole, headers included, as far as the kernel
    /// knows. It learns by use.
    pub fn path_mtu(&self) -> io::Result<usize> {
        let (level, option) = match self.family() {
            Family::V4 => (IPPROTO_IP, libc::IP_MTU),
            Family::V6 => (IPPROTO_IPV6, libc::IPV6_MTU),
        };
        Ok(usize::try_from(sys::get_option_int(self.as_fd(), level, option)?).unwrap_or(0))
    }

    /// The state of the receive queue, and the exact count of drops.
    pub fn memory_info(&self) -> io::Result<MemoryInfo> {
        // Newer kernels may know more words; they write only as many as there is room for.
        let mut words = [0; MEMORY_WORDS];
        let known = sys::get_option(self.as_fd(), SOL_SOCKET, libc::SO_MEMINFO, &mut words)?;
        if known < words.len() {
            let text = format!("the kernel gave {known} of the {} words of SO_MEMINFO", words.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(MemoryInfo {
            receive_used_bytes: words[libc::SK_MEMINFO_RMEM_ALLOC as usize],
            receive_buffer_bytes: words[libc::SK_MEMINFO_RCVBUF as usize],
            drops: words[libc::SK_MEMINFO_DROPS as usize],
        })
    }

    /// Gives the reuseport group of this socket the program that spreads its datagrams over so many members.
    /// [`GroupSpread::Flow`] needs none and removes it. [`Group`](crate::Group) does all of this.
    ///
    /// Call it on the **first** member, after [`set_reuse_port`](Self::set_reuse_port) and before its `bind`; then bind
    /// all members in index order. Then no datagram goes astray: the program is there before the first datagram, and
    /// the kernel falls back to its hash while an index has no member. A second socket that has a program of its own
    /// cannot join the group: its `bind` fails with `EADDRINUSE`. On a bound member the call replaces the program of
    /// the whole group, in one step.
    ///
    /// `ENOMEM` means that the program is larger than `net.core.optmem_max` allows.
    pub fn attach_reuseport(&self, spread: &GroupSpread, members: u32) -> io::Result<()> {
        match reuseport::program(spread, members)? {
            Some(program) => sys::attach_program(self.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, &program),
            None => match self.detach_reuseport() {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                result => result,
            },
        }
    }

    /// Removes the program, so that the kernel's hash decides again. `ENOENT` when there is none.
    pub fn detach_reuseport(&self) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0)
    }

    /// Makes the kernel drop everything that arrives from now on, and count it in [`MemoryInfo::drops`]. What is queued
    /// stays readable, so a socket can be read to its end under load without an unknown loss.
    pub fn refuse_arrivals(&self) -> io::Result<()> {
        sys::attach_program(self.as_fd(), libc::SO_ATTACH_FILTER, &reuseport::refuse_everything())
    }

    /// Removes the filter of the socket, if it has one: that of [`refuse_arrivals`](Self::refuse_arrivals), a
    /// [`CoreCounter`](crate::CoreCounter) or a [`SourceFilter`](crate::SourceFilter).
    pub fn accept_arrivals(&self) -> io::Result<()> {
        match self.set(SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }
}

/// The device stamps what is received, and its stamp is reported unchanged.
const BY_THE_DEVICE: c_int = (libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE).cast_signed();

impl Socket {
    /// Reports the destination address and the interface of each datagram (`IP_PKTINFO`, `IPV6_RECVPKTINFO`).
    pub fn set_packet_info(&self, on: bool) -> io::Result<()> {
        match self.family() {
            Family::V4 => self.set(IPPROTO_IP, libc::IP_PKTINFO, on.into()),
            // Covers IPv4 on a dual-stack socket too, with mapped addresses.
            Family::V6 => self.set(IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, on.into()),
        }
    }

    /// Reports when the kernel received each datagram (`SO_TIMESTAMPNS`). The first socket to ask makes the kernel
    /// stamp every packet of the host; what is already queued is stamped when it is read.
    pub fn set_timestamps(&self, on: bool) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_TIMESTAMPNS, on.into())
    }

    /// Reports the drop counter with each datagram once it is not zero (`SO_RXQ_OVFL`).
    pub fn set_drop_overflow(&self, on: bool) -> io::Result<()> {
        self.set(SOL_SOCKET, libc::SO_RXQ_OVFL, on.into())
    }

    /// Reports when the device received each datagram, by its own clock (`SO_TIMESTAMPING`). Other stamps that were
    /// asked for stay. Only capable devices that were told to (`SIOCSHWTSTAMP`, as by `hwstamp_ctl`, which takes root)
    /// stamp anything.
    pub fn set_hardware_timestamps(&self, on: bool) -> io::Result<()> {
        // One option for many kinds of stamps: those that were asked for elsewhere stay.
        let before = sys::get_option_int(self.as_fd(), SOL_SOCKET, libc::SO_TIMESTAMPING)?;
        let after = if on { before | BY_THE_DEVICE } else { before & !BY_THE_DEVICE };
        self.set(SOL_SOCKET, libc::SO_TIMESTAMPING, after)
    }

    /// Reports the traffic class of each datagram (`IP_RECVTOS`, `IPV6_RECVTCLASS`), which has ECN in its lower two
    /// bits.
    pub fn set_report_traffic_class(&self, on: bool) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_RECVTCLASS, on.into())?;
        }
        // What arrives by IPv4 at a dual-stack socket is reported by the option of IPv4.
        self.set(IPPROTO_IP, libc::IP_RECVTOS, on.into())
    }

    /// Reports the hop limit of each datagram (`IP_RECVTTL`, `IPV6_RECVHOPLIMIT`).
    pub fn set_report_hop_limit(&self, on: bool) -> io::Result<()> {
        if self.family() == Family::V6 {
            self.set(IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, on.into())?;
        }
        self.set(IPPROTO_IP, libc::IP_RECVTTL, on.into())
    }
}

const GROUP_AT: usize = std::mem::offset_of!(libc::group_source_req, gsr_group);
const SOURCE_AT: usize = std::mem::offset_of!(libc::group_source_req, gsr_source);
const GROUP_REQUEST_BYTES: usize = size_of::<libc::group_req>();
const SOURCE_REQUEST_BYTES: usize = size_of::<libc::group_source_req>();

impl Socket {
    /// Joins `group` on an interface (0 = let the kernel choose), from any source or from one (`MCAST_JOIN_GROUP`,
    /// `MCAST_JOIN_SOURCE_GROUP`). Call it once per source.
    ///
    /// A socket bound to the unspecified address also sees groups that other programs of the host joined on the same
    /// port; bind to the group's address to see that group only.
    pub fn join_multicast(&self, group: IpAddr, interface_index: u32, source: Option<IpAddr>) -> io::Result<()> {
        let option = if source.is_some() { libc::MCAST_JOIN_SOURCE_GROUP } else { libc::MCAST_JOIN_GROUP };
        self.multicast_request(option, group, interface_index, source)
    }

    /// Leaves what [`join_multicast`](Self::join_multicast) joined; the arguments must be the same.
    pub fn leave_multicast(&self, group: IpAddr, interface_index: u32, source: Option<IpAddr>) -> io::Result<()> {
        let option = if source.is_some() { libc::MCAST_LEAVE_SOURCE_GROUP } else { libc::MCAST_LEAVE_GROUP };
        self.multicast_request(option, group, interface_index, source)
    }

    /// Whether a socket on the unspecified address gets what is sent to groups that only other sockets of the host have
    /// joined (`IP_MULTICAST_ALL`). The default of the kernel is yes.
    pub fn set_multicast_all(&self, on: bool) -> io::Result<()> {
        // From linux/in6.h; the crate libc has it for one C library only.
        const IPV6_MULTICAST_ALL: c_int = 29;
        // A dual-stack socket keeps both: the option of the datagram's family applies.
        self.set(IPPROTO_IP, libc::IP_MULTICAST_ALL, on.into())?;
        match self.family() {
            Family::V4 => Ok(()),
            Family::V6 => self.set(IPPROTO_IPV6, IPV6_MULTICAST_ALL, on.into()),
        }
    }

    fn multicast_request(
        &self,
        option: c_int,
        group: IpAddr,
        interface: u32,
        source: Option<IpAddr>,
    ) -> io::Result<()> {
        let (bytes, length) = encode_group(group, interface, source)?;
        let level = if group.is_ipv4() { IPPROTO_IP } else { IPPROTO_IPV6 };
        sys::set_option(self.as_fd(), level, option, &bytes[..length])
    }
}

/// A `group_req`, or with a source a `group_source_req`, whose beginning is the same.
fn encode_group(
    group: IpAddr,
    interface: u32,
    source: Option<IpAddr>,
) -> io::Result<([u8; SOURCE_REQUEST_BYTES], usize)> {
    if !group.is_multicast() {
        let text = format!("{group} is not a multicast group: those are 224.0.0.0/4 and ff00::/8");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = [0; SOURCE_REQUEST_BYTES];
    bytes[..4].copy_from_slice(&interface.to_ne_bytes());
    put_address(&mut bytes, GROUP_AT, group);
    let Some(source) = source else {
        return Ok((bytes, GROUP_REQUEST_BYTES));
    };
    if source.is_ipv4() != group.is_ipv4() || source.is_multicast() {
        let text = format!("{source} cannot be a source of {group}: give a unicast address of the same family");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    put_address(&mut bytes, SOURCE_AT, source);
    Ok((bytes, SOURCE_REQUEST_BYTES))
}

fn put_address(bytes: &mut [u8], offset: usize, address: IpAddr) {
    let name = addr::encode(SocketAddr::from((address, 0)));
    let name = name.as_bytes();
    bytes[offset..offset + name.len()].copy_from_slice(name);
}

/// How many bytes that were written to a TCP stream its peer has not acknowledged, whether they were sent or not. A
/// stream that was reset keeps the number.
pub fn unacknowledged_bytes(stream: impl AsFd) -> io::Result<u64> {
    sys::unacknowledged(stream.as_fd()).map(|bytes| u64::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::RecvBatch;
    use crate::shape::{BatchShape, Control};
    use crate::wait::Wait;

    #[test]
    fn a_buffer_is_clamped_when_less_than_twice_the_wish_was_granted() {
        let granted = GrantedBuffer { asked_bytes: 1000, granted_bytes: 2000, forced: false };
        assert!(!granted.is_clamped());
        assert!(GrantedBuffer { granted_bytes: 1999, ..granted }.is_clamped());
        assert!(GrantedBuffer { asked_bytes: usize::MAX, ..granted }.is_clamped());
    }

    /// Sends datagrams to `socket` over loopback until one comes with a control message. Stamping begins a moment after
    /// it was asked for.
    fn one_with_control(socket: &Socket, control: Control) -> RecvBatch {
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let mut batch = RecvBatch::new(&BatchShape::new(1, 16).control(control)).expect("memory");
        for _ in 0..1_000_000 {
            sender.send_to(b"x", socket.local_addr().expect("bound")).expect("sent");
            assert_eq!(batch.receive(socket, Wait::Block).expect("received"), 1);
            if batch.datagrams().any(|datagram| datagram.control_messages().count() > 0) {
                return batch;
            }
        }
        panic!("a million datagrams came without a control message");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs sockets")]
    fn the_kernel_writes_the_times_in_the_form_that_is_read_and_loopback_is_no_device() {
        let socket = Socket::new(Family::V4).expect("a socket");
        let by_software = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        socket.set(SOL_SOCKET, libc::SO_TIMESTAMPING, by_software.cast_signed()).expect("asked for elsewhere");
        socket.set_hardware_timestamps(true).expect("beside it");
        let batch = one_with_control(&socket, Control::new().hardware_timestamps(true));
        let datagram = batch.datagrams().next().expect("one");
        let times: Vec<_> = datagram.control_messages().collect();
        assert_eq!((times.len(), times[0].kind, times[0].data.len()), (1, libc::SCM_TIMESTAMPING, 3 * 16));
        assert!(times[0].data[..16].iter().any(|byte| *byte != 0), "the other request still counts");
        assert_eq!(datagram.hardware_arrival(), None);
        socket.set_hardware_timestamps(false).expect("off");
        let left = sys::get_option_int(socket.as_fd(), SOL_SOCKET, libc::SO_TIMESTAMPING).expect("readable");
        assert_eq!(left.cast_unsigned(), by_software);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs sockets")]
    fn a_message_that_has_no_name_here_is_handed_on_as_it_is() {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.set(IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 1).expect("an option that this crate does not have");
        let room = crate::cmsg::space(size_of::<libc::sockaddr_in>());
        let batch = one_with_control(&socket, Control::new().other_bytes(room));
        let datagram = batch.datagrams().next().expect("one");
        let messages: Vec<_> = datagram.control_messages().collect();
        assert_eq!((messages.len(), messages[0].level, messages[0].kind), (1, IPPROTO_IP, libc::IP_RECVORIGDSTADDR));
        let to = crate::addr::decode(messages[0].data).expect("an address");
        assert_eq!(to, socket.local_addr().expect("bound"));
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("the test wrote a valid address")
    }

    #[test]
    fn the_parts_of_a_request_are_where_the_kernel_looks_for_them() {
        let (bytes, length) = encode_group(ip("232.1.2.3"), 7, Some(ip("10.0.0.1"))).expect("valid");
        assert_eq!(length, SOURCE_REQUEST_BYTES);
        assert_eq!(bytes[..4], 7_u32.to_ne_bytes());
        assert_eq!(bytes[GROUP_AT + 4..GROUP_AT + 8], [232, 1, 2, 3]);
        assert_eq!(bytes[SOURCE_AT + 4..SOURCE_AT + 8], [10, 0, 0, 1]);
        let (_, length) = encode_group(ip("ff02::1:2"), 7, None).expect("valid");
        assert_eq!(length, GROUP_REQUEST_BYTES);
    }

    #[test]
    fn what_is_no_group_or_no_source_of_it_is_refused() {
        assert!(encode_group(ip("10.0.0.1"), 0, None).is_err());
        assert!(encode_group(ip("fe80::1"), 0, None).is_err());
        assert!(encode_group(ip("232.1.2.3"), 0, Some(ip("fe80::1"))).is_err());
        assert!(encode_group(ip("232.1.2.3"), 0, Some(ip("232.1.2.4"))).is_err());
    }
}
