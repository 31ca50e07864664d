//! What comes with a datagram besides its bytes, as the kernel writes it, by each engine and on both families.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use mmsg::{Control, Family, SendBatch, Socket, Wait};

use crate::common::{DEADLINE, Kind, Receiving, bound_shared, loopback, unbound};

/// DSCP 46, which is expedited forwarding, and ECN 2.
const CLASS: u8 = 46 << 2 | 2;
const HOPS: u8 = 77;
const CONTROL: Control = Control::new().traffic_class(true).hop_limit(true);

fn prepare(socket: &Socket) {
    socket.set_report_traffic_class(true).expect("traffic class");
    socket.set_report_hop_limit(true).expect("hop limit");
}

/// A sender whose datagrams can be told by their headers.
fn sender(family: Family) -> Socket {
    let sender = unbound(family);
    sender.set_traffic_class(CLASS).expect("traffic class");
    sender.set_hop_limit(HOPS).expect("hop limit");
    sender
}

fn send(from: &Socket, to: SocketAddr) {
    let mut outgoing = SendBatch::new(1, 1000).expect("memory");
    outgoing.push_segmented(&[7; 950], 100, Some(to)).expect("a free slot");
    outgoing.flush(from).expect("sent").all_sent().expect("all of it");
}

#[test]
fn class_and_hop_limit_are_those_of_the_header_whatever_the_family_of_sender_and_socket() {
    for kind in Kind::here() {
        for gro in [false, true] {
            for (family, local) in [(Family::V4, "127.0.0.1:0"), (Family::V6, "[::1]:0"), (Family::V6, "[::]:0")] {
                let socket = unbound(family);
                prepare(&socket);
                socket.set_gro(gro).expect("GRO");
                socket.bind(local.parse().expect("valid")).expect("a free port");
                let port = socket.local_addr().expect("bound").port();
                let mut receiving = Receiving::new(kind, &Arc::new(socket), 16, 1000, CONTROL.gro(gro));
                // What has no address of its own listens on both families.
                let (from, to) =
                    if local == "[::]:0" { (Family::V4, "127.0.0.1") } else { (family, &local[..local.len() - 2]) };
                send(&sender(from), format!("{to}:{port}").parse().expect("valid"));
                let mut seen = 0;
                while seen < 10 {
                    assert!(receiving.engine.wait_readable(DEADLINE).expect("poll"));
                    receiving.receive(Wait::No);
                    for datagram in &receiving.batch {
                        let what = (datagram.traffic_class(), datagram.ecn(), datagram.hop_limit());
                        assert_eq!(what, (Some(CLASS), Some(2), Some(HOPS)), "{kind:?}, {local}, GRO {gro}");
                        seen += 1;
                    }
                }
                assert_eq!(receiving.batch.summary().unsplit, 0);
            }
        }
    }
}

#[test]
fn what_was_not_asked_for_is_none_and_what_was_switched_off_is_none_again() {
    for kind in Kind::here() {
        for family in [Family::V4, Family::V6] {
            let (socket, to) = bound_shared(family, |_| {});
            let mut receiving = Receiving::new(kind, &socket, 16, 1000, CONTROL.hardware_timestamps(true));
            for round in 0..2 {
                send(&sender(family), to);
                assert_eq!(receiving.receive(Wait::Block), 10, "{kind:?}");
                for datagram in &receiving.batch {
                    assert_eq!((datagram.traffic_class(), datagram.hop_limit()), (None, None), "round {round}");
                    assert_eq!((datagram.hardware_arrival(), datagram.control_messages().count()), (None, 0));
                }
                prepare(&socket);
                socket.set_report_traffic_class(false).expect("off");
                socket.set_report_hop_limit(false).expect("off");
            }
        }
    }
}

#[test]
fn the_raw_messages_are_those_that_were_asked_for() {
    for kind in Kind::here() {
        let (socket, to) = bound_shared(Family::V4, |socket| {
            prepare(socket);
            socket.set_packet_info(true).expect("packet info");
            socket.set_hardware_timestamps(true).expect("hardware timestamps");
        });
        let control = CONTROL.packet_info(true).hardware_timestamps(true);
        let mut receiving = Receiving::new(kind, &socket, 16, 1000, control);
        send(&sender(Family::V4), to);
        assert_eq!(receiving.receive(Wait::Block), 10);
        for datagram in &receiving.batch {
            let mut kinds: Vec<(i32, i32)> = datagram.control_messages().map(|one| (one.level, one.kind)).collect();
            kinds.sort_unstable();
            // Loopback is no device with a clock, so there is no time of one.
            let expected = [libc::IP_TOS, libc::IP_TTL, libc::IP_PKTINFO].map(|kind| (libc::IPPROTO_IP, kind));
            assert_eq!(kinds, expected, "{kind:?}");
            let hops = datagram.control_messages().find(|one| one.kind == libc::IP_TTL).expect("just seen");
            assert_eq!(hops.data, i32::from(HOPS).to_ne_bytes());
        }
    }
}

#[test]
fn the_local_address_is_where_a_datagram_was_sent_to_and_for_broadcast_that_of_the_interface() {
    for (family, to) in [(Family::V4, "127.0.0.2"), (Family::V4, "127.255.255.255"), (Family::V6, "127.0.0.3")] {
        let socket = unbound(family);
        socket.set_packet_info(true).expect("packet info");
        let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
        socket.bind(any.parse().expect("valid")).expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        let sender = UdpSocket::bind(loopback(Family::V4)).expect("a free port");
        sender.set_broadcast(true).expect("broadcast");
        sender.send_to(b"x", (to, port)).expect("sent");
        let mut receiving = Receiving::new(Kind::Recvmmsg, &Arc::new(socket), 1, 16, Control::new().packet_info(true));
        assert_eq!(receiving.receive(Wait::Block), 1);
        let datagram = receiving.batch.datagrams().next().expect("one");
        let to: IpAddr = to.parse().expect("valid");
        let local: IpAddr = if to == IpAddr::from([127, 255, 255, 255]) { [127, 0, 0, 1].into() } else { to };
        assert_eq!((datagram.destination(), datagram.local_address()), (Some(to), Some(local)), "{family:?}");
    }
}
