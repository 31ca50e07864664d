//! A running pipeline, as those see it who watch it: its lanes, its books, its files, and where its threads were put.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use mmsg::{Backing, GrantedBuffer, Socket, Waker};

use super::books::Books;
use super::bypass::Bypasses;
use super::chronicle::Chronicle;
use super::ending::Ending;
use super::entry::Ended;
use super::files::Files;
use super::filters::Tables;
use super::follower::Follower;
use super::kept;
use super::receiver::Stop;
use super::relief::Relief;
use super::setup::{self, LaneSetup};
use super::successor::Successor;
use crate::config::Config;
use crate::plan::PipelinePlan;
use udpd_base::handover::Caller;
use udpd_base::ledger::snapshot::SharerSnapshot;
use udpd_base::ledger::{Echoes, LaneLedger};
use udpd_base::os::holder;
use udpd_base::os::threads::ThreadHandle;

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) chronicle: Arc<Chronicle>,
    pub(super) books: Arc<Books>,
    /// What it was made from.
    pub(super) config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) files: Files,
    pub(super) lanes: Vec<Lane>,
    pub(super) consumers: Vec<ConsumerThread>,
    pub(super) followers: Vec<Follower>,
    pub(super) pinned: Vec<Pinned>,
    pub(super) stop: Arc<Stop>,
    /// What memory the blocks lie in, by node.
    pub(super) block_backings: Vec<Backing>,
    /// Those before it that have yet to hand on all they hold.
    pub(super) before: Vec<Ending>,
    /// Memory was freed that the allocator may keep.
    pub(super) has_freed: bool,
    /// The sinks of those before that were given up when it began.
    pub(super) given_up: BTreeSet<String>,
    /// What stands at the interfaces whose queues go past the kernel's stack.
    pub(super) bypasses: Bypasses,
    /// The sources that the kernel refuses.
    pub(super) tables: Tables,
}

/// A running consumer.
#[derive(Debug)]
pub(super) struct ConsumerThread {
    /// The index of its sink.
    pub sink: usize,
    /// Wakes it.
    pub caller: Caller,
    /// Where it finds what it goes on with.
    pub relief: Arc<Relief>,
    pub pinned: Pinned,
    /// Disconnected when its sink is closed.
    pub ended: Ended,
    /// Set when it has begun: one that follows others waits for their end.
    pub has_begun: Arc<AtomicBool>,
    pub thread: JoinHandle<()>,
}

/// A thread that was put on some cores.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// What it is called in the log.
    pub who: String,
    pub thread: ThreadHandle,
    /// The cores that it was to be put on.
    pub cores: Vec<usize>,
    /// Whether it was.
    pub is_put: Arc<AtomicBool>,
    /// The lane that it receives for, among all lanes.
    pub lane: Option<usize>,
}

impl Pinned {
    /// Its number, for as long as it lives; `None` also while it was put nowhere.
    pub fn thread_id(&self) -> Option<i32> {
        self.thread.thread_id().filter(|_| self.is_put.load(Ordering::Relaxed))
    }

    /// Puts it on other cores; on all that there are, where none are named.
    pub(super) fn move_to(&mut self, cores: Vec<usize>) {
        if cores == self.cores {
            return;
        }
        let Some(thread) = self.thread.thread_id() else { return };
        let allowed = || if cores.is_empty() { steer::allowed_cores() } else { Ok(cores.clone()) };
        match allowed().and_then(|wanted| steer::confine_thread(thread, &wanted)) {
            Ok(()) => {
                self.is_put.store(!cores.is_empty(), Ordering::Relaxed);
                self.cores = cores;
            }
            Err(error) => {
                let wanted =
                    if cores.is_empty() { "that are free".to_owned() } else { steer::format_core_list(&cores) };
                log::warn!("{} stays on the cores of before: cannot move it to the cores {wanted}: {error}", self.who);
            }
        }
    }
}

/// A running lane and what the operator should know of it.
#[derive(Debug)]
pub struct Lane {
    /// What it was made from.
    pub setup: LaneSetup,
    /// What the socket is bound to.
    pub address: SocketAddr,
    /// The core, when pinning worked.
    pub core: Option<usize>,
    /// What the kernel granted, where it has a socket.
    pub buffer: Option<GrantedBuffer>,
    pub(super) backing: Backing,
    pub(super) ledger: Arc<LaneLedger>,
    pub(super) successor: Arc<Successor>,
    /// Somebody goes on with its socket when this process ends: it is neither deafened nor read to its end then.
    pub(super) is_kept: Arc<AtomicBool>,
    pub(super) waker: Result<Waker, String>,
    pub(super) receiver: JoinHandle<()>,
}

impl Pipeline {
    /// The sinks of those before whose datagrams were given up when it began.
    pub fn given_up(&self) -> &BTreeSet<String> {
        &self.given_up
    }

    /// The books, for everybody who wants to read them.
    pub fn books(&self) -> Arc<Chronicle> {
        Arc::clone(&self.chronicle)
    }

    /// The plan that it was made from.
    pub fn plan(&self) -> Arc<PipelinePlan> {
        Arc::clone(&self.plan)
    }

    /// The files of all sinks, for whoever wants them reopened.
    pub fn files(&self) -> Files {
        self.files.clone()
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Why some memory for datagrams is not in huge pages: of lanes and of nodes, one reason for each that is not.
    pub fn reasons_for_small_pages(&self) -> Vec<String> {
        let backings = self.lanes.iter().map(|lane| &lane.backing).chain(&self.block_backings);
        let reason = |backing: &Backing| match backing {
            Backing::Ordinary { why } => why.clone(),
            _ => None,
        };
        backings.filter_map(reason).collect()
    }

    /// The threads of the consumers of a sink, those of before among them.
    pub fn threads_of_sink(&self, sink: &str) -> Vec<i32> {
        let own = self.consumers.iter().filter(|consumer| self.config.sinks[consumer.sink].name == sink);
        let before = self.before.iter().flat_map(|ending| &ending.consumers).filter(|last| last.sink == sink);
        let known = own.map(|consumer| &consumer.pinned.thread).chain(before.map(|last| &last.known));
        known.filter_map(ThreadHandle::thread_id).collect()
    }

    /// The threads that were put on cores.
    pub fn pinned(&self) -> &[Pinned] {
        &self.pinned
    }

    pub fn lanes_of(&self, listener: usize) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |lane| lane.setup.plan.listener == listener)
    }

    /// Looks after what stands at interfaces: to be called once a second.
    pub fn follow_addresses(&self) {
        self.bypasses.follow();
    }

    /// The inodes of the sockets of all lanes, as they are now.
    pub fn socket_inodes(&self) -> Vec<u64> {
        self.lanes.iter().filter_map(|lane| holder::inode_of(lane.ledger.socket()?).ok()).collect()
    }

    /// The listeners that relay, by index, with where to and with what of the sample has come before.
    pub fn relayed(&self) -> impl Iterator<Item = (usize, Vec<(&str, SocketAddr)>, Echoes)> {
        self.config.listeners.iter().enumerate().filter_map(|(index, listener)| {
            let echoes: Vec<Echoes> = self.lanes_of(index).filter_map(|lane| lane.ledger.echoes()).collect();
            let sum = |count: fn(&Echoes) -> u64| echoes.iter().map(count).sum();
            let sum = Echoes { datagrams: sum(|echoes| echoes.datagrams), repeated: sum(|echoes| echoes.repeated) };
            let destinations = setup::destinations(&self.config, listener);
            (!destinations.is_empty()).then_some((index, destinations, sum))
        })
    }

    /// Who sent more than half of what the lanes of a listener received of late, if there is one.
    pub fn busiest_sender(&self, listener: usize) -> Option<IpAddr> {
        let mut senders: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for sender in self.lanes_of(listener).flat_map(|lane| lane.ledger.senders()) {
            *senders.entry(sender.address).or_default() += sender.datagrams;
        }
        let sum: u64 = senders.values().sum();
        senders.into_iter().find(|(_, datagrams)| datagrams * 2 > sum).map(|(sender, _)| sender)
    }

    /// Writes down who else is on the port of a listener; `None` when nobody can see that.
    pub fn note_sharers(&self, listener: usize, sharers: Option<Vec<SharerSnapshot>>) {
        *self.books.listeners[listener].sharers.lock().unwrap_or_else(PoisonError::into_inner) = sharers;
    }
}

impl Lane {
    /// The index of the interface that its socket is bound to, when it is bound to one and the kernel tells.
    pub fn bound_interface(&self) -> Option<u32> {
        self.ledger.socket()?.bound_interface().ok().filter(|index| *index > 0)
    }

    /// What its socket is called where it is kept.
    pub fn name_when_kept(&self) -> String {
        kept::name_of(&self.setup.listener, &self.setup.plan)
    }

    /// What it receives from now; `None` where it takes a queue past the kernel's stack.
    pub fn socket(&self) -> Option<Arc<Socket>> {
        self.ledger.socket()
    }

    /// Whether somebody keeps its socket open, who hands it to the next process.
    pub fn note_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
        if let (true, Err(why)) = (is_kept, &self.waker) {
            log::warn!(
                "{}: nothing can wake its receiver but a datagram ({why}); where none comes the end of this process \
                 is late, and arrived and residual are then null",
                self.setup
            );
        }
    }

    /// Ends a wait of its receiver, unless that is just about to begin.
    pub(super) fn wake(&self) -> Result<(), String> {
        self.waker.as_ref().map_err(String::clone)?.wake().map_err(|error| error.to_string())
    }

    pub fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }

    /// Writes down on which cores its receiver may run now.
    pub fn note_cores(&self, cores: &[usize]) {
        self.ledger.note_core(only(cores));
    }

    /// Whether its socket is to spin, datagrams have come, and the first of them came from no queue that could be
    /// polled.
    pub fn has_nothing_to_poll(&self) -> bool {
        let Some(socket) = self.ledger.socket() else { return false };
        self.ledger.read().received > 0
            && socket.busy_poll_us().is_ok_and(|time| time > 0)
            && socket.incoming_napi_id().is_ok_and(|queue| queue == 0)
    }
}

/// The core of a list that has one alone.
pub(super) fn only(cores: &[usize]) -> Option<usize> {
    match cores {
        [core] => Some(*core),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::os::role::ThreadRole;
    use udpd_base::os::threads::ThreadRegistry;

    #[test]
    fn a_thread_that_is_planned_elsewhere_moves_there_and_one_that_is_planned_nowhere_may_go_anywhere() {
        let all = steer::allowed_cores().expect("the cores of this process");
        let (stop, until) = crossbeam_channel::bounded::<()>(0);
        let body = move || until.recv().is_err();
        let starting =
            ThreadRegistry::new().0.spawn_one_of_many("pinned", ThreadRole::Unconfined, body).expect("a thread");
        let known = starting.handle();
        let thread = starting.wait();
        let (first, last) = (all[0], all[all.len() - 1]);
        let id = known.thread_id().expect("it lives");
        steer::confine_thread(id, &[first]).expect("one of its cores");
        let is_put = Arc::new(AtomicBool::new(true));
        let mut pinned = Pinned { who: "it".to_owned(), thread: known, cores: vec![first], is_put, lane: None };
        let cores = || steer::cores_of_thread(id).expect("it lives");
        pinned.move_to(vec![last]);
        assert_eq!((cores(), pinned.thread_id()), (vec![last], Some(id)));
        // No such core: it stays where it is.
        pinned.move_to(vec![1_023]);
        assert_eq!((cores(), &pinned.cores), (vec![last], &vec![last]));
        pinned.move_to(Vec::new());
        assert_eq!((cores(), pinned.thread_id()), (all, None));
        drop(stop);
        assert!(thread.join().expect("it ends"), "nobody sends");
    }
}
