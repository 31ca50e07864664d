//! The side of the process that starts: it asks the one that runs for its sockets, and for its place when everything
//! else is ready. A process that dies on the way has left its sockets here, and is taken over from all the same.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use serde_json::Value;

use super::super::client;
use super::super::socket;
use super::wire::{Peer, Wire};
use super::words::{Offer, Stopped, Word};
use udpd_base::exit::{ExitCode, Failure};

/// How long a daemon may take to say what it has: longer than a reload that it has to finish first.
const OFFERING_LIMIT: Duration = Duration::from_secs(45);

/// How long it may take until nothing of what it has received is left: longer than it waits for its sinks.
const STOPPING_LIMIT: Duration = Duration::from_secs(30);

/// How long it may take over a word that it owes at once.
const ANSWERING_LIMIT: Duration = Duration::from_secs(10);

/// How long its end may take when all else is done.
const ENDING_LIMIT: Duration = Duration::from_secs(15);

/// How long a process that hangs up may take until it is seen to have ended.
const DYING_LIMIT: Duration = Duration::from_secs(1);

/// A daemon that runs and is to be taken over from.
#[derive(Debug)]
pub struct Predecessor {
    path: PathBuf,
    wire: Wire,
    peer: Peer,
    pub offer: Offer,
}

/// How it has left its place.
#[derive(Debug)]
pub enum Left {
    /// It receives no more, and what the next process has to know of it.
    Stopped(Value),
    /// The same, and nothing of it may be touched before it has ended.
    Ending(Value),
    /// It was killed or has crashed; what it had said before.
    Died(Value),
}

/// Who is behind a control socket.
#[derive(Debug)]
pub enum Reached {
    NoDaemon,
    Daemon(Box<Predecessor>),
    /// One that has heard the question and has ended before it had answered.
    Died(u32),
}

impl Predecessor {
    /// Reaches the daemon behind a control socket.
    pub fn reach(path: &Path) -> Result<Reached, Failure> {
        let mut asked = None;
        let mut left = client::ATTEMPTS;
        loop {
            left -= 1;
            match Self::ask(path, &mut asked) {
                // It is beset by clients, and has not heard the question.
                Err(Trouble::Connection(error)) if client::was_not_heard(&error) && left > 0 => {}
                Ok(Some(own)) => return Ok(Reached::Daemon(Box::new(own))),
                Ok(None) => {
                    let died = asked.and_then(|peer| {
                        // Its control socket is closed before its ports are free, which they are when it has ended.
                        peer.wait_for_end(ENDING_LIMIT);
                        peer.process
                    });
                    return Ok(died.map_or(Reached::NoDaemon, Reached::Died));
                }
                Err(trouble) => return Err(trouble.of(path)),
            }
        }
    }

    fn ask(path: &Path, asked: &mut Option<Peer>) -> Result<Option<Self>, Trouble> {
        let mut stream = match socket::connect(path, ANSWERING_LIMIT) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            outcome => outcome?,
        };
        stream.set_write_timeout(Some(ANSWERING_LIMIT))?;
        stream.write_all(b"take-over\n")?;
        let mut wire = Wire::new(stream)?;
        let peer = wire.peer()?;
        let own = geteuid().as_raw();
        if peer.user != own {
            let message = format!(
                "cannot take over from {peer} behind {}: it is of user {}, and this process of user {own}; start udpd \
                 as that user",
                path.display(),
                peer.user
            );
            return Err(Trouble::Refused(Failure::new(ExitCode::Permission, message)));
        }
        log::info!("asking {peer} behind {} for its sockets", path.display());
        let peer = asked.insert(peer);
        let offer = match wire.hear(OFFERING_LIMIT)? {
            Word::Offer(offer) => offer,
            other => return Err(Trouble::Refused(refusal(peer, &other))),
        };
        Ok(asked.take().map(|peer| Self { path: path.to_owned(), wire, peer, offer }))
    }

    /// Its control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process, where it has a number here.
    pub fn process(&self) -> Option<u32> {
        self.peer.process
    }

    /// Its sockets, and the file in which it writes down how far it has counted, each with its name. This process has
    /// to be allowed as many.
    pub fn sockets(&mut self) -> Result<Vec<(String, OwnedFd)>, Failure> {
        let word = if self.offer.has_file { Word::SendAll } else { Word::Send };
        self.wire.say(&word).map_err(|error| self.broken(&error))?;
        let names = match self.wire.hear(ANSWERING_LIMIT).map_err(|error| self.broken(&error))? {
            Word::Sockets(names) => names,
            other => return Err(refusal(&self.peer, &other)),
        };
        let descriptors = self.wire.take_descriptors();
        if names.len() != descriptors.len() {
            let (names, came) = (names.len(), descriptors.len());
            return Err(self.broken(&io::Error::other(format!("it has {names} sockets and {came} came"))));
        }
        Ok(names.into_iter().zip(descriptors).collect())
    }

    /// Whether it is no more.
    pub fn has_gone(&self) -> bool {
        self.peer.wait_for_end(DYING_LIMIT) == Some(true)
    }

    /// Says that everything is ready that can be made beside it, and lets it stop.
    pub fn let_stop(&mut self, names: Vec<String>) -> Result<Left, Failure> {
        match self.wire.say(&Word::Ready(names)).and_then(|()| self.wire.hear(STOPPING_LIMIT)) {
            Ok(Word::Stopped(Stopped { ends: false, record })) => Ok(Left::Stopped(record)),
            Ok(Word::Stopped(Stopped { ends: true, record })) => Ok(Left::Ending(record)),
            Ok(other) => Err(refusal(&self.peer, &other)),
            Err(error) if self.has_died(&error) => Ok(Left::Died(self.offer.record.clone())),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Waits for the end of one that is ending.
    pub fn wait_for_end(&mut self) -> Result<(), Failure> {
        if self.has_ended(ENDING_LIMIT) {
            return Ok(());
        }
        Err(self.broken(&io::Error::other(format!("it has not ended within {} s", ENDING_LIMIT.as_secs()))))
    }

    /// Says that everything is open. When this returns well this process receives, and no other.
    pub fn take_its_place(&mut self) -> Result<(), Failure> {
        if self.peer.wait_for_end(Duration::ZERO) == Some(true) {
            return Ok(());
        }
        match self.wire.say(&Word::Open).and_then(|()| self.wire.hear_or_hang_up(ANSWERING_LIMIT)) {
            Ok(Word::Gone) => Ok(()),
            Ok(other) => Err(refusal(&self.peer, &other)),
            Err(error) if self.has_died(&error) => Ok(()),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Lets it end; whether it has, with all that it had open closed.
    pub fn let_end(&mut self) -> bool {
        // It may have ended already.
        let _ = self.wire.say(&Word::Bye);
        self.has_ended(ENDING_LIMIT)
    }

    /// Tells it why it is not taken over from.
    pub fn give_up(&mut self, why: &Failure) {
        let _ = self.wire.say(&Word::Error(why.message.clone()));
    }

    /// Waits for its end. In another container its number means nothing here, and the connection closes with it.
    fn has_ended(&mut self, limit: Duration) -> bool {
        if let Some(has_ended) = self.peer.wait_for_end(limit) {
            return has_ended;
        }
        let deadline = Instant::now() + limit;
        loop {
            match self.wire.hear(deadline.saturating_duration_since(Instant::now())) {
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
        Trouble::broken(&self.path, &self.peer.to_string(), error)
    }
}

impl fmt::Display for Predecessor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(formatter)
    }
}

/// Why nothing comes of the first question.
enum Trouble {
    Connection(io::Error),
    Refused(Failure),
}

impl Trouble {
    fn of(self, path: &Path) -> Failure {
        match self {
            Self::Connection(error) => Self::broken(path, "the daemon", &error),
            Self::Refused(failure) => failure,
        }
    }

    fn broken(path: &Path, who: &str, error: &io::Error) -> Failure {
        let (code, cure) = match error.kind() {
            ErrorKind::PermissionDenied => (ExitCode::Permission, "start udpd as the user of the daemon that runs"),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => (ExitCode::Unavailable, "it hangs or is busy: see its log"),
            ErrorKind::InvalidData => (ExitCode::Failure, "it is of another version: restart it without --take-over"),
            _ => (ExitCode::Failure, "see its log"),
        };
        Failure::new(code, format!("cannot take over from {who} behind {}: {error}; {cure}", path.display()))
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// What it says instead of what it was asked for.
fn refusal(peer: &Peer, word: &Word) -> Failure {
    let why = match word {
        Word::Error(why) => why.clone(),
        other => format!("it said {other:?}, which does not belong there"),
    };
    Failure::new(ExitCode::Failure, format!("{peer} does not let this one take over: {why}"))
}
