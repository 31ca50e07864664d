//! What the tests share: sockets on loopback, random bytes, and receiving with a deadline, so that a lost datagram
//! fails a test instead of hanging it.
#![allow(dead_code)] // each test binary uses its part of it

use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Control, Datagram, Engine, Family, RecvBatch, Socket, Uring, Wait};

/// Nothing on loopback takes this long: what is awaited longer is lost.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([127, 0, 0, 1], 0)),
        Family::V6 => "[::1]:0".parse().expect("valid"),
    }
}

/// A new socket, bound to nothing.
pub(crate) fn unbound(family: Family) -> Socket {
    Socket::new(family).expect("a socket")
}

/// A socket bound to a free port of loopback, after `prepare` has set its options.
pub(crate) fn bound(family: Family, prepare: impl FnOnce(&Socket)) -> (Socket, SocketAddr) {
    let socket = unbound(family);
    prepare(&socket);
    socket.bind(loopback(family)).expect("loopback has free ports");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

/// The same with IPv4 and no options.
pub(crate) fn bound_v4() -> (Socket, SocketAddr) {
    bound(Family::V4, |_| {})
}

/// The same, to be shared with an engine.
pub(crate) fn bound_shared(family: Family, prepare: impl FnOnce(&Socket)) -> (Arc<Socket>, SocketAddr) {
    let (socket, address) = bound(family, prepare);
    (Arc::new(socket), address)
}

/// The sockets of the standard library send here, so that these tests do not trust our own sending.
pub(crate) fn sender(family: Family) -> UdpSocket {
    UdpSocket::bind(loopback(family)).expect("loopback has free ports")
}

/// Sends datagrams from a port of their own, in order.
pub(crate) fn send<T: AsRef<[u8]>>(to: SocketAddr, payloads: impl IntoIterator<Item = T>) {
    let sender = sender(if to.is_ipv4() { Family::V4 } else { Family::V6 });
    for payload in payloads {
        sender.send_to(payload.as_ref(), to).expect("sent");
    }
}

/// Reads what is queued and returns how many datagrams that were.
pub(crate) fn drain(socket: &Socket) -> usize {
    let mut batch = batch(64, 64, Control::default());
    std::iter::repeat_with(|| batch.receive(socket, Wait::No).expect("receive")).take_while(|count| *count > 0).sum()
}

pub(crate) fn drops(socket: &Socket) -> u32 {
    socket.memory_info().expect("memory info").drops
}

/// An engine, as the tests go through them. Both ways of the ring to hand over a payload count as one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Recvmmsg,
    Uring { copy_up_to: usize },
}

impl Kind {
    /// Those that this machine permits; says so where it does not.
    pub(crate) fn here() -> Vec<Kind> {
        [vec![Kind::Recvmmsg], Kind::rings()].concat()
    }

    /// The ring alone, where there is one.
    pub(crate) fn rings() -> Vec<Kind> {
        match Uring::supported() {
            Ok(()) => vec![Kind::Uring { copy_up_to: 0 }, Kind::Uring { copy_up_to: 512 }],
            Err(why) => {
                let _ = writeln!(io::stderr(), "not tested: the io_uring engine, because {why}");
                Vec::new()
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

    /// The same on a new IPv4 socket of loopback, without control messages.
    pub(crate) fn bound(kind: Kind, slots: usize, slot_bytes: usize) -> (Receiving, Arc<Socket>, SocketAddr) {
        let (socket, address) = bound_shared(Family::V4, |_| {});
        (Receiving::new(kind, &socket, slots, slot_bytes, Control::default()), socket, address)
    }

    /// Receives into the batch, which must not fail.
    pub(crate) fn receive(&mut self, wait: Wait) -> usize {
        self.engine.receive(&mut self.batch, wait).expect("receive")
    }

    /// Receives so many datagrams, and whatever comes with the last of them; `read` looks at each.
    pub(crate) fn collect<T>(&mut self, count: usize, read: impl Fn(Datagram<'_>) -> T) -> Vec<T> {
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < count {
            let left = DEADLINE.saturating_sub(start.elapsed());
            assert!(self.engine.wait_readable(left).expect("poll"), "nothing more came after {} datagrams", all.len());
            self.receive(Wait::No);
            all.extend(self.batch.datagrams().map(&read));
        }
        all
    }

    /// What is in the batch.
    pub(crate) fn payloads(&self) -> Vec<Vec<u8>> {
        self.batch.datagrams().map(|datagram| datagram.payload().to_vec()).collect()
    }

    /// The same as numbers of eight bytes each.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let number = |payload: &[u8]| u64::from_ne_bytes(payload.try_into().expect("eight bytes"));
        self.batch.datagrams().map(|datagram| number(datagram.payload())).collect()
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
        all.extend(batch.datagrams().map(Received::of));
    }
    all
}

pub(crate) fn receive_count(socket: &Socket, batch: &mut RecvBatch, count: usize) -> Vec<Received> {
    receive_until(socket, batch, |all| all.len() >= count)
}

/// The payloads of the next datagrams of a socket.
pub(crate) fn payloads(socket: &Socket, count: usize) -> Vec<Vec<u8>> {
    let received = receive_count(socket, &mut batch(64, 2048, Control::default()), count);
    assert_eq!(received.len(), count, "more came than was sent");
    received.into_iter().map(|one| one.payload).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub payload: Vec<u8>,
    pub length: usize,
    pub source: SocketAddr,
}

impl Received {
    pub(crate) fn of(datagram: Datagram<'_>) -> Received {
        Received {
            payload: datagram.payload().to_vec(),
            length: datagram.length(),
            source: datagram.source().expect("every datagram has a sender"),
        }
    }
}

/// What was made, or `None` where this process lacks the right to, which is said.
pub(crate) fn permitted<T>(what: &str, made: io::Result<T>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let _ = writeln!(io::stderr(), "NOT CHECKED: {what} needs CAP_BPF: {error}");
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Tests whose effects reach every thread take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` with the first call of a kind failing, then with the second, and so on until it makes no more. Returns
/// how often it was run with a failing call, and checks the result of each.
#[cfg(mmsg_faults)]
pub(crate) fn each_call_fails(
    call: mmsg::fault::Call,
    errno: i32,
    mut body: impl FnMut() -> io::Result<()>,
    mut check: impl FnMut(u64, io::Result<()>),
) -> u64 {
    for nth in 1.. {
        let guard = mmsg::fault::inject(call, nth, errno);
        let result = body();
        if !guard.has_fired() {
            result.unwrap_or_else(|error| panic!("nothing was injected into {call:?}, and yet: {error}"));
            return nth - 1;
        }
        drop(guard);
        check(nth, result);
    }
    unreachable!("it ends some time")
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
