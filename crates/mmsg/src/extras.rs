//! What the kernel says about a datagram besides its bytes, and the options that make it do so. All of them are off
//! unless switched on, and each needs room in the batch ([`Control`](crate::Control)): a message that finds none is cut
//! away, and with GRO it may be the one that a train cannot be split without.

use std::io;
use std::os::fd::AsFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, c_int};

use crate::addr::Family;
use crate::socket::Socket;
use crate::sys;

/// Stamp what is received in the device, and hand that stamp on as the device wrote it.
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
    /// asked for stay. Only devices that can, and have been told to (`SIOCSHWTSTAMP`, as by `hwstamp_ctl`, which takes
    /// root), stamp anything.
    pub fn set_hardware_timestamps(&self, on: bool) -> io::Result<()> {
        // One option for many kinds of stamps: those that somebody else has asked for stay.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::RecvBatch;
    use crate::shape::{BatchShape, Control};
    use crate::wait::Wait;

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
        socket.set(SOL_SOCKET, libc::SO_TIMESTAMPING, by_software.cast_signed()).expect("asked for by somebody else");
        socket.set_hardware_timestamps(true).expect("beside it");
        let batch = one_with_control(&socket, Control::new().hardware_timestamps(true));
        let datagram = batch.datagrams().next().expect("one");
        let times: Vec<_> = datagram.control_messages().collect();
        assert_eq!((times.len(), times[0].kind, times[0].data.len()), (1, libc::SCM_TIMESTAMPING, 3 * 16));
        assert!(times[0].data[..16].iter().any(|byte| *byte != 0), "the other's request is still heard");
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
}
