//! The start of a pipeline: the only file that knows both ends of everything.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use mmsg::Socket;

use super::bind::{self, Endpoint};
use super::books::{Books, LaneBooks, ListenerBooks, SinkBooks};
use super::files::Files;
use super::following;
use super::kept::Claims;
use super::lane::{LaneThread, Start};
use super::receiver::Stop;
use super::running::{Lane, Pinned, Pipeline, only};
use super::setup::LaneSetup;
use super::stocks::Stocks;
use super::wiring::{self, Wiring, spawn_consumers};
use crate::config::{Config, Listener};
use crate::exit::Failure;
use crate::handover::pool::Home;
use crate::handover::route::Route;
use crate::host::HostLedger;
use crate::ledger::LaneLedger;
use crate::os::crew::Crew;
use crate::plan::Plan;

impl Pipeline {
    /// Makes, binds, opens and starts everything. When it returns every socket is bound and every receiver reads.
    pub fn start(config: &Config, plan: &Plan, started: Instant, crew: &Crew) -> Result<Self, Failure> {
        Self::start_with(Claims::none(plan), config, plan, started, crew)
    }

    /// The same on sockets that an earlier process has left, as far as they fit.
    pub fn start_with(
        mut claims: Claims,
        config: &Config,
        plan: &Plan,
        started: Instant,
        crew: &Crew,
    ) -> Result<Self, Failure> {
        let threads = LaneThread::spawn_all(LaneSetup::all(config, plan), &claims.of_lanes, crew)?;
        let stop = Arc::new(Stop::default());
        let homes: Arc<[Arc<Home>]> = threads.iter().map(|thread| thread.made.home.clone()).collect();
        let ledger =
            |thread: &LaneThread| Arc::new(LaneLedger::new(Arc::clone(&thread.made.socket), config.sinks.len()));
        let ledgers: Vec<Arc<LaneLedger>> = threads.iter().map(ledger).collect();
        threads.iter().zip(&ledgers).for_each(|(thread, ledger)| ledger.note_core(only(&thread.made.cores)));
        let mut routes: Vec<Vec<Route>> = threads.iter().map(|_| Vec::new()).collect();
        let stocks = Stocks::make(&plan.pool, crew)?;
        let (mut sinks, mut pending, mut files) = (Vec::new(), Vec::new(), Files::default());
        let scenes = wiring::scenes(config, plan);
        let listeners: Vec<String> = config.listeners.iter().map(|listener| listener.name.clone()).collect();
        for sink in 0..config.sinks.len() {
            let (homes, scenes) = (&homes, &scenes);
            let wiring = Wiring { config, plan, sink, homes, stocks: &stocks, scenes, listeners: &listeners, crew };
            sinks.push(wiring.open(&mut routes, &mut pending, &mut files)?);
        }
        // After the sinks: one with a long file looks through it first, and nothing may arrive that nobody reads yet.
        let setups: Vec<&LaneSetup> = threads.iter().map(|thread| &thread.setup).collect();
        let sockets: Vec<Arc<Socket>> = threads.iter().map(|thread| Arc::clone(&thread.made.socket)).collect();
        let endpoints = bind::open(&setups, &sockets, &claims)?;
        for (routes, setup) in routes.iter_mut().zip(setups) {
            routes.sort_by_key(|route| setup.listener.sinks.iter().position(|&sink| sink == route.sink));
        }
        let (consumers, mut pinned) = spawn_consumers(pending, crew)?;
        pinned.extend(threads.iter().map(pinned_receiver));
        let addresses: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let books = Arc::new(open_books(config, &threads, endpoints, &ledgers, sinks, started));
        let is_kept: Vec<bool> = claims.of_lanes.iter().map(Option::is_some).collect();
        let start = |((routes, ledger), (leavings, is_kept)): ((_, &Arc<LaneLedger>), (_, bool))| Start {
            routes,
            ledger: Arc::clone(ledger),
            stop: Arc::clone(&stop),
            successor: Arc::default(),
            is_kept: Arc::new(AtomicBool::new(is_kept)),
            leavings,
        };
        let leavings = std::mem::take(&mut claims.surplus);
        let followers = following::spawn_all(&threads, plan, &mut pinned, crew)?;
        let running = threads
            .into_iter()
            .zip(routes.into_iter().zip(&ledgers).zip(leavings.into_iter().zip(is_kept)).map(start))
            .zip(addresses);
        let running = running.map(|((thread, start), address)| Lane {
            setup: thread.setup.clone(),
            address,
            core: only(&thread.made.cores),
            buffer: thread.made.buffer,
            backing: thread.made.backing.clone(),
            ledger: Arc::clone(&ledgers[thread.setup.index]),
            successor: Arc::clone(&start.successor),
            is_kept: Arc::clone(&start.is_kept),
            waker: thread.made.waker.clone(),
            receiver: thread.start(start),
        });
        let running = running.collect();
        Ok(Self { books, files, lanes: running, consumers, followers, pinned, stop, block_backings: stocks.backings })
    }
}

fn pinned_receiver(LaneThread { setup, made, known, .. }: &LaneThread) -> Pinned {
    Pinned {
        who: format!("{setup}: its receiver"),
        thread: known.clone(),
        cores: made.cores.clone(),
        is_put: Arc::new(AtomicBool::new(!made.cores.is_empty())),
        lane: Some(setup.index),
    }
}

fn open_books(
    config: &Config,
    threads: &[LaneThread],
    mut endpoints: Vec<Endpoint>,
    ledgers: &[Arc<LaneLedger>],
    sinks: Vec<SinkBooks>,
    started: Instant,
) -> Books {
    let ports: Vec<u16> = endpoints.iter().map(|endpoint| endpoint.address.port()).collect();
    let listener = |(index, listener): (usize, &Listener)| {
        let own = threads.iter().filter(|thread| thread.setup.plan.listener == index);
        let endpoints = &mut endpoints;
        let lane_books = |LaneThread { setup, made, .. }: &LaneThread| LaneBooks {
            address: endpoints[setup.index].address.to_string(),
            node: setup.plan.node,
            intake: setup.plan.intake.clone(),
            arrivals: endpoints[setup.index].arrivals.take(),
            receive_buffer_bytes: made.buffer.granted_bytes as u64,
            engine: made.engine,
            ledger: Arc::clone(&ledgers[setup.index]),
        };
        ListenerBooks {
            name: listener.name.clone(),
            address: listener.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "),
            gro: listener.gro,
            sinks: listener.sinks.clone(),
            upstream: own.clone().find_map(|thread| thread.setup.upstream.clone()),
            lanes: own.map(lane_books).collect(),
            sharers: Mutex::default(),
        }
    };
    let host = HostLedger::new(ports);
    Books {
        started,
        listeners: config.listeners.iter().enumerate().map(listener).collect(),
        sinks,
        host,
        before: OnceLock::new(),
    }
}
