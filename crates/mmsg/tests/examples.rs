//! The examples do what they say of themselves: they are compiled into this test and used over loopback.

#[allow(dead_code)] // its main is not called
#[path = "../examples/collector.rs"]
mod collector;
#[allow(dead_code)] // as above
#[path = "../examples/echo.rs"]
mod echo;
#[allow(dead_code)] // as above
#[path = "../examples/epoll.rs"]
mod epoll;

use std::net::SocketAddr;

use collector::Collector;
use echo::Echo;
use epoll::Listening;
use mmsg::Family;

use crate::common::{DEADLINE, loopback, send, sender};

#[test]
fn the_echo_server_answers_from_the_address_it_was_asked_at() {
    for (listen, asked) in [
        ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2", "127.0.0.3"][..]),
        ("[::]:0", &["127.0.0.2", "::1"]),
        ("127.0.0.1:0", &["127.0.0.1"]),
    ] {
        let mut echo = Echo::new(listen.parse().expect("valid")).expect("a free port");
        let port = echo.socket.local_addr().expect("bound").port();
        for address in asked {
            let to: SocketAddr =
                format!("{}:{port}", if address.contains(':') { "[::1]" } else { address }).parse().expect("valid");
            let asker = sender(if to.is_ipv4() { Family::V4 } else { Family::V6 });
            asker.set_read_timeout(Some(DEADLINE)).expect("a deadline");
            asker.send_to(b"hello", to).expect("sent");
            assert_eq!(echo.answer().expect("answered"), 1);
            let mut bytes = [0; 16];
            let (length, from) = asker.recv_from(&mut bytes).expect("the answer");
            assert_eq!((&bytes[..length], from), (&b"hello"[..], to), "listening on {listen}");
        }
    }
}

#[test]
fn the_collector_writes_a_line_for_each_datagram_and_says_what_was_lost() {
    let mut collector = Collector::new("127.0.0.1:0".parse().expect("valid")).expect("a free port");
    let to = collector.socket.local_addr().expect("bound");
    let sender = sender(Family::V4);
    let from = sender.local_addr().expect("bound");
    sender.send_to(b"one\ntwo", to).expect("sent");
    sender.send_to(&[b'x'; 3000], to).expect("sent");
    collector.socket.refuse_arrivals().expect("a filter, which drops and counts");
    sender.send_to(b"lost", to).expect("sent");
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    collector.collect(&mut lines, &mut notes).expect("collected");
    let lines = String::from_utf8(lines).expect("ASCII");
    let after_time: Vec<&str> = lines.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest).collect();
    assert_eq!(after_time, [format!("{from} one\\ntwo"), format!("{from} {} [cut]", "x".repeat(2048))]);
    let times: Vec<f64> = lines.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    assert!(times.len() == 2 && times.iter().all(|time| *time > 1e9), "{times:?}");
    assert!(String::from_utf8(notes).expect("ASCII").contains("dropped 1 datagrams"));
}

#[test]
fn the_example_with_epoll_hears_every_socket_and_none_that_has_nothing() {
    let mut listening = Listening::new(&[loopback(Family::V4), loopback(Family::V6)]).expect("free ports");
    let addresses: Vec<_> = listening.sockets.iter().map(|one| one.local_addr().expect("bound")).collect();
    for (number, address) in addresses.iter().enumerate() {
        let payloads: Vec<Vec<u8>> = (0..100_u8).map(|one| vec![b'a' + one % 20]).collect();
        send(*address, &payloads);
        let (mut lines, mut turns) = (Vec::new(), 0);
        while lines.iter().filter(|byte| **byte == b'\n').count() < 100 {
            listening.turn(&mut lines).expect("received");
            turns += 1;
        }
        assert_eq!(turns, 2, "a batch holds 64 of the 100");
        let expected: String = (0..100_u8).map(|one| format!("{number}: {}\n", char::from(b'a' + one % 20))).collect();
        assert_eq!(String::from_utf8(lines).expect("ASCII"), expected);
    }
}
