//! The end of a pipeline: in bounded time, whatever the kernel denies, and with a ledger that is true. The module says
//! in which order, and why sockets that survive are treated otherwise.
//!
//! A receiver that cannot be woken holds nothing while it sleeps in the kernel, so it is left there. After the
//! receivers each socket is taken out of the kernel's search, and whatever is still in it is counted here. Where even
//! that fails the number is unknown: the lane is marked, and its sums are null and not a guess.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::draining::{DrainingPipeline, has_ended_well};
use super::running::{Lane, Pipeline};
use super::{discarded_sockets::count_out, kernel_filters, sequence_followers::SequenceFollower};
use udpd_base::ledger::Snapshot;
use udpd_base::seams::clock;
use udpd_sandbox::privilege_helper;

const CHECK_EVERY: Duration = Duration::from_millis(2);

/// How long a receiver may take that cannot be woken, because something may still arrive that wakes it.
const UNWAKEABLE_LIMIT: Duration = Duration::from_millis(250);

/// How long receivers may take once they need not wait for consumers any more, and consumers then for the rest.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(1);

impl Pipeline {
    /// Receives nothing more, delivers what is there, closes the ledger. Waits for a sink that takes nothing until
    /// `limit` has passed or `hurry` says so; what it has not taken then is counted as its failure.
    pub fn stop(mut self, limit: Duration, hurry: impl Fn(Duration) -> bool) -> Snapshot {
        let mut patience = Patience { deadline: clock::now() + limit, hurry, is_over: false };
        let all_are_woken = self.end_threads(&mut patience);
        let receivers_ended_well = self.close_lanes(all_are_woken, true);
        self.followers.iter().for_each(SequenceFollower::end);
        let followers_have_ended = || self.followers.iter().all(|follower| follower.thread.is_finished());
        patience.wait(followers_have_ended);
        wait_until(clock::now() + GIVE_UP_LIMIT, followers_have_ended);
        let consumers = self.consumers.into_iter().map(|consumer| consumer.thread);
        let mut others = self.followers.into_iter().map(|follower| follower.thread).chain(consumers);
        let all_ended_well = others.all(has_ended_well) && receivers_ended_well;
        self.draining.into_iter().for_each(|earlier| earlier.close(&self.cumulative_ledger));
        self.files.end_compression();
        // A receiver that could not be woken may have handed on more after the consumers had ended.
        self.cumulative_ledger.final_snapshot(all_ended_well && all_are_woken)
    }

    /// The beginning of [`Pipeline::stop`]: ends all threads and closes files and connections. The sockets that survive
    /// stay open, so that a replacement could go on with them. Returns whether every thread has ended.
    pub fn suspend(&self, limit: Duration, hurry: impl Fn(Duration) -> bool) -> bool {
        self.end_threads(&mut Patience { deadline: clock::now() + limit, hurry, is_over: false });
        // Each drop is in the ledger of one process.
        self.lanes.iter().filter(|lane| lane.socket_survives()).for_each(|lane| lane.ledger.leave());
        // The process that takes over attaches its own programs.
        self.xdp_programs.detach();
        self.receivers_have_ended() && self.consumers_have_ended()
    }

    /// Why its sockets could not be left to another process: a receiver that cannot be woken.
    pub fn why_it_cannot_suspend(&self) -> Option<String> {
        let running = self.lanes.iter().filter(|lane| !lane.receiver.is_finished());
        running.into_iter().find_map(|lane| Some(format!("{}: {}", lane.setup, lane.waker.as_ref().err()?)))
    }

    /// Ends receivers and consumers. Returns whether every receiver was woken.
    fn end_threads(&self, patience: &mut Patience<impl Fn(Duration) -> bool>) -> bool {
        if self.stop.requested.load(Ordering::Relaxed) {
            return self.receivers_have_ended();
        }
        // First, so that nothing comes to a ring that is read to its end.
        self.xdp_programs.let_pass();
        let surviving = self.lanes.iter().filter(|lane| lane.socket_survives());
        kernel_filters::take_away(surviving.filter_map(|lane| Some((&lane.setup, lane.socket()?))));
        self.refuse_arrivals();
        self.stop.requested.store(true, Ordering::Relaxed);
        let all_are_woken = self.wake_receivers();
        if !all_are_woken {
            let begun = clock::now();
            patience.wait(|| self.receivers_have_ended() || clock::since(begun) > UNWAKEABLE_LIMIT);
            self.own_ledger.end_channels();
        }
        patience.wait(|| (self.receivers_have_ended() || !all_are_woken) && self.consumers_have_ended());
        // A receiver that is blocked on a full channel gives up and drains; it needs a moment, not a consumer.
        let are_held_up = all_are_woken && !self.receivers_have_ended();
        self.stop.patience.gives_up.store(true, Ordering::Relaxed);
        if are_held_up {
            wait_until(clock::now() + GIVE_UP_LIMIT, || self.receivers_have_ended());
            // What it drains goes to sinks that do take something, too; cut off, they would leave half a record.
            wait_until(clock::now() + GIVE_UP_LIMIT, || self.consumers_have_ended());
        }
        // A sink that waits for its peer or for room on its disk closes what it has, so that the next start finds what
        // the ledger says.
        self.give_up_consumers();
        all_are_woken
    }

    /// Ends the consumers that wait for room on their disk. Others are left where they are: what they hold is counted
    /// as it is.
    fn give_up_consumers(&self) {
        let spills = |sink: usize| self.config.sinks[sink].settings.spill().is_some();
        let with_spill = || self.consumers.iter().filter(|consumer| spills(consumer.sink));
        with_spill().for_each(|consumer| consumer.pinned.thread.give_up());
        self.draining.iter().for_each(DrainingPipeline::give_up);
        wait_until(clock::now() + GIVE_UP_LIMIT, || with_spill().all(|consumer| consumer.thread.is_finished()));
    }

    pub(super) fn refuse_arrivals(&self) {
        for lane in self.lanes_to_close() {
            let Some(socket) = lane.socket() else { continue };
            if let Err(error) = socket.refuse_arrivals() {
                log::warn!(
                    "{}: cannot refuse further arrivals: {error}; the ledger ends with the last look at its \
                     socket",
                    lane.setup
                );
            }
            lane.ledger.note_refusing();
        }
        // Where this fails the receivers still look twice, a moment apart.
        self.wait_for_arrivals();
    }

    /// Waits for what the kernel still delivers to sockets that end with this process.
    fn wait_for_arrivals(&self) {
        if self.lanes_to_close().next().is_some()
            && let Err(error) = mmsg::wait_for_arrivals_under_way()
        {
            log::debug!("cannot wait for what the kernel still delivers: {error}");
        }
    }

    /// Wakes every receiver for its end. Returns whether that worked for all.
    pub(super) fn wake_receivers(&self) -> bool {
        let mut all = true;
        for lane in self.lanes.iter().filter(|lane| !lane.receiver.is_finished()) {
            let woken = match lane.socket().filter(|_| !lane.socket_survives()) {
                Some(socket) => socket.interrupt().map_err(|error| error.to_string()),
                None => lane.wake(),
            };
            if let Err(error) = woken {
                log::error!("{}: cannot wake its receiver: {error}; it ends with the process", lane.setup);
                all = false;
            }
        }
        all
    }

    /// A receiver that was about to sleep when it was woken has missed it, so each check wakes it once more.
    pub(super) fn receivers_have_ended(&self) -> bool {
        let mut all = true;
        for lane in self.lanes.iter().filter(|lane| !lane.receiver.is_finished()) {
            all = false;
            if lane.socket_survives() || !lane.setup.plan.has_socket() {
                // `wake_receivers` has logged where this fails.
                let _ = lane.wake();
            }
        }
        all
    }

    /// The lanes whose sockets end with this process.
    fn lanes_to_close(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| !lane.socket_survives())
    }

    fn consumers_have_ended(&self) -> bool {
        let earlier = self.draining.iter().flat_map(DrainingPipeline::threads);
        self.consumers.iter().map(|consumer| &consumer.thread).chain(earlier).all(JoinHandle::is_finished)
    }

    /// Takes the sockets out of the kernel's search, counts what is still in them, and lets the receivers go. Returns
    /// whether none of these has died.
    pub(super) fn close_lanes(&mut self, all_are_woken: bool, is_the_end: bool) -> bool {
        for lane in self.lanes_to_close() {
            // The kernel would count what it refuses from now on after our last look. So nothing more may reach the
            // socket: a sender is told that the port is closed. A socket on an interface may not be moved without
            // CAP_NET_RAW; it refuses on.
            let Some(socket) = lane.socket() else { continue };
            if let Err(error) = privilege_helper::withdraw(&socket) {
                log::debug!("{}: its socket stays in place until it is closed: {error}", lane.setup);
            }
        }
        self.wait_for_arrivals();
        let mut all_ended_well = true;
        for lane in self.lanes.drain(..) {
            if lane.socket_survives() && is_the_end {
                // From here on each drop is for the next process, however often this ledger is read.
                lane.ledger.leave();
                log_what_waits(&lane);
            } else if !lane.socket_survives() {
                count_rest(&lane);
            }
            if !is_the_end && (lane.socket_survives() || lane.receiver.is_finished()) {
                // This ledger may be open for longer than the socket: nothing arrives there any more, or the next lane
                // counts on.
                lane.ledger.close();
            }
            // A receiver that could not be woken sleeps in the kernel and holds nothing.
            let ended_well = if lane.receiver.is_finished() { lane.receiver.join().is_ok() } else { !all_are_woken };
            if !ended_well {
                // What it had received and not yet counted is gone with it.
                lane.ledger.note_uncountable();
                log::error!(
                    "{}: its receiver has died or does not end; what it holds is unknown, so \
                     arrived and residual are null",
                    lane.setup
                );
            }
            all_ended_well &= ended_well;
        }
        all_ended_well
    }
}

/// Waits for the end of threads, for as long as the operator and the limit allow in all.
struct Patience<H> {
    deadline: Instant,
    hurry: H,
    is_over: bool,
}

impl<H: Fn(Duration) -> bool> Patience<H> {
    fn wait(&mut self, is_done: impl Fn() -> bool) {
        while !self.is_over && !is_done() {
            self.is_over = (self.hurry)(CHECK_EVERY) || clock::now() >= self.deadline;
        }
    }
}

fn wait_until(deadline: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && clock::now() < deadline {
        clock::sleep(CHECK_EVERY);
    }
}

/// Logs what the next process begins with. In bytes, because the kernel counts nothing else of a queue.
fn log_what_waits(lane: &Lane) {
    let Some(socket) = lane.socket() else { return };
    match socket.memory_info() {
        Ok(memory) => log::info!(
            "{}: its socket is kept for the next process, with {} of {} bytes in use",
            lane.setup,
            memory.receive_used_bytes,
            memory.receive_buffer_bytes
        ),
        Err(_) => log::info!("{}: its socket is kept for the next process", lane.setup),
    }
}

/// Counts what the receiver has left in its socket.
fn count_rest(lane: &Lane) {
    let Some(socket) = lane.socket() else { return };
    // Bytes are all that the kernel counts of a queue; no bytes are no datagrams. To ask is cheaper than to look with a
    // batch, a thousand times.
    let is_empty = || socket.memory_info().is_ok_and(|memory| memory.receive_used_bytes == 0);
    if is_empty() {
        return;
    }
    let outcome = count_out(&socket, |datagrams| lane.ledger.count_unread(datagrams));
    let (setup, unread) = (&lane.setup, lane.ledger.read().dropped.unread);
    if unread > 0 {
        log::error!("{setup}: dropped {unread} datagrams that were left in its socket, counted as unread");
    }
    let Err(error) = outcome else { return };
    if !is_empty() {
        lane.ledger.note_uncountable();
        log::error!(
            "{setup}: cannot read what is left in its socket: {error}; their number is \
             unknown, so arrived and residual are null"
        );
    }
}
