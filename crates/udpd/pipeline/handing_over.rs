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

use super::ending::{Ending, LastConsumer};
use super::follower::Follower;
use super::heir::{self, Heir};
use super::kept::TAKES_A_RESTART;
use super::lane::{LaneThread, Start};
use super::running::{ConsumerThread, Lane, Pinned, Pipeline};
use super::socket;
use super::start::begin;
use crate::config::Config;
use crate::exit::{ExitCode, Failure};
use crate::os::crew;
use crate::plan::Plan;

/// How often the end of the receivers is looked for.
const END_POLL: Duration = Duration::from_micros(200);

/// So many pipelines that have yet to hand on what they hold, and keep their memory, may be beside the one that
/// receives when another is made.
const UNFINISHED_MAX: usize = 2;

/// How long receivers may wait for consumers that take nothing, before they give up what they hold.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

fn last_consumer(config: &Config, plan: &Plan, ConsumerThread { sink, thread, .. }: ConsumerThread) -> LastConsumer {
    LastConsumer { sink: config.sinks[sink].name.clone(), writes: heir::writes(config, plan, sink), thread }
}

impl Pipeline {
    /// Closes the books of those before that have handed on everything: to be called once a second.
    pub fn look_at_those_before(&mut self) {
        for ending in std::mem::take(&mut self.before) {
            if ending.is_over() {
                ending.close(&self.chronicle);
            } else {
                self.before.push(ending);
            }
        }
    }

    /// Whether this pipeline can be taken the place of: every sink that has stayed counts in its books by now, and not
    /// too many of those before keep their memory. Waits for it as long as that.
    pub fn wait_for_those_before(&mut self, limit: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        let stays = |before: &[Ending]| before.iter().any(Ending::has_staying_sinks);
        let are_many = |before: &[Ending]| before.iter().filter(|one| !one.is_over()).count() >= UNFINISHED_MAX;
        while (stays(&self.before) || are_many(&self.before)) && Instant::now() < deadline {
            crew::at_rest(|| std::thread::sleep(END_POLL));
        }
        self.look_at_those_before();
        let message = if stays(&self.before) {
            format!(
                "a sink has not handed on yet what it took before the last reload, because its disk or its peer takes \
                 nothing; try again later{TAKES_A_RESTART}"
            )
        } else if are_many(&self.before) {
            let sinks: BTreeSet<&str> = self.before.iter().flat_map(Ending::sinks_that_finish).collect();
            format!(
                "{UNFINISHED_MAX} earlier reloads have not finished and keep their memory, because the disk or the \
                 peer of a sink that they took away takes nothing (sinks: {}); see to that and try again, or \
                 restart udpd: the service manager keeps the sockets",
                sinks.into_iter().collect::<Vec<_>>().join(", ")
            )
        } else {
            return Ok(());
        };
        Err(Failure::new(ExitCode::Failure, message))
    }

    /// Ends the receivers of this pipeline and begins those of its heir.
    pub fn hand_over_to(mut self, heir: Heir) -> Self {
        let begun = Instant::now();
        let Heir { config, plan, books, mut lanes, kept, shifts, consumers, followers, pinned, files, .. } = heir;
        let goes_on = |lane: &Lane| {
            let socket = lane.socket();
            lanes.iter().any(|(thread, start, _)| {
                Arc::ptr_eq(&thread.made.socket, &socket)
                    || start.leavings.iter().any(|left| Arc::ptr_eq(left, &socket))
            })
        };
        self.lanes.iter().for_each(|lane| lane.is_kept.store(goes_on(lane), Ordering::Relaxed));
        shifts.into_iter().for_each(|(relief, shift)| relief.leave(shift));
        let receivers_ended_well = self.end_receivers();
        self.pass_sockets_on(&mut lanes);
        let mut was = std::mem::take(&mut self.consumers);
        let staying: Vec<usize> = kept.iter().flatten().copied().collect();
        staying.iter().for_each(|&sink| self.books.sinks[sink].is_handed_on.store(true, Ordering::Relaxed));
        self.chronicle.turn_over(Arc::clone(&books));
        books.host.look_at_ports(lanes.iter().map(|(_, _, address)| address.port()));
        let lanes = lanes.into_iter().map(|(thread, start, address)| begin(thread, start, address)).collect();
        log::info!("the new receivers began {:.1} ms after the last ones", begun.elapsed().as_secs_f64() * 1000.0);
        let receivers_ended_well = self.close_lanes(true, false) && receivers_ended_well;
        self.followers.iter().for_each(Follower::end);
        self.files.become_those_of(&files);
        let (stay, go): (Vec<ConsumerThread>, Vec<_>) =
            was.drain(..).partition(|consumer| staying.contains(&consumer.sink));
        let followed = self.followers.drain(..).map(|follower| follower.thread);
        let ending = Ending {
            books: std::mem::replace(&mut self.books, books),
            consumers: go.into_iter().map(|consumer| last_consumer(&self.config, &self.plan, consumer)).collect(),
            followers: followed.collect(),
            staying: stay.iter().map(|consumer| Arc::clone(&consumer.relief)).collect(),
            receivers_ended_well,
        };
        self.before.push(ending);
        let now = |sink: usize| kept.iter().position(|kept| *kept == Some(sink)).expect("it stays");
        let stay: Vec<ConsumerThread> =
            stay.into_iter().map(|consumer| ConsumerThread { sink: now(consumer.sink), ..consumer }).collect();
        let pinned: Vec<Pinned> = stay.iter().map(|consumer| consumer.pinned.clone()).chain(pinned).collect();
        let (stop, block_backings) = (heir.stop, heir.block_backings);
        let consumers = stay.into_iter().chain(consumers).collect();
        Self { config, plan, lanes, consumers, followers, pinned, stop, block_backings, ..self }
    }

    /// Each drop at a socket is counted in one ledger, and each socket has the options of its next lane.
    fn pass_sockets_on(&self, lanes: &mut [(LaneThread, Start, SocketAddr)]) {
        for (thread, start, _) in lanes {
            let before = self.lanes.iter().find(|lane| Arc::ptr_eq(&lane.socket(), &thread.made.socket));
            let Some(before) = before else { continue };
            before.ledger.hand_on(&start.ledger);
            match socket::change(&thread.setup, &thread.made.socket) {
                Ok(buffer) => thread.made.buffer = buffer,
                Err(failure) => log::error!("{}: it goes on with an option of before: {failure}", thread.setup),
            }
        }
    }

    /// Has every receiver deliver what it holds and end; whether all did.
    fn end_receivers(&self) -> bool {
        self.refuse_arrivals();
        self.stop.requested.store(true, Ordering::Relaxed);
        self.wake_receivers();
        let deadline = Instant::now() + HAND_OVER_LIMIT;
        let wait_until = |deadline| {
            while !self.receivers_have_ended() && Instant::now() < deadline {
                crew::at_rest(|| std::thread::sleep(END_POLL));
            }
        };
        wait_until(deadline);
        if !self.receivers_have_ended() {
            log::error!(
                "a receiver has waited {} s for a sink that takes nothing; it gives up what it holds, which counts as \
                 sink_error",
                HAND_OVER_LIMIT.as_secs()
            );
            self.stop.give_up.store(true, Ordering::Relaxed);
            wait_until(deadline + HAND_OVER_LIMIT);
        }
        self.receivers_have_ended()
    }
}
