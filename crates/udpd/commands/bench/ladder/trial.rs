//! One trial: receivers, a sender, and what became of every datagram between them.
//!
//! The receivers are bare loops on `mmsg` that count and look at the first bytes of each payload; no channel, no
//! consumer. So the steps differ in how datagrams are received and in nothing else. `udpd bench max` is for the whole
//! way.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use mmsg::{BatchShape, Control, Engine, Family, Group, GroupSpread, RecvBatch, Socket, Uring, Wait};

use super::step::{Sharing, Way};
use crate::commands::bench::clock;
use crate::commands::bench::machine::Usage;
use crate::commands::bench::pacer::Amount;
use crate::commands::bench::rate::Rate;
use crate::commands::bench::send::{self, Load};
use crate::commands::bench::sizes::Sizes;
use crate::config::EngineKind;
use crate::exit::{ExitCode, Failure};
use crate::plan::engine::COPY_UP_TO;

/// What each socket asks for.
pub(super) const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Far longer than a receiver needs for what is left in its socket when the sender has ended.
const SETTLE: Duration = Duration::from_millis(30);

/// So much of each payload is looked at.
const TOUCHED_BYTES: usize = 16;

/// Which cores do what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores {
    /// Sends, and so pays for the receive interrupt of loopback.
    pub sender: usize,
    /// Receive, in turn.
    pub receivers: Vec<usize>,
}

impl Cores {
    /// The first core sends and the others receive; a machine with one core shares it.
    pub(super) fn of(allowed: &[usize]) -> Self {
        let sender = allowed.first().copied().unwrap_or(0);
        let receivers = if allowed.len() > 1 { allowed[1..].to_vec() } else { vec![sender] };
        Self { sender, receivers }
    }

    /// How many receivers the steps with several of them have.
    pub(super) fn several(&self) -> usize {
        self.receivers.len().clamp(2, 4)
    }
}

/// What is offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    pub rate: Rate,
    pub duration: Duration,
    pub size: usize,
    /// Datagrams in a UDP_SEGMENT train; 1: none.
    pub train: usize,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Trial {
    /// Datagrams that the kernel took from the sender.
    pub sent: u64,
    /// Datagrams a second, as really sent.
    pub rate: f64,
    /// Datagrams received, by thread.
    pub lanes: Vec<u64>,
    /// What the sockets say they dropped: datagrams, or trains with GRO.
    pub dropped: u64,
    pub calls: u64,
    pub receiver_ns: u64,
    /// CPU time of the machine, sender and interrupts included.
    pub machine_ns: Option<u64>,
    /// The kernel granted a smaller receive buffer than was asked for: so many bytes.
    pub clamped_bytes: Option<usize>,
}

impl Trial {
    /// Datagrams received by all threads.
    pub(super) fn received(&self) -> u64 {
        self.lanes.iter().sum()
    }
}

/// Runs one trial. It ends early when `stop` is raised; what was counted by then still adds up.
pub(super) fn run(way: &Way, offer: &Offer, cores: &Cores, stop: &Arc<AtomicBool>) -> Result<Trial, Failure> {
    let Sockets { sockets, address, clamped_bytes } = open(way, cores)?;
    let ending = AtomicBool::new(false);
    thread::scope(|scope| {
        let (ready_sender, ready) = bounded(way.threads);
        let mut threads = Vec::with_capacity(way.threads);
        for index in 0..way.threads {
            let socket = Arc::clone(&sockets[index % sockets.len()]);
            let core = way.is_pinned.then(|| cores.receivers[index % cores.receivers.len()]);
            let (ready, is_ending) = (ready_sender.clone(), &ending);
            let body = move || receive(way, offer.size, socket, core, &ready, is_ending);
            match thread::Builder::new().name(format!("rx{index}")).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that wait already have to be told, or the scope would wait for them.
                    end(&ending, &sockets);
                    return Err(cannot("start a receiver thread", &error));
                }
            }
        }
        drop(ready_sender);
        // An error of a receiver shows when it is joined; the others are then ended like after a trial.
        let all_ready = (0..way.threads).all(|_| ready.recv().is_ok());
        let before = Usage::read();
        let report = match all_ready {
            true => Some(send::run(&load(offer, address, cores), stop, &mut |_| {})),
            false => None,
        };
        thread::sleep(SETTLE);
        let used = Usage::read().since(&before);
        end(&ending, &sockets);
        let mut trial = Trial { clamped_bytes, machine_ns: used.machine_ns, ..Trial::default() };
        for thread in threads {
            let lane = thread.join().map_err(|_| bug("a receiver thread has panicked"))??;
            trial.lanes.push(lane.received);
            trial.calls += lane.calls;
            trial.receiver_ns += lane.cpu_ns;
        }
        let report = report.ok_or_else(|| bug("a receiver ended before it was ready"))??;
        (trial.sent, trial.rate) = (report.sent, report.rate);
        for socket in &sockets {
            trial.dropped += u64::from(socket.memory_info().map_err(|error| cannot("read SO_MEMINFO", &error))?.drops);
        }
        Ok(trial)
    })
}

/// Receivers take what is left and come back.
fn end(ending: &AtomicBool, sockets: &[Arc<Socket>]) {
    ending.store(true, Ordering::Relaxed);
    for socket in sockets {
        let _ = socket.interrupt();
    }
}

/// The highest rate that the sender reaches when nobody receives: the end of its own road.
pub(super) fn senders_limit(offer: &Offer, cores: &Cores, stop: &Arc<AtomicBool>) -> Result<f64, Failure> {
    let socket = Socket::new(Family::V4).map_err(|error| cannot("make a socket", &error))?;
    socket.bind(([127, 0, 0, 1], 0).into()).map_err(|error| cannot("bind to 127.0.0.1", &error))?;
    let address = socket.local_addr().map_err(|error| cannot("read an address", &error))?;
    Ok(send::run(&load(offer, address, cores), stop, &mut |_| {})?.rate)
}

fn load(offer: &Offer, address: SocketAddr, cores: &Cores) -> Load {
    Load {
        sizes: Sizes::Fixed(offer.size),
        gso: NonZeroUsize::new(offer.train).filter(|train| train.get() > 1),
        burst: NonZeroUsize::new(32),
        cpus: vec![cores.sender],
        ..Load::new(address, offer.rate, Amount::Seconds(offer.duration))
    }
}

struct Sockets {
    sockets: Vec<Arc<Socket>>,
    address: SocketAddr,
    clamped_bytes: Option<usize>,
}

fn open(way: &Way, cores: &Cores) -> Result<Sockets, Failure> {
    let count = if way.sharing == Sharing::OneSocket { 1 } else { way.threads };
    let mut sockets = Vec::with_capacity(count);
    let mut clamped_bytes = None;
    for _ in 0..count {
        let socket = Socket::new(Family::V4).map_err(|error| cannot("make a socket", &error))?;
        let buffer = socket
            .set_receive_buffer(RECEIVE_BUFFER_BYTES)
            .map_err(|error| cannot("set the receive buffer", &error))?;
        clamped_bytes = clamped_bytes.or(buffer.is_clamped().then_some(buffer.granted_bytes / 2));
        if way.gro {
            socket.set_gro(true).map_err(|error| cannot("switch UDP_GRO on", &error))?;
        }
        sockets.push(Arc::new(socket));
    }
    let spread = match way.sharing {
        Sharing::OneSocket | Sharing::ByFlow => GroupSpread::Flow,
        Sharing::ByCore => {
            let everybody = std::iter::once(&cores.sender).chain(&cores.receivers);
            GroupSpread::Cpu(
                everybody
                    .zip((0..u32::try_from(count).unwrap_or(1)).cycle())
                    .map(|(core, lane)| (*core, lane))
                    .collect(),
            )
        }
    };
    let mut group = Group::new(sockets, spread).map_err(|error| cannot("make a group of sockets", &error))?;
    let address =
        group.bind(([127, 0, 0, 1], 0).into()).map_err(|error| cannot("bind to a free port of 127.0.0.1", &error))?;
    Ok(Sockets { sockets: group.members().to_vec(), address, clamped_bytes })
}

/// What one thread has to tell.
struct Lane {
    received: u64,
    calls: u64,
    cpu_ns: u64,
}

fn receive(
    way: &Way,
    size: usize,
    socket: Arc<Socket>,
    core: Option<usize>,
    ready: &Sender<()>,
    ending: &AtomicBool,
) -> Result<Lane, Failure> {
    if let Some(core) = core {
        steer::pin_current_thread(core).map_err(|error| cannot(&format!("pin a receiver to core {core}"), &error))?;
    }
    let control = Control::new().gro(way.gro);
    let shape = BatchShape::new(way.slots, size.max(2048)).control(control).huge_pages(true);
    let own = match way.engine {
        EngineKind::Recvmmsg | EngineKind::AfXdp => 0,
        EngineKind::IoUring => Uring::reserve_batches(way.slots),
    };
    let (mut batches, _) = RecvBatch::pool(1 + own, &shape).map_err(|error| cannot("get memory", &error))?;
    let mut batch = batches.pop().ok_or_else(|| bug("a pool without a batch"))?;
    let mut engine = match way.engine {
        EngineKind::Recvmmsg | EngineKind::AfXdp => Engine::recvmmsg(socket),
        EngineKind::IoUring => {
            Engine::uring(socket, batches, COPY_UP_TO).map_err(|error| cannot("make a ring", &error))?
        }
    };
    let wait = if way.gather.is_zero() { Wait::Block } else { Wait::Gather(way.gather) };
    let mut lane = Lane { received: 0, calls: 0, cpu_ns: 0 };
    let _ = ready.send(());
    let begun_ns = clock::thread_cpu_ns();
    while !ending.load(Ordering::Relaxed) {
        let messages = engine.receive(&mut batch, wait).map_err(|error| cannot("receive", &error))?;
        lane.count(messages, &batch);
    }
    engine.finish();
    loop {
        let messages = engine.receive(&mut batch, Wait::No).map_err(|error| cannot("receive", &error))?;
        lane.count(messages, &batch);
        if messages == 0 {
            lane.cpu_ns = clock::thread_cpu_ns() - begun_ns;
            return Ok(lane);
        }
    }
}

impl Lane {
    fn count(&mut self, messages: usize, batch: &RecvBatch) {
        if messages == 0 {
            return;
        }
        self.calls += 1;
        let mut touched = 0;
        for datagram in batch.datagrams() {
            self.received += 1;
            touched ^= datagram.payload().iter().take(TOUCHED_BYTES).fold(0, |sum, byte| sum ^ byte);
        }
        std::hint::black_box(touched);
    }
}

fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("bench ladder: cannot {what}: {error}"))
}

fn bug(what: &str) -> Failure {
    Failure::new(ExitCode::Failure, format!("bench ladder: {what}, which is a bug of udpd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::ladder::step::Step;

    #[test]
    fn one_core_is_shared_and_of_several_the_first_sends() {
        assert_eq!(Cores::of(&[5]), Cores { sender: 5, receivers: vec![5] });
        assert_eq!(Cores::of(&[2, 3, 9]), Cores { sender: 2, receivers: vec![3, 9] });
        assert_eq!((Cores::of(&[5]).several(), Cores::of(&[0, 1, 2, 3, 4, 5]).several()), (2, 4));
    }

    #[test]
    fn in_every_step_what_was_sent_is_received_or_dropped_by_the_socket() {
        let cores = Cores::of(&steer::allowed_cores().expect("an affinity"));
        let stop = Arc::new(AtomicBool::new(false));
        let offer = Offer { rate: Rate::Steady(20_000), duration: Duration::from_millis(100), size: 64, train: 10 };
        for step in Step::ALL.into_iter().filter(|step| step.obstacle(&Uring::supported(), 10).is_none()) {
            let way = step.way(cores.several());
            // A machine with much else to do may give the sender no time at all in a tenth of a second.
            let mut trials = std::iter::repeat_with(|| run(&way, &offer, &cores, &stop).expect("a trial"));
            let trial = trials.find(|trial| trial.sent > 0).expect("they do not end");
            assert!(trial.sent <= 2_000, "{step:?}: {trial:?}");
            assert_eq!(trial.lanes.len(), way.threads, "{step:?}");
            let dropped = if way.gro { trial.dropped * 10 } else { trial.dropped };
            assert_eq!(trial.received() + dropped, trial.sent, "{step:?}: {trial:?}");
            assert!(trial.received() == 0 || trial.calls > 0, "{step:?}: {trial:?}");
            assert!(trial.calls <= trial.received() && trial.receiver_ns > 0, "{step:?}: {trial:?}");
        }
    }
}
