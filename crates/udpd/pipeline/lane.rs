//! The birth of a lane: its thread is pinned first, and then makes the socket and touches the batches itself, so that
//! what the kernel and the allocator hand out lies on the memory node of that core. The sockets are bound later, by one
//! thread and in order, because the order of binding is the order of the sockets in their group.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use mmsg::{Backing, Engine, GrantedBuffer, RecvBatch, Socket, Waker};

use super::kept::Claims;
use super::receiver::{Receiver, Stop};
use super::sampling::Sampling;
use super::setup::LaneSetup;
use super::socket;
use super::successor::Successor;
use crate::config::{EngineKind, OnTruncate};
use crate::exit::{ExitCode, Failure};
use crate::handover::pool::{Home, Owner, Pool};
use crate::handover::route::Route;
use crate::ledger::LaneLedger;
use crate::os::crew::{self, Crew, Known, Starting};
use crate::os::duty::Duty;
use crate::os::threads;
use crate::plan::engine;
use crate::policy::Policy;
use crate::upstream::Observer;

/// A lane that is made and waits for its start.
#[derive(Debug)]
pub(super) struct LaneThread {
    /// What it was made from.
    pub setup: LaneSetup,
    pub made: Made,
    /// The thread, for whoever sees to it.
    pub known: Known,
    start: Sender<Start>,
    handle: JoinHandle<()>,
}

/// What the thread made.
#[derive(Debug)]
pub(super) struct Made {
    /// Not bound yet, unless another process has kept it.
    pub socket: Arc<Socket>,
    /// The way home for its batches.
    pub home: Arc<Home>,
    /// What the kernel granted.
    pub buffer: GrantedBuffer,
    /// What memory the batches lie in.
    pub backing: Backing,
    /// The cores that it was put on; none when that did not work.
    pub cores: Vec<usize>,
    /// The name of the engine.
    pub engine: &'static str,
    /// What ends a wait of its receiver without a trace in the socket; why there is nothing that does.
    pub waker: Result<Waker, String>,
}

/// A socket that a lane is given, and whether another lane of this process still receives from it.
type Given = (Arc<Socket>, bool);

/// What a lane needs to run.
#[derive(Debug)]
pub(super) struct Start {
    pub routes: Vec<Route>,
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
    start: Sender<Start>,
    thread: Starting<()>,
}

impl LaneThread {
    /// Starts the threads of all lanes and waits until everything is made. They make it at the same time; of several
    /// that fail the first in order is the one to tell. The others end when nobody starts them.
    pub(super) fn spawn_all(setups: Vec<LaneSetup>, claims: &Claims, crew: &Crew) -> Result<Vec<Self>, Failure> {
        let mut coming = Vec::with_capacity(setups.len());
        let mut refused = None;
        for setup in setups {
            let kept = claims.of_lanes[setup.index].clone().map(|socket| (socket, claims.are_in_use));
            match Self::launch(setup, kept, crew) {
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

    fn launch(setup: LaneSetup, kept: Option<Given>, crew: &Crew) -> Result<Coming, Failure> {
        let (made_sender, made) = bounded(1);
        let (start, coming) = bounded(1);
        let name = thread_name("rx", setup.index, &setup.listener.name);
        let own = setup.clone();
        let duty = match setup.plan.engine.kind {
            EngineKind::IoUring => Duty::RingReceiver,
            EngineKind::Recvmmsg => Duty::Receiver,
        };
        let thread = crew
            .spawn_one_of_many(name, duty, move || live(own, kept, &made_sender, &coming))
            .map_err(|error| threads::refusal(&setup.to_string(), &error))?;
        Ok(Coming { setup, made, start, thread })
    }

    fn wait(Coming { setup, made, start, thread }: Coming) -> Result<Self, Failure> {
        let known = thread.known();
        let handle = thread.wait();
        let made = made.recv().map_err(|_| {
            Failure::new(ExitCode::Failure, format!("{setup}: its thread ended while it was starting"))
        })??;
        Ok(Self { setup, made, known, start, handle })
    }

    pub(super) fn start(self, start: Start) -> JoinHandle<()> {
        // The thread waits for exactly this message; if it has panicked its alarm says so.
        let _ = self.start.send(start);
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
    start: &crossbeam_channel::Receiver<Start>,
) {
    // The watchdog may look on by now, and to touch all the memory is one long wait for the kernel.
    let (parts, ready) = match crew::at_rest(|| make(&setup, kept)) {
        Ok(parts) => parts,
        Err(failure) => {
            let _ = made.send(Err(failure));
            return;
        }
    };
    if made.send(Ok(ready)).is_err() {
        return;
    }
    let Ok(start) = crew::at_rest(|| start.recv()) else { return };
    let Start { routes, ledger, stop, successor, is_kept, leavings } = start;
    // The receive buffer may have been lowered since.
    let receive_buffer_bytes = ledger.socket().receive_buffer(0).map_or(0, |buffer| buffer.granted_bytes);
    crew::enter_sandbox();
    let Parts { engine, pool, observer, policy } = parts;
    Receiver {
        engine,
        pool,
        receive_buffer_bytes,
        routes,
        ledger,
        lane: setup.index,
        drop_truncated: setup.listener.on_truncate == OnTruncate::Drop,
        unwrapper: setup.unwrapper.clone(),
        observer,
        policy,
        gather: setup.listener.gather,
        stop,
        sampling: Sampling::new(),
        successor,
        is_kept,
        leavings,
    }
    .run();
}

/// What stays with the thread.
struct Parts {
    engine: Engine,
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
        Some((socket, true)) => socket::widen(setup, &socket).map(|buffer| (socket, buffer))?,
        Some((socket, false)) => {
            socket::glue(setup, &socket)?;
            socket::go_on_with(setup, &socket).map(|buffer| (socket, buffer))?
        }
        None => socket::make(setup).map(|(socket, buffer)| (Arc::new(socket), buffer))?,
    };
    let (mut batches, backing) = RecvBatch::pool(plan.batches(), &plan.shape)
        .map_err(|error| fail(&format!("get {} bytes of memory for batches", plan.batches_bytes()), error))?;
    let mut engine = engine::make(&plan.engine, &listener.name, &socket, &mut batches)?;
    socket::spin(setup, &mut engine);
    let owner = Owner { listener: plan.listener, lane: setup.index, node: plan.node_place };
    let (pool, home) = Pool::new(batches, listener.sinks.len(), owner);
    let waker = engine.waker().map_err(|error| error.to_string());
    let made = Made { socket, home, buffer, backing, cores, engine: engine.name(), waker };
    let policy = Policy::new(setup.access.clone(), listener.rate_limit.zip(setup.offences.clone())).map(Box::new);
    let observer = setup.upstream.as_ref().map(|upstream| Box::new(upstream.observer(plan.number)));
    Ok((Parts { engine, pool, observer, policy }, made))
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
