//! A generator whose system calls fail on order: it says which one, does without, or tries again, and its counts stay
//! exact.
#![cfg(mmsg_faults)] // RUSTFLAGS="--cfg mmsg_faults"

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bpf::fault::{Call, inject};
use udpd_framegen::{FrameSpec, LiveFrames, Mix, PacketFrames, PayloadMarks, SizeOrder};

/// Faults reach every thread, so the tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames that could go over loopback, to a closed port.
fn spec() -> FrameSpec {
    FrameSpec {
        destination_mac: [0; 6],
        source_mac: [0; 6],
        destination: "127.0.0.1:9".parse().expect("an address"),
        first_source: "127.0.0.1".parse().expect("an address"),
        sources: 1,
        flows: 1,
        mix: Mix::RoundRobin,
        sizes: vec![64],
        size_order: SizeOrder::InTurn,
        checksum: true,
        marks: PayloadMarks { magic: [1, 2], run: 3, factors: [1, 3, 5, 7], flow_bits: 16 },
        body: vec![0; 65],
        seed: 1,
    }
}

#[test]
fn a_generator_that_lacks_any_of_its_calls_says_so_or_does_without() {
    let _turn = turn();
    let spec = FrameSpec {
        flows: 1_000,
        mix: Mix::Zipf { exponent: 1.0 },
        sizes: vec![64, 65],
        size_order: SizeOrder::AtRandom,
        ..spec()
    };
    // It sends nothing here, so that any interface will do.
    if let Err(error) = LiveFrames::new(1, &spec) {
        let _ = writeln!(io::stderr(), "SKIPPED: {error}");
        return;
    }
    let mut failed = 0;
    for (call, number) in (1..40).map(|nth| (Call::Bpf, nth)).chain([(Call::Unshare, 1)]) {
        let guard = inject(call, number, libc::EPERM);
        match LiveFrames::new(1, &spec) {
            Err(error) => {
                assert_eq!(error.error.raw_os_error(), Some(libc::EPERM), "{error}");
                failed += 1;
            }
            Ok(frames) => assert!(!guard.has_fired() || !frames.has_short_calls(), "{call:?} {number} was passed over"),
        }
    }
    assert!(failed > 10, "only {failed} calls can fail");
}

#[test]
fn packets_that_find_no_room_are_tried_again_and_counted_as_refused_when_there_stays_none() {
    let _turn = turn();
    // Loopback is 1 in every namespace.
    let Ok(mut frames) = PacketFrames::new(1, &spec()) else {
        let _ = writeln!(io::stderr(), "SKIPPED: needs CAP_NET_RAW");
        return;
    };
    let once = inject(Call::Sendmmsg, 2, libc::ENOBUFS);
    let sent = frames.send(100, 1);
    assert!(once.has_fired());
    assert_eq!((sent.offered, sent.taken, sent.bytes, sent.error.is_none()), (100, 100, 6_400, true));
    let _always: Vec<_> = (1..=300).map(|nth| inject(Call::Sendmmsg, nth, libc::ENOBUFS)).collect();
    let sent = frames.send(10, 1);
    assert_eq!((sent.offered, sent.taken, sent.error.is_none()), (10, 0, true));
    assert_eq!(frames.refusals(), [(libc::ENOBUFS, 10)]);
}
