//! The thread of a service: waits for all of its clients at once, and goes round among those for whom something can be
//! done.
//!
//! Every call may fail. What fails for good is said once and tried again after a pause, never in a busy loop. A process
//! without a free descriptor is one that somebody wants to look into, so a descriptor is set aside for that hour.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::client::{Client, Step};
use super::protocol::{Limits, Listener, Protocol, Question, Reply, Stream};
use super::ticket::{Asker, Bell, Delivery};
use udpd_base::os::threads;

/// How often in a row `accept` may fail for reasons of a client's before it is taken for a failure of the host.
const ACCEPT_FAILURES: u32 = 16;

/// Waits for sockets; a test may let it fail.
pub(super) type Poll = Box<dyn FnMut(&mut [PollFd<'_>], PollTimeout) -> nix::Result<i32> + Send>;

/// Everything that the thread owns.
pub(super) struct Server<L: Listener, P> {
    name: &'static str,
    listener: Arc<L>,
    protocol: P,
    limits: Limits,
    clients: Vec<Client<L::Client>>,
    next_number: u64,
    answers: (Sender<Delivery>, Receiver<Delivery>),
    bell: Bell,
    stopping: Arc<AtomicBool>,
    /// When the last client has to be gone.
    end: Option<Instant>,
    /// Kept open to have one to give back.
    reserve: Option<OwnedFd>,
    /// When the streams get their next piece.
    next_beat: Option<Instant>,
    /// No client is accepted before.
    accept_from: Option<Instant>,
    accept_failures: u32,
    has_warned: bool,
    poll: Poll,
}

/// Who has something to do.
struct Ready {
    listener: bool,
    /// In the order of the clients.
    clients: Vec<bool>,
}

impl<L: Listener, P: Protocol> Server<L, P> {
    pub(super) fn new(
        name: &'static str,
        listener: &Arc<L>,
        protocol: P,
        bell: &Bell,
        stopping: &Arc<AtomicBool>,
        poll: Poll,
    ) -> io::Result<Self> {
        Ok(Self {
            name,
            listener: Arc::clone(listener),
            limits: protocol.limits(),
            next_beat: protocol.limits().beat.map(|_| Instant::now()),
            protocol,
            clients: Vec::new(),
            next_number: 0,
            answers: unbounded(),
            bell: bell.clone(),
            stopping: Arc::clone(stopping),
            end: None,
            reserve: Some(bell.as_fd().try_clone_to_owned()?),
            accept_from: None,
            accept_failures: 0,
            has_warned: false,
            poll,
        })
    }

    /// Serves until stopped.
    pub(super) fn run(mut self) {
        loop {
            let now = Instant::now();
            self.end_if_asked(now);
            self.let_go_of_overdue(now);
            if self.end.is_some() && self.clients.is_empty() {
                return;
            }
            self.beat_if_due(now);
            let ready = self.wait(now);
            self.serve(&ready.clients);
            self.hand_out_answers();
            if ready.listener {
                self.admit();
            }
        }
    }

    /// Lets those go who are owed nothing, and gives the others a little time.
    fn end_if_asked(&mut self, now: Instant) {
        if !self.stopping.load(Ordering::Acquire) {
            return;
        }
        let end = *self.end.get_or_insert(now + self.limits.ending);
        for index in (0..self.clients.len()).rev() {
            let client = &mut self.clients[index];
            client.deadline = client.deadline.min(end);
            if client.is_following() {
                self.remove(index);
            } else if !client.is_owed() {
                self.take_leave_of(index);
            }
        }
    }

    fn let_go_of_overdue(&mut self, now: Instant) {
        for index in (0..self.clients.len()).rev() {
            let client = &mut self.clients[index];
            if client.deadline > now {
                continue;
            }
            let is_told = client.is_waiting() && self.end.is_none();
            if !is_told || client.give(self.protocol.overdue(), &self.limits) == Step::Leaves {
                self.remove(index);
            }
        }
    }

    /// Gives every stream its next piece, once a beat. Beats that were missed, because the host slept, are not made up
    /// for.
    fn beat_if_due(&mut self, now: Instant) {
        let (Some(beat), Some(due)) = (self.limits.beat, self.next_beat) else { return };
        if due > now || self.end.is_some() {
            return;
        }
        self.next_beat = Some(if due + beat > now { due + beat } else { now + beat });
        let has_streams = self.clients.iter().any(Client::is_following);
        let Some(piece) = self.protocol.beat(has_streams) else { return };
        for index in (0..self.clients.len()).rev() {
            if self.clients[index].go_on(&piece, &self.limits) == Step::Leaves {
                self.remove(index);
            }
        }
    }

    /// Waits until there is something to do for somebody, or until a deadline.
    fn wait(&mut self, now: Instant) -> Ready {
        let room_from = self.room_from(now);
        let may_accept = self.end.is_none() && self.accept_from.is_none_or(|from| from <= now);
        let admits = may_accept && room_from.is_some_and(|from| from <= now);
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let later = [self.accept_from, self.next_beat, room_from.filter(|_| may_accept)];
        let later = later.into_iter().flatten().filter(|moment| *moment > now && self.end.is_none());
        let timeout = timeout(deadlines.chain(later).min(), now);
        let mut sockets = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        if admits {
            sockets.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        sockets.extend(self.clients.iter().map(|client| PollFd::new(client.socket(), client.interest())));
        let outcome = threads::blocking(|| (self.poll)(&mut sockets, timeout));
        let is_ready = |socket: &PollFd<'_>| match outcome {
            Ok(_) => socket.any().unwrap_or(true),
            Err(Errno::EINTR) => false,
            // Each is looked at from whom something is expected; none of them can make us wait.
            Err(_) => !socket.events().is_empty(),
        };
        let mut ready: Vec<bool> = sockets.iter().map(is_ready).collect();
        drop(sockets);
        match outcome {
            Ok(_) if ready[0] => {
                if let Err(error) = self.bell.silence() {
                    self.pause("hear its bell", &error);
                }
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => self.pause("wait for its clients", &error.into()),
        }
        let clients = ready.split_off(if admits { 2 } else { 1 });
        Ready { listener: admits && ready[1], clients }
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
            Step::Stays => return true,
            Step::Leaves => return false,
            Step::Asks(question) => Some(question),
            Step::AsksTooMuch => None,
        };
        let count = |is: fn(&Client<L::Client>) -> bool| self.clients.iter().filter(|client| is(client)).count();
        let has_place_for_guest = count(Client::is_guest) < self.limits.guests_max;
        let asker = Asker {
            client: self.clients[index].number,
            answers: &self.answers.0,
            bell: &self.bell,
            has_place_for_guest,
            has_place_for_stream: has_place_for_guest && count(Client::is_following) < self.limits.streams_max,
        };
        let question = asked.as_deref().map_or(Question::TooLong, Question::Whole);
        let reply = self.protocol.reply(question, &asker);
        let client = &mut self.clients[index];
        match reply {
            Reply::Now(answer) => client.give(answer, &self.limits) != Step::Leaves,
            Reply::Guest(answer) => client.give_guest(answer, &self.limits) != Step::Leaves,
            Reply::Stream(first) => client.let_follow(first, &self.limits) != Step::Leaves,
            Reply::Later => {
                client.wait(&self.limits);
                true
            }
            Reply::Given(to) => {
                // Without a free descriptor the asker sees its end. Nobody takes it when its thread has died.
                let _ = client.socket().try_clone_to_owned().map(|connection| to.send(connection));
                false
            }
        }
    }

    fn hand_out_answers(&mut self) {
        while let Ok((number, answer)) = self.answers.1.try_recv() {
            let found = self.clients.iter().position(|client| client.number == number && client.is_waiting());
            let Some(index) = found else { continue };
            let stays = answer.is_some_and(|answer| self.clients[index].give(answer, &self.limits) != Step::Leaves);
            if !stays {
                self.remove(index);
            }
        }
    }

    /// Accepts clients for as long as there is room, after making room for one. Somebody waits to be let in.
    fn admit(&mut self) {
        self.set_reserve_aside();
        if self.clients.len() >= self.limits.held_max && !self.make_room() {
            return;
        }
        let mut somebody_waits = true;
        while self.clients.len() < self.limits.held_max {
            match self.listener.accept() {
                Ok(stream) => {
                    (self.accept_failures, self.accept_from, somebody_waits) = (0, None, false);
                    if stream.set_nonblocking().is_ok() {
                        self.clients.push(Client::new(self.next_number, stream, &self.limits, Instant::now()));
                        self.next_number += 1;
                    }
                }
                Err(error) if lacks_descriptors(&error) => {
                    // The kernel looks for a descriptor before it looks for a client. Nobody has to go for one who is
                    // not there.
                    let goes_on = somebody_waits && (self.make_room() || self.reserve.take().is_some());
                    if somebody_waits && !goes_on {
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
        self.accept_from = Some(Instant::now() + self.limits.pause);
    }

    /// From when on somebody can be let in; `None` while that depends on others.
    fn room_from(&self, now: Instant) -> Option<Instant> {
        if self.clients.len() < self.limits.held_max {
            return Some(now);
        }
        self.clients.iter().filter_map(|client| client.may_go_from(&self.limits)).min()
    }

    /// Closes the oldest connection to which no answer is owed. What it may have asked meanwhile is heard first. Where
    /// all are owed one, closes that of the reader who has taken nothing for longest, if that is long.
    fn make_room(&mut self) -> bool {
        while let Some(index) = self.clients.iter().position(|client| !client.is_owed()) {
            if self.take_leave_of(index) {
                return true;
            }
        }
        let now = Instant::now();
        let stalled = self.clients.iter().enumerate();
        let stalled = stalled.filter_map(|(index, client)| Some((client.may_go_from(&self.limits)?, index)));
        let Some((_, index)) = stalled.filter(|(from, _)| *from <= now).min() else { return false };
        self.remove(index);
        true
    }

    /// Looks at a client for the last time and closes the connection, unless it has just asked; whether it is gone.
    fn take_leave_of(&mut self, index: usize) -> bool {
        let stays = self.look_at(index) && self.clients[index].is_owed();
        if !stays {
            self.remove(index);
        }
        !stays
    }

    fn remove(&mut self, index: usize) {
        self.clients.remove(index);
        self.set_reserve_aside();
    }

    fn set_reserve_aside(&mut self) {
        if self.reserve.is_none() {
            self.reserve = self.bell.as_fd().try_clone_to_owned().ok();
        }
    }

    fn pause(&mut self, what: &str, error: &io::Error) {
        self.warn(what, error);
        threads::blocking(|| thread::sleep(self.limits.pause));
    }

    fn warn(&mut self, what: &str, error: &io::Error) {
        if !self.has_warned {
            log::warn!("{} cannot {what}: {error}; trying again once a second", self.name);
            self.has_warned = true;
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
