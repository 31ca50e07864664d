//! An engine that changes its socket: what the old one held comes first, then what the new one holds, and the memory of
//! a ring is the same as before, however often that is done.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use common::{Kind, Receiving, bound_shared, loopback};
use mmsg::{Control, Family, Socket, Wait};

const NOTHING: Control = Control::new();

/// A receiver's way from one socket to the next.
fn change(receiving: &mut Receiving, old: &Socket, new: &Arc<Socket>) -> Vec<Vec<u8>> {
    old.interrupt().expect("interrupted");
    receiving.engine.finish();
    let left = receive_all(receiving);
    receiving.engine.replace_socket(Arc::clone(new)).expect("another socket");
    left
}

/// Everything that is there.
fn receive_all(receiving: &mut Receiving) -> Vec<Vec<u8>> {
    let (mut all, mut empty) = (Vec::new(), 0);
    while empty < 2 {
        empty += u32::from(receiving.receive(Wait::No) == 0);
        all.extend(receiving.batch.datagrams().map(|datagram| datagram.payload().to_vec()));
    }
    all
}

fn send(sender: &UdpSocket, to: SocketAddr, round: u32, count: u32) -> Vec<Vec<u8>> {
    // Long ones change hands in a ring, short ones are copied.
    let payload = |number: u32| format!("{round}-{number}-{}", "x".repeat(number as usize * 97 % 1500)).into_bytes();
    let payloads: Vec<Vec<u8>> = (0..count).map(payload).collect();
    for payload in &payloads {
        assert_eq!(sender.send_to(payload, to).expect("sent"), payload.len());
    }
    payloads
}

#[test]
fn an_engine_that_changes_its_socket_loses_nothing_of_either() {
    for kind in Kind::here() {
        let sender = UdpSocket::bind(loopback(Family::V4)).expect("a free port");
        let (mut old, mut to_old) = bound_shared(Family::V4, |_| {});
        let mut receiving = Receiving::new(kind, &old, 8, 2048, NOTHING);
        let name = receiving.engine.name();
        for round in 0..100 {
            let first = send(&sender, to_old, round, 20);
            // The ring has begun to fetch them, and hands out a batch of them.
            receiving.receive(Wait::Block);
            let mut received: Vec<Vec<u8>> = receiving.batch.datagrams().map(|one| one.payload().to_vec()).collect();
            let (new, to_new) = bound_shared(Family::V4, |_| {});
            let second = send(&sender, to_new, round, 20);
            received.extend(change(&mut receiving, &old, &new));
            assert_eq!(received, first, "{name}, round {round}: what the old socket held");
            assert_eq!(receive_all(&mut receiving), second, "{name}, round {round}: what the new one held");
            assert_eq!(receiving.engine.name(), name, "it goes on by the same means");
            (old, to_old) = (new, to_new);
        }
    }
}
