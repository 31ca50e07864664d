//! One sink's part of the pipeline: its channels, its consumers, and which lane feeds which.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::books::SinkBooks;
use super::consumer::{Consumer, End};
use super::entry::{self, Admission, Alive, Ended, Entry};
use super::files::Files;
use super::lane::thread_name;
use super::outlet::{InlineSink, Outlet};
use super::relief::{Relief, Shift};
use super::running::{ConsumerThread, Pinned};
use super::stay::Stays;
use super::stocks::Stocks;
use crate::config::Config;
use crate::plan::{LanePlan, PipelinePlan};
use udpd_base::exit::Failure;
use udpd_base::format::encoder::Scene;
use udpd_base::handover::Caller;
use udpd_base::handover::blocks::Blocks;
use udpd_base::handover::channel::ConsumerInbox;
use udpd_base::handover::pool::{Home, Homes};
use udpd_base::handover::route::SinkRoute;
use udpd_base::ledger::{ConsumerLedger, DestinationLedger, FileLedger, Tallies};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, StartingThread, ThreadRegistry};
use udpd_base::sink::settings::Opening;
use udpd_base::sink::{ConsumerFeeders, OpenContext};

/// One sink on its way to being open.
pub(super) struct Wiring<'a> {
    pub config: &'a Config,
    pub plan: &'a PipelinePlan,
    pub sink: usize,
    pub homes: &'a Arc<[Arc<Home>]>,
    pub stocks: &'a Stocks,
    pub scenes: &'a Arc<[Scene]>,
    /// The names of all listeners.
    pub listeners: &'a [String],
    pub registry: &'a ThreadRegistry,
    /// What it goes on with, if it does.
    pub kept: Option<KeptSink<'a>>,
    pub context: &'a OpenContext,
}

/// A consumer that waits for its thread.
pub(super) struct Pending {
    sink: usize,
    name: String,
    /// Where it may run; anywhere, when there are none.
    cores: Vec<usize>,
    roles: Vec<ThreadRole>,
    caller: Caller,
    consumer: Consumer,
    entry: Entry,
}

/// A sink that an earlier pipeline has open, and that stays as it is.
pub(super) struct KeptSink<'a> {
    /// By number.
    pub consumers: Vec<&'a KeptConsumer>,
    pub files: Vec<Arc<FileLedger>>,
    pub destinations: Vec<Arc<DestinationLedger>>,
    /// Where the listeners of before are now.
    pub listeners: Arc<[Option<usize>]>,
    pub transfer: Arc<Mutex<()>>,
}

/// A consumer of such a sink, as far as whoever feeds it has to know it.
#[derive(Debug)]
pub(super) struct KeptConsumer {
    /// The index of its sink of before.
    pub sink: usize,
    pub caller: Caller,
    pub relief: Arc<Relief>,
    pub ended: Ended,
}

/// The consumers of all sinks, before any of them begins.
#[derive(Default)]
pub(super) struct Consumers {
    pub pending: Vec<Pending>,
    /// What those go on with that run already.
    pub shifts: Vec<(Arc<Relief>, Shift)>,
    /// Let those in that take the place of others.
    pub admissions: Vec<Admission>,
}

/// Who receives, by lane.
pub(super) fn scenes(config: &Config, plan: &PipelinePlan) -> Arc<[Scene]> {
    let scene = |plan: &LanePlan| Scene {
        listener: config.listeners[plan.listener].name.clone(),
        lane: plan.number,
        address: plan.address,
        has_time_of_batch: !plan.has_socket(),
    };
    plan.lanes.iter().map(scene).collect()
}

impl Wiring<'_> {
    /// The channels of this sink, with a way in for each lane that feeds it.
    fn inboxes(&self, count: usize, outlets: &mut [Vec<Outlet>]) -> Vec<ConsumerInbox> {
        let kept = self.kept.as_ref();
        let inbox = |number: usize| {
            kept.map_or_else(ConsumerInbox::default, |kept| ConsumerInbox::heir(&kept.consumers[number].caller))
        };
        let mut inboxes: Vec<ConsumerInbox> = (0..count).map(inbox).collect();
        let when_full = self.config.sinks[self.sink].when_full;
        for lane in &self.plan.sinks[self.sink].feeders {
            let plan = &self.plan.lanes[lane.lane];
            let blocks = &self.stocks.of_queue(self.sink, lane.consumer)[plan.node_place];
            let way = inboxes[lane.consumer].attach(plan.batches + blocks.count_max());
            let lent_max = self.plan.pool.queues[self.sink][lane.consumer].lent_max(plan);
            let route = SinkRoute::new(way, when_full, self.sink, blocks.clone(), lent_max);
            outlets[lane.lane].push(Outlet::Channel(route));
        }
        inboxes
    }

    fn entry(&self, consumers: &mut Consumers) -> Entry {
        if !self.context.has_predecessor {
            return Entry::free();
        }
        let (entry, admission) = Entry::after_others(self.sink);
        consumers.admissions.push(admission);
        entry
    }

    /// Makes the channels and consumers of this sink and routes the lanes to them. One that runs inline gets into the
    /// lanes themselves.
    pub(super) fn open(
        &self,
        outlets: &mut [Vec<Outlet>],
        opened_consumers: &mut Consumers,
        files: &Files,
    ) -> Result<SinkBooks, Failure> {
        let sink = &self.config.sinks[self.sink];
        let count = &self.plan.sinks[self.sink].consumers;
        if sink.inline {
            return self.open_inline(outlets);
        }
        let kept = self.kept.as_ref();
        let inboxes = self.inboxes(*count, outlets);
        let mut books = SinkBooks::new(sink.name.clone(), self.plan.pool.block_bytes);
        let mut shared = None;
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let blocks = self.stocks.of_queue(self.sink, number);
            books.channels.push(inbox.closer());
            books.queues.extend(Blocks::gauge(blocks));
            let (lanes, own) = self.feeding(number, outlets.len());
            let ledger = Arc::new(ConsumerLedger::new(own.clone()));
            let residence = Arc::default();
            let homes = Homes::new(Arc::clone(self.homes), blocks.to_vec());
            let tallies = Tallies::new(own).published_in(&ledger);
            let stays = Stays::new(Arc::clone(&residence));
            books.consumers.push(Arc::clone(&ledger));
            books.residence.push(residence);
            if let Some(kept) = kept {
                let (sink, scenes) = (sink.name.clone(), Arc::clone(self.scenes));
                let feeders = ConsumerFeeders { sink, consumer: number, scenes, feeds: lanes };
                let (listeners, transfer) = (Arc::clone(&kept.listeners), Arc::clone(&kept.transfer));
                let shift = Shift { channel: inbox, homes, ledger, tallies, stays, feeders, listeners, transfer };
                opened_consumers.shifts.push((Arc::clone(&kept.consumers[number].relief), shift));
                continue;
            }
            let caller = inbox.caller();
            let opened = sink.settings.open(Opening {
                sink: &sink.name,
                consumer: number,
                consumers: *count,
                when_full: sink.when_full,
                scenes: self.scenes,
                feeds: &lanes,
                listeners: self.listeners,
                registry: self.registry,
                caller: &caller,
                shared: &mut shared,
                is_inline: false,
                context: self.context,
            })?;
            books.files.extend(opened.files);
            books.destinations.extend(opened.destinations);
            let (channel, sink_of, relief) = (inbox, opened.sink, Arc::default());
            let consumer = Consumer { channel, sink: sink_of, homes, ledger, tallies, stays, relief };
            let cores = self.plan.cores_of_consumer(&lanes);
            let roles = sink.settings.needs().roles;
            let name = thread_name("sink", number, &sink.name);
            let entry = self.entry(opened_consumers);
            opened_consumers.pending.push(Pending { sink: self.sink, name, cores, roles, caller, consumer, entry });
        }
        if let Some(kept) = kept {
            books.files.clone_from(&kept.files);
            books.destinations.clone_from(&kept.destinations);
        }
        if let Some(keeper) = shared.and_then(|shared| shared.downcast().ok()) {
            files.start(&sink.name, *keeper, self.registry, &self.plan.consumer_cores)?;
        }
        Ok(books)
    }
}

impl Wiring<'_> {
    /// Which of all lanes feed a consumer, and the listeners of those, with whatever lies between them.
    fn feeding(&self, consumer: usize, lanes: usize) -> (Vec<bool>, Range<usize>) {
        let feeders = self.plan.sinks[self.sink].feeders.iter().filter(|feeder| feeder.consumer == consumer);
        let mut feeds = vec![false; lanes];
        feeders.clone().for_each(|feeder| feeds[feeder.lane] = true);
        let own = feeders.map(|feeder| feeder.listener);
        (feeds, own.clone().min().unwrap_or(0)..own.max().map_or(0, |last| last + 1))
    }

    /// Opens the sink once for each lane that feeds it.
    fn open_inline(&self, outlets: &mut [Vec<Outlet>]) -> Result<SinkBooks, Failure> {
        let sink = &self.config.sinks[self.sink];
        let mut books = SinkBooks::new(sink.name.clone(), self.plan.pool.block_bytes);
        books.is_inline = true;
        for feeder in &self.plan.sinks[self.sink].feeders {
            let feeds: Vec<bool> = (0..outlets.len()).map(|lane| lane == feeder.lane).collect();
            let opened = sink.settings.open(Opening {
                sink: &sink.name,
                consumer: feeder.consumer,
                consumers: self.plan.sinks[self.sink].feeders.len(),
                when_full: sink.when_full,
                scenes: self.scenes,
                feeds: &feeds,
                listeners: self.listeners,
                registry: self.registry,
                // Nobody sleeps.
                caller: &ConsumerInbox::default().caller(),
                shared: &mut None,
                is_inline: true,
                context: self.context,
            })?;
            let own = feeder.listener..feeder.listener + 1;
            let (ledger, residence) = (Arc::new(ConsumerLedger::new(own.clone())), Arc::default());
            let (tallies, stays) = (Tallies::new(own), Stays::new(Arc::clone(&residence)));
            books.consumers.push(Arc::clone(&ledger));
            books.residence.push(residence);
            books.destinations.extend(opened.destinations);
            let (place, roles, sink) = (self.sink, sink.settings.needs().roles, opened.sink);
            let inline = InlineSink { place, roles, sink, ledger, tallies, stays };
            outlets[feeder.lane].push(Outlet::Inline(Box::new(inline)));
        }
        Ok(books)
    }
}

/// Starts the consumers, all of them before the first is waited for, and tells which were put on cores.
pub(super) fn spawn_consumers(
    pending: Vec<Pending>,
    registry: &ThreadRegistry,
) -> Result<(Vec<ConsumerThread>, Vec<Pinned>), Failure> {
    let begin = |pending: Pending| {
        let (sink, caller, relief) = (pending.sink, pending.caller.clone(), Arc::clone(&pending.consumer.relief));
        let (has_begun, (alive, ended)) = (pending.entry.begun(), entry::life());
        let (starting, pinned) = spawn_consumer(pending, alive, registry)?;
        let own = pinned.clone();
        let running = move |thread| ConsumerThread { sink, caller, relief, pinned: own, ended, has_begun, thread };
        Ok((starting, running, pinned))
    };
    let starting: Vec<_> = pending.into_iter().map(begin).collect::<Result<_, Failure>>()?;
    Ok(starting.into_iter().map(|(starting, running, pinned)| (running(starting.wait()), pinned)).unzip())
}

fn spawn_consumer(
    pending: Pending,
    alive: Alive,
    registry: &ThreadRegistry,
) -> Result<(StartingThread<()>, Pinned), Failure> {
    let Pending { name, cores, roles, mut consumer, entry, .. } = pending;
    let reporter = registry.clone();
    let subject = name.clone();
    let is_put = Arc::new(AtomicBool::new(false));
    let (own, put) = (cores.clone(), Arc::clone(&is_put));
    let body = move || {
        if !own.is_empty() {
            match steer::confine_current_thread(&own) {
                Ok(()) => put.store(true, Ordering::Relaxed),
                Err(error) => {
                    log::warn!("{name}: cannot run on the cores {} only: {error}", steer::format_core_list(&own));
                }
            }
        }
        threads::enter_sandbox();
        entry.begin(|| consumer.sink.begin());
        let end = consumer.run(|why| reporter.report(DaemonEvent::SinkClosed(why.to_owned())));
        // Whoever waits for its end may write now what it wrote.
        drop(alive);
        if let End::Closed(why) = end {
            log::debug!("{name} has ended: {why}");
        }
    };
    let starting = registry
        .spawn_one_of_many(subject.clone(), roles, body)
        .map_err(|error| threads::start_failure(&format!("consumer {subject}"), &error))?;
    let who = format!("the consumer {subject}");
    let pinned = Pinned { who, thread: starting.handle(), cores, is_put, lane: None };
    Ok((starting, pinned))
}
