//! How long a receive call waits is what its `Wait` says, whichever engine it is and whether the socket blocks or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mmsg::{Control, Family, SendBatch, Socket, Wait};

use crate::common::{DEADLINE, Kind, Receiving, loopback, send, unbound, wait_until_asleep};

/// A bound socket of either kind, and its address.
fn bound(blocks: bool) -> (Arc<Socket>, SocketAddr) {
    let made = if blocks { Socket::new(Family::V4) } else { Socket::nonblocking(Family::V4) };
    let socket = made.expect("a socket");
    socket.bind(loopback(Family::V4)).expect("a free port");
    let address = socket.local_addr().expect("bound");
    (Arc::new(socket), address)
}

/// Every engine on both kinds of sockets.
fn each(test: impl Fn(&str, &mut Receiving, &Arc<Socket>, SocketAddr)) {
    for kind in Kind::here() {
        for blocks in [true, false] {
            let (socket, address) = bound(blocks);
            let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
            test(&format!("{kind:?}, blocks: {blocks}"), &mut receiving, &socket, address);
        }
    }
}

#[test]
fn a_wait_with_a_limit_ends_with_the_time_or_with_the_first_datagram() {
    each(|what, receiving, _, address| {
        for time in [Duration::ZERO, Duration::from_millis(20)] {
            let start = Instant::now();
            assert_eq!(receiving.receive(Wait::UpTo(time)), 0, "{what}");
            assert!(start.elapsed() >= time, "{what}: it ends too early");
        }
        send(address, [b"one", b"two"]);
        assert_eq!(receiving.receive(Wait::UpTo(Duration::ZERO)), 2, "{what}: what is there needs no time");
        for limit in [DEADLINE, Duration::MAX] {
            let later = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                send(address, [b"later"]);
            });
            assert_eq!(receiving.receive(Wait::UpTo(limit)), 1, "{what}");
            later.join().expect("sent");
        }
    });
}

#[test]
fn a_nonblocking_socket_is_waited_for_and_a_blocking_one_is_not_where_the_call_says_so() {
    each(|what, receiving, _, address| {
        assert_eq!(receiving.receive(Wait::No), 0, "{what}");
        for wait in [Wait::Block, Wait::Gather(Duration::from_millis(1))] {
            let later = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                send(address, [b"later"]);
            });
            assert_eq!(receiving.receive(wait), 1, "{what}, {wait:?}");
            later.join().expect("sent");
        }
    });
}

#[test]
fn an_interrupted_socket_ends_every_wait_and_gives_what_it_has_first() {
    each(|what, receiving, socket, address| {
        send(address, [b"before"]);
        socket.interrupt().expect("interrupted");
        let all = [Wait::Block, Wait::UpTo(DEADLINE), Wait::Block].map(|wait| receiving.receive(wait));
        assert_eq!(all, [1, 0, 0], "{what}");
    });
    for (number, kind) in Kind::here().into_iter().enumerate() {
        let (socket, _) = bound(false);
        let (name, own) = (format!("interrupted-{number}"), Arc::clone(&socket));
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || Receiving::new(kind, &own, 8, 64, Control::default()).receive(Wait::Block));
        wait_until_asleep(&name);
        socket.interrupt().expect("interrupted");
        assert_eq!(thread.expect("a thread").join().expect("no panic"), 0, "{kind:?}");
    }
}

#[test]
fn a_thread_that_waits_with_a_limit_can_be_woken() {
    for (number, kind) in Kind::here().into_iter().enumerate() {
        let (socket, _) = bound(true);
        let (told, heard) = std::sync::mpsc::channel();
        let name = format!("limited-{number}");
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let mut receiving = Receiving::new(kind, &socket, 8, 64, Control::default());
            told.send(receiving.engine.waker().expect("a waker")).expect("the test waits");
            receiving.receive(Wait::UpTo(Duration::MAX))
        });
        let thread = thread.expect("a thread");
        let waker = heard.recv().expect("a waker");
        wait_until_asleep(&name);
        while !thread.is_finished() {
            waker.wake().expect("woken");
            thread::yield_now();
        }
        assert_eq!(thread.join().expect("no panic"), 0, "{kind:?}");
    }
}

#[test]
fn an_answer_that_the_socket_keeps_is_told_once_and_ends_no_later_wait() {
    let gone = unbound(Family::V4);
    gone.bind(loopback(Family::V4)).expect("a free port");
    let to = gone.local_addr().expect("bound");
    drop(gone);
    let (socket, _) = bound(true);
    socket.set_report_errors(true).expect("reported");
    let mut out = SendBatch::new(1, 16).expect("memory");
    out.push(b"to a closed port", Some(to)).expect("a free slot");
    out.flush(&socket).expect("sent").all_sent().expect("its answer comes later");
    let mut receiving = Receiving::new(Kind::Recvmmsg, &socket, 8, 64, Control::default());
    let error = receiving.engine.receive(&mut receiving.batch, Wait::UpTo(DEADLINE)).expect_err("the answer");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    assert!(socket.wait_readable(Duration::ZERO).expect("polled"), "the record is still there");
    assert_eq!(receiving.receive(Wait::UpTo(Duration::from_millis(5))), 0);
    assert!(!socket.wait_readable(Duration::ZERO).expect("polled"), "a wait would turn in a circle");
}
