//! One trial: receivers, a sender, and the outcome of every datagram.
//!
//! The receivers are bare loops on `mmsg` that count and read the first bytes of each payload; no channel, no consumer.
//! So the steps differ in how datagrams are received and in nothing else. `udpd bench max` measures the whole pipeline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use mmsg::{BatchShape, Control, Engine, Family, Group, GroupSpread, RecvBatch, Socket, Uring, Wait, Waker, xdp};

use super::step::{OfferedLoad, ReceiveMethod, Sharing, TestPath, TrialCores};
use crate::clock;
use crate::machine::Usage;
use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::config::EngineKind;
use udpd_engine::plan::engine::COPY_UP_TO;

/// The receive buffer that each socket requests.
pub(super) const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Far longer than a receiver needs for what is left in its socket when the sender has ended.
const SETTLE: Duration = Duration::from_millis(30);

/// The frames that may wait for an AF_XDP engine, in batches.
const XDP_BATCHES: usize = 64;

/// How much of each payload is read.
const TOUCHED_BYTES: usize = 16;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LadderTrial {
    /// Datagrams that the kernel took from the sender.
    pub sent: u64,
    pub rate: f64,
    pub lanes: Vec<u64>,
    /// Drops of the sockets: datagrams, or trains with GRO.
    pub dropped: u64,
    pub calls: u64,
    pub receiver_ns: u64,
    /// CPU time of the machine, sender and interrupts included.
    pub machine_ns: Option<u64>,
    /// The receive buffer that the kernel granted, where it is smaller than requested.
    pub clamped_bytes: Option<usize>,
}

impl LadderTrial {
    pub(super) fn received(&self) -> u64 {
        self.lanes.iter().sum()
    }
}

/// Runs one trial. It ends early when `stop` is raised; what was counted by then still adds up.
pub(super) fn run(
    way: &ReceiveMethod,
    offer: &OfferedLoad,
    cores: &TrialCores,
    ground: &TestPath,
    stop: &Arc<AtomicBool>,
) -> Result<LadderTrial, Failure> {
    let Sockets { sockets, address, clamped_bytes } = open(way, cores, ground)?;
    let redirect = match way.engine {
        EngineKind::AfXdp => ground.redirect(address.port()).transpose(),
        EngineKind::Recvmmsg | EngineKind::IoUring => Ok(None),
    };
    let redirect = redirect.map_err(|refusal| cannot("receive by AF_XDP", &refusal))?.map(Arc::new);
    let ending = AtomicBool::new(false);
    thread::scope(|scope| {
        let (ready_sender, ready) = bounded(way.threads);
        let mut threads = Vec::with_capacity(way.threads);
        for index in 0..way.threads {
            let socket = Arc::clone(&sockets[index % sockets.len()]);
            let core = way.is_pinned.then(|| cores.receivers[index % cores.receivers.len()]);
            let (own_ready, is_ending) = (ready_sender.clone(), &ending);
            let from = match &redirect {
                Some(redirect) => From::Queue(Arc::clone(redirect), u32::try_from(index).unwrap_or(u32::MAX)),
                None => From::Socket(socket),
            };
            let body = move || receive(way, offer.size, from, core, &own_ready, is_ending);
            match thread::Builder::new().name(format!("rx{index}")).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The threads that wait already have to end, or the scope would wait for them.
                    end(&ending, &sockets, ready.try_iter().flatten());
                    return Err(cannot("start a receiver thread", &error));
                }
            }
        }
        drop(ready_sender);
        // An error of a receiver shows when it is joined; the others are then ended like after a trial.
        let wakers: Vec<Option<Waker>> = (0..way.threads).map_while(|_| ready.recv().ok()).collect();
        let before = Usage::read();
        let report = (wakers.len() == way.threads).then(|| ground.send(offer, address, cores, stop));
        thread::sleep(SETTLE);
        let used = Usage::read().since(&before);
        end(&ending, &sockets, wakers.into_iter().flatten());
        let mut trial = LadderTrial { clamped_bytes, machine_ns: used.machine_ns, ..LadderTrial::default() };
        for thread in threads {
            let lane = thread.join().map_err(|_| bug("a receiver thread has panicked"))??;
            trial.lanes.push(lane.received);
            trial.calls += lane.calls;
            trial.dropped += lane.dropped;
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

/// Makes the receivers take what is left, and end.
fn end(ending: &AtomicBool, sockets: &[Arc<Socket>], wakers: impl Iterator<Item = Waker>) {
    ending.store(true, Ordering::Relaxed);
    for waker in wakers {
        // A receiver that has ended needs no waking.
        let _ = waker.wake();
    }
    for socket in sockets {
        let _ = socket.interrupt();
    }
}

/// The highest rate that the sender reaches when no receiver runs.
pub(super) fn senders_limit(
    offer: &OfferedLoad,
    cores: &TrialCores,
    ground: &TestPath,
    stop: &Arc<AtomicBool>,
) -> Result<f64, Failure> {
    let own = ground.address();
    let socket = Socket::new(family(ground)).map_err(|error| cannot("make a socket", &error))?;
    socket.bind((own, 0).into()).map_err(|error| cannot(&format!("bind to {own}"), &error))?;
    let address = socket.local_addr().map_err(|error| cannot("read an address", &error))?;
    Ok(ground.send(offer, address, cores, stop)?.rate)
}

fn family(ground: &TestPath) -> Family {
    if ground.address().is_ipv4() { Family::V4 } else { Family::V6 }
}

struct Sockets {
    sockets: Vec<Arc<Socket>>,
    address: SocketAddr,
    clamped_bytes: Option<usize>,
}

fn open(way: &ReceiveMethod, cores: &TrialCores, ground: &TestPath) -> Result<Sockets, Failure> {
    let count = if way.sharing == Sharing::OneSocket { 1 } else { way.threads };
    let mut sockets = Vec::with_capacity(count);
    let mut clamped_bytes = None;
    for _ in 0..count {
        let socket = Socket::new(family(ground)).map_err(|error| cannot("make a socket", &error))?;
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
            let all = std::iter::once(&cores.sender).chain(&cores.receivers);
            GroupSpread::Cpu(
                all.zip((0..u32::try_from(count).unwrap_or(1)).cycle()).map(|(core, lane)| (*core, lane)).collect(),
            )
        }
    };
    let mut group = Group::new(sockets, spread).map_err(|error| cannot("make a group of sockets", &error))?;
    let own = ground.address();
    let bound = group.bind((own, 0).into());
    let address = bound.map_err(|error| cannot(&format!("bind to a free port of {own}"), &error))?;
    Ok(Sockets { sockets: group.members().to_vec(), address, clamped_bytes })
}

#[derive(Default)]
struct LaneCount {
    received: u64,
    calls: u64,
    cpu_ns: u64,
    /// Drops that only the engine counts.
    dropped: u64,
}

enum From {
    Socket(Arc<Socket>),
    /// A receive queue, past the sockets.
    Queue(Arc<xdp::Redirect>, u32),
}

/// The engine of a receiver, with a batch for it.
fn engine(way: &ReceiveMethod, size: usize, from: From) -> Result<(Engine, RecvBatch), Failure> {
    let control = Control::new().gro(way.gro);
    let shape = BatchShape::new(way.slots, size.max(2048)).control(control).huge_pages(true);
    let own = match way.engine {
        EngineKind::Recvmmsg => 0,
        EngineKind::IoUring => Uring::reserve_batches(way.slots),
        EngineKind::AfXdp => XDP_BATCHES,
    };
    let (mut batches, _) = RecvBatch::pool(1 + own, &shape).map_err(|error| cannot("get memory", &error))?;
    let batch = batches.pop().ok_or_else(|| bug("a pool without a batch"))?;
    let engine = match (way.engine, from) {
        (EngineKind::IoUring, From::Socket(socket)) => Engine::uring(socket, batches, COPY_UP_TO),
        (_, From::Socket(socket)) => Ok(Engine::recvmmsg(socket)),
        (_, From::Queue(redirect, queue)) => {
            Engine::af_xdp(redirect, batches, &xdp::Options::new(queue).copy_up_to(COPY_UP_TO).control(control))
        }
    };
    Ok((engine.map_err(|error| cannot("make an engine", &error))?, batch))
}

fn receive(
    way: &ReceiveMethod,
    size: usize,
    from: From,
    core: Option<usize>,
    ready: &Sender<Option<Waker>>,
    ending: &AtomicBool,
) -> Result<LaneCount, Failure> {
    if let Some(core) = core {
        steer::pin_current_thread(core).map_err(|error| cannot(&format!("pin a receiver to core {core}"), &error))?;
    }
    let is_queue = matches!(from, From::Queue(..));
    let (mut engine, mut batch) = engine(way, size, from)?;
    let wait = if way.gather.is_zero() { Wait::Block } else { Wait::Gather(way.gather) };
    let mut lane = LaneCount::default();
    // A socket can wake its receiver by itself.
    let waker = is_queue.then(|| engine.waker()).transpose().map_err(|error| cannot("be woken", &error))?;
    let _ = ready.send(waker);
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
            let told = engine.xdp_statistics().map_err(|error| cannot("read what AF_XDP dropped", &error))?;
            lane.dropped = told.and_then(|told| told.lost()).unwrap_or(0);
            return Ok(lane);
        }
    }
}

impl LaneCount {
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

fn cannot(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ExitCode::Failure, format!("bench ladder: cannot {what}: {error}"))
}

fn bug(what: &str) -> Failure {
    Failure::new(ExitCode::Failure, format!("bench ladder: {what}, which is a bug of udpd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::step::{LadderStep, StepSupport};
    use crate::pacer::Rate;

    #[test]
    fn in_every_step_what_was_sent_is_received_or_dropped_by_the_socket() {
        let cores = TrialCores::of(&steer::allowed_cores().expect("an affinity"));
        let stop = Arc::new(AtomicBool::new(false));
        let offer =
            OfferedLoad { rate: Rate::Steady(20_000), duration: Duration::from_millis(100), size: 64, train: 10 };
        let (io_uring, ground) = (Uring::supported(), TestPath::default());
        let reach = StepSupport { io_uring: &io_uring, no_af_xdp: Some("loopback"), train: 10 };
        for step in LadderStep::all().filter(|step| step.obstacle(reach).is_none()) {
            let way = step.way(cores.several(), ground.queues());
            // A machine with much else to do may give the sender no time at all in a tenth of a second.
            let mut trials = std::iter::repeat_with(|| run(&way, &offer, &cores, &ground, &stop).expect("a trial"));
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
