//! Handing over: the receivers of one pipeline end, those of its heir begin on the same sockets, and nothing that has
//! arrived is lost or told twice.
//!
//! A receiver that is told to end delivers what it holds to its consumers and leaves what is in its socket to the next
//! one. A socket that nobody goes on with is closed as at the end of the daemon: it refuses, is read to its end, and is
//! counted out. The consumers of sinks that stay go over to the heir by themselves when they have taken everything of
//! before; those of the others finish meanwhile, however long their disk or their peer takes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ending::{self, Ending, LastConsumer, Staying};
use super::entry::{Admission, Ended};
use super::follower::Follower;
use super::heir::Heir;
use super::lane::{LaneThread, Start};
use super::running::{ConsumerThread, Lane, Pinned, Pipeline};
use super::socket;
use super::start::begin;
use super::writes::Writes;
use crate::config::Config;
use crate::plan::PipelinePlan;
use udpd_base::handover::route::FullPolicy;
use udpd_base::os::threads;

/// How often the end of the receivers is looked for.
const END_POLL: Duration = Duration::from_micros(200);

/// How long receivers may take to end. Those that wait for nothing need a moment, if there are cores for them.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

/// How long one may take that may wait for room, before it gives up what it holds: nobody receives meanwhile.
const WAIT_FOR_ROOM_LIMIT: Duration = Duration::from_millis(500);

/// Puts the consumers of sinks that stay where they are planned now.
fn move_consumers(consumers: &mut [ConsumerThread], plan: &PipelinePlan) {
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

fn last_consumer(config: &Config, plan: &PipelinePlan, consumer: ConsumerThread) -> LastConsumer {
    let ConsumerThread { sink, ended, thread, relief, pinned, .. } = consumer;
    let (name, writes) = (config.sinks[sink].name.clone(), Writes::of(config, plan, sink));
    LastConsumer { sink: name, writes, ended, known: pinned.thread, relief, thread }
}

fn staying_consumer(config: &Config, consumer: &ConsumerThread) -> Staying {
    Staying {
        sink: config.sinks[consumer.sink].name.clone(),
        relief: Arc::clone(&consumer.relief),
        ended: consumer.ended.clone(),
        known: consumer.pinned.thread.clone(),
    }
}

impl Pipeline {
    /// Whether everything of those before is handed on and closed.
    pub fn is_alone(&self) -> bool {
        self.before.is_empty()
    }

    /// Closes the books of those before that have handed on everything: to be called once a second.
    pub fn look_at_those_before(&mut self) {
        for mut ending in std::mem::take(&mut self.before) {
            ending.forget_those_gone_over();
            if ending.is_over() {
                self.has_freed = true;
                ending.close(&self.chronicle);
            } else {
                self.before.push(ending);
            }
        }
    }

    /// Gives back what those before have freed: to be called once a second.
    pub fn give_back_memory(&mut self) {
        if std::mem::take(&mut self.has_freed) {
            mmsg::give_back_freed_memory();
        }
    }

    /// The sinks that wait for one of before to finish, because it writes the same file.
    pub fn sinks_that_wait(&self) -> BTreeSet<&str> {
        let waiting = self.consumers.iter().filter(|consumer| !consumer.has_begun.load(Ordering::Acquire));
        waiting.map(|consumer| self.config.sinks[consumer.sink].name.as_str()).collect()
    }

    /// The sinks that have yet to hand on what they took before the last reload, or an earlier one.
    pub fn sinks_of_before(&self) -> BTreeSet<&str> {
        self.before.iter().flat_map(Ending::sinks).collect()
    }

    /// Waits until every sink that has stayed counts in the books of this pipeline, and every sink has begun, and no
    /// longer than that.
    pub fn wait_for_those_before(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        ending::wait_for(&self.staying(), limit);
        while !(self.sinks_that_wait().is_empty() && self.sinks_of_before().is_empty()) && Instant::now() < deadline {
            threads::blocking(|| std::thread::sleep(END_POLL));
        }
        self.look_at_those_before();
    }

    /// Of sinks that have yet to go over to this pipeline.
    pub(super) fn staying(&self) -> Vec<Staying> {
        self.before.iter().flat_map(|ending| ending.staying.iter().cloned()).collect()
    }

    /// Ends the receivers of this pipeline and begins those of its heir. A receiver that waits for a sink gives up what
    /// it holds when it has done so for some seconds, or when `hurry` says so.
    pub fn hand_over_to(mut self, heir: Heir, hurry: impl Fn(Duration) -> bool) -> Self {
        let begun = Instant::now();
        // A consumer that has gone over is to go over again: it is nothing of earlier pipelines any more.
        self.look_at_those_before();
        let Heir { config, plan, books, mut lanes, kept, shifts, consumers, followers, pinned, files, .. } = heir;
        heir.is_in_force.store(true, Ordering::Release);
        let goes_on = |lane: &Lane| {
            let Some(socket) = lane.socket() else { return false };
            lanes.iter().any(|(thread, start, _)| {
                thread.made.socket.as_ref().is_some_and(|next| Arc::ptr_eq(next, &socket))
                    || start.leavings.iter().any(|left| Arc::ptr_eq(left, &socket))
            })
        };
        self.lanes.iter().for_each(|lane| lane.is_kept.store(goes_on(lane), Ordering::Relaxed));
        shifts.into_iter().for_each(|(relief, shift)| relief.leave(shift));
        let receivers_ended_well = self.end_receivers(hurry);
        self.pass_sockets_on(&mut lanes);
        heir.filters.attach();
        let mut was = std::mem::take(&mut self.consumers);
        let staying: Vec<usize> = kept.iter().flatten().copied().collect();
        self.chronicle.turn_over(Arc::clone(&books), &staying);
        books.host.look_at_ports(lanes.iter().map(|(_, _, address)| address.port()));
        let lanes = self.begin_lanes(lanes, &config, begun);
        let receivers_ended_well = self.close_lanes(true, false) && receivers_ended_well;
        self.followers.iter().for_each(Follower::end);
        self.files.become_those_of(&files);
        let (stay, go): (Vec<ConsumerThread>, Vec<_>) =
            was.drain(..).partition(|consumer| staying.contains(&consumer.sink));
        let followed = self.followers.drain(..).map(|follower| follower.thread);
        let last = |consumer| last_consumer(&self.config, &self.plan, consumer);
        let ending = Ending {
            consumers: go.into_iter().map(last).collect(),
            books: std::mem::replace(&mut self.books, books),
            followers: followed.collect(),
            staying: stay.iter().map(|consumer| staying_consumer(&self.config, consumer)).collect(),
            receivers_ended_well,
            heirs: 0,
        };
        self.before.push(ending);
        self.before.iter_mut().for_each(|ending| ending.heirs += 1);
        self.admit(heir.admissions, |sink| {
            let own = heir.follows_itself[sink].then(|| config.sinks[sink].name.clone());
            (Writes::of(&config, &plan, sink), own)
        });
        let given_up = ending::give_up_old(&self.before);
        let now = |sink: usize| kept.iter().position(|kept| *kept == Some(sink)).expect("it stays");
        let mut stay: Vec<ConsumerThread> =
            stay.into_iter().map(|consumer| ConsumerThread { sink: now(consumer.sink), ..consumer }).collect();
        move_consumers(&mut stay, &plan);
        let pinned: Vec<Pinned> = stay.iter().map(|consumer| consumer.pinned.clone()).chain(pinned).collect();
        let (stop, block_backings, tables) = (heir.stop, heir.block_backings, heir.tables);
        let consumers = stay.into_iter().chain(consumers).collect();
        Self { config, plan, lanes, consumers, followers, pinned, stop, block_backings, tables, given_up, ..self }
    }

    /// Lets the consumers in that take the place of others, each when those have closed what it is to write, or those
    /// of the same sink have ended.
    fn admit(&self, admissions: Vec<Admission>, wanted: impl Fn(usize) -> (Writes, Option<String>)) {
        for admission in admissions {
            let (wanted, itself) = wanted(admission.sink);
            let last = self.before.iter().flat_map(|ending| &ending.consumers);
            let in_the_way = last.filter(|last| last.writes.overlap(&wanted) || itself.as_ref() == Some(&last.sink));
            let others: Vec<Ended> = in_the_way.map(|last| last.ended.clone()).collect();
            admission.after(others);
        }
    }

    /// Lets the lanes of an heir receive: first those that have sockets, which take everything until the queues have
    /// engines again.
    fn begin_lanes(&self, lanes: Vec<(LaneThread, Start, SocketAddr)>, config: &Config, since: Instant) -> Vec<Lane> {
        let mut begun: Vec<Option<Lane>> = lanes.iter().map(|_| None).collect();
        let has_socket = |(_, (thread, ..)): &(usize, (LaneThread, _, _))| thread.setup.plan.has_socket();
        let (of_sockets, of_queues): (Vec<_>, Vec<_>) = lanes.into_iter().enumerate().partition(has_socket);
        for (place, (thread, start, address)) in of_sockets {
            begun[place] = Some(begin(thread, start, address));
        }
        log::info!("the new receivers began {:.1} ms after the last ones", since.elapsed().as_secs_f64() * 1000.0);
        self.bypasses.go_over(config);
        for (place, (mut thread, start, address)) in of_queues {
            if let Err(failure) = self.bypasses.open_again(&mut thread) {
                log::error!(
                    "{failure}; the sockets of the listener receive what comes to this queue, until udpd can make its \
                     engine anew"
                );
            }
            begun[place] = Some(begin(thread, start, address));
        }
        self.bypasses.begin();
        begun.into_iter().flatten().collect()
    }

    /// Each drop at a socket is counted in one ledger, and each socket has the options of its next lane.
    fn pass_sockets_on(&self, lanes: &mut [(LaneThread, Start, SocketAddr)]) {
        for (thread, start, _) in lanes {
            let Some(socket) = &thread.made.socket else { continue };
            let has_it = |lane: &&Lane| lane.socket().is_some_and(|own| Arc::ptr_eq(&own, socket));
            let Some(before) = self.lanes.iter().find(has_it) else { continue };
            before.ledger.hand_on(&start.ledger);
            match socket::change(&thread.setup, socket) {
                Ok(buffer) => thread.made.buffer = Some(buffer),
                Err(failure) => log::error!("{}: it goes on with an option of before: {failure}", thread.setup),
            }
        }
    }

    /// Has every receiver deliver what it holds and end; whether all did.
    fn end_receivers(&self, hurry: impl Fn(Duration) -> bool) -> bool {
        self.bypasses.let_pass();
        self.refuse_arrivals();
        self.stop.requested.store(true, Ordering::Relaxed);
        self.stop.patience.is_relieved.store(true, Ordering::Relaxed);
        self.wake_receivers();
        let begun = Instant::now();
        let may_wait = self.config.sinks.iter().any(|sink| sink.when_full == FullPolicy::Block);
        let deadline = begun + if may_wait { WAIT_FOR_ROOM_LIMIT } else { HAND_OVER_LIMIT };
        let mut is_over = false;
        while !is_over && !self.receivers_have_ended() {
            is_over = hurry(END_POLL) || Instant::now() >= deadline;
        }
        if !self.receivers_have_ended() {
            log::error!(
                "a receiver has waited {:.1} s for a sink that takes nothing; it gives up what it holds, which counts \
                 as sink_error",
                begun.elapsed().as_secs_f64()
            );
            self.stop.patience.gives_up.store(true, Ordering::Relaxed);
            let deadline = Instant::now() + HAND_OVER_LIMIT;
            while !self.receivers_have_ended() && Instant::now() < deadline {
                threads::blocking(|| std::thread::sleep(END_POLL));
            }
        }
        self.receivers_have_ended()
    }
}
