//! Writes what a reader of a batch wants to know of a datagram besides its payload, as the kernel writes it for an
//! ordinary socket: the sender as a socket address, everything else as control messages. So `datagram.rs` reads a batch
//! of this engine with the same code as any other. Pure, over byte slices.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::addr::{self, Name};
use crate::cmsg::{put, put_timestamp};
use crate::shape::Control;

use super::frame::UdpFrame;

/// What is the same for all datagrams of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchFacts {
    /// Which control messages to write. The drop counter, the device's time and the size of segments are not known
    /// here.
    pub(super) wanted: Control,
    pub(super) interface: u32,
    /// The time since the Unix epoch.
    pub(super) arrival: Duration,
}

/// The sender of a datagram.
pub(super) fn sender(udp: &UdpFrame, interface: u32) -> Name {
    addr::encode(match udp.source {
        // A link-local address comes with its link.
        IpAddr::V6(source) if source.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(source, udp.source_port, 0, interface))
        }
        source => SocketAddr::new(source, udp.source_port),
    })
}

/// Writes the control messages of a datagram and returns how many bytes they take.
pub(super) fn write(control: &mut [u8], facts: &BatchFacts, udp: &UdpFrame) -> usize {
    let (mut end, wanted) = (0, facts.wanted);
    if wanted.timestamps {
        end = put_timestamp(control, end, facts.arrival);
    }
    let (class, hops) = (udp.traffic_class, i32::from(udp.hop_limit).to_ne_bytes());
    match udp.destination {
        IpAddr::V4(destination) => {
            if wanted.packet_info {
                let octets = destination.octets();
                let mut info = [0; 12];
                info[..4].copy_from_slice(&facts.interface.to_ne_bytes());
                info[4..8].copy_from_slice(&octets);
                info[8..].copy_from_slice(&octets);
                end = put(control, end, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            if wanted.hop_limit {
                end = put(control, end, libc::IPPROTO_IP, libc::IP_TTL, &hops);
            }
            if wanted.traffic_class {
                end = put(control, end, libc::IPPROTO_IP, libc::IP_TOS, &[class]);
            }
        }
        IpAddr::V6(destination) => {
            if wanted.packet_info {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&destination.octets());
                info[16..].copy_from_slice(&facts.interface.to_ne_bytes());
                end = put(control, end, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            if wanted.hop_limit {
                end = put(control, end, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
            }
            if wanted.traffic_class {
                end = put(control, end, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &i32::from(class).to_ne_bytes());
            }
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{Datagram, Message};
    use crate::shape::BatchShape;
    use crate::xdp::Checksums;
    use crate::xdp::testing::Sample;

    const EVERYTHING: Control = Control::new().timestamps(true).packet_info(true).hop_limit(true).traffic_class(true);

    #[test]
    fn a_reader_finds_everything_it_asked_for() {
        for sample in [Sample::v4(b"payload"), Sample::v6(b"payload")] {
            let udp = UdpFrame::read(&sample.frame(), Checksums::Verified).expect("a datagram");
            let arrival = Duration::new(1_700_000_000, 42);
            let facts = BatchFacts { wanted: EVERYTHING, interface: 7, arrival };
            let mut control = vec![0; BatchShape::new(1, 1).control(EVERYTHING).layout().control_bytes];
            let end = write(&mut control, &facts, &udp);
            let name = sender(&udp, 7);
            let message = Message { name: name.as_bytes(), control: &control[..end], payload: b"", length: 0 };
            let datagram = Datagram::whole(&message);
            assert_eq!(datagram.source(), Some(SocketAddr::new(sample.source, 4444)));
            assert_eq!(datagram.destination(), Some(sample.destination));
            assert_eq!(datagram.local_address(), Some(sample.destination));
            assert_eq!(datagram.interface_index(), Some(7));
            assert_eq!(datagram.arrival_since_epoch(), Some(arrival));
            assert_eq!((datagram.traffic_class(), datagram.hop_limit()), (Some(0xb9), Some(64)));
            assert_eq!(datagram.control_messages().count(), 4);
        }
    }

    #[test]
    fn nothing_is_written_that_was_not_asked_for_or_has_no_room() {
        let udp = UdpFrame::read(&Sample::v6(b"").frame(), Checksums::Verified).expect("a datagram");
        let facts = |wanted| BatchFacts { wanted, interface: 7, arrival: Duration::ZERO };
        assert_eq!(write(&mut [0; 200], &facts(Control::new()), &udp), 0);
        for room in 0..200 {
            assert!(write(&mut vec![0; room], &facts(EVERYTHING), &udp) <= room);
        }
    }

    #[test]
    fn a_link_local_sender_comes_with_its_link() {
        let mut sample = Sample::v6(b"");
        sample.source = "fe80::9".parse().expect("valid");
        let udp = UdpFrame::read(&sample.frame(), Checksums::Verified).expect("a datagram");
        let Some(SocketAddr::V6(source)) = addr::decode(sender(&udp, 7).as_bytes()) else { panic!("IPv6") };
        assert_eq!((source.scope_id(), source.flowinfo()), (7, 0));
    }
}
