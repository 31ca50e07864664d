//! An engine that changes its socket: what the old one held comes first, then what the new one holds, and the memory of
//! a ring is the same as before, however often that is done.

use std::net::SocketAddr;

use mmsg::{Family, Wait};

use crate::common::{Kind, Receiving, bound_shared, send};

/// Everything that is there.
fn receive_all(receiving: &mut Receiving) -> Vec<Vec<u8>> {
    let (mut all, mut empty) = (Vec::new(), 0);
    while empty < 2 {
        empty += u32::from(receiving.receive(Wait::No) == 0);
        all.extend(receiving.payloads());
    }
    all
}

/// Sends twenty and returns them. Long ones change hands in a ring, short ones are copied.
fn send_twenty(to: SocketAddr, round: u32) -> Vec<Vec<u8>> {
    let payload = |number: u32| format!("{round}-{number}-{}", "x".repeat(number as usize * 97 % 1500)).into_bytes();
    let payloads: Vec<Vec<u8>> = (0..20).map(payload).collect();
    send(to, &payloads);
    payloads
}

#[test]
fn an_engine_that_changes_its_socket_loses_nothing_of_either() {
    for kind in Kind::here() {
        let (mut receiving, mut old, mut to_old) = Receiving::bound(kind, 8, 2048);
        let name = receiving.engine.name();
        for round in 0..100 {
            let first = send_twenty(to_old, round);
            // The ring has begun to fetch them, and hands out a batch of them.
            receiving.receive(Wait::Block);
            let mut received = receiving.payloads();
            let (new, to_new) = bound_shared(Family::V4, |_| {});
            let second = send_twenty(to_new, round);
            old.interrupt().expect("interrupted");
            receiving.engine.finish();
            received.extend(receive_all(&mut receiving));
            receiving.engine.replace_socket(new.clone()).expect("another socket");
            assert_eq!(received, first, "{name}, round {round}: what the old socket held");
            assert_eq!(receive_all(&mut receiving), second, "{name}, round {round}: what the new one held");
            assert_eq!(receiving.engine.name(), name, "it goes on by the same means");
            (old, to_old) = (new, to_new);
        }
    }
}
