//! The birth of a lane: its thread is pinned first, and then makes the socket and touches the batches itself, so that
//! what the kernel and the allocator hand out lies on the memory node of that core. The sockets are bound later, by one
//! thread and in order, because the order of binding is the order of the sockets in their group.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver as Inbox, Sender, bounded};
use mmsg::{Backing, Engine, GrantedBuffer, RecvBatch, Socket};

use super::multicast::Membership;
use super::receiver::{LaneHome, Receiver, Route, Stop};
use super::socket;
use super::successor::Successor;
use crate::exit::{ExitCode, Failure};
use crate::handover::pool::{Parcel, Pool};
use crate::os::crew::{self, Crew};
use crate::plan::LanePlan;
use crate::plan::engine;
use crate::policy::{AccessList, Limit, Offences, Policy};

/// What a lane thread needs before it can make anything.
#[derive(Debug, Clone)]
pub(super) struct LaneOrder {
    /// Index over all lanes.
    pub index: usize,
    /// The plan for it.
    pub plan: LanePlan,
    /// Name of the listener.
    pub listener_name: String,
    /// Bind to this interface.
    pub interface: Option<String>,
    /// How long a receive call spins before it sleeps.
    pub busy_poll: Duration,
    /// The multicast groups that this lane joins.
    pub memberships: Vec<Membership>,
    /// The interface on which it joins them.
    pub multicast_interface: Option<String>,
    /// How many sinks a batch can be with at once.
    pub sinks: usize,
    /// Drop what is longer than a slot.
    pub drop_truncated: bool,
    /// Let datagrams gather after a short batch.
    pub gather: Duration,
    /// Whose datagrams it takes, when not everybody's.
    pub access: Option<Arc<AccessList>>,
    /// What one source may send, and where those who send more are noted.
    pub limit: Option<(Limit, Arc<Offences>)>,
}

/// A lane that is made and waits for its start.
#[derive(Debug)]
pub(super) struct LaneThread {
    /// What it was made from, for another socket.
    pub order: LaneOrder,
    /// What was made.
    pub made: Made,
    start: Sender<Start>,
    handle: JoinHandle<()>,
}

/// What the thread made.
#[derive(Debug)]
pub(super) struct Made {
    /// Not bound yet.
    pub socket: Arc<Socket>,
    /// The way home for its batches.
    pub home: Sender<Parcel>,
    /// What the kernel granted.
    pub buffer: GrantedBuffer,
    /// What memory the batches lie in.
    pub backing: Backing,
    /// The core it runs on, when pinning worked.
    pub core: Option<usize>,
    /// The name of the engine.
    pub engine: &'static str,
}

/// What a lane needs to run.
#[derive(Debug)]
pub(super) struct Start {
    /// Where its datagrams go.
    pub routes: Vec<Route>,
    /// Every lane of the daemon.
    pub lanes: Arc<[LaneHome]>,
    /// When to end.
    pub stop: Arc<Stop>,
    /// Where another socket is left for it.
    pub successor: Arc<Successor>,
}

impl LaneThread {
    /// Starts the thread and waits until everything is made.
    pub(super) fn spawn(order: LaneOrder, crew: &Crew) -> Result<Self, Failure> {
        let (made_sender, made) = bounded(1);
        let (start, start_inbox) = bounded(1);
        let name = thread_name("rx", order.index, &order.listener_name);
        let subject = format!("lane {} of listener {}", order.plan.number, order.listener_name);
        let own = order.clone();
        let handle = crew.spawn(name, move || live(order, &made_sender, &start_inbox)).map_err(|error| {
            Failure::new(ExitCode::Failure, format!("cannot start the thread of {subject}: {error}"))
        })?;
        let made = made.recv().map_err(|_| {
            Failure::new(ExitCode::Failure, format!("the thread of {subject} ended while it was starting"))
        })??;
        Ok(Self { order: own, made, start, handle })
    }

    /// Lets it receive.
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
fn live(order: LaneOrder, made: &Sender<Result<Made, Failure>>, start: &Inbox<Start>) {
    let (parts, ready) = match make(&order) {
        Ok(parts) => parts,
        Err(failure) => {
            let _ = made.send(Err(failure));
            return;
        }
    };
    if made.send(Ok(ready)).is_err() {
        return;
    }
    let Ok(Start { routes, lanes, stop, successor }) = crew::at_rest(|| start.recv()) else { return };
    let Parts { engine, pool, spare, policy, receive_buffer_bytes } = parts;
    let LaneOrder { index, drop_truncated, gather, .. } = order;
    Receiver {
        engine,
        pool,
        spare,
        receive_buffer_bytes,
        routes,
        lanes,
        lane: index,
        drop_truncated,
        policy,
        gather,
        stop,
        successor,
    }
    .run();
}

/// What stays with the thread.
struct Parts {
    engine: Engine,
    pool: Pool,
    spare: RecvBatch,
    policy: Option<Box<Policy>>,
    receive_buffer_bytes: usize,
}

fn make(order: &LaneOrder) -> Result<(Parts, Made), Failure> {
    let LaneOrder { plan, listener_name, .. } = order;
    let core = plan.core.filter(|&core| match steer::pin_current_thread(core) {
        Ok(()) => true,
        Err(error) => {
            log::warn!(
                "listener {listener_name}, lane {}: {error}; it runs wherever the scheduler puts it",
                plan.number
            );
            false
        }
    });
    let fail = |operation: &str, error: io::Error| {
        let message = format!("listener {listener_name}, lane {}: cannot {operation}: {error}", plan.number);
        Failure::new(ExitCode::Failure, message)
    };
    let (socket, buffer) = socket::make(order)?;
    let (mut batches, backing) = RecvBatch::pool(plan.batches(), &plan.shape)
        .map_err(|error| fail(&format!("get {} bytes of memory for batches", plan.pool_bytes()), error))?;
    let socket = Arc::new(socket);
    let mut engine = engine::make(&plan.engine, listener_name, &socket, &mut batches)?;
    socket::spin(order, &mut engine);
    let spare = batches.pop().expect("a pool has at least one batch more than none");
    let (pool, home) = Pool::new(batches, plan.listener, order.index, order.sinks);
    let made = Made { socket, home, buffer, backing, core, engine: engine.name() };
    let policy = Policy::new(order.access.clone(), order.limit.clone()).map(Box::new);
    Ok((Parts { engine, pool, spare, policy, receive_buffer_bytes: buffer.granted_bytes }, made))
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
