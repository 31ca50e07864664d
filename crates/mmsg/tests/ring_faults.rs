//! The system calls of a ring failing on order: each error is handed on, no datagram is lost by it, and a refusal says
//! what to do.
#![cfg(all(mmsg_faults, feature = "io_uring"))] // RUSTFLAGS="--cfg mmsg_faults"

mod common;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{Kind, Receiving, bound};
use mmsg::fault::{Call, inject};
use mmsg::{BatchShape, Control, Engine, Family, RecvBatch, Refusal, Uring, Wait};

/// Faults reach every thread, so the tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives five datagrams by a ring, through its whole life.
fn by_ring() -> io::Result<()> {
    let (socket, address) = bound(Family::V4, |_| {});
    let socket = Arc::new(socket);
    let shape = BatchShape::new(8, 64);
    let (mut reserve, _) = RecvBatch::pool(1 + Uring::reserve_batches(8), &shape)?;
    let mut batch = reserve.remove(0);
    let mut engine = Engine::uring(Arc::clone(&socket), reserve, 0)?;
    for round in 0..5 {
        std::net::UdpSocket::bind("127.0.0.1:0")?.send_to(&[round], address)?;
        assert_eq!(engine.receive(&mut batch, Wait::Block)?, 1);
        assert_eq!(batch.datagrams().next().expect("one").payload(), [round]);
        assert_eq!(engine.receive(&mut batch, Wait::No)?, 0);
    }
    socket.interrupt()?;
    assert_eq!(engine.receive(&mut batch, Wait::Block)?, 0);
    Ok(())
}

/// The error number of what went wrong with a ring; its making wraps the error with the cause and the cure.
fn errno(error: &io::Error) -> Option<i32> {
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>());
    refusal.map_or(error, Refusal::error).raw_os_error()
}

#[test]
fn every_call_of_a_ring_hands_its_error_on_whenever_it_fails() {
    let _turn = turn();
    if Kind::here().len() == 1 {
        return;
    }
    for (call, calls_at_least) in [(Call::IoUringSetup, 1), (Call::IoUringRegister, 1), (Call::IoUringEnter, 6)] {
        let (mut nth, mut failed) = (1, 0);
        loop {
            let guard = inject(call, nth, libc::ENFILE);
            let result = by_ring();
            if !guard.has_fired() {
                result.unwrap_or_else(|error| panic!("nothing was injected into {call:?}, and yet: {error}"));
                break;
            }
            // The last calls are those of its end, where there is nobody to tell: the memory is leaked, nothing is
            // unsafe.
            if let Err(error) = result {
                failed += 1;
                assert_eq!(errno(&error), Some(libc::ENFILE), "call {nth} of {call:?}: {error}");
            }
            nth += 1;
        }
        assert!(failed >= calls_at_least, "{failed} of {} calls of {call:?} failed aloud", nth - 1);
    }
}

#[test]
fn a_ring_that_is_refused_says_why_and_what_to_do() {
    let _turn = turn();
    let cases = [(libc::EPERM, true, "io_uring"), (libc::ENOSYS, false, "6.1"), (libc::ENOMEM, true, "LimitMEMLOCK")];
    for (number, forbidden, cure) in cases {
        let guard = inject(Call::IoUringSetup, 1, number);
        let refusal = Uring::supported().expect_err("injected");
        assert!(guard.has_fired());
        assert_eq!((refusal.is_forbidden(), refusal.error().raw_os_error()), (forbidden, Some(number)));
        assert!(refusal.to_string().starts_with("io_uring_setup: ") && refusal.to_string().contains(cure), "{refusal}");
    }
}

#[test]
fn datagrams_that_came_before_a_failed_call_of_a_ring_are_handed_over_first() {
    let _turn = turn();
    if Kind::here().len() == 1 {
        return;
    }
    let (socket, address) = bound(Family::V4, |_| {});
    let mut receiving = Receiving::new(Kind::Uring { copy_up_to: 0 }, &Arc::new(socket), 8, 64, Control::default());
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    // An empty datagram ends the receive, so that another call is due after it.
    sender.send_to(b"", address).expect("sent");
    sender.send_to(b"behind", address).expect("sent");
    let guard = inject(Call::IoUringEnter, 2, libc::ENFILE);
    assert_eq!(receiving.receive(Wait::Block), 1);
    assert!(guard.has_fired());
    let error = receiving.engine.receive(&mut receiving.batch, Wait::Block).expect_err("injected");
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
    assert_eq!(receiving.receive(Wait::Block), 1);
    assert_eq!(receiving.batch.datagrams().next().expect("one").payload(), b"behind");
}

#[test]
fn an_interrupted_call_of_a_ring_is_made_again() {
    let _turn = turn();
    if Kind::here().len() > 1 {
        for nth in 1..5 {
            let guard = inject(Call::IoUringEnter, nth, libc::EINTR);
            by_ring().unwrap_or_else(|error| panic!("call {nth}: {error}"));
            assert!(guard.has_fired());
        }
    }
}

#[test]
fn an_engine_whose_ring_is_stuck_receives_from_the_next_socket_without_it() {
    let _turn = turn();
    if Kind::here().len() == 1 {
        return;
    }
    let (socket, _) = bound(Family::V4, |_| {});
    let mut receiving = Receiving::new(Kind::Uring { copy_up_to: 0 }, &Arc::new(socket), 8, 64, Control::default());
    assert_eq!(receiving.receive(Wait::No), 0);
    let (socket, address) = bound(Family::V4, |_| {});
    let guard = inject(Call::IoUringEnter, 1, libc::ENFILE);
    receiving.engine.replace_socket(Arc::new(socket)).expect_err("stuck");
    assert!(guard.has_fired());
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    sender.send_to(b"x", address).expect("sent");
    assert_eq!((receiving.receive(Wait::Block), receiving.engine.name()), (1, "recvmmsg"));
}
