//! The system calls of a ring failing on order: each error is handed on, no datagram is lost by it, and a refusal says
//! what to do.

use std::io;
use std::sync::Arc;

use mmsg::fault::{Call, inject};
use mmsg::{BatchShape, Engine, Family, RecvBatch, Refusal, Uring, Wait};

use crate::common::{Kind, Receiving, bound_shared, bound_v4, each_call_fails, send, turn};

/// Receives five datagrams by a ring, through its whole life.
fn by_ring() -> io::Result<()> {
    let (socket, address) = bound_shared(Family::V4, |_| {});
    let shape = BatchShape::new(8, 64);
    let (mut reserve, _) = RecvBatch::pool(1 + Uring::reserve_batches(8), &shape)?;
    let mut batch = reserve.remove(0);
    let mut engine = Engine::uring(Arc::clone(&socket), reserve, 0)?;
    for round in 0..5 {
        send(address, [[round]]);
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
    if Kind::rings().is_empty() {
        return;
    }
    for (call, calls_at_least) in [(Call::IoUringSetup, 1), (Call::IoUringRegister, 1), (Call::IoUringEnter, 6)] {
        let mut failed = 0;
        let made = each_call_fails(call, libc::ENFILE, by_ring, |nth, result| {
            // The last calls are those of its end, whose errors are not returned: the memory is leaked, nothing is
            // unsafe.
            if let Err(error) = result {
                failed += 1;
                assert_eq!(errno(&error), Some(libc::ENFILE), "call {nth} of {call:?}: {error}");
            }
        });
        assert!(failed >= calls_at_least, "{failed} of {made} calls of {call:?} failed aloud");
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
    let Some(&kind) = Kind::rings().first() else { return };
    let (mut receiving, _, address) = Receiving::bound(kind, 8, 64);
    // An empty datagram ends the receive, so that another call is due after it.
    send(address, [&b""[..], b"behind"]);
    let guard = inject(Call::IoUringEnter, 2, libc::ENFILE);
    assert_eq!(receiving.receive(Wait::Block), 1);
    assert!(guard.has_fired());
    let error = receiving.engine.receive(&mut receiving.batch, Wait::Block).expect_err("injected");
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
    assert_eq!((receiving.receive(Wait::Block), receiving.payloads()), (1, vec![b"behind".to_vec()]));
}

#[test]
fn an_interrupted_call_of_a_ring_is_made_again() {
    let _turn = turn();
    if !Kind::rings().is_empty() {
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
    let Some(&kind) = Kind::rings().first() else { return };
    let (mut receiving, ..) = Receiving::bound(kind, 8, 64);
    assert_eq!(receiving.receive(Wait::No), 0);
    let (socket, address) = bound_v4();
    let guard = inject(Call::IoUringEnter, 1, libc::ENFILE);
    receiving.engine.replace_socket(Arc::new(socket)).expect_err("stuck");
    assert!(guard.has_fired());
    send(address, [b"x"]);
    assert_eq!((receiving.receive(Wait::Block), receiving.engine.name()), (1, "recvmmsg"));
}
