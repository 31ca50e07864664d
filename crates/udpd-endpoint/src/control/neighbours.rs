//! The daemons that run on this host, asked for the seats of their lanes.
//!
//! They are looked for where a control socket usually is, and among the listening sockets of the kernel's table whose
//! path has "udpd" in it. Every user can make such a socket. So one from the table is connected to only if its file
//! belongs to root, to the user udpd or to the user who asks, and a process is asked only after the kernel has said
//! that it is a udpd of one of these. None is waited for longer than a moment: a daemon that hangs is named, and the
//! rest goes on without it.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{User, geteuid};

use super::client::{ATTEMPTS, exchange, was_not_heard};
use super::seats::Seats;
use super::socket;
use udpd_base::seams::clock;

/// How long one daemon may take to answer, and all of them together.
const ONE_LIMIT: Duration = Duration::from_secs(1);
const ALL_LIMIT: Duration = Duration::from_secs(3);

/// The most of those that do not tell that are named one by one.
const SILENT_MAX: usize = 8;

/// The name of the process of a daemon, and what the path of its socket has in it.
const NAME: &str = "udpd";

/// Linux's mark of a socket that listens, in the table (`__SO_ACCEPTCON`).
const LISTENS: u32 = 1 << 16;

/// A daemon that has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub path: PathBuf,
    pub seats: Seats,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbours {
    pub daemons: Vec<Neighbour>,
    /// Those that seem to be there and have not told.
    pub silent: Vec<Silent>,
}

/// One that has not told where its lanes sit. Shown, it is one clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silent {
    /// Its control socket; `None` where the clause is about several or about the table.
    pub path: Option<PathBuf>,
    pub clause: String,
}

impl fmt::Display for Silent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.clause)
    }
}

#[derive(Debug)]
pub struct NeighbourSearch<'a> {
    /// Where the operator says that a daemon is.
    pub named: &'a [PathBuf],
    /// Where one usually is.
    pub usual: &'a [PathBuf],
    /// The socket of the daemon that asks or is meant, which is not its own neighbour.
    pub except: Option<&'a Path>,
    /// `/proc` on a live machine.
    pub proc_root: &'a Path,
}

impl NeighbourSearch<'_> {
    pub fn ask(&self) -> Neighbours {
        self.ask_those(&limit, &is_believed, &|pid, uid| is_daemon(self.proc_root, pid, uid))
    }

    /// `limit` says how long one may take when all before it have taken so long, `is_believed` whether a socket of this
    /// user in the table is looked at, and `is_daemon` whether a process, of this id and user, is to be asked.
    fn ask_those(
        &self,
        limit: &dyn Fn(&Path, Duration) -> Duration,
        is_believed: &dyn Fn(u32) -> bool,
        is_daemon: &dyn Fn(i32, u32) -> bool,
    ) -> Neighbours {
        let begun = clock::now();
        let mut found = Neighbours::default();
        let mut asked: Vec<PathBuf> = self.except.map(real).into_iter().collect();
        let listening = listening(self.proc_root).unwrap_or_else(|error| {
            let clause = format!("cannot look for other daemons: {error}");
            found.silent.push(Silent { path: None, clause });
            Vec::new()
        });
        let known = self.named.iter().chain(self.usual).map(|path| (path, true));
        for (path, is_known) in known.chain(listening.iter().map(|path| (path, false))) {
            if asked.contains(&real(path)) {
                continue;
            }
            asked.push(real(path));
            if !is_known && !fs::metadata(path).is_ok_and(|file| is_believed(file.uid())) {
                continue;
            }
            match ask(path, limit(path, clock::since(begun)), is_daemon) {
                Ok(seats) if found.daemons.iter().any(|other| is_same(&other.seats, &seats)) => {}
                Ok(seats) => found.daemons.push(Neighbour { path: path.clone(), seats }),
                Err(Silence::Gone) => {}
                Err(Silence::Foreign) if !is_known => {}
                Err(Silence::Failed(error)) if !is_known && error.kind() == ErrorKind::PermissionDenied => {}
                Err(silence) => {
                    let clause = format!("the process behind {} {silence}", path.display());
                    found.silent.push(Silent { path: Some(path.clone()), clause });
                }
            }
        }
        let more = found.silent.len().saturating_sub(SILENT_MAX);
        if more > 0 {
            found.silent.truncate(SILENT_MAX);
            let clause = format!("and {more} more do not tell their seats");
            found.silent.push(Silent { path: None, clause });
        }
        found
    }
}

#[derive(Debug)]
enum Silence {
    /// No process is behind the socket.
    Gone,
    /// It is not a daemon that we believe.
    Foreign,
    /// It may be one, and has not told.
    Failed(io::Error),
    /// It does not know the question.
    Refused(String),
}

impl fmt::Display for Silence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => formatter.write_str("has gone"),
            Self::Foreign => formatter.write_str("is not a udpd of root, of the user udpd or of yours"),
            Self::Failed(error) => write!(formatter, "does not tell its seats: {error}"),
            Self::Refused(why) => write!(formatter, "does not tell its seats ({why}); restart it after an update"),
        }
    }
}

/// Asks, and asks again one that hangs up instead of answering, as a daemon with many clients does.
fn ask(path: &Path, limit: Duration, is_daemon: &dyn Fn(i32, u32) -> bool) -> Result<Seats, Silence> {
    if limit.is_zero() {
        return Err(Silence::Failed(io::Error::new(ErrorKind::TimedOut, "others have taken all the time there was")));
    }
    let deadline = clock::now() + limit;
    let mut outcome = ask_once(path, limit, is_daemon);
    for _ in 1..ATTEMPTS {
        let left = deadline.saturating_duration_since(clock::now());
        if left.is_zero() || !matches!(&outcome, Err(Silence::Failed(error)) if was_not_heard(error)) {
            break;
        }
        outcome = ask_once(path, left, is_daemon);
    }
    outcome
}

fn ask_once(path: &Path, limit: Duration, is_daemon: &dyn Fn(i32, u32) -> bool) -> Result<Seats, Silence> {
    let stream = socket::connect(path, limit).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Silence::Gone,
        ErrorKind::WouldBlock => Silence::Failed(ErrorKind::TimedOut.into()),
        _ => Silence::Failed(error),
    })?;
    match peer(&stream) {
        Ok((pid, uid)) if is_daemon(pid, uid) => {}
        Ok(_) => return Err(Silence::Foreign),
        Err(error) => return Err(Silence::Failed(error)),
    }
    let answer = exchange(stream, b"seats\n", limit).map_err(Silence::Failed)?;
    serde_json::from_slice::<serde_json::Value>(&answer)
        .ok()
        .filter(|value| value["pid"].is_u64())
        .and_then(|value| serde_json::from_value(value).ok())
        .ok_or_else(|| Silence::Refused("its answer is not a list of seats".to_owned()))
}

fn peer(stream: &UnixStream) -> io::Result<(i32, u32)> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    Ok((credentials.pid(), credentials.uid()))
}

/// How long one may take when all before it have taken so long.
fn limit(_: &Path, spent: Duration) -> Duration {
    ALL_LIMIT.saturating_sub(spent).min(ONE_LIMIT)
}

/// Root, the user udpd or ourselves.
fn is_believed(uid: u32) -> bool {
    uid == 0
        || uid == geteuid().as_raw()
        || User::from_name(NAME).ok().flatten().is_some_and(|user| user.uid.as_raw() == uid)
}

/// A process called udpd of root, of the user udpd or of our own. One of another pid namespace has no id here and is
/// not believed.
fn is_daemon(proc_root: &Path, pid: i32, uid: u32) -> bool {
    let name = || fs::read_to_string(proc_root.join(pid.to_string()).join("comm"));
    pid > 0 && is_believed(uid) && name().is_ok_and(|name| name.trim_end() == NAME)
}

/// The same daemon, which two paths lead to.
fn is_same(one: &Seats, other: &Seats) -> bool {
    (one.pid, one.network_namespace) == (other.pid, other.network_namespace)
}

/// The path without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The paths of all stream sockets that listen and are called like one of ours, in order.
fn listening(proc_root: &Path) -> io::Result<Vec<PathBuf>> {
    let table = proc_root.join("net/unix");
    let text = fs::read(&table)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {error}", table.display())))?;
    let text = String::from_utf8_lossy(&text);
    let mut paths: Vec<PathBuf> = text.lines().skip(1).filter_map(listening_path).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Reads one line of the table: number, references, protocol, flags, type, state, inode and path. A path that is not
/// absolute means something only to who made it.
fn listening_path(line: &str) -> Option<PathBuf> {
    const STREAM: &str = "0001"; // SOCK_STREAM
    let mut rest = line;
    let mut fields = [""; 7];
    for field in &mut fields {
        let (first, others) = rest.trim_start().split_once(' ')?;
        (*field, rest) = (first, others);
    }
    let flags = u32::from_str_radix(fields[3], 16).ok()?;
    let path = rest.trim_start();
    let is_ours = fields[4] == STREAM && flags & LISTENS != 0 && path.starts_with('/') && path.contains(NAME);
    is_ours.then(|| PathBuf::from(path))
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
