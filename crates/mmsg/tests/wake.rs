//! A receiver is woken by name, and its socket keeps its address and its queue, for the next reader.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mmsg::{Engine, Family, Socket, Wait, Waker};

use crate::common::{DEADLINE, Kind, Receiving, bound_shared, drops, send, sender, wait_until_asleep};

/// A thread that receives until it is woken, and then says `T`.
struct Woken<T> {
    waker: Waker,
    end: Receiver<T>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> Woken<T> {
    fn start(
        name: &str,
        kind: Kind,
        socket: &Arc<Socket>,
        body: impl FnOnce(&mut Receiving) -> T + Send + 'static,
    ) -> Woken<T> {
        let ((told, heard), (ended, end)) = (channel(), channel());
        let socket = Arc::clone(socket);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut receiving = Receiving::new(kind, &socket, 16, 64, mmsg::Control::default());
            told.send(receiving.engine.waker().expect("a waker")).expect("the test waits");
            ended.send(body(&mut receiving)).expect("the test waits");
        });
        Woken { waker: heard.recv().expect("a waker"), end, thread: thread.expect("a thread") }
    }

    /// Wakes it until it says that it was.
    fn wake(self) -> (T, Waker) {
        let start = Instant::now();
        let said = loop {
            self.waker.wake().expect("woken");
            if let Ok(said) = self.end.recv_timeout(Duration::from_millis(1)) {
                break said;
            }
            assert!(start.elapsed() < DEADLINE, "it hears nothing");
        };
        self.thread.join().expect("no panic");
        (said, self.waker)
    }
}

#[test]
fn a_receiver_that_sleeps_is_woken_and_the_socket_is_as_it_was() {
    for (number, kind) in Kind::here().into_iter().enumerate() {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        let name = format!("woken-{number}");
        let woken = Woken::start(&name, kind, &socket, |receiving| {
            let [first, second] =
                [Wait::Block, Wait::Gather(Duration::from_millis(1))].map(|wait| receiving.receive(wait));
            [first, second, receiving.engine.receive_held(&mut receiving.batch).expect("nothing is held")]
        });
        wait_until_asleep(&name);
        let (received, waker) = woken.wake();
        assert_eq!(received, [0, 0, 0], "{kind:?}: nothing came, and it does not wait again");
        waker.wake().expect("the engine is gone");

        // The next reader sleeps until something comes, and gets it.
        let mut next = Receiving::new(kind, &socket, 8, 64, mmsg::Control::default());
        assert!(!next.engine.wait_readable(Duration::from_millis(1)).expect("poll"), "{kind:?}: there is no end");
        send(address, [b"later"]);
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
        let load = thread::spawn(move || {
            let sender = sender(Family::V4);
            for number in 0..ALL {
                while queue.memory_info().expect("memory info").receive_used_bytes > 1 << 20 {
                    thread::yield_now();
                }
                sender.send_to(&number.to_ne_bytes(), address).expect("sent");
            }
        });
        let (mut all, mut random, mut readers) = (Vec::new(), fastrand::Rng::with_seed(3), 0);
        while all.len() < ALL as usize {
            let woken = Woken::start("reader", kind, &socket, |receiving| {
                let mut numbers = Vec::new();
                while receiving.receive(Wait::Block) > 0 {
                    numbers.extend(receiving.numbers());
                }
                while receiving.engine.receive_held(&mut receiving.batch).expect("the rest") > 0 {
                    numbers.extend(receiving.numbers());
                }
                numbers
            });
            thread::sleep(Duration::from_micros(random.u64(0..=2000)));
            all.extend(woken.wake().0);
            readers += 1;
        }
        load.join().expect("it has sent");
        assert!(all.iter().copied().eq(0..ALL), "{kind:?}: after {readers} readers");
        assert_eq!(drops(&socket), 0);
    }
}

#[test]
fn a_waker_does_not_keep_an_engine_alive() {
    let (socket, _) = bound_shared(Family::V4, |_| {});
    let engine = Engine::recvmmsg(Arc::clone(&socket));
    let waker = engine.waker().expect("a waker");
    drop(engine);
    waker.wake().expect("there is no engine to wake");
    assert_eq!(Arc::strong_count(&socket), 1);
}
