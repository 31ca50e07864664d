//! The birth of a lane: its thread is pinned first, and then makes the socket and touches the batches itself, so that
//! what the kernel and the allocator hand out lies on the memory node of that core. The sockets are bound later, by one
//! thread and in order, because the order of binding is the order of the sockets in their group.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use mmsg::{Backing, Engine, GrantedBuffer, RecvBatch, Socket, Waker, xdp};

use super::kept::Claims;
use super::outlet::Outlet;
use super::receiver::{Receiver, Stop};
use super::refusals::Refusals;
use super::sampling::Sampling;
use super::setup::LaneSetup;
use super::socket;
use super::successor::Successor;
use crate::config::{EngineKind, Gro, OnTruncate};
use crate::plan::engine;
use crate::plan::engine::COPY_UP_TO;
use crate::plan::xdp as xdp_plan;
use crate::plan::{LanePlan, charge_bytes};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::pool::{Home, Owner, Pool};
use udpd_base::ledger::LaneLedger;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::{StartingThread, ThreadHandle, ThreadRegistry};
use udpd_inspect::policy::Policy;
use udpd_inspect::upstream::Observer;

/// A lane that is made and waits for its start.
#[derive(Debug)]
pub(super) struct LaneThread {
    /// What it was made from.
    pub setup: LaneSetup,
    pub made: Made,
    /// The thread, for whoever sees to it.
    pub known: ThreadHandle,
    orders: Sender<Order>,
    handle: JoinHandle<()>,
}

/// What the thread made.
#[derive(Debug)]
pub(super) struct Made {
    /// Not bound yet, unless another process has kept it; none where it takes a queue past the kernel's stack.
    pub socket: Option<Arc<Socket>>,
    /// The way home for its batches.
    pub home: Arc<Home>,
    /// What the kernel granted, where there is a socket.
    pub buffer: Option<GrantedBuffer>,
    /// What memory the batches lie in.
    pub backing: Backing,
    /// The cores that it was put on; none when that did not work.
    pub cores: Vec<usize>,
    /// The name of the engine.
    pub engine: &'static str,
    /// What ends a wait of its receiver without a trace in the socket; why there is nothing that does.
    pub waker: Result<Waker, String>,
    /// What the kernel counts of its queue, when that has an engine.
    pub counter: Option<xdp::Counter>,
}

/// What a thread waits for.
enum Order {
    /// Its queue is to have an engine.
    Open(Arc<xdp::Redirect>, Sender<Result<Opened, Failure>>),
    Start(Box<Start>),
}

/// What the engine of a queue gives to others.
struct Opened {
    waker: Result<Waker, String>,
    counter: Option<xdp::Counter>,
}

/// A socket that a lane is given, and whether another lane of this process still receives from it.
type Given = (Arc<Socket>, bool);

/// What a lane needs to run.
#[derive(Debug)]
pub(super) struct Start {
    pub outlets: Vec<Outlet>,
    pub ledger: Arc<LaneLedger>,
    pub stop: Arc<Stop>,
    /// Where another socket is left for it.
    pub successor: Arc<Successor>,
    pub is_kept: Arc<AtomicBool>,
    /// What it reads to the end first.
    pub leavings: Vec<Arc<Socket>>,
}

/// A lane that is being made.
struct Coming {
    setup: LaneSetup,
    made: crossbeam_channel::Receiver<Result<Made, Failure>>,
    orders: Sender<Order>,
    thread: StartingThread<()>,
}

impl LaneThread {
    /// Starts the threads of all lanes and waits until everything is made. They make it at the same time; of several
    /// that fail the first in order is the one to tell. The others end when nobody starts them.
    pub(super) fn spawn_all(
        setups: Vec<LaneSetup>,
        claims: &Claims,
        registry: &ThreadRegistry,
    ) -> Result<Vec<Self>, Failure> {
        let mut coming = Vec::with_capacity(setups.len());
        let mut refused = None;
        for setup in setups {
            let kept = claims.of_lanes[setup.index].clone().map(|socket| (socket, claims.are_in_use));
            match Self::launch(setup, kept, registry) {
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

    fn launch(setup: LaneSetup, kept: Option<Given>, registry: &ThreadRegistry) -> Result<Coming, Failure> {
        let (made_sender, made) = bounded(1);
        let (orders, coming) = bounded(1);
        let name = thread_name("rx", setup.index, &setup.listener.name);
        let own = setup.clone();
        let role = match setup.plan.engine.kind {
            EngineKind::IoUring => ThreadRole::RingReceiver,
            EngineKind::Recvmmsg => ThreadRole::Receiver,
            EngineKind::AfXdp => ThreadRole::XdpReceiver,
        };
        let thread = registry
            .spawn_one_of_many(name, role, move || live(own, kept, &made_sender, &coming))
            .map_err(|error| threads::start_failure(&setup.to_string(), &error))?;
        Ok(Coming { setup, made, orders, thread })
    }

    fn wait(Coming { setup, made, orders, thread }: Coming) -> Result<Self, Failure> {
        let known = thread.handle();
        let handle = thread.wait();
        let made = made.recv().map_err(|_| {
            Failure::new(ExitCode::Failure, format!("{setup}: its thread ended while it was starting"))
        })??;
        Ok(Self { setup, made, known, orders, handle })
    }

    /// Gives the queue of this lane its engine, on its thread. What comes there waits in the ring from then on.
    pub(super) fn open(&mut self, redirect: &Arc<xdp::Redirect>) -> Result<(), Failure> {
        let (answer, answered) = bounded(1);
        let _ = self.orders.send(Order::Open(Arc::clone(redirect), answer));
        let ended =
            || Failure::new(ExitCode::Failure, format!("{}: its thread ended while it was starting", self.setup));
        let Opened { waker, counter } = threads::blocking(|| answered.recv()).map_err(|_| ended())??;
        (self.made.waker, self.made.counter) = (waker, counter);
        Ok(())
    }

    pub(super) fn start(self, start: Start) -> JoinHandle<()> {
        // The thread waits for exactly this message; if it has panicked its alarm says so.
        let _ = self.orders.send(Order::Start(Box::new(start)));
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

/// The life of a lane thread. It ends at once when the start never comes.
fn live(
    setup: LaneSetup,
    kept: Option<Given>,
    made: &Sender<Result<Made, Failure>>,
    orders: &crossbeam_channel::Receiver<Order>,
) {
    // The watchdog may look on by now, and to touch all the memory is one long wait for the kernel.
    let (mut parts, ready) = match threads::blocking(|| make(&setup, kept)) {
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
        match threads::blocking(|| orders.recv()) {
            Ok(Order::Open(redirect, answer)) => {
                // Who asks waits for it.
                let _ = answer.send(threads::blocking(|| parts.open(&setup, redirect)));
            }
            Ok(Order::Start(start)) => break *start,
            Err(_) => return,
        }
    };
    let Start { outlets, ledger, stop, successor, is_kept, leavings } = start;
    // The receive buffer may have been lowered since.
    let granted = |socket: Arc<Socket>| socket.receive_buffer(0).map_or(0, |buffer| buffer.granted_bytes);
    let receive_buffer_bytes = ledger.socket().map_or_else(|| room_of_ring(&setup.plan), granted);
    let besides: Vec<ThreadRole> = outlets.iter().flat_map(Outlet::roles).copied().collect();
    threads::enter_sandbox_with(&besides);
    let Parts { engine, pool, observer, policy, .. } = parts;
    // Without one its queue passes to the sockets of the listener, which has been said.
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
        gather: setup.listener.gather,
        stop,
        sampling: Sampling::new(),
        seeks_trains: setup.listener.gro == Gro::Auto,
        successor,
        is_kept,
        leavings,
        has_more: false,
        refusals: Refusals::default(),
    }
    .run();
}

/// What stays with the thread.
struct Parts {
    /// None where a queue has none yet.
    engine: Option<Engine>,
    /// What that will be made with.
    reserve: Vec<RecvBatch>,
    pool: Pool,
    observer: Option<Box<Observer>>,
    policy: Option<Box<Policy>>,
}

fn make(setup: &LaneSetup, kept: Option<Given>) -> Result<(Parts, Made), Failure> {
    let LaneSetup { plan, listener, .. } = setup;
    let cores = settle(setup);
    let fail = |operation: &str, error: io::Error| {
        Failure::new(ExitCode::Failure, format!("{setup}: cannot {operation}: {error}"))
    };
    let (socket, buffer) = match kept {
        _ if !plan.has_socket() => (None, None),
        Some((socket, true)) => socket::widen(setup, &socket).map(|buffer| (Some(socket), Some(buffer)))?,
        Some((socket, false)) => {
            socket::glue(setup, &socket)?;
            socket::go_on_with(setup, &socket).map(|buffer| (Some(socket), Some(buffer)))?
        }
        None => socket::make(setup).map(|(socket, buffer)| (Some(Arc::new(socket)), Some(buffer)))?,
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
    let made = Made { socket, home, buffer, backing, cores, engine: name, waker, counter: None };
    let policy = Policy::new(setup.access.clone(), listener.rate_limit.zip(setup.offences.clone())).map(Box::new);
    let observer = setup.upstream.as_ref().map(|upstream| Box::new(upstream.observer(plan.number)));
    Ok((Parts { engine, reserve, pool, observer, policy }, made))
}

impl Parts {
    /// Makes the engine of a queue.
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

/// The receive buffer that holds as many of the shortest datagrams.
fn room_of_ring(plan: &LanePlan) -> usize {
    let frames = plan.xdp.as_ref().map_or(0, |xdp| xdp.batches * plan.shape.slots);
    frames * charge_bytes(0) as usize
}

/// Puts the calling thread where its lane is planned; returns the cores, or none when that did not work.
fn settle(setup: &LaneSetup) -> Vec<usize> {
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
