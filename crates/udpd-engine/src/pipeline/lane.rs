//! Makes a lane. Its thread is pinned first, and then makes the socket and touches the batches itself, so that what the
//! kernel and the allocator hand out lies on the memory node of that core. The sockets are bound later, by one thread
//! and in order, because the order of binding is the order of the sockets in their group.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use mmsg::{Backing, Engine, GrantedBuffer, RecvBatch, Socket, Waker, xdp};

use super::receiver::{EngineRefusals, Receiver, SocketSwap, StopSignal};
use super::{
    inherited_sockets::SocketAssignment, lane_setup::LaneSetup, latency_sampling::BatchSampler, outlet::Outlet, socket,
};
use crate::config::{EngineKind, Gro, OnTruncate};
use crate::plan::engine::{self, COPY_UP_TO};
use crate::plan::{LanePlan, charge_bytes, xdp as xdp_plan};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::pool::{Home, Owner, Pool};
use udpd_base::ledger::LaneLedger;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, StartingThread, ThreadHandle, ThreadRegistry};
use udpd_base::seams::waits;
use udpd_inspect::policy::Policy;
use udpd_inspect::upstream::Observer;

/// A lane that is made and waits for its start.
#[derive(Debug)]
pub(super) struct LaneThread {
    pub setup: LaneSetup,
    pub made: LaneReport,
    /// The thread as the thread registry knows it.
    pub thread_handle: ThreadHandle,
    commands: Sender<LaneCommand>,
    handle: JoinHandle<()>,
}

/// What the thread made.
#[derive(Debug)]
pub(super) struct LaneReport {
    /// Not bound yet, unless it is inherited; `None` where the lane takes an XDP queue.
    pub socket: Option<Arc<Socket>>,
    /// Where its batches come back to.
    pub home: Arc<Home>,
    pub buffer: Option<GrantedBuffer>,
    /// What memory the batches lie in.
    pub backing: Backing,
    /// The cores that it is pinned to; none when that did not work.
    pub cores: Vec<usize>,
    pub engine: &'static str,
    /// Ends a wait of its receiver without a trace in the socket; or why nothing can.
    pub waker: Result<Waker, String>,
    /// What the kernel counts of its queue, when that has an engine.
    pub counter: Option<xdp::Counter>,
}

/// What the thread of a lane is told.
enum LaneCommand {
    /// Make the engine of its XDP queue.
    Open(Arc<xdp::Redirect>, Sender<Result<Opened, Failure>>),
    Start(Box<LaneStart>),
}

/// The engine of an XDP queue, as other threads see it.
struct Opened {
    waker: Result<Waker, String>,
    counter: Option<xdp::Counter>,
}

/// A socket that a lane adopts.
struct InheritedByLane {
    socket: Arc<Socket>,
    /// Another lane or another process still receives from it.
    is_in_use: bool,
}

#[derive(Debug)]
pub(super) struct LaneStart {
    pub outlets: Vec<Outlet>,
    pub ledger: Arc<LaneLedger>,
    pub stop: Arc<StopSignal>,
    /// Where it finds a new socket.
    pub socket_swap: Arc<SocketSwap>,
    pub socket_survives: Arc<AtomicBool>,
    /// What it reads to the end before its own socket.
    pub sockets_to_drain: Vec<Arc<Socket>>,
}

struct StartingLane {
    setup: LaneSetup,
    made: crossbeam_channel::Receiver<Result<LaneReport, Failure>>,
    commands: Sender<LaneCommand>,
    thread: StartingThread<()>,
}

impl LaneThread {
    /// Starts the threads of all lanes and waits until everything is made. They make it at the same time. Of several
    /// failures the first in order is returned. The other threads end when no start reaches them.
    pub(super) fn spawn_all(
        setups: Vec<LaneSetup>,
        assignment: &SocketAssignment,
        registry: &ThreadRegistry,
    ) -> Result<Vec<Self>, Failure> {
        let mut coming = Vec::with_capacity(setups.len());
        let mut refused = None;
        for setup in setups {
            let inherited = assignment.by_lane[setup.index].clone();
            let is_in_use = assignment.are_in_use;
            let inherited = inherited.map(|socket| InheritedByLane { socket, is_in_use });
            match Self::launch(setup, inherited, registry) {
                Ok(lane) => coming.push(lane),
                Err(failure) => {
                    refused = Some(failure);
                    break;
                }
            }
        }
        let made = coming.into_iter().map(Self::wait).collect::<Result<_, _>>()?;
        refused.map_or(Ok(made), Err)
    }

    fn launch(
        setup: LaneSetup,
        inherited: Option<InheritedByLane>,
        registry: &ThreadRegistry,
    ) -> Result<StartingLane, Failure> {
        let (made_sender, made) = bounded(1);
        let (commands, coming) = bounded(1);
        let name = thread_name("rx", setup.index, &setup.listener.name);
        let own = setup.clone();
        let role = match setup.plan.engine.kind {
            EngineKind::IoUring => ThreadRole::RingReceiver,
            EngineKind::Recvmmsg => ThreadRole::Receiver,
            EngineKind::AfXdp => ThreadRole::XdpReceiver,
        };
        let thread = registry
            .spawn_one_of_many(name, role, move || run(own, inherited, &made_sender, &coming))
            .map_err(|error| threads::start_failure(&setup.to_string(), &error))?;
        Ok(StartingLane { setup, made, commands, thread })
    }

    fn wait(StartingLane { setup, made, commands, thread }: StartingLane) -> Result<Self, Failure> {
        let thread_handle = thread.handle();
        let handle = thread.wait();
        let made = waits::recv(&made).map_err(|_| {
            Failure::new(ExitCode::Failure, format!("{setup}: its thread ended while it was starting"))
        })??;
        Ok(Self { setup, made, thread_handle, commands, handle })
    }

    /// Has the thread of this lane make the engine of its XDP queue. What comes there waits in the ring from then on.
    pub(super) fn open(&mut self, redirect: &Arc<xdp::Redirect>) -> Result<(), Failure> {
        let (answer, answered) = bounded(1);
        let _ = self.commands.send(LaneCommand::Open(Arc::clone(redirect), answer));
        let ended =
            || Failure::new(ExitCode::Failure, format!("{}: its thread ended while it was starting", self.setup));
        let Opened { waker, counter } = threads::blocking(|| waits::recv(&answered)).map_err(|_| ended())??;
        (self.made.waker, self.made.counter) = (waker, counter);
        Ok(())
    }

    pub(super) fn start(self, start: LaneStart) -> JoinHandle<()> {
        // The thread waits for this message. If it has panicked the thread registry reports it.
        let _ = self.commands.send(LaneCommand::Start(Box::new(start)));
        self.handle
    }
}

/// The names that `top -H` shows: kernels keep 15 bytes.
pub(super) fn thread_name(role: &str, number: usize, of: &str) -> String {
    let mut name = format!("{role}{number}-{of}");
    let mut end = name.len().min(15);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

/// Runs the thread of a lane. It ends when the start never comes.
fn run(
    setup: LaneSetup,
    inherited: Option<InheritedByLane>,
    made: &Sender<Result<LaneReport, Failure>>,
    commands: &crossbeam_channel::Receiver<LaneCommand>,
) {
    // The watchdog may look on by now, and to touch all the memory is one long wait for the kernel.
    let (mut parts, ready) = match threads::blocking(|| make(&setup, inherited)) {
        Ok(parts) => parts,
        Err(failure) => {
            let _ = made.send(Err(failure));
            return;
        }
    };
    if made.send(Ok(ready)).is_err() {
        return;
    }
    let start = loop {
        match threads::blocking(|| waits::recv(commands)) {
            Ok(LaneCommand::Open(redirect, answer)) => {
                let _ = answer.send(threads::blocking(|| parts.open(&setup, redirect)));
            }
            Ok(LaneCommand::Start(start)) => break *start,
            Err(_) => return,
        }
    };
    let LaneStart { outlets, ledger, stop, socket_swap, socket_survives, sockets_to_drain } = start;
    // The receive buffer may have been lowered since.
    let granted = |socket: Arc<Socket>| socket.receive_buffer(0).map_or(0, |buffer| buffer.granted_bytes);
    let receive_buffer_bytes = ledger.socket().map_or_else(|| room_of_ring(&setup.plan), granted);
    let besides: Vec<ThreadRole> = outlets.iter().flat_map(Outlet::roles).copied().collect();
    threads::enter_sandbox_with(&besides);
    let LaneParts { engine, pool, observer, policy, .. } = parts;
    // Without an engine its queue passes to the sockets of the listener, and the log has said so.
    let Some(engine) = engine else { return };
    Receiver {
        engine,
        pool,
        receive_buffer_bytes,
        outlets,
        ledger,
        lane: setup.index,
        drop_truncated: setup.listener.on_truncate == OnTruncate::Drop,
        unwrapper: setup.unwrapper.clone(),
        observer,
        policy,
        deduplicator: setup.deduplicator.clone(),
        gather: setup.listener.gather,
        stop,
        sampler: BatchSampler::new(),
        seeks_trains: setup.listener.gro == Gro::Auto,
        socket_swap,
        socket_survives,
        sockets_to_drain,
        has_more: false,
        refusals: EngineRefusals::default(),
    }
    .run();
}

struct LaneParts {
    /// `None` where an XDP queue has none yet.
    engine: Option<Engine>,
    /// The batches for that engine.
    reserve: Vec<RecvBatch>,
    pool: Pool,
    observer: Option<Box<Observer>>,
    policy: Option<Box<Policy>>,
}

fn make(setup: &LaneSetup, inherited: Option<InheritedByLane>) -> Result<(LaneParts, LaneReport), Failure> {
    let LaneSetup { plan, listener, .. } = setup;
    let cores = pin(setup);
    let fail = |operation: &str, error: io::Error| {
        Failure::new(ExitCode::Failure, format!("{setup}: cannot {operation}: {error}"))
    };
    let (socket, buffer) = match inherited {
        _ if !plan.has_socket() => (None, None),
        Some(InheritedByLane { socket, is_in_use: true }) => {
            let buffer = socket::widen(setup, &socket)?;
            (Some(socket), Some(buffer))
        }
        Some(InheritedByLane { socket, is_in_use: false }) => {
            socket::enable_gro(setup, &socket)?;
            let buffer = socket::adopt(setup, &socket)?;
            (Some(socket), Some(buffer))
        }
        None => {
            let (socket, buffer) = socket::make(setup)?;
            (Some(Arc::new(socket)), Some(buffer))
        }
    };
    let (mut batches, backing) = RecvBatch::pool(plan.batches(), &plan.shape)
        .map_err(|error| fail(&format!("get {} bytes of memory for batches", plan.batches_bytes()), error))?;
    let reserve = plan.xdp.as_ref().map_or(0, |xdp| xdp.batches);
    let reserve = batches.split_off(batches.len().saturating_sub(reserve));
    let make = |socket| engine::make(&plan.engine, &listener.name, socket, &mut batches);
    let mut engine = socket.as_ref().map(make).transpose()?;
    engine.iter_mut().for_each(|engine| socket::spin(setup, engine));
    let owner = Owner { listener: plan.listener, lane: setup.index, node: plan.node_place };
    let (pool, home) = Pool::new(batches, listener.sinks.len(), owner);
    let (waker, name) = match &engine {
        Some(engine) => (engine.waker().map_err(|error| error.to_string()), engine.name()),
        None => (Err("its queue has no engine".to_owned()), "af_xdp"),
    };
    let made = LaneReport { socket, home, buffer, backing, cores, engine: name, waker, counter: None };
    let policy = Policy::new(setup.access.clone(), listener.rate_limit.zip(setup.offences.clone())).map(Box::new);
    let observer = setup.upstream.as_ref().map(|upstream| Box::new(upstream.observer(plan.number, plan.address)));
    Ok((LaneParts { engine, reserve, pool, observer, policy }, made))
}

impl LaneParts {
    /// Makes the engine of an XDP queue.
    fn open(&mut self, setup: &LaneSetup, redirect: Arc<xdp::Redirect>) -> Result<Opened, Failure> {
        let LaneSetup { plan, listener, .. } = setup;
        let fail = |error: io::Error| match error.get_ref().and_then(|inner| inner.downcast_ref::<xdp::Refusal>()) {
            Some(refusal) => xdp_plan::refused(&listener.name, refusal),
            None => Failure::new(ExitCode::Failure, format!("{setup}: cannot make its engine: {error}")),
        };
        let queue = plan.xdp.as_ref().map_or(0, |xdp| xdp.queue);
        let options = xdp::Options::new(queue).copy_up_to(COPY_UP_TO).checksums(listener.xdp_checksums);
        let reserve = std::mem::take(&mut self.reserve);
        let engine = Engine::af_xdp(redirect, reserve, &options.control(plan.shape.control)).map_err(fail)?;
        let engine = self.engine.insert(engine);
        socket::spin(setup, engine);
        let waker = engine.waker().map_err(|error| error.to_string());
        Ok(Opened { waker, counter: engine.xdp_counter().map_err(fail)? })
    }
}

/// The size of a receive buffer that would hold as many of the shortest datagrams.
fn room_of_ring(plan: &LanePlan) -> usize {
    let frames = plan.xdp.as_ref().map_or(0, |xdp| xdp.batches * plan.shape.slots);
    frames * charge_bytes(0) as usize
}

/// Pins the calling thread where its lane is planned. Returns the cores, or none when that did not work.
fn pin(setup: &LaneSetup) -> Vec<usize> {
    let several = &setup.plan.cores;
    let wanted = if several.len() > 1 { several.clone() } else { setup.plan.core.into_iter().collect() };
    let outcome = match wanted.as_slice() {
        [] => return wanted,
        [core] => steer::pin_current_thread(*core),
        cores => steer::confine_current_thread(cores),
    };
    match outcome {
        Ok(()) => wanted,
        Err(error) => {
            log::warn!("{setup}: {error}; it runs wherever the scheduler puts it");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_names_fit_what_the_kernel_keeps() {
        assert_eq!(thread_name("rx", 0, "syslog"), "rx0-syslog");
        assert_eq!(thread_name("sink", 12, "archive-of-all"), "sink12-archive-");
        assert_eq!(thread_name("rx", 0, "ééééééééé").len(), 14, "no character is cut in two");
    }
}
