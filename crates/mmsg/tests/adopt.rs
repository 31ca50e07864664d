//! Sockets that come from elsewhere and go elsewhere: what they are is found out, what they hold stays with them, and
//! what is no UDP socket is refused by name.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use mmsg::{Control, Family, Socket, Wait};

use crate::common::{batch, bound, bound_v4, loopback, payloads, send};

#[test]
fn a_socket_of_the_standard_library_is_adopted_with_what_it_holds() {
    for family in [Family::V4, Family::V6] {
        let theirs = UdpSocket::bind(loopback(family)).expect("a free port");
        let address = theirs.local_addr().expect("bound");
        send(address, [b"before"]);
        let socket = Socket::try_from(OwnedFd::from(theirs)).expect("adopted");
        assert_eq!((socket.family(), socket.local_addr().expect("bound")), (family, address));
        assert_eq!(socket.as_raw_fd(), socket.as_fd().as_raw_fd());
        socket.set_packet_info(true).expect("the option of its family");
        send(address, [b"after"]);
        assert_eq!(payloads(&socket, 2), [&b"before"[..], b"after"]);
    }
}

#[test]
fn a_socket_that_is_given_away_keeps_its_address_and_what_it_holds() {
    let (socket, address) = bound_v4();
    send(address, [b"held"]);
    let theirs = UdpSocket::from(OwnedFd::from(socket));
    assert_eq!(theirs.local_addr().expect("bound"), address);
    let mut bytes = [0; 16];
    let (length, _) = theirs.recv_from(&mut bytes).expect("received");
    assert_eq!(&bytes[..length], b"held");
}

#[test]
fn an_adopted_socket_that_makes_trains_is_refused_by_a_batch_that_cannot_split_them() {
    for on in [false, true] {
        let (socket, _) = bound(Family::V6, |socket| socket.set_gro(on).expect("GRO"));
        let adopted = Socket::try_from(OwnedFd::from(socket)).expect("adopted");
        let result = batch(2, 64, Control::default()).receive(&adopted, Wait::No);
        assert_eq!(result.is_err(), on, "{result:?}");
        assert_eq!(adopted.set_gro(false).is_err(), on, "it stays on once it was on");
    }
}

#[test]
fn what_is_no_udp_socket_is_refused_by_name() {
    let (unix, _peer) = UnixDatagram::pair().expect("a pair");
    let cases: [(OwnedFd, &str); 3] = [
        (TcpListener::bind("127.0.0.1:0").expect("a free port").into(), "a TCP socket"),
        (unix.into(), "a Unix socket"),
        (std::fs::File::open("/dev/null").expect("always there").into(), "not a socket"),
    ];
    for (fd, what) in cases {
        let number = fd.as_raw_fd();
        let error = Socket::try_from(fd).expect_err("refused");
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        assert!(text.contains(what) && text.contains(&format!("descriptor {number} ")), "{text}");
        assert!(text.contains("UDP socket over IPv4 or IPv6"), "{text}");
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn a_raw_socket_for_whole_packets_is_adopted_too() {
    let raw = match Socket::raw(Family::V4) {
        Ok(raw) => raw,
        Err(error) => return eprintln!("not tested: a raw socket needs CAP_NET_RAW: {error}"),
    };
    let adopted = Socket::try_from(OwnedFd::from(raw)).expect("adopted");
    assert_eq!(adopted.family(), Family::V4);
}
