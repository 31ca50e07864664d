//! A receiver is woken by name, and its socket keeps everything: address, queue and hearing, for whoever reads it next.
#![cfg(not(miri))] // system calls throughout

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{DEADLINE, Kind, Receiving, bound_shared, wait_until_asleep};
use mmsg::{Control, Engine, Family, Wait, Waker};

/// Wakes a thread until it says that it was.
fn wake_until<T>(waker: &Waker, heard: &std::sync::mpsc::Receiver<T>) -> T {
    let start = Instant::now();
    loop {
        waker.wake().expect("woken");
        if let Ok(heard) = heard.recv_timeout(Duration::from_millis(1)) {
            return heard;
        }
        assert!(start.elapsed() < DEADLINE, "it hears nothing");
    }
}

#[test]
fn a_receiver_that_sleeps_is_woken_and_the_socket_is_as_it_was() {
    for (number, kind) in Kind::here().into_iter().enumerate() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let name = format!("woken-{number}");
        let ((told, heard), (ended, end)) = (channel(), channel());
        let own = Arc::clone(&socket);
        let body = move || {
            let mut receiving = Receiving::new(kind, &own, 8, 64, Control::default());
            told.send(receiving.engine.waker().expect("a waker")).expect("somebody waits");
            assert_eq!(receiving.receive(Wait::Block), 0, "{kind:?}: nothing came");
            assert_eq!(
                receiving.receive(Wait::Gather(Duration::from_millis(1))),
                0,
                "{kind:?}: it does not wait again"
            );
            assert_eq!(receiving.engine.receive_held(&mut receiving.batch).expect("nothing is held"), 0);
            ended.send(()).expect("somebody waits");
        };
        let thread = std::thread::Builder::new().name(name.clone()).spawn(body).expect("a thread");
        let waker = heard.recv().expect("a waker");
        wait_until_asleep(&name);
        wake_until(&waker, &end);
        thread.join().expect("no panic");
        waker.wake().expect("an engine that is gone is nobody to wake");

        // Its next reader sleeps until something comes, and gets it.
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let mut next = Receiving::new(kind, &socket, 8, 64, Control::default());
        assert!(!next.engine.wait_readable(Duration::from_millis(1)).expect("poll"), "{kind:?}: there is no end");
        sender.send_to(b"later", address).expect("sent");
        assert_eq!(next.receive(Wait::Block), 1, "{kind:?}");
    }
}

#[test]
fn readers_that_follow_one_another_under_load_get_everything_once_and_in_order() {
    const ALL: u64 = 30_000;
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |socket| {
            socket.set_receive_buffer(4 << 20).expect("a buffer");
        });
        let queue = Arc::clone(&socket);
        let sender = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
            for number in 0..ALL {
                while queue.memory_info().expect("memory info").receive_used_bytes > 1 << 20 {
                    std::thread::yield_now();
                }
                socket.send_to(&number.to_ne_bytes(), address).expect("sent");
            }
        });
        let (mut all, mut random, mut readers) = (Vec::new(), fastrand::Rng::with_seed(3), 0);
        while all.len() < ALL as usize {
            let ((told, heard), (ended, end)) = (channel(), channel());
            let own = Arc::clone(&socket);
            let thread = std::thread::spawn(move || {
                let mut receiving = Receiving::new(kind, &own, 16, 64, Control::default());
                told.send(receiving.engine.waker().expect("a waker")).expect("somebody waits");
                let mut numbers = Vec::new();
                while receiving.receive(Wait::Block) > 0 {
                    numbers.extend(numbers_in(&receiving));
                }
                while receiving.engine.receive_held(&mut receiving.batch).expect("the rest") > 0 {
                    numbers.extend(numbers_in(&receiving));
                }
                ended.send(numbers).expect("somebody waits");
            });
            let waker = heard.recv().expect("a waker");
            std::thread::sleep(Duration::from_micros(random.usize(0..=2000) as u64));
            all.extend(wake_until(&waker, &end));
            thread.join().expect("no panic");
            readers += 1;
        }
        sender.join().expect("it has sent");
        assert!(all.iter().copied().eq(0..ALL), "{kind:?}: after {readers} readers");
        assert_eq!(socket.memory_info().expect("memory info").drops, 0);
    }
}

fn numbers_in(receiving: &Receiving) -> Vec<u64> {
    let number = |payload: &[u8]| u64::from_ne_bytes(payload.try_into().expect("eight bytes"));
    receiving.batch.datagrams().map(|datagram| number(datagram.payload())).collect()
}

#[test]
fn a_waker_does_not_keep_an_engine_alive() {
    let (socket, _) = bound_shared(Family::V4, |_| {});
    let engine = Engine::recvmmsg(Arc::clone(&socket));
    let waker = engine.waker().expect("a waker");
    drop(engine);
    waker.wake().expect("nobody to wake");
    assert_eq!(Arc::strong_count(&socket), 1);
}
