//! The side of the process that runs: it tells a new process of the same user what it has, sends its sockets, and waits
//! until the new one is ready. All of that happens on a thread of its own, and the daemon receives on. Only the main
//! thread can end the daemon, so from `ready` on it has the connection.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use mmsg::Socket;
use nix::unistd::geteuid;
use serde_json::Value;

use super::super::server::refusal;
use super::wire::{PeerProcess, Wire};
use super::{ANSWERING_LIMIT, DYING_LIMIT, Stopped, TakeOverMessage, TakeOverOffer, refusal_in};
use crate::service::Reply;
use udpd_base::exit::Failure;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::seams::{clock, waits};

/// How long the new process may take to make what it needs beside this one.
const PREPARING_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub enum TakeOverRequest {
    Offer(Sender<Result<OfferedSockets, Failure>>),
    /// To let this process take over, which goes on with the sockets of these names.
    Leave(NewProcess, Vec<String>),
}

#[derive(Debug)]
pub struct OfferedSockets {
    pub offer: TakeOverOffer,
    /// The sockets, by the names under which they are kept.
    pub sockets: Vec<(String, Arc<Socket>)>,
    /// The file of the record, by its name.
    pub file: Option<(String, OwnedFd)>,
}

type Ask = dyn Fn(TakeOverRequest) + Send + Sync;

/// Answers processes that want to take over, one at a time.
pub(in super::super) struct TakeOverServer {
    registry: ThreadRegistry,
    ask: Arc<Ask>,
    /// The user of this process, which it could not ask for in its sandbox.
    own_user: u32,
    is_busy: Arc<AtomicBool>,
    strangers: Arc<LogLimiter>,
}

/// A process of the same user that is to take over.
#[derive(Debug)]
pub struct NewProcess {
    wire: Wire,
    peer: PeerProcess,
    /// Another may ask when this one has gone.
    _busy: BusyGuard,
}

/// The state of the new process after waiting for it.
#[derive(Debug, PartialEq, Eq)]
pub enum NewProcessState {
    Preparing,
    /// It has everything open and waits to hear that it may receive.
    Open,
    Failed(String),
}

#[derive(Debug)]
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl TakeOverServer {
    pub(in super::super) fn new(
        registry: &ThreadRegistry,
        ask: impl Fn(TakeOverRequest) + Send + Sync + 'static,
    ) -> Self {
        Self {
            registry: registry.clone(),
            ask: Arc::new(ask),
            own_user: geteuid().as_raw(),
            is_busy: Arc::default(),
            strangers: Arc::default(),
        }
    }

    /// Takes the connection from the thread that serves all others.
    pub(in super::super) fn begin(&self) -> Reply {
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return Reply::Now(refusal("another process is about to take over"));
        }
        let (busy, ask, own_user) = (BusyGuard(Arc::clone(&self.is_busy)), Arc::clone(&self.ask), self.own_user);
        let strangers = Arc::clone(&self.strangers);
        let (give, given) = bounded(1);
        let meet = move || meet(&given, busy, own_user, &*ask, &strangers);
        match self.registry.spawn("udpd-leaving", ThreadRole::ShortLived, meet) {
            Ok(_) => Reply::HandOff(give),
            Err(error) => Reply::Now(refusal(&format!(
                "cannot start the thread udpd-leaving: {error}; raise the limit on threads (ulimit -u, TasksMax=)"
            ))),
        }
    }
}

/// Every process that may open the control socket can ask for this again and again: `strangers` limits the log lines.
fn meet(given: &Receiver<OwnedFd>, busy: BusyGuard, own_user: u32, ask: &Ask, strangers: &LogLimiter) {
    let Ok(connection) = threads::blocking(|| waits::recv(given)) else { return };
    let greeted = Wire::new(connection.into()).and_then(|wire| wire.peer().map(|peer| (wire, peer)));
    let (wire, peer) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            if let Some(silent) = strangers.pass(clock::now()) {
                log::warn!("cannot answer a process that wants to take over: {error}{}", repeats(silent));
            }
            return;
        }
    };
    let mut new_process = NewProcess { wire, peer, _busy: busy };
    match threads::blocking(|| new_process.prepare(own_user, ask)) {
        Ok(names) => ask(TakeOverRequest::Leave(new_process, names)),
        Err(why) => {
            let (name, is_stranger) = (new_process.to_string(), new_process.peer.user != own_user);
            new_process.refuse(&why);
            // A reader of the line may ask anew at once.
            drop(new_process);
            let silent = if is_stranger { strangers.pass(clock::now()) } else { Some(0) };
            if let Some(silent) = silent {
                let times = repeats(silent);
                log::warn!("{name} wanted to take over and does not: {why}; nothing has changed here{times}");
            }
        }
    }
}

impl NewProcess {
    /// Returns the names of the sockets that it goes on with when it is ready, or why it never will be.
    fn prepare(&mut self, own_user: u32, ask: &Ask) -> Result<Vec<String>, String> {
        if self.peer.user != own_user {
            return Err(format!("it is of user {}, and this process of user {own_user}", self.peer.user));
        }
        let (answer, answered) = bounded(1);
        ask(TakeOverRequest::Offer(answer));
        let offered = waits::recv(&answered).map_err(|_| "udpd ends".to_owned())?;
        let OfferedSockets { offer, sockets, file } = offered.map_err(|failure| failure.message)?;
        self.wire.say(&TakeOverMessage::Offer(offer)).map_err(explained)?;
        let file = match self.hear(ANSWERING_LIMIT)? {
            TakeOverMessage::Send => None,
            TakeOverMessage::SendAll => file,
            other => return Err(refusal_in(other)),
        };
        let (mut names, sockets): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
        let (name, file) = file.unzip();
        names.extend(name);
        let descriptors: Vec<BorrowedFd<'_>> =
            sockets.iter().map(|socket| socket.as_fd()).chain(file.as_ref().map(AsFd::as_fd)).collect();
        self.wire
            .send(&descriptors)
            .and_then(|()| self.wire.say(&TakeOverMessage::Sockets(names)))
            .map_err(explained)?;
        drop((sockets, file));
        match self.hear(PREPARING_LIMIT)? {
            TakeOverMessage::Ready(names) => Ok(names),
            other => Err(refusal_in(other)),
        }
    }

    fn hear(&mut self, limit: Duration) -> Result<TakeOverMessage, String> {
        let heard = self.wire.hear(limit).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => format!("it said nothing for {} s", limit.as_secs()),
            _ => explained(error),
        });
        // This side wants none.
        self.wire.take_descriptors();
        heard
    }

    /// Tells it why it may not take over.
    pub fn refuse(&mut self, why: &str) {
        // It may have gone.
        let _ = self.wire.say(&TakeOverMessage::Error(why.to_owned()));
    }

    /// Tells it that this process receives no more.
    pub fn say_stopped(&mut self, ends: bool, record: Value) -> Result<(), String> {
        self.wire.say(&TakeOverMessage::Stopped(Stopped { ends, record })).map_err(explained)
    }

    /// Waits no longer than `moment` until it has opened everything.
    pub fn wait_until_open(&mut self, moment: Duration) -> NewProcessState {
        match self.wire.hear(moment) {
            Ok(TakeOverMessage::Open) => NewProcessState::Open,
            Ok(other) => NewProcessState::Failed(refusal_in(other)),
            Err(error) if error.kind() == ErrorKind::TimedOut => NewProcessState::Preparing,
            Err(error) => NewProcessState::Failed(explained(error)),
        }
    }

    /// Lets it receive, and returns when it does. From then on this process may not, unless the new one is dead.
    pub fn say_gone(&mut self) -> Result<(), String> {
        self.wire.say(&TakeOverMessage::Gone).map_err(explained)?;
        match self.wire.hear(ANSWERING_LIMIT) {
            Ok(TakeOverMessage::Bye) => Ok(()),
            // It has failed after all, and does not receive.
            Ok(TakeOverMessage::Error(why)) => Err(why),
            _ if self.peer.wait_for_end(DYING_LIMIT) == Some(true) => Err("it has ended without a word".to_owned()),
            // It has the sockets, and lives.
            _ => Ok(()),
        }
    }

    /// Waits until it has ended and its files are closed; whether it has. Where that cannot be seen the answer is yes:
    /// opening the files again will show.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        self.peer.wait_for_end(limit).unwrap_or(true)
    }
}

impl fmt::Display for NewProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(formatter)
    }
}

/// What an error of the connection means.
fn explained(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            "it has ended without a word".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation_tests;
