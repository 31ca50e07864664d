//! One sink's part of the pipeline: its channels, its consumers, and which lane feeds which.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::consumer::{Consumer, ConsumerEnd};
use super::consumer_handoff::{ConsumerHandoff, HandoffState};
use super::outlet::{InlineSink, Outlet};
use super::running::{ConsumerThread, Pinned};
use super::start_gate::{AliveToken, EndSignal, StartGate, StartPermit, end_signal};
use super::{block_pools::BlockPools, lane::thread_name, pipeline_ledger::SinkSection, sink_files::SinkFiles};
use crate::config::Config;
use crate::plan::{LanePlan, PipelinePlan};
use udpd_base::exit::Failure;
use udpd_base::format::Scene;
use udpd_base::handover::Caller;
use udpd_base::handover::channel::ConsumerInbox;
use udpd_base::handover::pool::Blocks;
use udpd_base::handover::pool::{Home, Homes};
use udpd_base::handover::route::SinkRoute;
use udpd_base::ledger::{DestinationLedger, FileLedger, PeerLedger};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, DaemonEvent, StartingThread, ThreadRegistry};
use udpd_base::sink::settings::Opening;
use udpd_base::sink::{ConsumerFeeders, OpenContext};

pub(super) struct SinkWiring<'a> {
    pub config: &'a Config,
    pub plan: &'a PipelinePlan,
    pub sink: usize,
    pub homes: &'a Arc<[Arc<Home>]>,
    pub block_pools: &'a BlockPools,
    pub scenes: &'a Arc<[Scene]>,
    pub listeners: &'a [String],
    pub registry: &'a ThreadRegistry,
    /// The sink of the current pipeline that it goes on with, where it is retained.
    pub retained: Option<RetainedSink<'a>>,
    pub context: &'a OpenContext,
}

#[derive(Debug)]
pub(super) struct PendingConsumer {
    sink: usize,
    name: String,
    /// Where it may run; anywhere, when there are none.
    cores: Vec<usize>,
    roles: Vec<ThreadRole>,
    caller: Caller,
    consumer: Consumer,
    gate: StartGate,
}

/// A sink that the current pipeline has open, and that stays as it is.
pub(super) struct RetainedSink<'a> {
    /// By number.
    pub consumers: Vec<&'a RetainedConsumer>,
    pub files: Vec<Arc<FileLedger>>,
    pub destinations: Vec<Arc<DestinationLedger>>,
    pub peers: Vec<Arc<PeerLedger>>,
    /// Where the listeners of the current pipeline are in the next one.
    pub listeners: Arc<[Option<usize>]>,
    pub transfer: Arc<Mutex<()>>,
}

/// What a replacement has to know of a consumer to feed it.
#[derive(Debug)]
pub(super) struct RetainedConsumer {
    /// The index of its sink in the current pipeline.
    pub sink: usize,
    pub caller: Caller,
    pub handoff: Arc<ConsumerHandoff>,
    pub ended: EndSignal,
}

/// The consumers of all sinks, before any of them begins.
#[derive(Debug, Default)]
pub(super) struct OpenedConsumers {
    pub pending: Vec<PendingConsumer>,
    /// What the retained consumers go on with.
    pub handoffs: Vec<(Arc<ConsumerHandoff>, HandoffState)>,
    /// For the consumers that take the place of others.
    pub permits: Vec<StartPermit>,
}

/// What the sinks have to know of each lane.
pub(super) fn scenes(config: &Config, plan: &PipelinePlan) -> Arc<[Scene]> {
    let scene = |plan: &LanePlan| Scene {
        listener: config.listeners[plan.listener].name.clone(),
        lane: plan.number,
        address: plan.address,
        has_time_of_batch: !plan.has_socket(),
    };
    plan.lanes.iter().map(scene).collect()
}

impl SinkWiring<'_> {
    /// Makes the channels and consumers of this sink and routes the lanes to them. One that runs inline gets into the
    /// lanes themselves.
    pub(super) fn open(
        &self,
        outlets: &mut [Vec<Outlet>],
        opened: &mut OpenedConsumers,
        files: &SinkFiles,
    ) -> Result<SinkSection, Failure> {
        let sink = &self.config.sinks[self.sink];
        let consumers = self.plan.sinks[self.sink].consumers;
        let mut section = SinkSection::new(sink.name.clone(), self.plan.pool.block_bytes);
        if sink.inline {
            self.open_inline(&mut section, outlets)?;
            return Ok(section);
        }
        let mut shared = None;
        for (number, channel) in self.inboxes(consumers, outlets).into_iter().enumerate() {
            let blocks = self.block_pools.of_queue(self.sink, number);
            section.channels.push(channel.closer());
            section.queues.extend(Blocks::gauge(blocks));
            let (feeds, listeners) = self.feeders(number, outlets.len());
            let (ledger, tallies, residence) = section.add_consumer(listeners);
            let tallies = tallies.published_in(&ledger);
            let homes = Homes::new(Arc::clone(self.homes), blocks.to_vec());
            if let Some(retained) = &self.retained {
                let (sink, scenes) = (sink.name.clone(), Arc::clone(self.scenes));
                let feeders = ConsumerFeeders { sink, consumer: number, scenes, feeds };
                let (listeners, transfer) = (Arc::clone(&retained.listeners), Arc::clone(&retained.transfer));
                let state = HandoffState { channel, homes, ledger, tallies, residence, feeders, listeners, transfer };
                opened.handoffs.push((Arc::clone(&retained.consumers[number].handoff), state));
                continue;
            }
            let caller = channel.caller();
            let open = self.opening(number, consumers, &feeds, &caller, &mut shared);
            let own = sink.settings.open(open)?;
            section.files.extend(own.files);
            section.destinations.extend(own.destinations);
            section.peers.extend(own.peers);
            let consumer =
                Consumer { channel, sink: own.sink, homes, ledger, tallies, residence, handoff: Arc::default() };
            let gate = self.gate(opened);
            opened.pending.push(PendingConsumer {
                sink: self.sink,
                name: thread_name("sink", number, &sink.name),
                cores: self.plan.cores_of_consumer(&feeds),
                roles: sink.settings.needs().roles,
                caller,
                consumer,
                gate,
            });
        }
        if let Some(retained) = &self.retained {
            section.files.clone_from(&retained.files);
            section.destinations.clone_from(&retained.destinations);
            section.peers.clone_from(&retained.peers);
        }
        if let Some(keeper) = shared.and_then(|shared| shared.downcast().ok()) {
            files.start(&sink.name, *keeper, self.registry, &self.plan.consumer_cores)?;
        }
        Ok(section)
    }

    /// Opens the sink once for each lane that feeds it.
    fn open_inline(&self, section: &mut SinkSection, outlets: &mut [Vec<Outlet>]) -> Result<(), Failure> {
        let sink = &self.config.sinks[self.sink];
        let feeders = &self.plan.sinks[self.sink].feeders;
        section.is_inline = true;
        for feeder in feeders {
            let feeds: Vec<bool> = (0..outlets.len()).map(|lane| lane == feeder.lane).collect();
            // No thread sleeps there, so the caller of an empty channel serves.
            let (caller, mut shared) = (ConsumerInbox::default().caller(), None);
            let open = self.opening(feeder.consumer, feeders.len(), &feeds, &caller, &mut shared);
            let own = sink.settings.open(open)?;
            let (ledger, tallies, residence) = section.add_consumer(feeder.listener..feeder.listener + 1);
            section.destinations.extend(own.destinations);
            let (index, roles, sink) = (self.sink, sink.settings.needs().roles, own.sink);
            let inline = InlineSink { index, roles, sink, ledger, tallies, residence };
            outlets[feeder.lane].push(Outlet::Inline(Box::new(inline)));
        }
        Ok(())
    }

    /// What the settings of the sink need to open it for one consumer.
    fn opening<'o>(
        &'o self,
        consumer: usize,
        consumers: usize,
        feeds: &'o [bool],
        caller: &'o Caller,
        shared: &'o mut Option<Box<dyn Any + Send>>,
    ) -> Opening<'o> {
        let sink = &self.config.sinks[self.sink];
        Opening {
            sink: &sink.name,
            consumer,
            consumers,
            when_full: sink.when_full,
            scenes: self.scenes,
            feeds,
            listeners: self.listeners,
            registry: self.registry,
            caller,
            shared,
            is_inline: sink.inline,
            context: self.context,
        }
    }

    /// The channels of this sink, with a way in for each lane that feeds it.
    fn inboxes(&self, count: usize, outlets: &mut [Vec<Outlet>]) -> Vec<ConsumerInbox> {
        let inbox = |number: usize| match &self.retained {
            Some(retained) => ConsumerInbox::replacement(&retained.consumers[number].caller),
            None => ConsumerInbox::default(),
        };
        let mut inboxes: Vec<ConsumerInbox> = (0..count).map(inbox).collect();
        let when_full = self.config.sinks[self.sink].when_full;
        for lane in &self.plan.sinks[self.sink].feeders {
            let plan = &self.plan.lanes[lane.lane];
            let blocks = &self.block_pools.of_queue(self.sink, lane.consumer)[plan.node_place];
            let way = inboxes[lane.consumer].attach(plan.batches + blocks.count_max());
            let lent_max = self.plan.pool.queues[self.sink][lane.consumer].lent_max(plan);
            let route = SinkRoute::new(way, when_full, self.sink, blocks.clone(), lent_max);
            outlets[lane.lane].push(Outlet::Channel(route));
        }
        inboxes
    }

    fn gate(&self, opened: &mut OpenedConsumers) -> StartGate {
        if !self.context.has_predecessor {
            return StartGate::open();
        }
        let (gate, permit) = StartGate::closed(self.sink);
        opened.permits.push(permit);
        gate
    }

    /// Which of all lanes feed a consumer, and the range of indexes that covers their listeners.
    fn feeders(&self, consumer: usize, lanes: usize) -> (Vec<bool>, Range<usize>) {
        let feeders = self.plan.sinks[self.sink].feeders.iter().filter(|feeder| feeder.consumer == consumer);
        let mut feeds = vec![false; lanes];
        feeders.clone().for_each(|feeder| feeds[feeder.lane] = true);
        let own = feeders.map(|feeder| feeder.listener);
        (feeds, own.clone().min().unwrap_or(0)..own.max().map_or(0, |last| last + 1))
    }
}

/// Starts the consumers, all of them before the first is waited for. Returns which were pinned to cores as well.
pub(super) fn spawn_consumers(
    pending: Vec<PendingConsumer>,
    registry: &ThreadRegistry,
) -> Result<(Vec<ConsumerThread>, Vec<Pinned>), Failure> {
    let begin = |pending: PendingConsumer| {
        let (sink, caller, handoff) = (pending.sink, pending.caller.clone(), Arc::clone(&pending.consumer.handoff));
        let (has_begun, (alive, ended)) = (pending.gate.has_begun(), end_signal());
        let (starting, pinned) = spawn_consumer(pending, alive, registry)?;
        let own = pinned.clone();
        let running = move |thread| ConsumerThread { sink, caller, handoff, pinned: own, ended, has_begun, thread };
        Ok((starting, running, pinned))
    };
    let starting: Vec<_> = pending.into_iter().map(begin).collect::<Result<_, Failure>>()?;
    Ok(starting.into_iter().map(|(starting, running, pinned)| (running(starting.wait()), pinned)).unzip())
}

fn spawn_consumer(
    pending: PendingConsumer,
    alive: AliveToken,
    registry: &ThreadRegistry,
) -> Result<(StartingThread<()>, Pinned), Failure> {
    let PendingConsumer { name, cores, roles, mut consumer, gate, .. } = pending;
    let (reporter, thread_name) = (registry.clone(), name.clone());
    let is_pinned = Arc::new(AtomicBool::new(false));
    let (own_cores, own_is_pinned) = (cores.clone(), Arc::clone(&is_pinned));
    let body = move || {
        if !own_cores.is_empty() {
            match steer::confine_current_thread(&own_cores) {
                Ok(()) => own_is_pinned.store(true, Ordering::Relaxed),
                Err(error) => {
                    let cores = steer::format_core_list(&own_cores);
                    log::warn!("{name}: cannot run on the cores {cores} only: {error}");
                }
            }
        }
        threads::enter_sandbox();
        gate.pass(|| consumer.sink.begin());
        let end = consumer.run(|why| reporter.report(DaemonEvent::SinkClosed(why.to_owned())));
        // Others that wait for its end may now write what it wrote.
        drop(alive);
        if let ConsumerEnd::Closed(why) = end {
            log::debug!("{name} has ended: {why}");
        }
    };
    let starting = registry
        .spawn_one_of_many(thread_name.clone(), roles, body)
        .map_err(|error| threads::start_failure(&format!("consumer {thread_name}"), &error))?;
    let name = format!("the consumer {thread_name}");
    let pinned = Pinned { name, thread: starting.handle(), cores, is_pinned, lane: None };
    Ok((starting, pinned))
}
