//! The end of a pipeline: in bounded time, whatever the kernel denies, and with books that are true.
//!
//! It goes the way of a datagram. Arrivals are refused by a filter, so that the kernel counts them. Receivers are woken
//! and drain their sockets. A receiver that cannot be woken holds nothing while it sleeps in the kernel, so it is left
//! there. Then each socket is taken out of the kernel's search, and whatever is still in it is taken out and counted
//! here. Where even that fails nobody knows what was in it: the lane is marked, and its sums are null and not a guess.
//!
//! A socket that another process goes on with is left as it is: a filter and an end would stick to it. Its receiver is
//! woken by a signal, delivers what it holds and reads no more; what is in the socket waits for the next process.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ending::{Ending, has_ended_well};
use super::filters;
use super::follower::Follower;
use super::running::{Lane, Pipeline};
use super::sweep;
use udpd_base::ledger::Snapshot;
use udpd_sandbox::warden;

/// How often the end of the threads is looked for while stopping.
const END_POLL: Duration = Duration::from_millis(2);

/// How long a receiver may take that nobody can wake, because something may still arrive that does.
const DEAF_LIMIT: Duration = Duration::from_millis(250);

/// How long receivers may take once they need not wait for consumers any more, and consumers then for the rest.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(1);

impl Pipeline {
    /// Receives nothing more, delivers what is there, closes the books. A sink that takes nothing is waited for until
    /// `limit` has passed or `hurry` says so; what it has not taken then is counted as its failure.
    pub fn stop(mut self, limit: Duration, hurry: impl Fn(Duration) -> bool) -> Snapshot {
        let mut patience = Patience { deadline: Instant::now() + limit, hurry, is_over: false };
        let all_are_woken = self.end_threads(&mut patience);
        let receivers_ended_well = self.close_lanes(all_are_woken, true);
        self.followers.iter().for_each(Follower::end);
        let followers_have_ended = || self.followers.iter().all(|follower| follower.thread.is_finished());
        patience.wait(followers_have_ended);
        wait_until(Instant::now() + GIVE_UP_LIMIT, followers_have_ended);
        let consumers = self.consumers.into_iter().map(|consumer| consumer.thread);
        let mut others = self.followers.into_iter().map(|follower| follower.thread).chain(consumers);
        let all_ended_well = others.all(has_ended_well) && receivers_ended_well;
        self.before.into_iter().for_each(|ending| ending.close(&self.chronicle));
        self.files.end_compression();
        // A receiver that nobody could wake may have handed on more after the consumers had ended.
        self.chronicle.final_snapshot(all_ended_well && all_are_woken)
    }

    /// The beginning of [`Pipeline::stop`]: nobody receives and delivers any more, and files and connections are
    /// closed. What somebody goes on with is still open, so that an heir could go on as well. Returns whether every
    /// thread has ended.
    pub fn leave(&self, limit: Duration, hurry: impl Fn(Duration) -> bool) -> bool {
        self.end_threads(&mut Patience { deadline: Instant::now() + limit, hurry, is_over: false });
        // Each drop is in the books of one process.
        self.lanes.iter().filter(|lane| lane.is_kept()).for_each(|lane| lane.ledger.leave());
        // Whoever takes over puts its own there.
        self.bypasses.detach();
        self.receivers_have_ended() && self.consumers_have_ended()
    }

    /// Why it could not leave its sockets to somebody else: a receiver that cannot be woken.
    pub fn why_it_cannot_leave(&self) -> Option<String> {
        let running = self.lanes.iter().filter(|lane| !lane.receiver.is_finished());
        running.into_iter().find_map(|lane| Some(format!("{}: {}", lane.setup, lane.waker.as_ref().err()?)))
    }

    /// Ends receivers and consumers. Returns whether every receiver was woken.
    fn end_threads(&self, patience: &mut Patience<impl Fn(Duration) -> bool>) -> bool {
        if self.stop.requested.load(Ordering::Relaxed) {
            return self.receivers_have_ended();
        }
        // First, so that nothing comes to a ring that is read to its end.
        self.bypasses.let_pass();
        let kept = self.lanes.iter().filter(|lane| lane.is_kept());
        filters::take_away(kept.filter_map(|lane| Some((&lane.setup, lane.socket()?))));
        self.refuse_arrivals();
        self.stop.requested.store(true, Ordering::Relaxed);
        let all_are_woken = self.wake_receivers();
        if !all_are_woken {
            let begun = Instant::now();
            patience.wait(|| self.receivers_have_ended() || begun.elapsed() > DEAF_LIMIT);
            self.books.end_channels();
        }
        patience.wait(|| (self.receivers_have_ended() || !all_are_woken) && self.consumers_have_ended());
        // A receiver that is blocked on a full channel gives up and drains; it needs a moment, not a consumer.
        let are_held_up = all_are_woken && !self.receivers_have_ended();
        self.stop.patience.gives_up.store(true, Ordering::Relaxed);
        if are_held_up {
            wait_until(Instant::now() + GIVE_UP_LIMIT, || self.receivers_have_ended());
            // What it drains goes to sinks that do take something, too; cut off, they would leave half a record.
            wait_until(Instant::now() + GIVE_UP_LIMIT, || self.consumers_have_ended());
        }
        // A sink that waits for its peer or for room on its disk closes what it has, so that the next start finds what
        // the books say.
        self.give_up_consumers();
        all_are_woken
    }

    /// Has those end that wait for room on their disk. Others are left where they are: what they hold is counted as it
    /// is.
    fn give_up_consumers(&self) {
        let has_spill = |sink: usize| self.config.sinks[sink].settings.spill().is_some();
        let waiting = self.consumers.iter().filter(|consumer| has_spill(consumer.sink));
        waiting.for_each(|consumer| consumer.pinned.thread.give_up());
        self.before.iter().for_each(Ending::give_up);
        wait_until(Instant::now() + GIVE_UP_LIMIT, || {
            let mut waiting = self.consumers.iter().filter(|consumer| has_spill(consumer.sink));
            waiting.all(|consumer| consumer.thread.is_finished())
        });
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
        // Without it the receivers still look twice, a moment apart.
        if self.lanes_to_close().next().is_some()
            && let Err(error) = mmsg::wait_for_arrivals_under_way()
        {
            log::debug!("cannot wait for what the kernel still delivers: {error}");
        }
    }

    /// Whether every receiver hears that it is to end.
    pub(super) fn wake_receivers(&self) -> bool {
        let mut all = true;
        for lane in self.lanes.iter().filter(|lane| !lane.receiver.is_finished()) {
            let woken = match lane.socket().filter(|_| !lane.is_kept()) {
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

    /// A receiver that was about to sleep when it was woken has missed it, so each look wakes it once more.
    pub(super) fn receivers_have_ended(&self) -> bool {
        let mut all = true;
        for lane in self.lanes.iter().filter(|lane| !lane.receiver.is_finished()) {
            all = false;
            if lane.is_kept() || !lane.setup.plan.has_socket() {
                // The first time it was told where this fails.
                let _ = lane.wake();
            }
        }
        all
    }

    /// Those whose sockets end with this process.
    fn lanes_to_close(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| !lane.is_kept())
    }

    fn consumers_have_ended(&self) -> bool {
        let of_those_before = self.before.iter().flat_map(Ending::threads);
        self.consumers.iter().map(|consumer| &consumer.thread).chain(of_those_before).all(JoinHandle::is_finished)
    }

    /// Takes the sockets out of the kernel's search, counts what is still in them, and lets the receivers go. Returns
    /// whether none of these has died.
    pub(super) fn close_lanes(&mut self, all_are_woken: bool, is_the_end: bool) -> bool {
        for lane in self.lanes_to_close() {
            // What the kernel refuses from now on it would count after our last look. So nothing more may reach the
            // socket: a sender is told that nobody listens. A socket on an interface may not be moved without
            // CAP_NET_RAW; it refuses on.
            let Some(socket) = lane.socket() else { continue };
            if let Err(error) = warden::withdraw(&socket) {
                log::debug!("{}: its socket stays in place until it is closed: {error}", lane.setup);
            }
        }
        if self.lanes_to_close().next().is_some()
            && let Err(error) = mmsg::wait_for_arrivals_under_way()
        {
            log::debug!("cannot wait for what the kernel still delivers: {error}");
        }
        let mut all_ended_well = true;
        for lane in self.lanes.drain(..) {
            if lane.is_kept() && is_the_end {
                // From here on each drop is for the next process, however often this ledger is read.
                lane.ledger.leave();
                say_what_waits(&lane);
            } else if !lane.is_kept() {
                count_rest(&lane);
            }
            if !is_the_end && (lane.is_kept() || lane.receiver.is_finished()) {
                // These books may be open for longer than the socket is to be: nothing arrives there any more, or the
                // next lane counts on.
                lane.ledger.close();
            }
            // One that nobody could wake sleeps in the kernel and holds nothing.
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
            self.is_over = (self.hurry)(END_POLL) || Instant::now() >= self.deadline;
        }
    }
}

fn wait_until(deadline: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && Instant::now() < deadline {
        std::thread::sleep(END_POLL);
    }
}

/// Says what the next process begins with. In bytes, because the kernel counts nothing else of a queue.
fn say_what_waits(lane: &Lane) {
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
    let outcome = sweep::count_out(&socket, |datagrams| lane.ledger.count_unread(datagrams));
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
