//! The pipeline: wires lanes to consumers and takes them apart again. The only module that knows both ends.
//!
//! Starting goes from the outside in: lanes are made on their cores, sockets are bound in order, sinks are opened, and
//! only then does anything run; whatever fails leaves nothing behind. Stopping goes the way of a datagram: arrivals are
//! refused, receivers drain their sockets and end, channels run empty, consumers flush and end, the books are closed.

mod books;
pub mod consumer;
mod end;
mod files;
mod group;
mod lane;
mod multicast;
mod open;
pub mod receiver;
mod replace;
mod socket;
pub mod successor;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use mmsg::{Backing, GrantedBuffer, Socket};

pub use books::Books;
pub use files::Files;
pub use open::{check_sinks, host};

use crate::config::{Config, OnTruncate};
use crate::exit::{ExitCode, Failure};
use crate::handover::channel::{Feed, Inbox, channel};
use crate::handover::pool::Parcel;
use crate::ledger::{ConsumerLedger, LaneLedger, Tally};
use crate::os::crew::{Crew, Event};
use crate::pipeline::consumer::{Consumer, End};
use crate::pipeline::receiver::{LaneHome, Route, Stop};
use crate::pipeline::successor::Successor;
use crate::plan::{LanePlan, Plan, SinkPlan};
use crate::policy::{Access, AccessList, Network, Offences};
use crate::sink::Sink;
use books::{LaneBooks, ListenerBooks, SinkBooks};
use group::Endpoint;
use lane::{LaneOrder, LaneThread, Start, thread_name};

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    books: Arc<Books>,
    files: Files,
    lanes: Vec<Lane>,
    consumers: Vec<JoinHandle<()>>,
    stop: Arc<Stop>,
}

/// A running lane and what the operator should know of it.
#[derive(Debug)]
pub struct Lane {
    /// What was planned.
    pub plan: LanePlan,
    /// The name of its listener.
    pub listener: String,
    /// What the socket is bound to.
    pub address: SocketAddr,
    /// The core, when pinning worked.
    pub core: Option<usize>,
    /// The receive buffer.
    pub buffer: GrantedBuffer,
    /// The memory of the batches.
    pub backing: Backing,
    /// Who exceeds its rate limit, where it has one.
    pub offences: Option<Arc<Offences>>,
    order: LaneOrder,
    ledger: Arc<LaneLedger>,
    successor: Arc<Successor>,
    receiver: JoinHandle<()>,
}

/// Makes the sink of a consumer, by the name of the sink and the number of the consumer, where the configuration says
/// [`SinkKind::Supplied`](crate::config::SinkKind::Supplied).
pub type Supply<'a> = &'a dyn Fn(&str, usize) -> Box<dyn Sink>;

impl Pipeline {
    /// Makes, binds, opens and starts everything. When it returns every socket is bound and every receiver reads.
    pub fn start(config: &Config, budget: &Plan, started: Instant, crew: &Crew) -> Result<Self, Failure> {
        Self::start_with(config, budget, started, crew, &|name, _| {
            unreachable!("no file can say that {name} is supplied")
        })
    }

    /// The same with sinks that the caller makes.
    pub fn start_with(
        config: &Config,
        budget: &Plan,
        started: Instant,
        crew: &Crew,
        supply: Supply<'_>,
    ) -> Result<Self, Failure> {
        let offences: Vec<Option<Arc<Offences>>> = budget.lanes.iter().map(|plan| offences_of(config, plan)).collect();
        let threads = spawn_lanes(config, budget, &offences, crew)?;
        let sockets: Vec<Arc<Socket>> = threads.iter().map(|thread| Arc::clone(&thread.made.socket)).collect();
        let stop = Arc::new(Stop::default());
        let homes: Arc<[Sender<Parcel>]> = threads.iter().map(|thread| thread.made.home.clone()).collect();
        let lanes: Arc<[LaneHome]> = threads
            .iter()
            .map(|thread| LaneHome {
                home: thread.made.home.clone(),
                ledger: Arc::new(LaneLedger::new(Arc::clone(&thread.made.socket), config.sinks.len())),
            })
            .collect();
        let mut routes: Vec<Vec<Route>> = budget.lanes.iter().map(|_| Vec::new()).collect();
        let mut sinks = Vec::new();
        let mut pending = Vec::new();
        let mut files = Files::default();
        for sink in 0..config.sinks.len() {
            let wiring = Wiring { config, budget, sink, homes: &homes, crew, supply };
            sinks.push(wiring.open(&mut routes, &mut pending, &mut files)?);
        }
        // After the sinks: one with a long file looks through it first, and nothing may arrive that nobody reads yet.
        let endpoints = group::open(config, &sockets, budget)?;
        let addresses: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        for (routes, plan) in routes.iter_mut().zip(&budget.lanes) {
            let order = &config.listeners[plan.listener].sinks;
            routes.sort_by_key(|route| order.iter().position(|&sink| sink == route.sink));
        }
        let consumers = pending
            .into_iter()
            .map(|(name, cores, consumer)| spawn_consumer(name, cores, consumer, crew))
            .collect::<Result<_, _>>()?;
        let books = Arc::new(open_books(config, budget, &threads, endpoints, &lanes, sinks, started));
        let start =
            |routes| Start { routes, lanes: Arc::clone(&lanes), stop: Arc::clone(&stop), successor: Arc::default() };
        let starts = routes.into_iter().map(start);
        let running = threads.into_iter().zip(starts).zip(&budget.lanes).zip(addresses).zip(offences);
        let running = running.enumerate().map(|(index, ((((thread, start), plan), address), offences))| Lane {
            plan: plan.clone(),
            listener: config.listeners[plan.listener].name.clone(),
            address,
            core: thread.made.core,
            buffer: thread.made.buffer,
            backing: thread.made.backing.clone(),
            offences,
            order: thread.order.clone(),
            ledger: Arc::clone(&lanes[index].ledger),
            successor: Arc::clone(&start.successor),
            receiver: thread.start(start),
        });
        let running = running.collect();
        Ok(Self { books, files, lanes: running, consumers, stop })
    }

    /// The books, for everybody who wants to read them.
    pub fn books(&self) -> Arc<Books> {
        Arc::clone(&self.books)
    }

    /// The files of all sinks, for whoever wants them reopened.
    pub fn files(&self) -> Files {
        self.files.clone()
    }

    /// The lanes.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
}

fn offences_of(config: &Config, plan: &LanePlan) -> Option<Arc<Offences>> {
    config.listeners[plan.listener].rate_limit.map(|_| Arc::default())
}

/// The table of a listener, which all of its lanes share; `None` when it takes everybody's datagrams.
fn access_list(access: &Access) -> Option<Arc<AccessList>> {
    let plain =
        |networks: &[Network]| networks.iter().map(|network| (network.address, network.bits)).collect::<Vec<_>>();
    let all = access.allow.is_empty() && access.deny.is_empty();
    (!all).then(|| Arc::new(AccessList::new(&plain(&access.allow), &plain(&access.deny))))
}

fn spawn_lanes(
    config: &Config,
    budget: &Plan,
    offences: &[Option<Arc<Offences>>],
    crew: &Crew,
) -> Result<Vec<LaneThread>, Failure> {
    let access: Vec<_> = config.listeners.iter().map(|listener| access_list(&listener.access)).collect();
    let order = |(index, plan): (usize, &LanePlan)| {
        let listener = &config.listeners[plan.listener];
        LaneOrder {
            index,
            plan: plan.clone(),
            listener_name: listener.name.clone(),
            interface: listener.interface.clone(),
            busy_poll: listener.busy_poll,
            memberships: multicast::memberships(listener, plan),
            multicast_interface: listener.multicast.interface.clone(),
            sinks: listener.sinks.len(),
            drop_truncated: listener.on_truncate == OnTruncate::Drop,
            gather: listener.gather,
            access: access[plan.listener].clone(),
            limit: listener.rate_limit.zip(offences[index].clone()),
        }
    };
    budget.lanes.iter().enumerate().map(order).map(|order| LaneThread::spawn(order, crew)).collect()
}

/// One sink on its way to being open.
struct Wiring<'a> {
    config: &'a Config,
    budget: &'a Plan,
    sink: usize,
    homes: &'a Arc<[Sender<Parcel>]>,
    crew: &'a Crew,
    supply: Supply<'a>,
}

impl Wiring<'_> {
    /// Makes the channels and consumers of this sink and routes the lanes to them.
    fn open(
        &self,
        routes: &mut [Vec<Route>],
        consumers: &mut Vec<(String, Vec<usize>, Consumer)>,
        files: &mut Files,
    ) -> Result<SinkBooks, Failure> {
        let sink = &self.config.sinks[self.sink];
        let SinkPlan { consumers: count, feeds } = &self.budget.sinks[self.sink];
        let (feed_of, inboxes): (Vec<Feed>, Vec<Inbox>) =
            (0..*count).map(|_| channel(sink.queue_batches, open::full_policy(sink.when_full))).unzip();
        let mut books = SinkBooks {
            name: sink.name.clone(),
            channels: Vec::new(),
            consumers: Vec::new(),
            files: Vec::new(),
            destinations: Vec::new(),
        };
        let mut keeper = None;
        for (number, inbox) in inboxes.into_iter().enumerate() {
            books.channels.push(inbox.gauge());
            let mut lanes = vec![false; routes.len()];
            feeds.iter().filter(|feed| feed.consumer == number).for_each(|feed| lanes[feed.lane] = true);
            let ledger = Arc::new(ConsumerLedger::new(self.config.listeners.len()));
            let opening = open::Opening {
                config: self.config,
                budget: self.budget,
                settings: sink,
                consumer: number,
                lanes: &lanes,
                caller: &inbox.caller(),
            };
            let opened = opening.sink(self.supply, &mut keeper)?;
            books.files.extend(opened.files);
            books.destinations.extend(opened.destinations);
            let consumer = Consumer {
                channel: inbox,
                sink: opened.sink,
                homes: Arc::clone(self.homes),
                ledger: Arc::clone(&ledger),
                tallies: vec![Tally::default(); self.config.listeners.len()],
            };
            let cores = self.budget.cores_of_consumer(&lanes);
            consumers.push((thread_name("sink", number, &sink.name), cores, consumer));
            books.consumers.push(ledger);
        }
        if let Some(keeper) = keeper {
            files.start(&sink.name, keeper, self.crew)?;
        }
        for feed in feeds {
            routes[feed.lane].push(Route { feed: feed_of[feed.consumer].clone(), sink: self.sink });
        }
        Ok(books)
    }
}

fn spawn_consumer(name: String, cores: Vec<usize>, consumer: Consumer, crew: &Crew) -> Result<JoinHandle<()>, Failure> {
    let reporter = crew.clone();
    let subject = name.clone();
    let body = move || {
        if !cores.is_empty()
            && let Err(error) = steer::confine_current_thread(&cores)
        {
            log::warn!("{name}: cannot run on the cores {} only: {error}", steer::format_core_list(&cores));
        }
        let end = consumer.run(|why| reporter.report(Event::SinkClosed(why.to_owned())));
        if let End::Closed(why) = end {
            log::debug!("{name} has ended: {why}");
        }
    };
    crew.spawn(subject.clone(), body).map_err(|error: io::Error| {
        Failure::new(ExitCode::Failure, format!("cannot start the consumer thread {subject}: {error}"))
    })
}

fn open_books(
    config: &Config,
    budget: &Plan,
    threads: &[LaneThread],
    mut endpoints: Vec<Endpoint>,
    lanes: &[LaneHome],
    sinks: Vec<SinkBooks>,
    started: Instant,
) -> Books {
    let listener = |(index, listener): (usize, &crate::config::Listener)| {
        let own = (0..threads.len()).filter(|&lane| budget.lanes[lane].listener == index);
        let endpoints = &mut endpoints;
        let lane_books = |lane: usize| LaneBooks {
            address: endpoints[lane].address.to_string(),
            core: threads[lane].made.core,
            node: budget.lanes[lane].node,
            intake: budget.lanes[lane].intake.clone(),
            arrivals: endpoints[lane].arrivals.take(),
            receive_buffer_bytes: threads[lane].made.buffer.granted_bytes as u64,
            engine: threads[lane].made.engine,
            ledger: Arc::clone(&lanes[lane].ledger),
        };
        ListenerBooks {
            name: listener.name.clone(),
            address: listener.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "),
            gro: listener.gro,
            sinks: listener.sinks.clone(),
            lanes: own.map(lane_books).collect(),
            sharers: Mutex::default(),
        }
    };
    Books { started, listeners: config.listeners.iter().enumerate().map(listener).collect(), sinks }
}
