//! The sink against peers that talk without end, end what they have just accepted, or all end in one moment; against
//! none, where the kernel connects a socket to itself; and its end while its peer is gone or reads nothing.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};

use super::connection::{ConnectionManner, TcpConnection};
use super::peer_stream::PeerStream;
use super::search::{FoundPeer, is_connected};
use super::tests::{give, lines, listener, numbered, sink, to, until};
use super::*;
use crate::target::DestinationTarget;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;
use udpd_base::sink::Sink;

/// Gives so many datagrams to a peer that reads nothing, until no more of them are acknowledged.
fn fill(sink: &mut TcpSink, count: usize, tallies: &mut Tallies) {
    give(sink, &numbered(0..count / 2, 500), tallies);
    until(sink, tallies, "a first part is acknowledged", |tally| tally.delivered > 0);
    give(sink, &numbered(count / 2..count, 500), tallies);
    let mut before = 0;
    until(sink, tallies, "no more is acknowledged", |tally| {
        std::thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut before, tally.delivered) == tally.delivered
    });
    assert!(tallies[0].pending > 0, "its buffers are too large for this test: {:?}", tallies[0]);
}

#[test]
fn where_a_connection_and_the_one_that_was_to_replace_it_end_together_nothing_counts_that_was_not_acknowledged() {
    const COUNT: usize = 4000;
    let ((first, first_address), (second, second_address)) = (listener(), listener());
    drop(first);
    let settings = TcpSettings { distribute: Distribute::Failover, ..to(&[first_address, second_address]) };
    let mut sink = sink(&TcpSettings { probe_every: Duration::from_millis(20), ..settings });
    let mut tallies = Tallies::new(0..1);
    fill(&mut sink, COUNT, &mut tallies);
    let (of_second, _) = second.accept().expect("a connection");
    second.set_nonblocking(true).expect("set");
    let first = TcpListener::bind(first_address).expect("the port is free");
    first.set_nonblocking(true).expect("set");
    let mut of_first = None;
    until(&mut sink, &mut tallies, "the first is tried", |_| {
        of_first = of_first.take().or_else(|| first.accept().ok());
        of_first.is_some()
    });
    // It is found, and waits until all that the second has been sent is acknowledged.
    Sink::when_due(&mut sink, &mut tallies);
    let acknowledged = tallies[0].delivered as usize;
    drop((of_first, of_second));
    let mut again = None;
    until(&mut sink, &mut tallies, "there is another connection", |_| {
        again = again.take().or_else(|| first.accept().or_else(|_| second.accept()).ok());
        again.is_some()
    });
    let (again, _) = again.expect("a connection");
    again.set_nonblocking(false).expect("set");
    let reader = std::thread::spawn(move || lines(again));
    until(&mut sink, &mut tallies, "the rest is acknowledged", |tally| tally.pending == 0);
    drop(sink);
    let again = reader.join().expect("no panic");
    assert_eq!(again, (acknowledged..COUNT).collect::<Vec<_>>(), "from the first that was not acknowledged");
}

#[test]
fn a_peer_that_talks_without_end_holds_up_nothing() {
    const COUNT: usize = 1000;
    let (listener, address) = listener();
    let peer = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        let mut talker = stream.try_clone().expect("the same connection");
        let talk = std::thread::spawn(move || while talker.write_all(&[b'x'; 64 << 10]).is_ok() {});
        let found = lines(stream);
        talk.join().expect("no panic");
        found
    });
    let mut sink = sink(&to(&[address]));
    let mut tallies = Tallies::new(0..1);
    for part in numbered(0..COUNT, 20).chunks(10) {
        give(&mut sink, part, &mut tallies);
        Sink::when_due(&mut sink, &mut tallies);
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&mut sink, &mut tallies, "all are acknowledged", |tally| tally.pending == 0);
    drop(sink);
    assert_eq!(peer.join().expect("no panic"), (0..COUNT).collect::<Vec<_>>());
    assert_eq!((tallies[0].delivered, tallies[0].stream_repeats_at_most), (COUNT as u64, 0));
}

#[test]
fn a_destination_that_accepts_and_ends_at_once_does_not_keep_the_others_from_their_turn() {
    let ((first, first_address), (second, second_address)) = (listener(), listener());
    for listener in [&first, &second] {
        listener.set_nonblocking(true).expect("set");
    }
    let settings = TcpSettings { distribute: Distribute::Failover, ..to(&[first_address, second_address]) };
    let mut sink = sink(&settings);
    // As a proxy does that has nothing behind it.
    until(&mut sink, &mut Tallies::new(0..1), "the second has its turn", |_| {
        drop(first.accept());
        second.accept().is_ok()
    });
}

#[test]
fn a_socket_that_the_kernel_has_connected_to_itself_is_no_peer() {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let own = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    bind(own.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a free port");
    let stream = TcpStream::from(own);
    let address = stream.local_addr().expect("bound");
    // Over loopback it is connected at once, whatever this returns.
    let _ = connect(stream.as_raw_fd(), &SockaddrStorage::from(address));
    assert_eq!(stream.peer_addr().expect("connected"), address);
    let mut peer = FoundPeer { place: 0, address, stream: PeerStream::new(stream, None, false) };
    let outcome = is_connected(&mut peer, clock::now());
    assert_eq!(outcome.expect_err("no peer").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_peer_that_was_gone_for_long_is_looked_for_at_once_at_the_end() {
    let (gone, address) = listener();
    drop(gone);
    let destinations = vec![(PeerAddress::from(address), DestinationTarget::At(address))];
    let (timeout, probe_every) = (Duration::from_secs(30), Duration::from_secs(10));
    let manner = ConnectionManner { timeout, probe_every, is_relp: false };
    let mut now = clock::now();
    let mut connection = TcpConnection::new("s", destinations, None, manner, false, now);
    for _ in 0..10 {
        now = now.max(connection.due(now));
        connection.advance(now, true);
    }
    let _back = TcpListener::bind(address).expect("the port is free");
    connection.advance(now, true);
    assert!(connection.stream().is_none(), "its pause is not over");
    connection.hurry(now);
    connection.advance(now, true);
    assert!(connection.stream().is_some());
}

#[test]
fn a_sink_that_nothing_waits_for_any_more_does_not_wait_for_its_peer_either() {
    let (_silent, address) = listener();
    let (registry, _events) = ThreadRegistry::new();
    let ((full, is_full), (give_up, is_given_up)) = (channel(), channel());
    let end = move || {
        let mut sink = sink(&to(&[address]));
        let mut tallies = Tallies::new(0..1);
        fill(&mut sink, 4000, &mut tallies);
        full.send(tallies[0].delivered).expect("it is waited for");
        is_given_up.recv().expect("it is given up");
        let mut looks = 0;
        Sink::finish(&mut sink, &mut tallies, &mut |_| looks += 1);
        (looks, tallies[0])
    };
    let thread = registry.spawn_one_of_many("tcp", ThreadRole::TcpClient, end).expect("a thread");
    let handle = thread.handle();
    let thread = thread.wait();
    let delivered = is_full.recv().expect("no panic");
    handle.give_up();
    give_up.send(()).expect("it waits");
    let (looks, tally) = thread.join().expect("no panic");
    assert_eq!((looks, tally.pending), (1, 0));
    assert!(tally.delivered >= delivered && tally.dropped.sink_error > 0, "{tally:?}");
}
