//! What the tests share: sockets on loopback, random bytes, and receiving with a
//! deadline, so that a lost datagram fails a test instead of hanging it.
#![allow(dead_code)] // each test binary uses its part of it

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Control, Engine, Family, RecvBatch, Socket, Uring, Wait};

/// Nothing on loopback takes this long; whoever waits for it has lost something.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([127, 0, 0, 1], 0)),
        Family::V6 => "[::1]:0".parse().expect("valid"),
    }
}

/// A socket bound to a free port of loopback, after `prepare` has set its options.
pub(crate) fn bound(family: Family, prepare: impl FnOnce(&Socket)) -> (Socket, SocketAddr) {
    let socket = Socket::new(family).expect("a socket");
    prepare(&socket);
    socket.bind(loopback(family)).expect("loopback has free ports");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

/// The same, to be shared with an engine.
pub(crate) fn bound_shared(family: Family, prepare: impl FnOnce(&Socket)) -> (Arc<Socket>, SocketAddr) {
    let (socket, address) = bound(family, prepare);
    (Arc::new(socket), address)
}

/// An engine, as the tests go through them. Both ways of the ring to hand over a payload count as one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Recvmmsg,
    Uring { copy_up_to: usize },
}

impl Kind {
    /// Those that this machine permits; says so where it does not.
    #[allow(clippy::print_stderr)]
    pub(crate) fn here() -> Vec<Kind> {
        match Uring::supported() {
            Ok(()) => vec![Kind::Recvmmsg, Kind::Uring { copy_up_to: 0 }, Kind::Uring { copy_up_to: 512 }],
            Err(why) => {
                eprintln!("not tested: the io_uring engine, because {why}");
                vec![Kind::Recvmmsg]
            }
        }
    }
}

/// An engine with a batch to fill.
pub(crate) struct Receiving {
    pub engine: Engine,
    pub batch: RecvBatch,
}

impl Receiving {
    pub(crate) fn new(
        kind: Kind,
        socket: &Arc<Socket>,
        slots: usize,
        slot_bytes: usize,
        control: Control,
    ) -> Receiving {
        let shape = BatchShape::new(slots, slot_bytes).control(control);
        let socket = Arc::clone(socket);
        let (engine, batch) = match kind {
            Kind::Recvmmsg => (Engine::recvmmsg(socket), RecvBatch::new(&shape).expect("memory for a batch")),
            Kind::Uring { copy_up_to } => {
                let (mut pool, _) = RecvBatch::pool(1 + Uring::reserve_batches(slots), &shape).expect("memory");
                let batch = pool.pop().expect("at least one");
                (Engine::uring(socket, pool, copy_up_to).expect("a ring"), batch)
            }
        };
        Receiving { engine, batch }
    }

    /// Receives into the batch, which must not fail.
    pub(crate) fn receive(&mut self, wait: Wait) -> usize {
        self.engine.receive(&mut self.batch, wait).expect("receive")
    }

    pub(crate) fn receive_more(&mut self, wait: Wait) -> usize {
        self.engine.receive_more(&mut self.batch, wait).expect("receive")
    }

    /// Receives so many datagrams, and whatever comes with the last of them.
    pub(crate) fn count(&mut self, count: usize) -> Vec<Received> {
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < count {
            let left = DEADLINE.saturating_sub(start.elapsed());
            assert!(self.engine.wait_readable(left).expect("poll"), "nothing more came after {} datagrams", all.len());
            self.receive(Wait::No);
            all.extend(received(&self.batch));
        }
        all
    }

    /// Drops the engine, whatever it is doing, and keeps the batch.
    pub(crate) fn drop_engine(self) -> RecvBatch {
        self.batch
    }
}

pub(crate) fn batch(slots: usize, slot_bytes: usize, control: Control) -> RecvBatch {
    RecvBatch::new(&BatchShape::new(slots, slot_bytes).control(control)).expect("memory for a batch")
}

/// Receives until `enough` says so of the datagrams so far: payload, real length and source of each.
pub(crate) fn receive_until(
    socket: &Socket,
    batch: &mut RecvBatch,
    mut enough: impl FnMut(&[Received]) -> bool,
) -> Vec<Received> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while !enough(&all) {
        let left = DEADLINE.saturating_sub(start.elapsed());
        assert!(socket.wait_readable(left).expect("poll"), "nothing more came after {} datagrams", all.len());
        batch.receive(socket, Wait::No).expect("receive");
        all.extend(received(batch));
    }
    all
}

pub(crate) fn receive_count(socket: &Socket, batch: &mut RecvBatch, count: usize) -> Vec<Received> {
    receive_until(socket, batch, |all| all.len() >= count)
}

fn received(batch: &RecvBatch) -> impl Iterator<Item = Received> {
    batch.datagrams().map(|datagram| Received {
        payload: datagram.payload().to_vec(),
        length: datagram.length(),
        source: datagram.source().expect("every datagram has a sender"),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub payload: Vec<u8>,
    pub length: usize,
    pub source: SocketAddr,
}

/// Waits until the thread of this name sleeps in the kernel: all it does is receive.
pub(crate) fn wait_until_asleep(name: &str) {
    let start = Instant::now();
    while !is_asleep(name) {
        assert!(start.elapsed() < DEADLINE, "{name} never went to sleep");
        std::thread::yield_now();
    }
}

fn is_asleep(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    // A thread that ends meanwhile has no file to read; it is not the one.
    tasks.flatten().any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) S"))
    })
}

/// So many random bytes.
pub(crate) fn bytes(random: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}
