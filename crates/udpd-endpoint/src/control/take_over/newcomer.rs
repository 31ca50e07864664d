//! The side of the process that runs: it tells another of the same user what it has, sends its sockets, and waits until
//! that one is ready. All of that happens on a thread that comes and goes with it; the daemon does not notice. Only
//! whoever runs the daemon can let it end, so from `ready` on the connection is theirs.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use mmsg::Socket;
use nix::unistd::geteuid;
use serde_json::Value;

use super::super::answer::refusal;
use super::wire::{Peer, Wire};
use super::words::{Offer, Stopped, Word};
use crate::exchange::Reply;
use udpd_base::exit::Failure;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;

/// How long the new process may take to make what it needs beside this one.
const PREPARING_LIMIT: Duration = Duration::from_secs(60);

/// How long it may take over a word that it owes at once.
const ANSWERING_LIMIT: Duration = Duration::from_secs(10);

/// What whoever runs the daemon is asked for.
#[derive(Debug)]
pub enum Asked {
    /// What it has.
    Offer(Sender<Result<Offered, Failure>>),
    /// To let this process take over, which goes on with the sockets of these names.
    Leave(Newcomer, Vec<String>),
}

/// What is offered: the sockets, by what each is called where it is kept, and the file, by what that is called.
pub type Offered = (Offer, Vec<(String, Arc<Socket>)>, Option<(String, OwnedFd)>);

/// How long a process that hangs up may take until it is seen to have ended.
const DYING_LIMIT: Duration = Duration::from_secs(1);

type Ask = dyn Fn(Asked) + Send + Sync;

/// Answers those who want to take over, one at a time.
pub(in super::super) struct TakeOvers {
    registry: ThreadRegistry,
    ask: Arc<Ask>,
    /// Whose this process is. In its sandbox it could not ask any more.
    own_user: u32,
    is_busy: Arc<AtomicBool>,
    strangers: Arc<LogLimiter>,
}

/// A process of the same user that is to take over.
#[derive(Debug)]
pub struct Newcomer {
    wire: Wire,
    peer: Peer,
    /// Others may come when it has gone.
    _turn: Turn,
}

/// What has come of waiting for it.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// It has everything open and waits to hear that it may receive.
    Open,
    /// It will not take over, and why.
    Not(String),
}

#[derive(Debug)]
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl TakeOvers {
    pub(in super::super) fn new(registry: &ThreadRegistry, ask: impl Fn(Asked) + Send + Sync + 'static) -> Self {
        Self {
            registry: registry.clone(),
            ask: Arc::new(ask),
            own_user: geteuid().as_raw(),
            is_busy: Arc::default(),
            strangers: Arc::default(),
        }
    }

    /// Takes the connection out of the hands of those who serve all others.
    pub(in super::super) fn begin(&self) -> Reply {
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return Reply::Now(refusal("another process is about to take over"));
        }
        let (turn, ask, own_user) = (Turn(Arc::clone(&self.is_busy)), Arc::clone(&self.ask), self.own_user);
        let strangers = Arc::clone(&self.strangers);
        let (give, given) = bounded(1);
        match self
            .registry
            .spawn("udpd-leaving", ThreadRole::ShortLived, move || meet(&given, turn, own_user, &*ask, &strangers))
        {
            Ok(_) => Reply::Given(give),
            Err(error) => Reply::Now(refusal(&format!(
                "cannot start the thread udpd-leaving: {error}; raise the limit on threads (ulimit -u, TasksMax=)"
            ))),
        }
    }
}

/// Who may open the control socket can ask for this again and again: `strangers` says how often the log hears.
fn meet(given: &Receiver<OwnedFd>, turn: Turn, own_user: u32, ask: &Ask, strangers: &LogLimiter) {
    let Ok(connection) = threads::blocking(|| given.recv()) else { return };
    let greeted = Wire::new(connection.into()).and_then(|wire| wire.peer().map(|peer| (wire, peer)));
    let (wire, peer) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            if let Some(silent) = strangers.pass(Instant::now()) {
                log::warn!("cannot answer a process that wants to take over: {error}{}", repeats(silent));
            }
            return;
        }
    };
    let mut newcomer = Newcomer { wire, peer, _turn: turn };
    match threads::blocking(|| newcomer.prepare(own_user, ask)) {
        Ok(keeps) => ask(Asked::Leave(newcomer, keeps)),
        Err(why) => {
            let (who, is_stranger) = (newcomer.to_string(), newcomer.peer.user != own_user);
            newcomer.refuse(&why);
            // Who reads the line may ask anew at once.
            drop(newcomer);
            let silent = if is_stranger { strangers.pass(Instant::now()) } else { Some(0) };
            if let Some(silent) = silent {
                let times = repeats(silent);
                log::warn!("{who} wanted to take over and does not: {why}; nothing has changed here{times}");
            }
        }
    }
}

impl Newcomer {
    /// Returns the names of the sockets that it goes on with when it is ready, or why it never will be.
    fn prepare(&mut self, own_user: u32, ask: &Ask) -> Result<Vec<String>, String> {
        if self.peer.user != own_user {
            return Err(format!("it is of user {}, and this process of user {own_user}", self.peer.user));
        }
        let (answer, answered) = bounded(1);
        ask(Asked::Offer(answer));
        let offered = answered.recv().map_err(|_| "udpd ends".to_owned())?;
        let (offer, sockets, file) = offered.map_err(|failure| failure.message)?;
        self.wire.say(&Word::Offer(offer)).map_err(told)?;
        let file = match self.hear(ANSWERING_LIMIT)? {
            Word::Send => None,
            Word::SendAll => file,
            other => return Err(refused(other)),
        };
        let (mut names, sockets): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
        let (name, file) = file.unzip();
        names.extend(name);
        let descriptors: Vec<BorrowedFd<'_>> =
            sockets.iter().map(|socket| socket.as_fd()).chain(file.as_ref().map(AsFd::as_fd)).collect();
        self.wire.send(&descriptors).and_then(|()| self.wire.say(&Word::Sockets(names))).map_err(told)?;
        drop((sockets, file));
        match self.hear(PREPARING_LIMIT)? {
            Word::Ready(keeps) => Ok(keeps),
            other => Err(refused(other)),
        }
    }

    fn hear(&mut self, limit: Duration) -> Result<Word, String> {
        let heard = self.wire.hear(limit).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => format!("it said nothing for {} s", limit.as_secs()),
            _ => told(error),
        });
        // Nobody here wants any.
        self.wire.take_descriptors();
        heard
    }

    /// Tells it that nothing becomes of it.
    pub fn refuse(&mut self, why: &str) {
        // It may have gone.
        let _ = self.wire.say(&Word::Error(why.to_owned()));
    }

    /// Tells it that this process receives no more.
    pub fn say_stopped(&mut self, ends: bool, record: Value) -> Result<(), String> {
        self.wire.say(&Word::Stopped(Stopped { ends, record })).map_err(told)
    }

    /// Waits for a moment until it has opened everything.
    pub fn wait_until_open(&mut self, moment: Duration) -> Heard {
        match self.wire.hear(moment) {
            Ok(Word::Open) => Heard::Open,
            Ok(other) => Heard::Not(refused(other)),
            Err(error) if error.kind() == ErrorKind::TimedOut => Heard::Nothing,
            Err(error) => Heard::Not(told(error)),
        }
    }

    /// Lets it receive, and returns when it does. From then on this process may not, unless the other one is dead.
    pub fn say_gone(&mut self) -> Result<(), String> {
        self.wire.say(&Word::Gone).map_err(told)?;
        match self.wire.hear(ANSWERING_LIMIT) {
            Ok(Word::Bye) => Ok(()),
            _ if self.peer.wait_for_end(DYING_LIMIT) == Some(true) => Err("it has ended without a word".to_owned()),
            // It has the sockets, and lives.
            _ => Ok(()),
        }
    }

    /// Waits until it has ended, and what it had open is closed; whether it has. Where nobody can say, it has: whoever
    /// needs its files will find out.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        self.peer.wait_for_end(limit).unwrap_or(true)
    }
}

impl fmt::Display for Newcomer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(formatter)
    }
}

/// What an error of the connection means.
fn told(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            "it has ended without a word".to_owned()
        }
        _ => error.to_string(),
    }
}

/// A word that was not expected is of another version.
fn refused(word: Word) -> String {
    match word {
        Word::Error(why) => why,
        other => format!("it said {other:?}, which does not belong there"),
    }
}
