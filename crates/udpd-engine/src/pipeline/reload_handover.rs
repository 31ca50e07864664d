//! The handover of a reload: the receivers of the current pipeline end, those of its replacement begin on the same
//! sockets, and nothing that has arrived is lost or counted twice.
//!
//! A receiver that is told to end delivers what it holds to its consumers and leaves what is in its socket to the next
//! receiver. A socket that the replacement does not have is closed as at the end of the daemon: it refuses arrivals, is
//! read to its end, and what is left is counted. The consumers of retained sinks move to the replacement by themselves
//! when they have taken everything of the pipeline before. The others finish meanwhile, however long their disk or
//! their peer takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::build::{ReadyLane, ReadyPipeline, ReplacementPipeline};
use super::draining::{self, DrainingPipeline, ExclusiveOutputs, FinishingConsumer, MovingConsumer};
use super::running::{ConsumerThread, Lane, Pipeline};
use super::{sequence_followers::SequenceFollower, socket, start_gate::StartPermit};
use crate::config::{Config, SinkConfig};
use crate::plan::PipelinePlan;
use udpd_base::handover::route::FullPolicy;
use udpd_base::os::threads;
use udpd_base::seams::clock;

const CHECK_EVERY: Duration = Duration::from_micros(200);

/// How long receivers may take to end. Those that wait for nothing need a moment, if there are cores for them.
const RECEIVERS_END_WITHIN: Duration = Duration::from_secs(5);

/// How long a receiver may wait for room in a queue before it gives up what it holds: nothing is received meanwhile.
const ROOM_WITHIN: Duration = Duration::from_millis(500);

impl Pipeline {
    /// Whether everything of earlier pipelines is handed on, and their ledgers are closed.
    pub fn earlier_pipelines_are_closed(&self) -> bool {
        self.draining.is_empty()
    }

    /// Closes the ledgers of the pipelines that have drained: to be called once a second.
    pub fn close_drained(&mut self) {
        for mut earlier in std::mem::take(&mut self.draining) {
            earlier.forget_moved_consumers();
            if earlier.is_drained() {
                self.has_freed_memory = true;
                earlier.close(&self.cumulative_ledger);
            } else {
                self.draining.push(earlier);
            }
        }
    }

    /// Gives the memory of closed pipelines back to the kernel: to be called once a second.
    pub fn release_freed_memory(&mut self) {
        if std::mem::take(&mut self.has_freed_memory) {
            mmsg::give_back_freed_memory();
        }
    }

    /// The sinks that wait for an earlier sink to finish, because it writes the same file.
    pub fn waiting_sinks(&self) -> BTreeSet<&str> {
        let waiting = self.consumers.iter().filter(|consumer| !consumer.has_begun.load(Ordering::Acquire));
        waiting.map(|consumer| self.config.sinks[consumer.sink].name.as_str()).collect()
    }

    /// The sinks that have yet to hand on what they took before the last reload, or an earlier one.
    pub fn draining_sinks(&self) -> BTreeSet<&str> {
        self.draining.iter().flat_map(DrainingPipeline::sinks).collect()
    }

    /// Waits at most `limit` until every retained consumer counts in the ledger of this pipeline, and every sink has
    /// begun.
    pub fn wait_for_earlier_pipelines(&mut self, limit: Duration) {
        let deadline = clock::now() + limit;
        draining::wait_for(&self.moving_consumers(), limit);
        while !(self.waiting_sinks().is_empty() && self.draining_sinks().is_empty()) && clock::now() < deadline {
            threads::blocking(|| clock::sleep(CHECK_EVERY));
        }
        self.close_drained();
    }

    /// The consumers that have yet to move to this pipeline.
    pub(super) fn moving_consumers(&self) -> Vec<MovingConsumer> {
        self.draining.iter().flat_map(|earlier| earlier.moving.iter().cloned()).collect()
    }

    /// Ends the receivers of this pipeline and begins those of its replacement. A receiver that waits for a sink gives
    /// up what it holds when it has done so for some seconds, or when `hurry` says so.
    pub fn hand_over_to(mut self, replacement: ReplacementPipeline, hurry: impl Fn(Duration) -> bool) -> Self {
        let begun = clock::now();
        // A consumer that has moved is to move again: it is nothing of earlier pipelines any more.
        self.close_drained();
        let ReplacementPipeline { ready, retention } = replacement;
        let ReadyPipeline { config, plan, ledger, mut lanes, opened, consumers, followers, pinned, files, .. } = ready;
        ready.is_in_force.store(true, Ordering::Release);
        let goes_on = |lane: &Lane| {
            let Some(socket) = lane.socket() else { return false };
            lanes.iter().any(|next| {
                next.thread.made.socket.iter().chain(&next.start.sockets_to_drain).any(|own| Arc::ptr_eq(own, &socket))
            })
        };
        self.lanes.iter().for_each(|lane| lane.socket_survives.store(goes_on(lane), Ordering::Relaxed));
        opened.handoffs.into_iter().for_each(|(handoff, state)| handoff.offer(state));
        let receivers_ended = self.end_receivers(hurry);
        self.pass_sockets_on(&mut lanes);
        ready.filters.attach();
        let retained: Vec<usize> = retention.sinks.iter().flatten().copied().collect();
        self.cumulative_ledger.switch_to(Arc::clone(&ledger), &retained);
        ledger.host.look_at_ports(lanes.iter().map(|lane| lane.address.port()));
        let lanes = self.begin_lanes(lanes, &config, begun);
        let receivers_ended_well = self.close_lanes(true, false) && receivers_ended;
        self.followers.iter().for_each(SequenceFollower::end);
        self.files.replace_with(&files);
        let (moving, finishing): (Vec<ConsumerThread>, Vec<_>) =
            std::mem::take(&mut self.consumers).into_iter().partition(|consumer| retained.contains(&consumer.sink));
        let drains = DrainingPipeline {
            finishing: finishing.into_iter().map(|consumer| self.finishing_consumer(consumer)).collect(),
            moving: moving.iter().map(|consumer| self.moving_consumer(consumer)).collect(),
            ledger: std::mem::replace(&mut self.own_ledger, ledger),
            followers: self.followers.drain(..).map(|follower| follower.thread).collect(),
            receivers_ended_well,
            replacements: 0,
        };
        self.draining.push(drains);
        self.draining.iter_mut().for_each(|earlier| earlier.replacements += 1);
        self.grant_permits(opened.permits, &retention.follows_itself, &config, &plan);
        let abandoned_sinks = draining::abandon_old(&self.draining);
        let place_now = |sink| retention.sinks.iter().position(|own| *own == Some(sink)).expect("it is retained");
        let mut moved: Vec<ConsumerThread> =
            moving.into_iter().map(|own| ConsumerThread { sink: place_now(own.sink), ..own }).collect();
        pin_consumers(&mut moved, &plan);
        let pinned = moved.iter().map(|consumer| consumer.pinned.clone()).chain(pinned).collect();
        let consumers = moved.into_iter().chain(consumers).collect();
        let (stop, block_backings, tables) = (ready.stop, ready.block_backings, ready.tables);
        Self {
            config,
            plan,
            lanes,
            consumers,
            followers,
            pinned,
            stop,
            block_backings,
            tables,
            abandoned_sinks,
            ..self
        }
    }

    fn finishing_consumer(&self, consumer: ConsumerThread) -> FinishingConsumer {
        let ConsumerThread { sink, ended, thread, handoff, pinned, .. } = consumer;
        let outputs = ExclusiveOutputs::of(&self.config, &self.plan, sink);
        let SinkConfig { name, settings, .. } = &self.config.sinks[sink];
        let (sink, settings) = (name.clone(), Arc::clone(settings));
        FinishingConsumer { sink, settings, outputs, ended, handle: pinned.thread, handoff, thread }
    }

    fn moving_consumer(&self, consumer: &ConsumerThread) -> MovingConsumer {
        MovingConsumer {
            sink: self.config.sinks[consumer.sink].name.clone(),
            handoff: Arc::clone(&consumer.handoff),
            ended: consumer.ended.clone(),
            handle: consumer.pinned.thread.clone(),
        }
    }

    /// Lets the consumers begin that take the place of others, each when those have closed what it writes, or when
    /// those of the same sink have ended.
    fn grant_permits(&self, permits: Vec<StartPermit>, follows_itself: &[bool], config: &Config, plan: &PipelinePlan) {
        for permit in permits {
            let (wanted, name) = (ExclusiveOutputs::of(config, plan, permit.sink), &config.sinks[permit.sink].name);
            let is_in_the_way = |other: &&FinishingConsumer| {
                other.outputs.overlap(&wanted) || follows_itself[permit.sink] && other.sink == *name
            };
            let finishing = self.draining.iter().flat_map(|earlier| &earlier.finishing);
            let others = finishing.filter(is_in_the_way).map(|other| other.ended.clone()).collect();
            permit.grant(others);
        }
    }

    /// Lets the lanes of a replacement receive: first those that have sockets, which take everything until the XDP
    /// queues have engines again.
    fn begin_lanes(&self, lanes: Vec<ReadyLane>, config: &Config, since: Instant) -> Vec<Lane> {
        let (of_sockets, of_queues): (Vec<_>, Vec<_>) =
            lanes.into_iter().partition(|lane| lane.thread.setup.plan.has_socket());
        let mut begun: Vec<Lane> = of_sockets.into_iter().map(ReadyLane::begin).collect();
        log::info!("the new receivers began {:.1} ms after the last ones", clock::since(since).as_secs_f64() * 1000.0);
        self.xdp_programs.switch_to(config);
        for mut lane in of_queues {
            if let Err(failure) = self.xdp_programs.reopen_engine(&mut lane.thread) {
                log::error!(
                    "{failure}; the sockets of the listener receive what comes to this queue, until udpd can make its \
                     engine anew"
                );
            }
            begun.push(lane.begin());
        }
        self.xdp_programs.begin();
        begun.sort_by_key(|lane| lane.setup.index);
        begun
    }

    /// Moves the count of drops of each socket to its next lane, and gives the socket the options of that lane.
    fn pass_sockets_on(&self, lanes: &mut [ReadyLane]) {
        for ReadyLane { thread, start, .. } in lanes {
            let Some(socket) = &thread.made.socket else { continue };
            let has_it = |lane: &&Lane| lane.socket().is_some_and(|own| Arc::ptr_eq(&own, socket));
            let Some(before) = self.lanes.iter().find(has_it) else { continue };
            before.ledger.hand_on(&start.ledger);
            match socket::change(&thread.setup, socket) {
                Ok(buffer) => thread.made.buffer = Some(buffer),
                Err(failure) => {
                    log::error!("{}: its socket keeps an option of the earlier configuration: {failure}", thread.setup)
                }
            }
        }
    }

    /// Has every receiver deliver what it holds and end. Returns whether all did.
    fn end_receivers(&self, hurry: impl Fn(Duration) -> bool) -> bool {
        self.xdp_programs.let_pass();
        self.refuse_arrivals();
        self.stop.requested.store(true, Ordering::Relaxed);
        self.stop.patience.is_relieved.store(true, Ordering::Relaxed);
        self.wake_receivers();
        let begun = clock::now();
        let may_wait = self.config.sinks.iter().any(|sink| sink.when_full == FullPolicy::Block);
        let deadline = begun + if may_wait { ROOM_WITHIN } else { RECEIVERS_END_WITHIN };
        let mut is_over = false;
        while !is_over && !self.receivers_have_ended() {
            is_over = hurry(CHECK_EVERY) || clock::now() >= deadline;
        }
        if !self.receivers_have_ended() {
            log::error!(
                "a receiver has waited {:.1} s for a sink that takes nothing; it gives up what it holds, which counts \
                 as sink_error",
                clock::since(begun).as_secs_f64()
            );
            self.stop.patience.gives_up.store(true, Ordering::Relaxed);
            let deadline = clock::now() + RECEIVERS_END_WITHIN;
            while !self.receivers_have_ended() && clock::now() < deadline {
                threads::blocking(|| clock::sleep(CHECK_EVERY));
            }
        }
        self.receivers_have_ended()
    }
}

/// Moves the consumers of retained sinks to the cores that are planned now.
fn pin_consumers(consumers: &mut [ConsumerThread], plan: &PipelinePlan) {
    let mut numbers = vec![0; plan.sinks.len()];
    for consumer in consumers {
        let number = &mut numbers[consumer.sink];
        let mut lanes = vec![false; plan.lanes.len()];
        let own = plan.sinks[consumer.sink].feeders.iter().filter(|lane| lane.consumer == *number);
        own.for_each(|lane| lanes[lane.lane] = true);
        consumer.pinned.move_to(plan.cores_of_consumer(&lanes));
        *number += 1;
    }
}
