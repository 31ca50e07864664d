//! The start of a pipeline: the only file that knows both ends of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use mmsg::Socket;

use super::bind::{self, Endpoint};
use super::books::{Books, LaneBooks, ListenerBooks, SinkBooks};
use super::bypass::Bypasses;
use super::chronicle::Chronicle;
use super::files::Files;
use super::filters::Tables;
use super::follower::Follower;
use super::following;
use super::kept::{self, Claims, FromRunning, KeptSocket};
use super::lane::{LaneThread, Start};
use super::outlet::Outlet;
use super::receiver::Stop;
use super::running::{Lane, Pinned, Pipeline, only};
use super::setup::LaneSetup;
use super::socket;
use super::stocks::Stocks;
use super::wiring::{self, Consumers, Wiring, spawn_consumers};
use crate::config::{Config, ListenerConfig};
use crate::plan::{PipelinePlan, xdp};
use hostloss::HostLedger;
use udpd_base::exit::Failure;
use udpd_base::handover::pool::Home;
use udpd_base::ledger::LaneLedger;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::OpenContext;

impl Pipeline {
    /// Makes, binds, opens and starts everything. When it returns every socket is bound and every receiver reads.
    pub fn start(
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        Self::start_with(Claims::none(plan), config, plan, started, registry)
    }

    /// The same on sockets that an earlier process has left, as far as they fit.
    pub fn start_with(
        claims: Claims,
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        Prepared::make(claims, config, plan, registry)?.start(config, plan, started, registry, || Ok(()))
    }
}

/// The lanes with their memory and engines, before anything else is open, and while another process may still receive
/// from their sockets.
#[derive(Debug)]
pub struct Prepared {
    claims: Claims,
    threads: Vec<LaneThread>,
    stocks: Stocks,
    /// None before they can be had: another process may have its program at the interface.
    bypasses: Option<Bypasses>,
}

impl Prepared {
    pub fn make(
        claims: Claims,
        config: &Config,
        plan: &PipelinePlan,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        let mut prepared = Self::make_lanes(claims, config, plan, registry)?;
        prepared.bypasses = Some(Bypasses::make(config, &mut prepared.threads)?);
        Ok(prepared)
    }

    fn make_lanes(
        claims: Claims,
        config: &Config,
        plan: &PipelinePlan,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        let threads = LaneThread::spawn_all(LaneSetup::all(config, plan), &claims, registry)?;
        let stocks = Stocks::make(&plan.pool, registry)?;
        Ok(Self { claims, threads, stocks, bypasses: None })
    }

    /// The same beside the process that still receives from the sockets. It is to end for this one, so whatever can be
    /// found out before is: also whether the addresses can be had that it has nothing to do with.
    pub fn beside(
        from: FromRunning,
        config: &Config,
        plan: &PipelinePlan,
        registry: &ThreadRegistry,
    ) -> Result<Self, Failure> {
        for (listener, address) in from.free {
            bind::probe(&config.listeners[listener], address)?;
        }
        Self::make_lanes(from.claims, config, plan, registry)
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Whether those who made its sockets have given them up: nothing comes to such a socket again, or no receive call
    /// waits there.
    pub fn is_given_up(&self) -> bool {
        self.claims.of_lanes.iter().flatten().any(|socket| kept::is_given_up(socket))
    }

    /// To be called when a process has died that was to drain these sockets and close them.
    pub fn close_as_well(&mut self, left: Vec<KeptSocket>) -> Result<(), Failure> {
        self.claims.let_go(left, "that process has died before it had read it to its end")
    }

    /// To be called when nobody else receives from its sockets any more: gives each the options of its lane that
    /// whoever receives again, should this come to nothing, can cope with.
    pub fn own_sockets(&mut self) -> Result<(), Failure> {
        for LaneThread { setup, made, .. } in &mut self.threads {
            if let (Some(_), Some(socket)) = (&self.claims.of_lanes[setup.index], &made.socket) {
                made.buffer = Some(socket::go_on_with(setup, socket)?);
            }
        }
        Ok(())
    }

    /// Opens, binds and starts everything. `commit` is the last word: what comes before it receives nothing.
    pub fn start(
        mut self,
        config: &Config,
        plan: &PipelinePlan,
        started: Instant,
        registry: &ThreadRegistry,
        commit: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Pipeline, Failure> {
        let bypasses = match self.bypasses.take() {
            Some(bypasses) => bypasses,
            None => Bypasses::make(config, &mut self.threads)?,
        };
        let Self { claims, threads, stocks, .. } = &mut self;
        let stop = Arc::new(Stop::default());
        let homes: Arc<[Arc<Home>]> = threads.iter().map(|thread| thread.made.home.clone()).collect();
        let ledgers: Vec<Arc<LaneLedger>> =
            threads.iter().map(|thread| ledger_of(thread, config.sinks.len())).collect();
        let mut outlets: Vec<Vec<Outlet>> = threads.iter().map(|_| Vec::new()).collect();
        let (mut sinks, mut consumers, files) = (Vec::new(), Consumers::default(), Files::default());
        let context = OpenContext { is_in_force: Arc::default(), has_predecessor: false };
        let scenes = wiring::scenes(config, plan);
        let listeners: Vec<String> = config.listeners.iter().map(|listener| listener.name.clone()).collect();
        for sink in 0..config.sinks.len() {
            let (homes, scenes) = (&homes, &scenes);
            let (listeners, context) = (&listeners, &context);
            let wiring = Wiring { config, plan, sink, homes, stocks, scenes, listeners, registry, kept: None, context };
            sinks.push(wiring.open(&mut outlets, &mut consumers, &files)?);
        }
        // After the sinks: one with a long file looks through it first, and nothing may arrive that nobody reads yet.
        let (own, tables) = (with_sockets(threads), Tables::make(threads.iter().map(|thread| &thread.setup))?);
        let arrivals = bind::count_arrivals(&own);
        let filters = tables.filters(own.iter().zip(arrivals.iter().map(Option::as_ref)))?;
        let endpoints = bind::open(&own, arrivals, claims)?;
        let setups: Vec<&LaneSetup> = threads.iter().map(|thread| &thread.setup).collect();
        sort(&mut outlets, &setups);
        let (consumers, mut pinned) = spawn_consumers(consumers.pending, registry)?;
        pinned.extend(threads.iter().map(pinned_receiver));
        let addresses = addresses(threads, &endpoints);
        let host = Arc::new(HostLedger::new(addresses.iter().map(SocketAddr::port)));
        let books = Arc::new(open_books(config, threads, endpoints, &ledgers, sinks, started, host));
        let followers = following::spawn_all(threads, plan, &mut pinned, registry)?;
        let committed = commit().and_then(|()| glue(threads));
        committed.inspect_err(|_| followers.iter().for_each(Follower::end))?;
        filters.attach();
        context.is_in_force.store(true, Ordering::Release);
        let lanes = self.begin(outlets, &ledgers, &stop, addresses);
        bypasses.begin();
        Ok(Pipeline {
            chronicle: Arc::new(Chronicle::new(Arc::clone(&books))),
            books,
            config: Arc::new(config.clone()),
            plan: Arc::new(plan.clone()),
            files,
            lanes,
            consumers,
            followers,
            pinned,
            stop,
            block_backings: self.stocks.backings,
            before: Vec::new(),
            has_freed: false,
            given_up: BTreeSet::new(),
            bypasses,
            tables,
        })
    }

    /// Lets every lane receive.
    fn begin(
        &mut self,
        outlets: Vec<Vec<Outlet>>,
        ledgers: &[Arc<LaneLedger>],
        stop: &Arc<Stop>,
        addresses: Vec<SocketAddr>,
    ) -> Vec<Lane> {
        let is_kept: Vec<bool> = self.claims.of_lanes.iter().map(Option::is_some).collect();
        let start = |((outlets, ledger), (leavings, is_kept)): ((_, &Arc<LaneLedger>), (_, bool))| Start {
            outlets,
            ledger: Arc::clone(ledger),
            stop: Arc::clone(stop),
            successor: Arc::default(),
            is_kept: Arc::new(AtomicBool::new(is_kept)),
            leavings,
        };
        let leavings = std::mem::take(&mut self.claims.surplus);
        let starts = outlets.into_iter().zip(ledgers).zip(leavings.into_iter().zip(is_kept)).map(start);
        let threads = std::mem::take(&mut self.threads);
        let running = threads.into_iter().zip(starts).zip(addresses);
        running.map(|((thread, start), address)| begin(thread, start, address)).collect()
    }
}

/// The books of a lane.
pub(super) fn ledger_of(thread: &LaneThread, sinks: usize) -> Arc<LaneLedger> {
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

/// The lanes that have a socket, each with it.
pub(super) fn with_sockets(threads: &[LaneThread]) -> Vec<(&LaneSetup, Arc<Socket>)> {
    threads.iter().filter_map(|thread| Some((&thread.setup, thread.made.socket.clone()?))).collect()
}

/// What each lane is bound to, or what it takes the datagrams of.
pub(super) fn addresses(threads: &[LaneThread], endpoints: &BTreeMap<usize, Endpoint>) -> Vec<SocketAddr> {
    let address = |LaneThread { setup, .. }: &LaneThread| {
        endpoints.get(&setup.index).map_or(setup.plan.address, |endpoint| endpoint.address)
    };
    threads.iter().map(address).collect()
}

/// Lets a lane receive.
pub(super) fn begin(mut thread: LaneThread, start: Start, address: SocketAddr) -> Lane {
    thread.made.counter.take().into_iter().for_each(|counter| start.ledger.begin_queue(counter));
    Lane {
        setup: thread.setup.clone(),
        address,
        core: only(&thread.made.cores),
        buffer: thread.made.buffer,
        backing: thread.made.backing.clone(),
        ledger: Arc::clone(&start.ledger),
        successor: Arc::clone(&start.successor),
        is_kept: Arc::clone(&start.is_kept),
        waker: thread.made.waker.clone(),
        receiver: thread.start(start),
    }
}

/// Puts the outlets of each lane into the order of its listener's sinks.
pub(super) fn sort(outlets: &mut [Vec<Outlet>], setups: &[&LaneSetup]) {
    for (outlets, setup) in outlets.iter_mut().zip(setups) {
        outlets.sort_by_key(|outlet| setup.listener.sinks.iter().position(|&sink| sink == outlet.sink()));
    }
}

/// Has trains glued for the lanes that take them: nobody else receives from their sockets any more.
fn glue(threads: &[LaneThread]) -> Result<(), Failure> {
    threads.iter().try_for_each(|LaneThread { setup, made, .. }| match &made.socket {
        Some(socket) => socket::glue(setup, socket),
        None => Ok(()),
    })
}

pub(super) fn pinned_receiver(LaneThread { setup, made, known, .. }: &LaneThread) -> Pinned {
    Pinned {
        who: format!("{setup}: its receiver"),
        thread: known.clone(),
        cores: made.cores.clone(),
        is_put: Arc::new(AtomicBool::new(!made.cores.is_empty())),
        lane: Some(setup.index),
    }
}

pub(super) fn open_books(
    config: &Config,
    threads: &[LaneThread],
    mut endpoints: BTreeMap<usize, Endpoint>,
    ledgers: &[Arc<LaneLedger>],
    sinks: Vec<SinkBooks>,
    started: Instant,
    host: Arc<HostLedger>,
) -> Books {
    let listener = |(index, listener): (usize, &ListenerConfig)| {
        let own = threads.iter().filter(|thread| thread.setup.plan.listener == index);
        let endpoints = &mut endpoints;
        let lane_books = |LaneThread { setup, made, .. }: &LaneThread| LaneBooks {
            address: endpoints.get(&setup.index).map_or(setup.plan.address, |endpoint| endpoint.address).to_string(),
            node: setup.plan.node,
            intake: setup.plan.intake.clone(),
            arrivals: endpoints.get_mut(&setup.index).and_then(|endpoint| endpoint.arrivals.take()),
            receive_buffer_bytes: made.buffer.map_or(setup.plan.ring_bytes(), |buffer| buffer.granted_bytes) as u64,
            queue: setup.plan.xdp.as_ref().map(|xdp| (xdp.batches * setup.plan.shape.slots) as u64),
            engine: made.engine,
            ledger: Arc::clone(&ledgers[setup.index]),
        };
        ListenerBooks {
            name: listener.name.clone(),
            address: listener.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "),
            gro: listener.gro,
            interface: listener.interface.clone().unwrap_or_default(),
            xdp_mode: xdp::mode_name(listener.xdp_mode),
            sinks: listener.sinks.clone(),
            upstream: own.clone().find_map(|thread| thread.setup.upstream.clone()),
            lanes: own.map(lane_books).collect(),
            between: OnceLock::new(),
            sharers: Mutex::default(),
        }
    };
    Books { started, listeners: config.listeners.iter().enumerate().map(listener).collect(), sinks, host }
}
