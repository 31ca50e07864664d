//! The thread of a service: it waits for all of its clients at once, and serves those that are ready.
//!
//! Every call may fail. What fails for good is logged once and tried again after a pause, never in a busy loop. When a
//! process has no free descriptor, an operator wants to look into it, so one descriptor is kept in reserve for that.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use rustix::io::ioctl_fionbio;

use super::client::{Client, ClientStep};
use super::{
    AskingClient, ClientQuestion, LateAnswer, Reply, ServiceLimits, ServiceProtocol, ServiceWaker, StreamListener,
};
use udpd_base::os::threads;
use udpd_base::seams::clock;

/// How often in a row `accept` may fail because of a client before it is taken for a failure of the host.
const ACCEPT_FAILURES: u32 = 16;

/// Waits for sockets; a test may let it fail.
pub(super) type Poll = Box<dyn FnMut(&mut [PollFd<'_>], PollTimeout) -> nix::Result<i32> + Send>;

pub(super) struct EventLoop<L: StreamListener, P> {
    name: &'static str,
    listener: Arc<L>,
    protocol: P,
    limits: ServiceLimits,
    clients: Vec<Client<L::Client>>,
    next_number: u64,
    answers: (Sender<LateAnswer>, Receiver<LateAnswer>),
    waker: ServiceWaker,
    is_stopping: Arc<AtomicBool>,
    /// When the last client has to be gone.
    end: Option<Instant>,
    /// A descriptor that is open only so that it can be closed when the process has no other.
    reserve: Option<OwnedFd>,
    /// When the streams get their next piece.
    next_tick: Option<Instant>,
    /// No client is accepted before.
    accept_from: Option<Instant>,
    accept_failures: u32,
    has_warned: bool,
    poll: Poll,
}

impl<L: StreamListener, P: ServiceProtocol> EventLoop<L, P> {
    pub(super) fn new(
        name: &'static str,
        listener: &Arc<L>,
        protocol: P,
        waker: &ServiceWaker,
        is_stopping: &Arc<AtomicBool>,
        poll: Poll,
    ) -> io::Result<Self> {
        let limits = protocol.limits();
        Ok(Self {
            name,
            listener: Arc::clone(listener),
            limits,
            next_tick: limits.tick.map(|_| clock::now()),
            protocol,
            clients: Vec::new(),
            next_number: 0,
            answers: unbounded(),
            waker: waker.clone(),
            is_stopping: Arc::clone(is_stopping),
            end: None,
            reserve: Some(waker.as_fd().try_clone_to_owned()?),
            accept_from: None,
            accept_failures: 0,
            has_warned: false,
            poll,
        })
    }

    /// Serves until stopped.
    pub(super) fn run(mut self) {
        self.protocol.begin();
        loop {
            let now = clock::now();
            self.end_if_stopping(now);
            self.close_overdue(now);
            if self.end.is_some() && self.clients.is_empty() {
                return;
            }
            self.tick_if_due(now);
            let (can_accept, ready) = self.wait(now);
            self.serve(&ready);
            self.deliver_late_answers();
            if can_accept {
                self.accept();
            }
        }
    }

    /// On shutdown: closes clients that are owed nothing, and gives the others a deadline.
    fn end_if_stopping(&mut self, now: Instant) {
        if !self.is_stopping.load(Ordering::Acquire) {
            return;
        }
        let end = *self.end.get_or_insert(now + self.limits.ending);
        for index in (0..self.clients.len()).rev() {
            let client = &mut self.clients[index];
            client.deadline = client.deadline.min(end);
            if client.is_following() {
                self.remove(index);
            } else if !client.is_owed() {
                self.close_unless_it_asks(index);
            }
        }
    }

    fn close_overdue(&mut self, now: Instant) {
        for index in (0..self.clients.len()).rev() {
            let client = &mut self.clients[index];
            if client.deadline > now {
                continue;
            }
            let is_told = client.is_waiting() && self.end.is_none();
            if !is_told || client.give(self.protocol.overdue(), &self.limits) == ClientStep::Leaves {
                self.remove(index);
            }
        }
    }

    /// Gives every stream its next piece, once a tick. Ticks that were missed because the host slept are left out.
    fn tick_if_due(&mut self, now: Instant) {
        let (Some(tick), Some(due)) = (self.limits.tick, self.next_tick) else { return };
        if due > now || self.end.is_some() {
            return;
        }
        self.next_tick = Some(if due + tick > now { due + tick } else { now + tick });
        let has_streams = self.clients.iter().any(Client::is_following);
        let Some(piece) = self.protocol.tick(has_streams) else { return };
        for index in (0..self.clients.len()).rev() {
            if self.clients[index].continue_stream(&piece, &self.limits) == ClientStep::Leaves {
                self.remove(index);
            }
        }
    }

    /// Waits until a client or the listener is ready, or until a deadline. Returns whether a client may be accepted,
    /// and which clients are ready, in their order.
    fn wait(&mut self, now: Instant) -> (bool, Vec<bool>) {
        let room_from = self.room_from(now);
        let may_accept =
            self.end.is_none() && self.listener.is_open() && self.accept_from.is_none_or(|from| from <= now);
        let admits = may_accept && room_from.is_some_and(|from| from <= now);
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let later = [self.accept_from, self.next_tick, room_from.filter(|_| may_accept)];
        let later = later.into_iter().flatten().filter(|moment| *moment > now && self.end.is_none());
        let timeout = timeout(deadlines.chain(later).min(), now);
        let mut sockets = vec![PollFd::new(self.waker.as_fd(), PollFlags::POLLIN)];
        if admits {
            sockets.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        sockets.extend(self.clients.iter().map(|client| PollFd::new(client.socket(), client.interest())));
        let outcome = threads::blocking(|| (self.poll)(&mut sockets, timeout));
        let is_ready = |socket: &PollFd<'_>| match outcome {
            Ok(_) => socket.any().unwrap_or(true),
            Err(Errno::EINTR) => false,
            // Look at each client that may have sent or taken something; none of them can make the thread wait.
            Err(_) => !socket.events().is_empty(),
        };
        let mut ready: Vec<bool> = sockets.iter().map(is_ready).collect();
        drop(sockets);
        match outcome {
            Ok(_) if ready[0] => {
                if let Err(error) = self.waker.reset() {
                    self.pause("read its event", &error);
                }
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => self.pause("wait for its clients", &error.into()),
        }
        let clients = ready.split_off(if admits { 2 } else { 1 });
        (admits && ready[1], clients)
    }

    fn serve(&mut self, ready: &[bool]) {
        let mut index = 0;
        for is_ready in ready {
            if *is_ready && !self.look_at(index) {
                self.remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Does what can be done for a client; whether it stays.
    fn look_at(&mut self, index: usize) -> bool {
        let client = &mut self.clients[index];
        let asked = match client.look(&self.limits, |bytes| self.protocol.question_length(bytes)) {
            ClientStep::Stays => return true,
            ClientStep::Leaves => return false,
            ClientStep::Asks(question) => Some(question),
            ClientStep::AsksTooMuch => None,
        };
        let count = |is: fn(&Client<L::Client>) -> bool| self.clients.iter().filter(|client| is(client)).count();
        let has_secondary_place = count(Client::is_secondary) < self.limits.secondary_max;
        let asker = AskingClient {
            client: self.clients[index].number,
            answers: &self.answers.0,
            waker: &self.waker,
            has_secondary_place,
            has_stream_place: has_secondary_place && count(Client::is_following) < self.limits.streams_max,
        };
        let question = asked.as_deref().map_or(ClientQuestion::TooLong, ClientQuestion::Whole);
        let reply = self.protocol.reply(question, &asker);
        let client = &mut self.clients[index];
        let step = match reply {
            Reply::Now(answer) => client.give(answer, &self.limits),
            Reply::Secondary(answer) => client.give_secondary(answer, &self.limits),
            Reply::Stream(first) => client.start_stream(first, &self.limits),
            Reply::Later => {
                client.wait(&self.limits);
                return true;
            }
            Reply::HandOff(to) => {
                // Without a free descriptor the client sees the end of its connection, and so it does when the thread
                // that was to take it has died.
                let _ = client.socket().try_clone_to_owned().map(|connection| to.send(connection));
                return false;
            }
        };
        step != ClientStep::Leaves
    }

    fn deliver_late_answers(&mut self) {
        while let Ok((number, answer)) = self.answers.1.try_recv() {
            let found = self.clients.iter().position(|client| client.number == number && client.is_waiting());
            let Some(index) = found else { continue };
            let give = |answer| self.clients[index].give(answer, &self.limits) != ClientStep::Leaves;
            if !answer.is_some_and(give) {
                self.remove(index);
            }
        }
    }

    /// Accepts the client that waits, after making room for it, and then others for as long as there is room.
    fn accept(&mut self) {
        self.refill_reserve();
        if self.clients.len() >= self.limits.held_max && !self.make_room() {
            return;
        }
        let mut one_waits = true;
        while self.clients.len() < self.limits.held_max {
            match self.listener.accept() {
                Ok(stream) => {
                    (self.accept_failures, self.accept_from, one_waits) = (0, None, false);
                    if ioctl_fionbio(&stream, true).is_ok() {
                        self.clients.push(Client::new(self.next_number, stream, &self.limits, clock::now()));
                        self.next_number += 1;
                    }
                }
                Err(error) if lacks_descriptors(&error) => {
                    // The kernel looks for a descriptor before it looks for a client, so this does not mean that
                    // another client waits, and none is closed for it.
                    let goes_on = one_waits && (self.make_room() || self.reserve.take().is_some());
                    if one_waits && !goes_on {
                        self.pause_accepting(&error);
                    }
                    if !goes_on {
                        return;
                    }
                }
                Err(error) => {
                    self.accept_failures += u32::from(error.kind() != ErrorKind::WouldBlock);
                    if self.accept_failures >= ACCEPT_FAILURES {
                        self.pause_accepting(&error);
                    }
                    return;
                }
            }
        }
    }

    fn pause_accepting(&mut self, error: &io::Error) {
        self.warn("accept a client", error);
        self.accept_from = Some(clock::now() + self.limits.pause);
    }

    /// From when on a client can be accepted; `None` while that depends on others.
    fn room_from(&self, now: Instant) -> Option<Instant> {
        if self.clients.len() < self.limits.held_max {
            return Some(now);
        }
        self.clients.iter().filter_map(|client| client.may_go_from(&self.limits)).min()
    }

    /// Closes the oldest connection to which no answer is owed, after reading what it may have asked meanwhile. Where
    /// all are owed one, closes the reader that has taken nothing for longest, if it has stalled.
    fn make_room(&mut self) -> bool {
        while let Some(index) = self.clients.iter().position(|client| !client.is_owed()) {
            if self.close_unless_it_asks(index) {
                return true;
            }
        }
        let now = clock::now();
        let stalled = self.clients.iter().enumerate();
        let stalled = stalled.filter_map(|(index, client)| Some((client.may_go_from(&self.limits)?, index)));
        let Some((_, index)) = stalled.filter(|(from, _)| *from <= now).min() else { return false };
        self.remove(index);
        true
    }

    /// Looks at a client for the last time and closes the connection, unless it has just asked; whether it is gone.
    fn close_unless_it_asks(&mut self, index: usize) -> bool {
        let stays = self.look_at(index) && self.clients[index].is_owed();
        if !stays {
            self.remove(index);
        }
        !stays
    }

    fn remove(&mut self, index: usize) {
        self.clients.remove(index);
        self.refill_reserve();
    }

    fn refill_reserve(&mut self) {
        if self.reserve.is_none() {
            self.reserve = self.waker.as_fd().try_clone_to_owned().ok();
        }
    }

    fn pause(&mut self, what: &str, error: &io::Error) {
        self.warn(what, error);
        threads::blocking(|| clock::sleep(self.limits.pause));
    }

    fn warn(&mut self, what: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            log::warn!("{} cannot {what}: {error}; trying again once a second", self.name);
        }
    }
}

/// The time until `deadline`, never less, or the loop would turn idly for the last fraction of a millisecond.
fn timeout(deadline: Option<Instant>, now: Instant) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let left = deadline.saturating_duration_since(now) + Duration::from_micros(999);
    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}
