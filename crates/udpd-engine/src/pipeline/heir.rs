//! The heir of a pipeline that runs: everything that a changed configuration needs, made beside it. Whatever can fail
//! does so here, and leaves the one that runs as it is.
//!
//! An heir gets the sockets that stay and the sinks that stay. The sinks go on with their files, connections and
//! consumers. Everything else of it is new: the memory, the lanes, the channels, the books. Addresses come last: from
//! then on datagrams may arrive in sockets that nobody reads until the heir begins.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mmsg::Socket;

use super::bind;
use super::books::Books;
use super::bypass;
use super::chronicle::Chronicle;
use super::ending::{self, Ending, Oldest, Staying};
use super::entry::{Admission, has_ended};
use super::files::Files;
use super::filters::{Filters, Tables};
use super::follower::Follower;
use super::following;
use super::going_on;
use super::kept::{Claims, Kept, TAKES_A_RESTART};
use super::lane::{LaneThread, Start};
use super::outlet::Outlet;
use super::receiver::Stop;
use super::relief::{Relief, Shift};
use super::running::{ConsumerThread, Lane, Pinned, Pipeline};
use super::setup::LaneSetup;
use super::start::{addresses, ledger_of, open_books, pinned_receiver, sort, with_sockets};
use super::stocks::Stocks;
use super::wiring::{self, Consumers, KeptConsumer, KeptSink, Wiring, spawn_consumers};
use super::writes::{Finishing, Writes, files_by_consumer};
use crate::config::{Config, ListenerConfig};
use crate::plan::PipelinePlan;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::pool::Home;
use udpd_base::ledger::LaneLedger;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::{Differs, OpenContext};

/// A pipeline that has everything and does not receive yet.
#[derive(Debug)]
pub struct Heir {
    pub config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) books: Arc<Books>,
    pub(super) lanes: Vec<(LaneThread, Start, SocketAddr)>,
    /// By sink, the one of before that it goes on with.
    pub(super) kept: Vec<Option<usize>>,
    /// By sink, whether it takes the place of one that has yet to go over to the pipeline of before.
    pub(super) follows_itself: Vec<bool>,
    pub(super) shifts: Vec<(Arc<Relief>, Shift)>,
    pub(super) consumers: Vec<ConsumerThread>,
    /// Let those in that take the place of others.
    pub(super) admissions: Vec<Admission>,
    /// Set when it takes the place of its pipeline.
    pub(super) is_in_force: Arc<AtomicBool>,
    pub(super) followers: Vec<Follower>,
    pub(super) pinned: Vec<Pinned>,
    pub(super) files: Files,
    pub(super) stop: Arc<Stop>,
    pub(super) block_backings: Vec<mmsg::Backing>,
    pub(super) tables: Tables,
    /// Of its sockets, which have those of before until it receives from them.
    pub(super) filters: Filters,
}

/// What somebody has to know of a pipeline to make an heir of it, so that who runs it keeps it meanwhile.
#[derive(Debug)]
pub struct Forerunner {
    config: Arc<Config>,
    plan: Arc<PipelinePlan>,
    books: Arc<Books>,
    chronicle: Arc<Chronicle>,
    files: Files,
    /// The sockets of all lanes that have one, by what each is called where it is kept.
    sockets: Vec<(String, Option<Arc<Socket>>)>,
    /// Why a receiver cannot be woken.
    deaf: Option<String>,
    consumers: Vec<KeptConsumer>,
    /// Of sinks that have yet to go over to this pipeline.
    staying: Vec<Staying>,
    /// The consumers of those before that have yet to finish.
    finishing: Vec<Finishing>,
    /// Of those before, the one that the next reload gives up.
    oldest: Option<Oldest>,
    turn: Turn,
}

/// Whose turn it is: whoever makes an heir may take its addresses, or nobody waits for it any more.
///
/// In sockets that are bound something may arrive, so an heir that has some is put in force.
#[derive(Debug, Clone, Default)]
pub struct Turn(Arc<AtomicU8>);

const OPEN: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Turn {
    /// Gives the heir up; `false` when it is about to have its addresses, and then will be there in a moment.
    pub fn give_up(&self) -> bool {
        self.change(GIVEN_UP)
    }

    /// Refuses what nobody waits for any more.
    pub fn check(&self) -> Result<(), Failure> {
        Self::still(self.0.load(Ordering::Acquire) != GIVEN_UP)
    }

    fn take(&self) -> Result<(), Failure> {
        Self::still(self.change(TAKEN))
    }

    fn still(is_wanted: bool) -> Result<(), Failure> {
        let given_up =
            || Failure::new(ExitCode::Failure, "this reload was given up, because its client waits no longer");
        is_wanted.then_some(()).ok_or_else(given_up)
    }

    fn change(&self, to: u8) -> bool {
        let before = self.0.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == to, |_| true)
    }
}

/// What an heir shares while it is made.
struct Making<'a> {
    before: &'a Forerunner,
    config: &'a Arc<Config>,
    plan: &'a Arc<PipelinePlan>,
    registry: &'a ThreadRegistry,
    kept: Vec<Option<usize>>,
    follows_itself: Vec<bool>,
    /// By sink, whether one of before makes way for it, which writes the same or has yet to go over.
    takes_place: Vec<bool>,
    is_in_force: Arc<AtomicBool>,
}

impl Pipeline {
    /// For whoever makes an heir of it.
    pub fn forerunner(&self) -> Forerunner {
        let is_running = |lane: &&Lane| !lane.receiver.is_finished();
        let deaf = |lane: &Lane| lane.waker.as_ref().err().map(|why| format!("{}: {why}", lane.setup));
        let consumer = |consumer: &ConsumerThread| KeptConsumer {
            sink: consumer.sink,
            caller: consumer.caller.clone(),
            relief: Arc::clone(&consumer.relief),
            ended: consumer.ended.clone(),
        };
        Forerunner {
            config: Arc::clone(&self.config),
            plan: self.plan(),
            books: Arc::clone(&self.books),
            chronicle: self.books(),
            files: self.files(),
            sockets: self.lanes.iter().map(|lane| (lane.name_when_kept(), lane.socket())).collect(),
            deaf: self.lanes.iter().filter(is_running).find_map(deaf),
            consumers: self.consumers.iter().map(consumer).collect(),
            staying: self.staying(),
            finishing: self.before.iter().flat_map(Ending::finishing).collect(),
            oldest: Oldest::of(&self.before),
            turn: Turn::default(),
        }
    }
}

impl Forerunner {
    pub fn turn(&self) -> Turn {
        self.turn.clone()
    }

    pub fn plan(&self) -> Arc<PipelinePlan> {
        Arc::clone(&self.plan)
    }

    /// Waits until every sink that has stayed counts in the books of the pipeline that runs, and no longer than that;
    /// for what the next reload would give up as long as `slow_limit`, while it goes on. Refuses where too many
    /// consumers hang.
    pub fn wait_for_those_before(&self, limit: Duration, slow_limit: Duration) -> Result<(), Failure> {
        ending::refuse_hanging(&self.finishing)?;
        self.oldest.iter().for_each(|oldest| oldest.wait_while_it_goes_on(slow_limit));
        ending::wait_for(&self.staying, limit);
        Ok(())
    }

    /// Makes what is to take the place of the pipeline, beside it. On a failure nothing has changed.
    pub fn make_heir(
        &self,
        config: &Arc<Config>,
        plan: &Arc<PipelinePlan>,
        registry: &ThreadRegistry,
    ) -> Result<Heir, Failure> {
        self.refuse_what_cannot_be_woken()?;
        self.refuse_other_programs(config)?;
        bypass::refuse_locked_memory(plan, &self.plan)?;
        let mut kept = (0..config.sinks.len()).map(|sink| self.stays(config, plan, sink)).collect::<Vec<_>>();
        let has_hung = |own: &Option<usize>| own.is_some_and(|own| self.has_yet_to_go_over(own));
        let follows_itself: Vec<bool> = kept.iter().map(has_hung).collect();
        kept.iter_mut().filter(|own| has_hung(own)).for_each(|own| *own = None);
        let takes_place = self.takes_place(config, plan, &kept);
        let takes_place = takes_place.zip(&follows_itself).map(|(takes, follows)| takes || *follows).collect();
        let (claims, is_in_force) = (self.claims(config, plan)?, Arc::default());
        Making { before: self, config, plan, registry, kept, follows_itself, takes_place, is_in_force }.make(claims)
    }

    /// Its sockets, dealt out to the lanes of a plan.
    fn claims(&self, config: &Config, plan: &PipelinePlan) -> Result<Claims, Failure> {
        let own = self.sockets.iter().filter_map(|(name, socket)| Some((name.clone(), socket.clone()?)));
        let mut claims = Kept::of(own)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot ask a socket what it is: {error}")))?
            .claim_in_use(config, plan)?;
        let sockets: Vec<Option<Arc<Socket>>> = self.sockets.iter().map(|(_, socket)| socket.clone()).collect();
        claims.spreads = going_on::spreads(&self.config, &self.plan, &sockets, &claims);
        Ok(claims)
    }

    /// Makes the same pipeline once more, after one whose threads have all ended. Its sinks are opened again.
    pub fn make_again(&self, registry: &ThreadRegistry) -> Result<Heir, Failure> {
        let (config, plan, sinks) = (&self.config, &self.plan, self.config.sinks.len());
        let (kept, takes_place, is_in_force) = (vec![None; sinks], vec![false; sinks], Arc::default());
        let (claims, follows_itself) = (self.claims(config, plan)?, vec![false; sinks]);
        Making { before: self, config, plan, registry, kept, follows_itself, takes_place, is_in_force }.make(claims)
    }

    /// The sink of this pipeline that a sink of another configuration can go on with.
    fn stays(&self, config: &Config, plan: &PipelinePlan, sink: usize) -> Option<usize> {
        let wanted = &config.sinks[sink];
        let before = self.config.sinks.iter().position(|before| before.name == wanted.name)?;
        let (planned, planned_before) = (&plan.sinks[sink], &self.plan.sinks[before]);
        let scenes = |config, plan| wiring::scenes(config, plan);
        let listeners = |config: &Config| config.listeners.iter().map(|own| own.name.clone()).collect::<Vec<_>>();
        let differs = Differs {
            lanes: scenes(config, plan) != scenes(&self.config, &self.plan)
                || planned.feeders != planned_before.feeders,
            listeners: listeners(config) != listeners(&self.config),
        };
        // One that runs inline ends with its receivers.
        let is_same = !wanted.inline
            && !self.config.sinks[before].inline
            && planned.consumers == planned_before.consumers
            && files_by_consumer(config, plan, sink) == files_by_consumer(&self.config, &self.plan, before)
            && wanted.settings.goes_on(&*self.config.sinks[before].settings, differs);
        // One that only lanes without an engine fed has ended with them, and takes nothing any more.
        let all_live = || self.consumers_of(before).iter().all(|consumer| !has_ended(&consumer.ended));
        (is_same && all_live()).then_some(before)
    }

    /// Whether a sink has not even begun to count in the books of this pipeline, because it hangs in what it took
    /// before. One like it takes its place and begins when it has ended, so that the order stays.
    fn has_yet_to_go_over(&self, sink: usize) -> bool {
        self.consumers_of(sink).iter().any(|consumer| consumer.relief.is_due())
    }

    /// By sink, whether it takes the place of one that writes the same file, of this pipeline or of one before: it
    /// begins when that one has closed it.
    fn takes_place(&self, config: &Config, plan: &PipelinePlan, kept: &[Option<usize>]) -> impl Iterator<Item = bool> {
        let leave = (0..self.config.sinks.len()).filter(|own| !kept.contains(&Some(*own)));
        let leaving = leave.map(|own| Writes::of(&self.config, &self.plan, own));
        let in_the_way: Vec<Writes> = leaving.chain(self.finishing.iter().map(|last| last.writes.clone())).collect();
        kept.iter().enumerate().map(move |(sink, kept)| {
            let wanted = Writes::of(config, plan, sink);
            kept.is_none() && in_the_way.iter().any(|other| other.overlap(&wanted))
        })
    }

    fn refuse_what_cannot_be_woken(&self) -> Result<(), Failure> {
        self.deaf.as_ref().map_or(Ok(()), |why| {
            let message = format!("nothing can wake a receiver without closing its socket: {why}{TAKES_A_RESTART}");
            Err(Failure::new(ExitCode::Failure, message))
        })
    }

    /// A program is attached to an interface with rights that nobody has any more.
    fn refuse_other_programs(&self, config: &Config) -> Result<(), Failure> {
        let own = || self.config.listeners.iter().filter(|listener| listener.is_past_the_stack());
        let is_new = |next: &&ListenerConfig| !own().any(|own| bypass::wanted(own) == bypass::wanted(next));
        let next = config.listeners.iter().filter(|listener| listener.is_past_the_stack()).find(is_new);
        next.map_or(Ok(()), |listener| {
            let name = &listener.name;
            let message = format!(
                "listener {name}: udpd has given up the rights to put another XDP program at an interface, for another \
                 interface, port or xdp_mode{TAKES_A_RESTART}"
            );
            Err(Failure::new(ExitCode::Configuration, message))
        })
    }

    fn consumers_of(&self, sink: usize) -> Vec<&KeptConsumer> {
        self.consumers.iter().filter(|consumer| consumer.sink == sink).collect()
    }
}

impl Making<'_> {
    fn make(self, mut claims: Claims) -> Result<Heir, Failure> {
        let Self { config, plan, registry, before, .. } = self;
        let threads = LaneThread::spawn_all(LaneSetup::all_after(&before.config, config, plan), &claims, registry)?;
        let ledgers: Vec<Arc<LaneLedger>> =
            threads.iter().map(|thread| ledger_of(thread, config.sinks.len())).collect();
        let stocks = Stocks::make(&plan.pool, registry)?;
        let mut outlets: Vec<Vec<Outlet>> = threads.iter().map(|_| Vec::new()).collect();
        let files = Files::beside(&before.files);
        let (sinks, opened) = self.open_sinks(&threads, &stocks, &mut outlets, &files)?;
        let (consumers, mut pinned) = spawn_consumers(opened.pending, registry)?;
        pinned.extend(threads.iter().map(pinned_receiver));
        let setups: Vec<&LaneSetup> = threads.iter().map(|thread| &thread.setup).collect();
        sort(&mut outlets, &setups);
        let (own, tables) = (with_sockets(&threads), Tables::make(threads.iter().map(|thread| &thread.setup))?);
        before.turn.take()?;
        let arrivals = bind::count_arrivals(&own);
        let filters = tables.filters(own.iter().zip(arrivals.iter().map(Option::as_ref)))?;
        let followers = following::spawn_all(&threads, plan, &mut pinned, registry)?;
        let endpoints = bind::open(&own, arrivals, &claims).inspect_err(|_| {
            followers.iter().for_each(Follower::end);
            before.books.count_in_vain(&claims.closed);
        })?;
        let addresses = addresses(&threads, &endpoints);
        let (started, host) = (before.books.started, Arc::clone(&before.books.host));
        let books = Arc::new(open_books(config, &threads, endpoints, &ledgers, sinks, started, host));
        let stop = Arc::new(Stop::default());
        let leavings = std::mem::take(&mut claims.surplus);
        let parts = outlets.into_iter().zip(ledgers).zip(leavings);
        let start = |((outlets, ledger), leavings): ((_, Arc<LaneLedger>), _)| Start {
            outlets,
            ledger,
            stop: Arc::clone(&stop),
            successor: Arc::default(),
            is_kept: Arc::new(AtomicBool::new(false)),
            leavings,
        };
        let lanes = threads.into_iter().zip(parts.map(start)).zip(addresses);
        let lanes = lanes.map(|((thread, start), address)| (thread, start, address)).collect();
        Ok(Heir {
            config: Arc::clone(config),
            plan: Arc::clone(plan),
            books,
            lanes,
            kept: self.kept,
            follows_itself: self.follows_itself,
            shifts: opened.shifts,
            consumers,
            admissions: opened.admissions,
            is_in_force: self.is_in_force,
            followers,
            pinned,
            files,
            stop,
            block_backings: stocks.backings,
            tables,
            filters,
        })
    }

    /// Opens the sinks that are new or changed, and makes new channels to those that stay.
    fn open_sinks(
        &self,
        threads: &[LaneThread],
        stocks: &Stocks,
        outlets: &mut [Vec<Outlet>],
        files: &Files,
    ) -> Result<(Vec<super::books::SinkBooks>, Consumers), Failure> {
        let Self { config, plan, registry, before, .. } = self;
        let homes: Arc<[Arc<Home>]> = threads.iter().map(|thread| thread.made.home.clone()).collect();
        let scenes = wiring::scenes(config, plan);
        let listeners: Vec<String> = config.listeners.iter().map(|listener| listener.name.clone()).collect();
        let place_now = |listener: &ListenerConfig| listeners.iter().position(|name| *name == listener.name);
        let places: Arc<[Option<usize>]> = before.config.listeners.iter().map(place_now).collect();
        let transfer: Arc<Mutex<()>> = before.chronicle.transfer();
        let mut opened = Consumers::default();
        let mut books = Vec::with_capacity(config.sinks.len());
        for (sink, kept) in self.kept.iter().enumerate() {
            let kept = kept.map(|own| {
                files.keep(&config.sinks[sink].name, &before.files);
                KeptSink {
                    consumers: before.consumers_of(own),
                    files: before.books.sinks[own].files.clone(),
                    destinations: before.books.sinks[own].destinations.clone(),
                    listeners: Arc::clone(&places),
                    transfer: Arc::clone(&transfer),
                }
            });
            let (homes, scenes, listeners) = (&homes, &scenes, &listeners);
            let (has_predecessor, is_in_force) = (self.takes_place[sink], Arc::clone(&self.is_in_force));
            let context = &OpenContext { is_in_force, has_predecessor };
            let wiring = Wiring { config, plan, sink, homes, stocks, scenes, listeners, registry, kept, context };
            books.push(wiring.open(outlets, &mut opened, files)?);
        }
        Ok((books, opened))
    }
}

#[cfg(test)]
#[path = "heir_tests.rs"]
mod tests;
