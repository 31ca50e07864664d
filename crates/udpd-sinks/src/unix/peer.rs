//! The Unix socket of the peer: its connection, its loss, its return, and the log lines about them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::user;
use udpd_base::seams::clock;

/// How often a peer that is gone is looked for.
const RETRY: Duration = Duration::from_millis(250);

/// The socket of a peer, which may come and go.
pub(super) struct UnixPeer<S> {
    sink: String,
    path: PathBuf,
    connect: fn(&Path) -> io::Result<S>,
    pub(super) socket: Option<S>,
    /// When udpd last tried to connect.
    pub(super) tried: Option<Instant>,
    /// What the peer does not take waits in a spill.
    spills: bool,
    is_gone: bool,
    /// The log has a line that it is gone.
    is_logged_gone: bool,
    /// A peer that comes and goes gets one line a minute.
    gone: LogLimiter,
    /// The error numbers that were logged of single messages; 0: one was received in part.
    logged: Vec<i32>,
}

impl<S> fmt::Debug for UnixPeer<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = self.socket.is_some();
        formatter.debug_struct("UnixPeer").field("path", &self.path).field("is_connected", &is_connected).finish()
    }
}

impl<S> UnixPeer<S> {
    pub(super) fn new(sink: &str, path: PathBuf, spills: bool, connect: fn(&Path) -> io::Result<S>) -> Self {
        let (sink, gone, logged) = (sink.to_owned(), LogLimiter::default(), Vec::new());
        let (socket, tried, is_gone, is_logged_gone) = (None, None, false, false);
        let mut peer = Self { sink, path, connect, socket, tried, spills, is_gone, is_logged_gone, gone, logged };
        peer.find();
        peer
    }

    /// Whether what the peer does not take waits in a spill.
    pub(super) fn spills(&self) -> bool {
        self.spills
    }

    /// The socket, if the peer is there; connects if the last attempt is long enough ago.
    pub(super) fn find(&mut self) -> Option<&mut S> {
        let is_due = || self.tried.is_none_or(|tried| clock::since(tried) >= RETRY);
        if self.socket.is_none() && is_due() {
            self.tried = Some(clock::now());
            match (self.connect)(&self.path) {
                Ok(socket) => {
                    self.note_taken();
                    self.socket = Some(socket);
                }
                Err(error) => self.log_gone("cannot be reached", &error),
            }
        }
        self.socket.as_mut()
    }

    /// Logs once that a datagram was received in part, which the peer could not tell.
    pub(super) fn log_truncated(&mut self) {
        self.log_message_error(0, || {
            "udpd does not hand on a truncated datagram, because it would look like a whole one; such datagrams \
             count as sink_error; raise max_length"
                .to_owned()
        });
    }

    /// Logs an error of a single message, once for each error number.
    pub(super) fn log_message_error(&mut self, errno: i32, text: impl FnOnce() -> String) {
        /// More error numbers than there are for a message.
        const KINDS_MAX: usize = 8;
        if self.logged.len() < KINDS_MAX && !self.logged.contains(&errno) {
            self.logged.push(errno);
            log::warn!("sink {}: {}: {}", self.sink, self.path.display(), text());
        }
    }

    pub(super) fn lose(&mut self, error: &io::Error) {
        self.log_gone("takes no more", error);
        self.socket = None;
    }

    /// The peer is there and reads nothing.
    pub(super) fn log_stuck(&mut self) {
        if let Some(times) = self.note_gone() {
            log::warn!("sink {}: {} reads nothing; datagrams wait in the spill{times}", self.sink, self.path.display());
        }
    }

    /// The peer is there, or has taken something.
    pub(super) fn note_taken(&mut self) {
        self.is_gone = false;
        if std::mem::take(&mut self.is_logged_gone) {
            log::info!("sink {}: {} is back", self.sink, self.path.display());
        }
    }

    /// The peer is gone; returns the end of the log line about that, or `None` when nothing is to be logged.
    fn note_gone(&mut self) -> Option<String> {
        let (was_gone, now) = (std::mem::replace(&mut self.is_gone, true), clock::now());
        // A peer that is still gone when the minute is over is logged then.
        if self.is_logged_gone || was_gone && self.gone.suppresses(now) {
            return None;
        }
        let silent = self.gone.pass(now)?;
        self.is_logged_gone = true;
        Some(repeats(silent))
    }

    fn log_gone(&mut self, what: &str, error: &io::Error) {
        let Some(times) = self.note_gone() else { return };
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
            "sink {}: {} {what}: {error}; datagrams {} until it is back{cure}{times}",
            self.sink,
            self.path.display(),
            if self.spills { "wait in the spill" } else { "count as sink_error" }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_comes_and_goes_is_logged_once_a_minute() {
        let mut peer = UnixPeer::new("out", "/nowhere".into(), false, |_| -> io::Result<()> {
            Err(io::Error::from(io::ErrorKind::NotFound))
        });
        assert!(peer.is_gone && peer.is_logged_gone, "the first time");
        for _ in 0..100 {
            peer.note_taken();
            assert_eq!(peer.note_gone(), None);
            assert_eq!(peer.note_gone(), None, "and it is looked for again");
        }
        assert!(peer.is_gone && !peer.is_logged_gone);
        assert_eq!(peer.gone.pass(Instant::now() + Duration::from_secs(61)), Some(100));
    }
}
