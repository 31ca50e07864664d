//! Somebody's Unix socket: looked for, lost, found again, and what the log hears of it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use crate::os::user;

/// How often a peer that is gone is looked for.
const RETRY: Duration = Duration::from_millis(250);

/// Somebody's socket, who may come and go.
pub(super) struct Peer<S> {
    sink: String,
    path: PathBuf,
    connect: fn(&Path) -> io::Result<S>,
    pub(super) socket: Option<S>,
    /// When it was last looked for.
    pub(super) tried: Option<Instant>,
    /// What it does not take is not lost.
    spills: bool,
    /// What has been said of it.
    is_said_gone: bool,
    /// The error numbers that have been said of single messages; 0: one was received in part.
    said: Vec<i32>,
}

impl<S> fmt::Debug for Peer<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = self.socket.is_some();
        formatter.debug_struct("Peer").field("path", &self.path).field("is_connected", &is_connected).finish()
    }
}

impl<S> Peer<S> {
    pub(super) fn new(sink: &str, path: PathBuf, spills: bool, connect: fn(&Path) -> io::Result<S>) -> Self {
        let (sink, said) = (sink.to_owned(), Vec::new());
        let mut peer = Self { sink, path, connect, socket: None, tried: None, spills, is_said_gone: false, said };
        peer.find();
        peer
    }

    /// The socket, when the peer is there; looks for it, when the last look is long enough ago.
    pub(super) fn find(&mut self) -> Option<&mut S> {
        let is_due = || self.tried.is_none_or(|tried| tried.elapsed() >= RETRY);
        if self.socket.is_none() && is_due() {
            self.tried = Some(Instant::now());
            match (self.connect)(&self.path) {
                Ok(socket) => {
                    if self.is_said_gone {
                        log::info!("sink {}: {} is back", self.sink, self.path.display());
                    }
                    self.is_said_gone = false;
                    self.socket = Some(socket);
                }
                Err(error) => self.say_gone("cannot be reached", &error),
            }
        }
        self.socket.as_mut()
    }

    /// A datagram was received in part, and the peer could not tell. Said once.
    pub(super) fn say_truncated(&mut self) {
        self.say_of_message(0, || {
            "udpd does not hand on a truncated datagram, because it would look like a whole one; such datagrams \
             count as sink_error; raise max_length"
                .to_owned()
        });
    }

    /// What is wrong with single messages is said once for each error number.
    pub(super) fn say_of_message(&mut self, errno: i32, text: impl FnOnce() -> String) {
        /// There are hardly as many.
        const KINDS_MAX: usize = 8;
        if self.said.len() < KINDS_MAX && !self.said.contains(&errno) {
            self.said.push(errno);
            log::warn!("sink {}: {}: {}", self.sink, self.path.display(), text());
        }
    }

    pub(super) fn lose(&mut self, error: &io::Error) {
        self.say_gone("takes no more", error);
        self.socket = None;
    }

    /// It is there and reads nothing.
    pub(super) fn say_stuck(&mut self) {
        if !std::mem::replace(&mut self.is_said_gone, true) {
            log::warn!("sink {}: {} reads nothing; datagrams wait in the spill", self.sink, self.path.display());
        }
    }

    /// It has taken something.
    pub(super) fn note_taken(&mut self) {
        if std::mem::take(&mut self.is_said_gone) {
            log::info!("sink {}: {} is back", self.sink, self.path.display());
        }
    }

    fn say_gone(&mut self, what: &str, error: &io::Error) {
        if std::mem::replace(&mut self.is_said_gone, true) {
            return;
        }
        let cure = match error.kind() {
            io::ErrorKind::NotFound => "; start what listens there",
            io::ErrorKind::PermissionDenied => match user::become_by_now() {
                Some(name) => &format!(
                    "; udpd has become user {name}: let that user write to it by its owner, group or mode, or keep \
                     root by [daemon] user = \"root\""
                ),
                None => "; let the user of udpd write to it",
            },
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => "",
            io::ErrorKind::WouldBlock => "; it listens but accepts no connection: see what it waits for",
            _ if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                "; it is a socket of the other kind: socket = \"datagram\" or \"stream\""
            }
            _ => "",
        };
        log::warn!(
            "sink {}: {} {what}: {error}; datagrams {} until it is back{cure}",
            self.sink,
            self.path.display(),
            if self.spills { "wait in the spill" } else { "count as sink_error" }
        );
    }
}
