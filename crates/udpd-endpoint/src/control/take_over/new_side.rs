//! The side of the process that starts: it asks the one that runs for its sockets, and for its place when everything
//! else is ready. A process that dies on the way has left its sockets here, and is taken over from all the same.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use serde_json::Value;

use super::super::client;
use super::super::socket;
use super::wire::{PeerProcess, Wire};
use super::{ANSWERING_LIMIT, DYING_LIMIT, Stopped, TakeOverMessage, TakeOverOffer, refusal_in};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::seams::clock;

/// How long a daemon may take to say what it has: longer than a reload that it has to finish first.
const OFFERING_LIMIT: Duration = Duration::from_secs(45);

/// How long it may take until it has delivered all that it received: longer than it waits for its sinks.
const STOPPING_LIMIT: Duration = Duration::from_secs(30);

/// How long its end may take when all else is done.
const ENDING_LIMIT: Duration = Duration::from_secs(15);

/// A daemon that runs and is to be taken over from.
#[derive(Debug)]
pub struct OldProcess {
    path: PathBuf,
    wire: Wire,
    peer: PeerProcess,
    pub offer: TakeOverOffer,
}

/// How it has stopped. The value is what the next process has to know of it.
#[derive(Debug)]
pub enum OldProcessEnd {
    Stopped(Value),
    /// The same, and nothing of it may be opened before it has ended.
    Ending(Value),
    /// It was killed or has crashed; what it had said before.
    Died(Value),
}

/// The result of looking for a daemon behind a control socket.
#[derive(Debug)]
pub enum OldProcessSearch {
    NoDaemon,
    Daemon(Box<OldProcess>),
    /// One that has read the question and has ended before it had answered.
    Died(u32),
}

impl OldProcess {
    /// Connects to the daemon behind a control socket.
    pub fn find(path: &Path) -> Result<OldProcessSearch, Failure> {
        let mut asked = None;
        let mut left = client::ATTEMPTS;
        loop {
            left -= 1;
            match Self::ask(path, &mut asked) {
                // It has many clients, and has not read the question.
                Err(FirstQuestionError::Connection(error)) if client::was_not_heard(&error) && left > 0 => {}
                Ok(Some(own)) => return Ok(OldProcessSearch::Daemon(Box::new(own))),
                Ok(None) => {
                    let died = asked.and_then(|peer: PeerProcess| {
                        // Its control socket is closed before its ports are free, which they are when it has ended.
                        peer.wait_for_end(ENDING_LIMIT);
                        peer.process
                    });
                    return Ok(died.map_or(OldProcessSearch::NoDaemon, OldProcessSearch::Died));
                }
                Err(FirstQuestionError::Connection(error)) => return Err(broken(path, "the daemon", &error)),
                Err(FirstQuestionError::Refused(failure)) => return Err(failure),
            }
        }
    }

    fn ask(path: &Path, asked: &mut Option<PeerProcess>) -> Result<Option<Self>, FirstQuestionError> {
        let mut stream = match socket::connect(path, ANSWERING_LIMIT) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            outcome => outcome?,
        };
        stream.set_write_timeout(Some(ANSWERING_LIMIT))?;
        stream.write_all(b"take-over\n")?;
        let wire = Wire::new(stream)?;
        let peer = wire.peer()?;
        Self::meet(path, wire, peer, asked)
    }

    /// What a daemon that was asked has to offer.
    pub(super) fn meet(
        path: &Path,
        mut wire: Wire,
        peer: PeerProcess,
        asked: &mut Option<PeerProcess>,
    ) -> Result<Option<Self>, FirstQuestionError> {
        let own = geteuid().as_raw();
        if peer.user != own {
            let message = format!(
                "cannot take over from {peer} behind {}: it is of user {}, and this process of user {own}; start udpd \
                 as that user",
                path.display(),
                peer.user
            );
            return Err(FirstQuestionError::Refused(Failure::new(ExitCode::Permission, message)));
        }
        log::info!("asking {peer} behind {} for its sockets", path.display());
        let peer = asked.insert(peer);
        let offer = match wire.hear(OFFERING_LIMIT)? {
            TakeOverMessage::Offer(offer) => offer,
            other => return Err(FirstQuestionError::Refused(refused(peer, other))),
        };
        Ok(asked.take().map(|peer| Self { path: path.to_owned(), wire, peer, offer }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its process id, where it has one here.
    pub fn process(&self) -> Option<u32> {
        self.peer.process
    }

    /// Its sockets, and the file of its record, each with its name. The limit on open files of this process has to
    /// allow as many.
    pub fn sockets(&mut self) -> Result<Vec<(String, OwnedFd)>, Failure> {
        let question = if self.offer.has_file { TakeOverMessage::SendAll } else { TakeOverMessage::Send };
        self.wire.say(&question).map_err(|error| self.broken(&error))?;
        let names = match self.wire.hear(ANSWERING_LIMIT).map_err(|error| self.broken(&error))? {
            TakeOverMessage::Sockets(names) => names,
            other => return Err(refused(&self.peer, other)),
        };
        let descriptors = self.wire.take_descriptors();
        if names.len() != descriptors.len() {
            let (names, came) = (names.len(), descriptors.len());
            return Err(self.broken(&io::Error::other(format!("it has {names} sockets and {came} came"))));
        }
        Ok(names.into_iter().zip(descriptors).collect())
    }

    pub fn has_ended(&self) -> bool {
        self.peer.wait_for_end(DYING_LIMIT) == Some(true)
    }

    /// Says that everything is ready that can be made beside it, and lets it stop.
    pub fn let_stop(&mut self, names: Vec<String>) -> Result<OldProcessEnd, Failure> {
        let said = self.wire.say(&TakeOverMessage::Ready(names));
        match after(said, self.wire.hear(STOPPING_LIMIT)) {
            Ok(TakeOverMessage::Stopped(Stopped { ends: false, record })) => Ok(OldProcessEnd::Stopped(record)),
            Ok(TakeOverMessage::Stopped(Stopped { ends: true, record })) => Ok(OldProcessEnd::Ending(record)),
            Ok(other) => Err(refused(&self.peer, other)),
            Err(error) if self.has_died(&error) => Ok(OldProcessEnd::Died(self.offer.record.clone())),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Waits for the end of one that is ending.
    pub fn wait_for_end(&mut self) -> Result<(), Failure> {
        if self.ends_within(ENDING_LIMIT) {
            return Ok(());
        }
        Err(self.broken(&io::Error::other(format!("it has not ended within {} s", ENDING_LIMIT.as_secs()))))
    }

    /// Says that everything is open. When this returns well this process receives, and no other.
    pub fn take_its_place(&mut self) -> Result<(), Failure> {
        if self.peer.wait_for_end(Duration::ZERO) == Some(true) {
            return Ok(());
        }
        let said = self.wire.say(&TakeOverMessage::Open);
        match after(said, self.wire.hear_or_hang_up(ANSWERING_LIMIT)) {
            Ok(TakeOverMessage::Gone) => Ok(()),
            Ok(other) => Err(refused(&self.peer, other)),
            Err(error) if self.has_died(&error) => Ok(()),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Lets it end; whether it has, with all its files closed.
    pub fn let_end(&mut self) -> bool {
        // It may have ended already.
        let _ = self.wire.say(&TakeOverMessage::Bye);
        self.ends_within(ENDING_LIMIT)
    }

    /// Tells it why it is not taken over from.
    pub fn give_up(&mut self, why: &Failure) {
        let _ = self.wire.say(&TakeOverMessage::Error(why.message.clone()));
    }

    /// Waits for its end. In another container its process id means nothing here, and the connection closes with it.
    fn ends_within(&mut self, limit: Duration) -> bool {
        if let Some(has_ended) = self.peer.wait_for_end(limit) {
            return has_ended;
        }
        let deadline = clock::now() + limit;
        loop {
            match self.wire.hear(deadline.saturating_duration_since(clock::now())) {
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::TimedOut,
            }
        }
    }

    /// Whether the connection is at its end because the process is.
    fn has_died(&self, error: &io::Error) -> bool {
        client::was_not_heard(error) && self.peer.wait_for_end(DYING_LIMIT).unwrap_or(true)
    }

    fn broken(&self, error: &io::Error) -> Failure {
        broken(&self.path, &self.peer.to_string(), error)
    }
}

impl fmt::Display for OldProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(formatter)
    }
}

/// Why the first question got no offer.
#[derive(Debug)]
pub(super) enum FirstQuestionError {
    Connection(io::Error),
    Refused(Failure),
}

impl From<io::Error> for FirstQuestionError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// What was heard. One that hung up before it could be told anything has said why, unless it has died.
fn after(said: io::Result<()>, heard: io::Result<TakeOverMessage>) -> io::Result<TakeOverMessage> {
    heard.map_err(|error| said.err().unwrap_or(error))
}

fn broken(path: &Path, daemon: &str, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        ErrorKind::PermissionDenied => (ExitCode::Permission, "start udpd as the user of the daemon that runs"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => (ExitCode::Unavailable, "it hangs or is busy: see its log"),
        ErrorKind::InvalidData => (ExitCode::Failure, "it is of another version: restart it without --take-over"),
        _ => (ExitCode::Failure, "see its log"),
    };
    Failure::new(code, format!("cannot take over from {daemon} behind {}: {error}; {cure}", path.display()))
}

fn refused(peer: &PeerProcess, message: TakeOverMessage) -> Failure {
    Failure::new(ExitCode::Failure, format!("{peer} does not let this one take over: {}", refusal_in(message)))
}
