//! A running pipeline: what the main thread reads from it, and what it changes while it runs.
//!
//! # New sockets under running receivers
//!
//! A socket that is bound to an interface is bound to its index. When the interface is removed the socket receives
//! nothing any more, without an error, also after an interface of the same name has appeared. To bind it again takes
//! CAP_NET_RAW, and takes it out of its group, whose program would then choose among no sockets. So every lane gets a
//! new socket, made, grouped and bound as the first one was, which takes no more rights than that did. The old sockets
//! receive nothing: nothing can be lost while the receivers change over, and what the kernel had dropped at them is
//! counted to the end.
//!
//! Receive queues past the kernel's stack get their program again where an interface came back. Their engines are made
//! anew with the lanes, by a replacement of the pipeline, because that interface may have other queues than before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mmsg::{Backing, GrantedBuffer, Socket, Waker};

use super::lane_setup::{self, LaneSetup};
use super::receiver::{SocketSwap, StopSignal};
use super::{
    bind, consumer_handoff::ConsumerHandoff, cumulative_ledger::CumulativeLedger, draining::DrainingPipeline,
    inherited_sockets, kernel_filters::SourceTables, multicast, pipeline_ledger::PipelineLedger,
    sequence_followers::SequenceFollower, sink_files::SinkFiles, socket, start_gate::EndSignal,
    xdp_programs::XdpPrograms,
};
use crate::config::Config;
use crate::plan::PipelinePlan;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::Caller;
use udpd_base::ledger::snapshot::SharerSnapshot;
use udpd_base::ledger::{Echoes, LaneLedger, QueueState, Trains};
use udpd_base::os::holder;
use udpd_base::os::threads::ThreadHandle;
use udpd_base::os::threads::lock;
use udpd_sandbox::privilege_helper;
use udpd_sandbox::privilege_helper::PrivilegedFd;

#[derive(Debug)]
pub struct Pipeline {
    /// The ledger of all pipelines of this process.
    pub(super) cumulative_ledger: Arc<CumulativeLedger>,
    pub(super) own_ledger: Arc<PipelineLedger>,
    pub(super) config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) files: SinkFiles,
    pub(super) lanes: Vec<Lane>,
    pub(super) consumers: Vec<ConsumerThread>,
    pub(super) followers: Vec<SequenceFollower>,
    pub(super) pinned: Vec<Pinned>,
    pub(super) stop: Arc<StopSignal>,
    /// What memory the blocks lie in, by node.
    pub(super) block_backings: Vec<Backing>,
    /// Earlier pipelines that have yet to hand on all they hold.
    pub(super) draining: Vec<DrainingPipeline>,
    /// Memory was freed that the allocator may keep.
    pub(super) has_freed_memory: bool,
    /// The sinks of earlier pipelines that were abandoned when this one began.
    pub(super) abandoned_sinks: BTreeSet<String>,
    pub(super) xdp_programs: XdpPrograms,
    /// The sources that the kernel refuses.
    pub(super) tables: SourceTables,
}

#[derive(Debug)]
pub(super) struct ConsumerThread {
    pub sink: usize,
    /// Wakes it.
    pub caller: Caller,
    /// Where it finds what it goes on with.
    pub handoff: Arc<ConsumerHandoff>,
    pub pinned: Pinned,
    /// Disconnected when its sink is closed.
    pub ended: EndSignal,
    /// Set when it has begun: it may have to wait for the end of others.
    pub has_begun: Arc<AtomicBool>,
    pub thread: JoinHandle<()>,
}

/// A thread that was pinned to some cores.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// What it is called in the log.
    pub name: String,
    pub thread: ThreadHandle,
    /// The cores that it was to be pinned to.
    pub cores: Vec<usize>,
    /// Whether it was.
    pub is_pinned: Arc<AtomicBool>,
    /// The lane that it receives for, among all lanes.
    pub lane: Option<usize>,
}

impl Pinned {
    /// Its number, for as long as it lives; `None` also while it is pinned nowhere.
    pub fn thread_id(&self) -> Option<i32> {
        self.thread.thread_id().filter(|_| self.is_pinned.load(Ordering::Relaxed))
    }

    /// Moves it to other cores; to all allowed ones where none are named.
    pub(super) fn move_to(&mut self, cores: Vec<usize>) {
        if cores == self.cores {
            return;
        }
        let Some(thread) = self.thread.thread_id() else { return };
        let allowed = || if cores.is_empty() { steer::allowed_cores() } else { Ok(cores.clone()) };
        match allowed().and_then(|wanted| steer::confine_thread(thread, &wanted)) {
            Ok(()) => {
                self.is_pinned.store(!cores.is_empty(), Ordering::Relaxed);
                self.cores = cores;
            }
            Err(error) => {
                let wanted =
                    if cores.is_empty() { "that are free".to_owned() } else { steer::format_core_list(&cores) };
                log::warn!("{} stays on its earlier cores: cannot move it to the cores {wanted}: {error}", self.name);
            }
        }
    }
}

#[derive(Debug)]
pub struct Lane {
    pub setup: LaneSetup,
    /// What the socket is bound to.
    pub address: SocketAddr,
    /// The core, when pinning worked.
    pub core: Option<usize>,
    pub buffer: Option<GrantedBuffer>,
    pub(super) backing: Backing,
    pub(super) ledger: Arc<LaneLedger>,
    pub(super) socket_swap: Arc<SocketSwap>,
    /// The socket outlives this pipeline, for another process or a replacement: it refuses no arrivals at the end, and
    /// is not read to its end.
    pub(super) socket_survives: Arc<AtomicBool>,
    pub(super) waker: Result<Waker, String>,
    pub(super) receiver: JoinHandle<()>,
}

/// How the XDP queues of one listener fare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpQueues {
    pub listener: String,
    pub interface: String,
    /// The index of the interface that the program is attached to.
    pub attached_to: Option<u32>,
    /// The index of the interface that the sockets beside it are bound to.
    pub bound_to: Option<u32>,
    pub lanes: usize,
    /// How many of these have an engine.
    pub running: usize,
}

impl Pipeline {
    /// The sinks of earlier pipelines whose datagrams were given up when it began.
    pub fn abandoned_sinks(&self) -> &BTreeSet<String> {
        &self.abandoned_sinks
    }

    /// The ledger of all pipelines of this process.
    pub fn ledger(&self) -> Arc<CumulativeLedger> {
        Arc::clone(&self.cumulative_ledger)
    }

    pub fn plan(&self) -> Arc<PipelinePlan> {
        Arc::clone(&self.plan)
    }

    /// The files of all sinks, to have them reopened.
    pub fn files(&self) -> SinkFiles {
        self.files.clone()
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub fn lanes_of(&self, listener: usize) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |lane| lane.setup.plan.listener == listener)
    }

    /// The threads that were pinned to cores.
    pub fn pinned(&self) -> &[Pinned] {
        &self.pinned
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

    /// The threads of the consumers of a sink, also those of earlier pipelines.
    pub fn threads_of_sink(&self, sink: &str) -> Vec<i32> {
        let own = self.consumers.iter().filter(|consumer| self.config.sinks[consumer.sink].name == sink);
        let earlier = self.draining.iter().flat_map(|earlier| &earlier.finishing).filter(|own| own.sink == sink);
        let handles = own.map(|consumer| &consumer.pinned.thread).chain(earlier.map(|consumer| &consumer.handle));
        handles.filter_map(ThreadHandle::thread_id).collect()
    }

    /// The inodes of the sockets of all lanes, as they are now.
    pub fn socket_inodes(&self) -> Vec<u64> {
        self.lanes.iter().filter_map(|lane| holder::inode_of(lane.ledger.socket()?).ok()).collect()
    }

    /// The listeners that relay, by index, with their destinations and with what of the sample had come before.
    pub fn relayed(&self) -> impl Iterator<Item = (usize, Vec<(&str, SocketAddr)>, Echoes)> {
        self.config.listeners.iter().enumerate().filter_map(|(index, listener)| {
            let echoes: Vec<Echoes> = self.lanes_of(index).filter_map(|lane| lane.ledger.echoes()).collect();
            let sum = |count: fn(&Echoes) -> u64| echoes.iter().map(count).sum();
            let sum = Echoes { datagrams: sum(|echoes| echoes.datagrams), repeated: sum(|echoes| echoes.repeated) };
            let destinations = lane_setup::destinations(&self.config, listener);
            (!destinations.is_empty()).then_some((index, destinations, sum))
        })
    }

    /// The sender of more than half of what the lanes of a listener received of late, if there is one.
    pub fn busiest_sender(&self, listener: usize) -> Option<IpAddr> {
        let mut senders: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for sender in self.lanes_of(listener).flat_map(|lane| lane.ledger.senders()) {
            *senders.entry(sender.address).or_default() += sender.datagrams;
        }
        let sum: u64 = senders.values().sum();
        senders.into_iter().find(|(_, datagrams)| datagrams * 2 > sum).map(|(sender, _)| sender)
    }

    /// Writes down which other sockets share the port of a listener; `None` when that cannot be seen.
    pub fn set_port_sharers(&self, listener: usize, sharers: Option<Vec<SharerSnapshot>>) {
        *lock(&self.own_ledger.listeners[listener].sharers) = sharers;
    }

    /// The trains that the lanes of a listener have seen in their samples.
    pub fn trains_of(&self, listener: usize) -> Trains {
        self.lanes_of(listener).map(|lane| lane.ledger.trains()).fold(Trains::default(), Trains::add)
    }

    /// The XDP queues of every listener that has some.
    pub fn xdp_queues(&self) -> Vec<XdpQueues> {
        let listeners = self.config.listeners.iter().enumerate().filter(|(_, listener)| listener.is_past_the_stack());
        let queues = listeners.map(|(index, listener)| {
            let of_queues = || self.lanes_of(index).filter(|lane| !lane.setup.plan.has_socket());
            let runs = |lane: &&Lane| lane.ledger.queue().is_some_and(|queue| queue.is_running);
            XdpQueues {
                listener: listener.name.clone(),
                interface: listener.interface.clone().unwrap_or_default(),
                attached_to: self.xdp_programs.attached_to(&listener.name),
                bound_to: self.lanes_of(index).find_map(Lane::bound_interface),
                lanes: of_queues().count(),
                running: of_queues().filter(runs).count(),
            }
        });
        queues.collect()
    }

    /// Follows the addresses and the MTU of the interfaces with XDP programs: to be called once a second.
    pub fn follow_interfaces(&self) {
        self.xdp_programs.follow();
    }

    /// Attaches the program of a listener to its interface again, and finds out whether its queues can have sockets:
    /// all that may be refused for want of a right, before the lanes are made anew for it.
    pub fn reattach_xdp_program(&self, listener: &str) -> Result<(), Failure> {
        self.xdp_programs.reattach(listener)?;
        let refused = |error| Failure::new(ExitCode::Permission, format!("listener {listener}: {error}"));
        privilege_helper::make(PrivilegedFd::XdpSocket, &[]).map(drop).map_err(refused)
    }

    /// Writes down why the XDP queues of a listener have no engine.
    pub fn set_queue_state(&self, listener: &str, state: QueueState) {
        let own = self.lanes.iter().filter(|lane| lane.setup.listener.name == listener);
        own.for_each(|lane| lane.ledger.note_queue_state(state));
    }

    /// Makes new sockets for all lanes of a listener, as it made the first ones, and lets the receivers go over to
    /// them. After an error everything is as it was.
    pub fn replace_sockets(&self, listener: usize) -> Result<(), Failure> {
        let lanes: Vec<&Lane> = self.lanes_of(listener).filter(|lane| lane.setup.plan.has_socket()).collect();
        let made = lanes.iter().map(|lane| socket::make(&lane.setup).map(|(socket, _)| Arc::new(socket)));
        let sockets: Vec<Arc<Socket>> = made.collect::<Result<_, _>>()?;
        for (socket, section) in sockets.iter().zip(&self.own_ledger.listeners[listener].lanes) {
            if let Some(Err(error)) = section.arrivals.as_ref().map(|arrivals| arrivals.attach(socket)) {
                log::warn!(
                    "cannot count any longer on which cores datagrams arrive: {error}; wrong_cpu stays as it is"
                );
            }
        }
        let setups: Vec<&LaneSetup> = lanes.iter().map(|lane| &lane.setup).collect();
        let own: Vec<(&LaneSetup, Arc<Socket>)> = setups.iter().copied().zip(sockets.iter().cloned()).collect();
        let arrivals = self.own_ledger.listeners[listener].lanes.iter().map(|section| section.arrivals.as_ref());
        match self.tables.filters(own.iter().zip(arrivals)) {
            Ok(filters) => filters.attach(),
            Err(failure) => log::warn!("{failure}; udpd refuses what they refused, until it is restarted"),
        }
        // Other sockets at the address are those that are to be replaced, so all may join.
        bind::bind_all(&setups, &sockets, None, |_| Ok(()))?;
        for (lane, socket) in lanes.iter().zip(sockets) {
            let before = lane.ledger.replace_socket(Arc::clone(&socket));
            lane.socket_swap.offer(socket);
            if let Some(Err(error)) = before.map(|before| before.interrupt()) {
                log::error!("{}: cannot wake its receiver: {error}", lane.setup);
            }
        }
        Ok(())
    }

    /// Joins on the interface with the index `now` what the lanes of a listener had joined on one that is gone.
    pub fn rejoin(&self, listener: usize, gone: u32, now: u32) -> Result<(), String> {
        let mut with_sockets = self.lanes_of(listener).filter_map(|lane| Some((lane, lane.socket()?)));
        with_sockets.try_for_each(|(lane, socket)| multicast::rejoin(&lane.setup, &socket, gone, now))
    }
}

impl Lane {
    /// The index of the interface that its socket is bound to, when it is bound to one and the kernel tells.
    pub fn bound_interface(&self) -> Option<u32> {
        self.ledger.socket()?.bound_interface().ok().filter(|index| *index > 0)
    }

    /// What its socket is called in the descriptor store and in a take-over.
    pub fn socket_name(&self) -> String {
        inherited_sockets::socket_name(&self.setup.listener, &self.setup.plan)
    }

    /// What it receives from now; `None` where it takes an XDP queue.
    pub fn socket(&self) -> Option<Arc<Socket>> {
        self.ledger.socket()
    }

    /// Says whether its socket outlives this process: a service manager or another process has it as well.
    pub fn set_socket_survives(&self, socket_survives: bool) {
        self.socket_survives.store(socket_survives, Ordering::Relaxed);
        if let (true, Err(why)) = (socket_survives, &self.waker) {
            log::warn!(
                "{}: nothing can wake its receiver but a datagram ({why}); where none comes the end of this process \
                 is late, and arrived and residual are then null",
                self.setup
            );
        }
    }

    pub fn socket_survives(&self) -> bool {
        self.socket_survives.load(Ordering::Relaxed)
    }

    /// Ends a wait of its receiver, unless that is just about to begin.
    pub(super) fn wake(&self) -> Result<(), String> {
        self.waker.as_ref().map_err(String::clone)?.wake().map_err(|error| error.to_string())
    }

    /// Writes down on which cores its receiver may run now.
    pub fn set_cores(&self, cores: &[usize]) {
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
        let is_pinned = Arc::new(AtomicBool::new(true));
        let mut pinned = Pinned { name: "it".to_owned(), thread: known, cores: vec![first], is_pinned, lane: None };
        let cores = || steer::cores_of_thread(id).expect("it lives");
        pinned.move_to(vec![last]);
        assert_eq!((cores(), pinned.thread_id()), (vec![last], Some(id)));
        // No such core: it stays where it is.
        pinned.move_to(vec![1_023]);
        assert_eq!((cores(), &pinned.cores), (vec![last], &vec![last]));
        pinned.move_to(Vec::new());
        assert_eq!((cores(), pinned.thread_id()), (all, None));
        drop(stop);
        assert!(thread.join().expect("it ends"), "the channel is disconnected");
    }
}
