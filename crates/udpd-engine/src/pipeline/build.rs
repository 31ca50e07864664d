//! Building a pipeline, up to the moment before it receives. Every pipeline goes through [`Builder::build`].
//!
//! It may begin on new sockets, on those that a service manager kept, on those of a process that it takes over from, or
//! on those of the pipeline that a reload replaces. Two values say which: the [`SocketAssignment`] names the socket of
//! each lane and who still receives from it, and the [`ReloadContext`] is the pipeline that is replaced, with the
//! ledger to go on with.
//!
//! A replacement gets the sockets and the sinks that stay. These sinks keep their files, connections and consumers; the
//! memory, the lanes, the channels and the ledger are new. Whatever can fail does so here, and leaves the pipeline that
//! runs as it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use mmsg::Socket;

use super::bind::{self, Endpoint};
use super::inherited_sockets::{self, InheritedSocket, SocketAssignment, TakeOverAssignment};
use super::kernel_filters::{SocketFilters, SourceTables};
use super::lane::{LaneStart, LaneThread};
use super::pipeline_ledger::{LaneSection, ListenerSection, PipelineLedger, SinkSection};
use super::reload_context::{ReloadContext, Retention};
use super::running::{ConsumerThread, Lane, Pinned, Pipeline, only};
use super::sequence_followers::{self, SequenceFollower};
use super::wiring::{self, OpenedConsumers, RetainedSink, SinkWiring, spawn_consumers};
use super::{
    block_pools::BlockPools, cumulative_ledger::CumulativeLedger, lane_setup::LaneSetup, outlet::Outlet,
    receiver::StopSignal, sink_files::SinkFiles, socket, xdp_programs::XdpPrograms,
};
use crate::config::{Config, ListenerConfig};
use crate::plan::{PipelinePlan, xdp};
use hostloss::HostLedger;
use udpd_base::exit::Failure;
use udpd_base::handover::pool::Home;
use udpd_base::ledger::LaneLedger;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::OpenContext;

impl Pipeline {
    /// Builds and starts a pipeline on new sockets. When it returns every socket is bound and every receiver reads.
    pub fn start(
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        Self::start_with(SocketAssignment::none(plan), config, plan, started, registry)
    }

    /// The same on sockets of an earlier process, as far as they fit.
    pub fn start_with(
        assignment: SocketAssignment,
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        PreparedPipeline::make(assignment, config, plan, registry)?.start(config, plan, started, registry, || Ok(()))
    }
}

/// The lanes with their memory and engines, before anything else is open, and while another process may still receive
/// from their sockets.
#[derive(Debug)]
pub struct PreparedPipeline {
    assignment: SocketAssignment,
    threads: Vec<LaneThread>,
    block_pools: BlockPools,
}

impl PreparedPipeline {
    fn make(
        assignment: SocketAssignment,
        config: &Config,
        plan: &PipelinePlan,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        let threads = LaneThread::spawn_all(LaneSetup::all(config, plan), &assignment, registry)?;
        let block_pools = BlockPools::make(&plan.pool, registry)?;
        Ok(Self { assignment, threads, block_pools })
    }

    /// The same for a take-over, while the other process still receives from the sockets. That process ends for this
    /// one, so everything that can fail is tried before, also whether the addresses can be bound that it does not have.
    pub fn beside(
        from: TakeOverAssignment,
        config: &Config,
        plan: &PipelinePlan,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        for (listener, address) in from.free {
            bind::probe(&config.listeners[listener], address)?;
        }
        Self::make(from.assignment, config, plan, registry)
    }

    pub fn assignment(&self) -> &SocketAssignment {
        &self.assignment
    }

    /// Whether the process that made its sockets had begun to close them: nothing arrives there again, or no receive
    /// call waits there.
    pub fn is_abandoned(&self) -> bool {
        self.assignment.by_lane.iter().flatten().any(|socket| inherited_sockets::is_abandoned(socket))
    }

    /// Closes and counts these sockets as well: the process has died that was to drain them.
    pub fn discard(&mut self, left: Vec<InheritedSocket>) -> Result<(), Failure> {
        self.assignment.discard(left, "that process has died before it had read it to its end")
    }

    /// Gives each inherited socket the options of its lane, when no other process receives from it any more. Only
    /// options that the other process can cope with, which receives again where this take-over fails.
    pub fn take_sockets(&mut self) -> Result<(), Failure> {
        for LaneThread { setup, made, .. } in &mut self.threads {
            if let (Some(_), Some(socket)) = (&self.assignment.by_lane[setup.index], &made.socket) {
                made.buffer = Some(socket::adopt(setup, socket)?);
            }
        }
        Ok(())
    }

    /// Opens, binds and starts everything. `commit` decides, when the sinks are open. Before it nothing is received and
    /// no socket is bound or leaves its group, so that another process can go on with all of them where it fails.
    pub fn start(
        mut self,
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
        commit: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Pipeline, Failure> {
        // Not before: a process that is taken over from has its own program at the interface until it has stopped.
        let xdp_programs = XdpPrograms::make(config, &mut self.threads)?;
        let Self { assignment, threads, block_pools } = self;
        let (config, plan) = (&Arc::new(config.clone()), &Arc::new(plan.clone()));
        let builder = Builder { config, plan, registry, assignment, threads, block_pools, started, replaced: None };
        let ready = builder.build(commit)?;
        ready.enable_gro().inspect_err(|_| ready.followers.iter().for_each(SequenceFollower::end))?;
        Ok(ready.begin(xdp_programs))
    }
}

/// A pipeline that has everything and does not receive yet.
#[derive(Debug)]
pub(super) struct ReadyPipeline {
    pub config: Arc<Config>,
    pub plan: Arc<PipelinePlan>,
    pub ledger: Arc<PipelineLedger>,
    pub lanes: Vec<ReadyLane>,
    pub opened: OpenedConsumers,
    pub consumers: Vec<ConsumerThread>,
    pub followers: Vec<SequenceFollower>,
    pub pinned: Vec<Pinned>,
    pub files: SinkFiles,
    pub stop: Arc<StopSignal>,
    pub block_backings: Vec<mmsg::Backing>,
    pub tables: SourceTables,
    /// For its sockets, which keep the filters of the pipeline that is replaced until this one receives from them.
    pub filters: SocketFilters,
    /// Set when it begins to receive.
    pub is_in_force: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct ReadyLane {
    pub thread: LaneThread,
    pub start: LaneStart,
    pub address: SocketAddr,
}

/// A pipeline that is to take the place of the one that runs.
#[derive(Debug)]
pub struct ReplacementPipeline {
    pub(super) ready: ReadyPipeline,
    pub(super) retention: Retention,
}

impl ReloadContext {
    /// Builds what is to take the place of the pipeline, beside it. On a failure nothing has changed.
    pub fn build_replacement(
        &self,
        config: &Arc<Config>,
        plan: &Arc<PipelinePlan>,
        registry: &ThreadRegistry,
    ) -> Result<ReplacementPipeline, Failure> {
        self.refuse_impossible(config, plan)?;
        self.replace(config, plan, registry, self.retention(config, plan))
    }

    /// Builds the same pipeline once more, after one whose threads have all ended. Its sinks are opened again.
    pub fn rebuild(&self, registry: &ThreadRegistry) -> Result<ReplacementPipeline, Failure> {
        self.replace(&self.config, &self.plan, registry, Retention::nothing(self.config.sinks.len()))
    }

    fn replace(
        &self,
        config: &Arc<Config>,
        plan: &Arc<PipelinePlan>,
        registry: &ThreadRegistry,
        retention: Retention,
    ) -> Result<ReplacementPipeline, Failure> {
        let assignment = self.assign_sockets(config, plan)?;
        let threads = LaneThread::spawn_all(
            LaneSetup::all_after(&self.config, &self.feeds, config, plan),
            &assignment,
            registry,
        )?;
        let block_pools = BlockPools::make(&plan.pool, registry)?;
        let (started, replaced) = (self.own_ledger.started, Some((self, &retention)));
        let builder = Builder { config, plan, registry, assignment, threads, block_pools, started, replaced };
        let ready = builder.build(|| self.commit_flag.commit())?;
        Ok(ReplacementPipeline { ready, retention })
    }
}

struct Builder<'a> {
    config: &'a Arc<Config>,
    plan: &'a Arc<PipelinePlan>,
    registry: &'a ThreadRegistry,
    assignment: SocketAssignment,
    threads: Vec<LaneThread>,
    block_pools: BlockPools,
    started: Instant,
    /// The pipeline that it replaces, and what it retains of it.
    replaced: Option<(&'a ReloadContext, &'a Retention)>,
}

struct BoundSockets {
    /// By the index of the lane.
    endpoints: BTreeMap<usize, Endpoint>,
    tables: SourceTables,
    filters: SocketFilters,
}

impl Builder<'_> {
    /// Opens the sinks, starts the consumers and binds the sockets.
    ///
    /// Binding comes last where a pipeline is replaced: from then on datagrams may arrive in sockets that have no
    /// reader until the replacement begins, and a group of sockets that has grown is hard to put back. A first start
    /// binds before it starts consumers, so that an address that cannot be had ends it before any thread has touched
    /// what its sink writes. In both cases the sinks are open by then: one with a long file reads through it first.
    ///
    /// `commit` is asked before the first socket is bound or leaves its group: a pipeline of this or of another process
    /// that has begun to receive again meanwhile keeps all that it has.
    fn build(mut self, mut commit: impl FnMut() -> Result<(), Failure>) -> Result<ReadyPipeline, Failure> {
        let ledgers: Vec<Arc<LaneLedger>> = self.threads.iter().map(|thread| self.lane_ledger(thread)).collect();
        let mut outlets: Vec<Vec<Outlet>> = self.threads.iter().map(|_| Vec::new()).collect();
        let files =
            self.replaced.map_or_else(SinkFiles::default, |(context, _)| SinkFiles::for_replacement(&context.files));
        let (is_in_force, mut opened) = (Arc::default(), OpenedConsumers::default());
        let sinks = self.open_sinks(&mut outlets, &mut opened, &files, &is_in_force)?;
        for (outlets, LaneThread { setup, .. }) in outlets.iter_mut().zip(&self.threads) {
            outlets.sort_by_key(|outlet| setup.listener.sinks.iter().position(|&sink| sink == outlet.sink()));
        }
        let bound = if self.replaced.is_none() { Some(self.bind(&mut commit)?) } else { None };
        let (consumers, mut pinned) = spawn_consumers(std::mem::take(&mut opened.pending), self.registry)?;
        pinned.extend(self.threads.iter().map(pinned_receiver));
        let followers = sequence_followers::spawn_all(&self.threads, self.plan, &mut pinned, self.registry)?;
        let bound = bound.map_or_else(|| self.bind(&mut commit), Ok);
        let BoundSockets { endpoints, tables, filters } =
            bound.inspect_err(|_| followers.iter().for_each(SequenceFollower::end))?;
        let address = |LaneThread { setup, .. }: &LaneThread| {
            endpoints.get(&setup.index).map_or(setup.plan.address, |endpoint| endpoint.address)
        };
        let addresses: Vec<SocketAddr> = self.threads.iter().map(address).collect();
        let ledger = Arc::new(self.pipeline_ledger(endpoints, &addresses, &ledgers, sinks));
        let stop = Arc::new(StopSignal::default());
        let lanes = self.threads.into_iter().zip(outlets).zip(ledgers).zip(addresses);
        let lanes = lanes.map(|(((thread, outlets), ledger), address)| {
            let lane = thread.setup.index;
            let is_inherited = self.replaced.is_none() && self.assignment.by_lane[lane].is_some();
            let start = LaneStart {
                outlets,
                ledger,
                stop: Arc::clone(&stop),
                socket_swap: Arc::default(),
                socket_survives: Arc::new(AtomicBool::new(is_inherited)),
                sockets_to_drain: std::mem::take(&mut self.assignment.surplus[lane]),
            };
            ReadyLane { thread, start, address }
        });
        Ok(ReadyPipeline {
            config: Arc::clone(self.config),
            plan: Arc::clone(self.plan),
            ledger,
            lanes: lanes.collect(),
            opened,
            consumers,
            followers,
            pinned,
            files,
            stop,
            block_backings: self.block_pools.backings,
            tables,
            filters,
            is_in_force,
        })
    }

    /// Opens the sinks that are new or changed, and makes new channels for those that are retained.
    fn open_sinks(
        &self,
        outlets: &mut [Vec<Outlet>],
        opened: &mut OpenedConsumers,
        files: &SinkFiles,
        is_in_force: &Arc<AtomicBool>,
    ) -> Result<Vec<SinkSection>, Failure> {
        let (config, plan) = (self.config, self.plan);
        let homes: &Arc<[Arc<Home>]> = &self.threads.iter().map(|thread| thread.made.home.clone()).collect();
        let scenes = &wiring::scenes(config, plan);
        let listeners: &[String] = &config.listeners.iter().map(|own| own.name.clone()).collect::<Vec<_>>();
        let place_now = |listener: &ListenerConfig| listeners.iter().position(|name| *name == listener.name);
        let places = self.replaced.map(|(context, _)| context.config.listeners.iter().map(place_now).collect());
        let places: Arc<[Option<usize>]> = places.unwrap_or_default();
        let mut sections = Vec::with_capacity(config.sinks.len());
        for sink in 0..config.sinks.len() {
            let retained = self.replaced.and_then(|(context, retention)| {
                let own = retention.sinks[sink]?;
                files.retain_from(&context.files, &config.sinks[sink].name);
                Some(RetainedSink {
                    consumers: context.consumers_of(own).collect(),
                    files: context.own_ledger.sinks[own].files.clone(),
                    destinations: context.own_ledger.sinks[own].destinations.clone(),
                    peers: context.own_ledger.sinks[own].peers.clone(),
                    listeners: Arc::clone(&places),
                    transfer: context.cumulative_ledger.transfer(),
                })
            });
            let has_predecessor = self.replaced.is_some_and(|(_, retention)| retention.waits[sink]);
            let context = &OpenContext { is_in_force: Arc::clone(is_in_force), has_predecessor };
            let (block_pools, registry) = (&self.block_pools, self.registry);
            let wiring =
                SinkWiring { config, plan, sink, homes, block_pools, scenes, listeners, registry, retained, context };
            sections.push(wiring.open(outlets, opened, files)?);
        }
        Ok(sections)
    }

    fn bind(&self, commit: &mut impl FnMut() -> Result<(), Failure>) -> Result<BoundSockets, Failure> {
        let tables = SourceTables::make(self.threads.iter().map(|thread| &thread.setup))?;
        commit()?;
        let lanes: Vec<(&LaneSetup, Arc<Socket>)> =
            self.threads.iter().filter_map(|thread| Some((&thread.setup, thread.made.socket.clone()?))).collect();
        let arrivals = bind::count_arrivals(&lanes);
        let filters = tables.filters(lanes.iter().zip(arrivals.iter().map(Option::as_ref)))?;
        let endpoints = bind::open(&lanes, arrivals, &self.assignment).inspect_err(|_| {
            if let Some((context, _)) = self.replaced {
                context.own_ledger.count_in_vain(&self.assignment.discard_reports);
            }
        })?;
        Ok(BoundSockets { endpoints, tables, filters })
    }

    fn lane_ledger(&self, thread: &LaneThread) -> Arc<LaneLedger> {
        let sinks = self.config.sinks.len();
        let ledger = match &thread.made.socket {
            Some(socket) => LaneLedger::new(Arc::clone(socket), sinks),
            None => LaneLedger::of_queue(sinks),
        };
        ledger.note_core(only(&thread.made.cores));
        if thread.setup.is_relayed {
            ledger.seek_echoes();
        }
        Arc::new(ledger)
    }

    fn pipeline_ledger(
        &self,
        mut endpoints: BTreeMap<usize, Endpoint>,
        addresses: &[SocketAddr],
        ledgers: &[Arc<LaneLedger>],
        sinks: Vec<SinkSection>,
    ) -> PipelineLedger {
        let listener = |(index, listener): (usize, &ListenerConfig)| {
            let own = self.threads.iter().filter(|thread| thread.setup.plan.listener == index);
            let lane = |LaneThread { setup, made, .. }: &LaneThread| LaneSection {
                address: addresses[setup.index].to_string(),
                node: setup.plan.node,
                intake: setup.plan.intake.clone(),
                arrivals: endpoints.get_mut(&setup.index).and_then(|endpoint| endpoint.arrivals.take()),
                receive_buffer_bytes: made.buffer.map_or(setup.plan.ring_bytes(), |buffer| buffer.granted_bytes) as u64,
                queue: setup.plan.xdp.as_ref().map(|xdp| (xdp.batches * setup.plan.shape.slots) as u64),
                engine: made.engine,
                ledger: Arc::clone(&ledgers[setup.index]),
            };
            ListenerSection {
                name: listener.name.clone(),
                address: listener.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "),
                gro: listener.gro,
                interface: listener.interface.clone().unwrap_or_default(),
                xdp_mode: xdp::mode_name(listener.xdp_mode),
                sinks: listener.sinks.clone(),
                feed: listener.deduplicate.as_ref().map(|copies| copies.feed.clone().unwrap_or_default()),
                upstream: own.clone().find_map(|thread| thread.setup.upstream.clone()),
                lanes: own.map(lane).collect(),
                between: OnceLock::new(),
                sharers: Mutex::default(),
            }
        };
        let listeners = self.config.listeners.iter().enumerate().map(listener).collect();
        let host = match self.replaced {
            Some((context, _)) => Arc::clone(&context.own_ledger.host),
            None => Arc::new(HostLedger::new(addresses.iter().map(SocketAddr::port))),
        };
        PipelineLedger { started: self.started, listeners, sinks, host }
    }
}

impl ReadyPipeline {
    /// Enables GRO for the lanes that want it, when no other process receives from their sockets any more.
    fn enable_gro(&self) -> Result<(), Failure> {
        self.lanes.iter().try_for_each(|ReadyLane { thread, .. }| match &thread.made.socket {
            Some(socket) => socket::enable_gro(&thread.setup, socket),
            None => Ok(()),
        })
    }

    fn begin(self, xdp_programs: XdpPrograms) -> Pipeline {
        self.filters.attach();
        self.is_in_force.store(true, Ordering::Release);
        let lanes = self.lanes.into_iter().map(ReadyLane::begin).collect();
        xdp_programs.begin();
        Pipeline {
            cumulative_ledger: Arc::new(CumulativeLedger::new(Arc::clone(&self.ledger))),
            own_ledger: self.ledger,
            config: self.config,
            plan: self.plan,
            files: self.files,
            lanes,
            consumers: self.consumers,
            followers: self.followers,
            pinned: self.pinned,
            stop: self.stop,
            block_backings: self.block_backings,
            draining: Vec::new(),
            has_freed_memory: false,
            abandoned_sinks: Default::default(),
            xdp_programs,
            tables: self.tables,
        }
    }
}

impl ReadyLane {
    pub(super) fn begin(self) -> Lane {
        let Self { mut thread, start, address } = self;
        thread.made.counter.take().into_iter().for_each(|counter| start.ledger.begin_queue(counter));
        Lane {
            setup: thread.setup.clone(),
            address,
            core: only(&thread.made.cores),
            buffer: thread.made.buffer,
            backing: thread.made.backing.clone(),
            ledger: Arc::clone(&start.ledger),
            socket_swap: Arc::clone(&start.socket_swap),
            socket_survives: Arc::clone(&start.socket_survives),
            waker: thread.made.waker.clone(),
            receiver: thread.start(start),
        }
    }
}

fn pinned_receiver(LaneThread { setup, made, thread_handle, .. }: &LaneThread) -> Pinned {
    Pinned {
        name: format!("{setup}: its receiver"),
        thread: thread_handle.clone(),
        cores: made.cores.clone(),
        is_pinned: Arc::new(AtomicBool::new(!made.cores.is_empty())),
        lane: Some(setup.index),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use mmsg::{Family, Group, GroupSpread};

    use super::super::discarded_sockets::count_out;
    use super::super::inherited_sockets::InheritedSockets;
    use super::*;
    use udpd_base::exit::ExitCode;

    fn send(to: SocketAddr, datagrams: usize) {
        for _ in 0..datagrams {
            let sent = UdpSocket::bind("127.0.0.1:0").and_then(|sender| sender.send_to(b"x", to));
            assert_eq!(sent.expect("loopback takes it"), 1);
        }
    }

    fn waiting(sockets: &[Arc<Socket>]) -> u64 {
        let mut all = 0;
        sockets.iter().for_each(|own| count_out(own, |datagrams| all += datagrams).expect("readable"));
        all
    }

    #[test]
    fn a_take_over_that_the_old_process_refuses_at_last_has_left_its_sockets_as_they_were() {
        for lanes in [1, 2, 4] {
            let old: Vec<Arc<Socket>> = (0..2).map(|_| Arc::new(Socket::new(Family::V4).expect("a socket"))).collect();
            let mut group = Group::new(old.clone(), GroupSpread::Flow).expect("a group");
            let address = group.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            let text = format!(
                "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nlanes = {lanes}\nsinks = [\"out\"]\n\
                 [sink.out]\ntype = \"null\"\n"
            );
            let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
            let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
            let passed = |(lane, own): (usize, &Arc<Socket>)| {
                (format!("in.{lane}"), own.as_fd().try_clone_to_owned().expect("a descriptor"))
            };
            let passed = InheritedSockets::new(old.iter().enumerate().map(passed).collect()).expect("sockets");
            let from = passed.assign_for_take_over(&config, &plan).expect("they fit");
            assert_eq!(from.names, ["in.0", "in.1"]);
            let (registry, _events) = ThreadRegistry::new();
            let mut prepared = PreparedPipeline::beside(from, &config, &plan, &registry).expect("it is prepared");
            prepared.take_sockets().expect("they take its options");
            let refuse = || {
                send(address, 100);
                Err(Failure::new(ExitCode::Failure, "the old process receives again"))
            };
            let refused = prepared.start(&config, &plan, Instant::now(), &registry, refuse);
            assert_eq!(refused.expect_err("it may not").message, "the old process receives again");
            send(address, 100);
            assert!(old.iter().all(|own| !own.is_withdrawn()), "{lanes} lanes");
            assert_eq!(waiting(&old), 200, "{lanes} lanes");
        }
    }
}
