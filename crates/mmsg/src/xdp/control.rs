//! What a reader of a batch wants to know of a datagram besides its payload, written as the kernel writes it for an
//! ordinary socket: the sender as a socket address, everything else as control messages. Pure, over byte slices.
//!
//! So `datagram.rs` reads a batch of this engine with the same code as any other.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::addr::{self, Name};
use crate::cmsg::put;
use crate::shape::Control;

use super::frame::Heading;

/// What is the same for all datagrams of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    /// Which control messages to write. The drop counter, the device's time and the size of segments are none of them:
    /// nothing here knows them.
    pub(super) wanted: Control,
    pub(super) interface: u32,
    /// The time since the Unix epoch.
    pub(super) arrival: Duration,
}

/// Who sent a datagram.
pub(super) fn sender(heading: &Heading, interface: u32) -> Name {
    addr::encode(match heading.source {
        // An address that means something on one link only comes with that link.
        IpAddr::V6(source) if source.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(source, heading.source_port, 0, interface))
        }
        source => SocketAddr::new(source, heading.source_port),
    })
}

/// Writes the control messages of a datagram and returns how many bytes they take.
pub(super) fn write(control: &mut [u8], said: &Said, heading: &Heading) -> usize {
    let (mut end, wanted) = (0, said.wanted);
    if wanted.timestamps {
        let (seconds, nanoseconds) = (said.arrival.as_secs() as i64, i64::from(said.arrival.subsec_nanos()));
        let mut time = [0; 16];
        time[..8].copy_from_slice(&seconds.to_ne_bytes());
        time[8..].copy_from_slice(&nanoseconds.to_ne_bytes());
        end = put(control, end, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time);
    }
    let (class, hops) = (heading.traffic_class, i32::from(heading.hop_limit).to_ne_bytes());
    match heading.destination {
        IpAddr::V4(destination) => {
            if wanted.packet_info {
                let octets = destination.octets();
                let mut info = [0; 12];
                info[..4].copy_from_slice(&said.interface.to_ne_bytes());
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
                info[16..].copy_from_slice(&said.interface.to_ne_bytes());
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
            let heading = Heading::read(&sample.frame(), Checksums::Verified).expect("a datagram");
            let arrival = Duration::new(1_700_000_000, 42);
            let said = Said { wanted: EVERYTHING, interface: 7, arrival };
            let mut control = vec![0; BatchShape::new(1, 1).control(EVERYTHING).layout().control_bytes];
            let end = write(&mut control, &said, &heading);
            let name = sender(&heading, 7);
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
        let heading = Heading::read(&Sample::v6(b"").frame(), Checksums::Verified).expect("a datagram");
        let said = |wanted| Said { wanted, interface: 7, arrival: Duration::ZERO };
        assert_eq!(write(&mut [0; 200], &said(Control::new()), &heading), 0);
        for room in 0..200 {
            assert!(write(&mut vec![0; room], &said(EVERYTHING), &heading) <= room);
        }
    }

    #[test]
    fn a_link_local_sender_comes_with_its_link() {
        let mut sample = Sample::v6(b"");
        sample.source = "fe80::9".parse().expect("valid");
        let heading = Heading::read(&sample.frame(), Checksums::Verified).expect("a datagram");
        let Some(SocketAddr::V6(source)) = addr::decode(sender(&heading, 7).as_bytes()) else { panic!("IPv6") };
        assert_eq!((source.scope_id(), source.flowinfo()), (7, 0));
    }
}
