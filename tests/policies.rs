//! What a listener refuses, limits and joins, as a sender and a reader of the ledger see it.
//!
//! All of 127.0.0.0/8 is this host, so loopback has as many sources as a test can want. What needs interfaces that come
//! and go is in `tests/rigs/policies_on_veth.sh`.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::util::*;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};

/// A daemon with one listener and a null sink.
fn listening(address: SocketAddr, keys: &str) -> Daemon {
    Setup::at(address).keys(format!("{keys}\nreceive_buffer = '64MiB'")).null("out").start()
}

/// What the listener dropped for this reason.
fn dropped_for(ended: &Ended, reason: &str) -> u64 {
    dropped(ended.listener(), reason)
}

fn load(to: SocketAddr, from: [u8; 4], count: u64, rate_per_second: u64) -> Load {
    Load::new(to, Amount::Count(count)).from(from).rate(rate_per_second).flows(4)
}

#[test]
fn a_denied_flood_ten_times_as_strong_costs_the_allowed_flow_nothing() {
    for engine in two_engines() {
        for keys in ["deny = ['127.0.0.2/32']", "allow = ['127.0.0.1/32']"] {
            let address = free_address();
            let daemon = listening(address, &format!("{engine}\n{keys}"));
            let flood = load(address, [127, 0, 0, 2], 200_000 / SCALE, 200_000 / SCALE).spawn();
            let allowed = load(address, [127, 0, 0, 1], 20_000 / SCALE, 20_000 / SCALE).send();
            let denied = flood.join().expect("the flood ends");
            let ended = daemon.end_after(allowed.sent + denied.sent);
            assert_eq!(count(ended.listener(), "kernel_dropped"), 0, "the flood waited for room: {:#}", ended.ledger);
            assert_eq!(delivered(&ended.ledger), allowed.sent, "{engine}, {keys}");
            assert_eq!(dropped_for(&ended, "denied"), denied.sent, "{engine}, {keys}");
        }
    }
}

#[test]
fn a_denied_ipv4_source_is_denied_on_a_socket_of_both_families_too() {
    let port = free_address().port();
    let daemon = listening(SocketAddr::from(([0_u16; 8], port)), "deny = ['127.0.0.0/30']\nallow = ['::/0']");
    let v4 = SocketAddr::from(([127, 0, 0, 1], port));
    load(v4, [127, 0, 0, 2], 100, 0).send();
    load(v4, [127, 0, 0, 9], 10, 0).send();
    Load::new(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)), Amount::Count(1000)).send();
    let ended = daemon.end_after(1110);
    assert_eq!((delivered(&ended.ledger), dropped_for(&ended, "denied")), (1000, 110), "::/0 does not allow IPv4");
}

#[test]
fn a_source_beyond_its_rate_gets_that_rate_and_every_datagram_is_accounted_for() {
    for engine in two_engines() {
        let address = free_address();
        let started = Instant::now();
        let daemon = listening(address, &format!("{engine}\nrate_limit = {{ per_source = 100, burst = 500 }}"));
        let over = load(address, [127, 0, 0, 3], 50_000 / SCALE, 50_000 / SCALE).spawn();
        let within = load(address, [127, 0, 0, 4], 500, 1_000).send();
        let over = over.join().expect("the load ends");
        let ended = daemon.end_after(over.sent + within.sent);
        let elapsed = started.elapsed().as_secs() + 1;
        let (passed, limited) = (delivered(&ended.ledger), dropped_for(&ended, "rate_limited"));
        assert_eq!(passed + limited, over.sent + within.sent, "the kernel lost nothing: {:#}", ended.ledger);
        // Ports do not matter: four of them have one bucket. The other source keeps all of its burst.
        assert!((500 + 500..=500 + 500 + 100 * elapsed).contains(&passed), "{passed} in less than {elapsed} s");
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("127.0.0.3")).collect();
        assert_eq!(lines.len(), 2, "one begin and one end: {lines:?}");
        assert!(lines[0].contains("exceeds rate_limit (100 datagrams/s, burst 500)"), "{lines:?}");
        assert!(lines[1].contains(&format!("until the end; udpd dropped {limited} of its datagrams")), "{lines:?}");
        ended.assert_logged("127.0.0.4", 0);
    }
}

/// Sends one datagram from each of `count` addresses, a few thousand a second.
fn send_from_each(to: SocketAddr, count: u32) -> u64 {
    let SocketAddr::V4(to) = to else { panic!("an IPv4 address") };
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let bytes = [IoSlice::new(b"forged")];
    for number in 0..count {
        let source = Ipv4Addr::from_bits(0x7f10_0000 + number);
        let spec = nix::libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
        let info = nix::libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec, ipi_addr: spec };
        let control = [ControlMessage::Ipv4PacketInfo(&info)];
        let to = SockaddrIn::from(to);
        sendmsg(socket.as_raw_fd(), &bytes, &control, MsgFlags::empty(), Some(&to)).expect("loopback takes it");
        if number % 64 == 63 {
            // The receiver shares its core with the sender on a small machine.
            std::thread::yield_now();
        }
    }
    count.into()
}

#[test]
fn a_million_sources_at_once_cost_no_memory_and_an_honest_one_nothing() {
    let address = free_address();
    let daemon = listening(address, "rate_limit = { per_source = 2000, burst = 200 }");
    let warm = send_from_each(address, 20_000);
    daemon.stats_when("the first have arrived", |ledger| arrived(ledger) == warm);
    let before = daemon.resident_bytes();
    let forged = 1_000_000 / SCALE as u32;
    let flood = std::thread::spawn(move || send_from_each(address, forged));
    // No more than its burst, so that it is never beyond its rate, whenever it comes to send and udpd to receive.
    let mut honest = load(address, [127, 0, 0, 1], 200, 100);
    honest.burst = 1;
    let honest = honest.send().sent;
    let flood = flood.join().expect("the flood ends");
    daemon.stats_when("all has arrived", |ledger| arrived(ledger) == warm + flood + honest);
    let grown = daemon.resident_bytes().saturating_sub(before);
    let ended = daemon.end_after(warm + flood + honest);
    assert!(grown <= 256 * 1024, "resident memory has grown by {grown} bytes");
    assert_eq!(dropped_for(&ended, "rate_limited"), 0, "no source was beyond its rate: {:#}", ended.ledger);
    assert_eq!(sum(&ended.listener()["dropped"]), 0);
}
