//! The other side of the control socket: commands that ask a running daemon.
//!
//! A daemon with many clients may close a connection before it has read the question; then the question is put again.
//! An answer has its deadline, whatever comes in the meantime.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::server::{DrainCommand, LIMITS};
use super::socket;
use super::take_over::is_readable;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::ListenerStreams;
use udpd_base::os::runtime;
use udpd_base::seams::clock;

/// How long to wait for the ledger, and for being let in.
const STATS_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for new files: a little longer than the daemon does.
const REOPEN_LIMIT: Duration = LIMITS.waiting.saturating_add(Duration::from_secs(5));

/// How often to put a question that was not heard.
pub(super) const ATTEMPTS: u32 = 5;

/// Where root's daemon and the service are asked.
pub const OF_THE_SYSTEM: &str = "/run/udpd/control.sock";

/// The longest answer taken: a thousand listeners with a hundred lanes each.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A daemon that has been reached.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    stream: UnixStream,
}

impl Connection {
    /// Reaches the daemon behind `path`.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let stream = socket::connect(path, STATS_LIMIT).map_err(|error| not_connected(path, &error))?;
        Ok(Self { path: path.into(), stream })
    }

    /// Reaches the daemon behind the first of these paths where one is. When none is, a socket that is there and fails
    /// says more than one that is not.
    pub fn open_first(paths: &[PathBuf]) -> Result<Self, Failure> {
        let (mut telling, mut absent) = (None, Vec::new());
        for path in paths {
            match Self::open(path) {
                Ok(connection) => return Ok(connection),
                Err(_) if is_absent(path) => absent.push(path.display().to_string()),
                Err(failure) => telling = telling.or(Some(failure)),
            }
        }
        let absent = absent.join(" or ");
        Err(match telling {
            Some(failure) if absent.is_empty() => failure,
            Some(Failure { code, message }) => Failure::new(
                code,
                format!("{message}; this user has no udpd of its own running: there is no control socket at {absent}"),
            ),
            None => {
                let cure = "start the daemon, or name its configuration with -c or its control_socket with --socket";
                let message = format!("no udpd is running: there is no control socket at {absent}; {cure}");
                Failure::new(ExitCode::Unavailable, message)
            }
        })
    }

    pub fn stats(self) -> Result<Snapshot, Failure> {
        self.read(b"stats\n", "a ledger")
    }

    /// The streams of all listeners that follow sequence numbers.
    pub fn streams(self) -> Result<Vec<ListenerStreams>, Failure> {
        self.read(b"streams\n", "streams")
    }

    fn read<T: DeserializeOwned>(self, question: &[u8], what: &str) -> Result<T, Failure> {
        let path = self.path.clone();
        let answer = self.ask(question, STATS_LIMIT)?;
        serde_json::from_slice(&answer).map_err(|error| not_as_asked(&path, &answer, what, &error.to_string()))
    }

    /// Lets it go over to new files; returns when the old ones are closed, with what was done.
    pub fn reopen(self) -> Result<String, Failure> {
        self.have_done(b"reopen\n")
    }

    /// Has it read its configuration again; returns when that is in force, with what was done.
    pub fn reload(self) -> Result<String, Failure> {
        self.have_done(b"reload\n")
    }

    /// Has it leave the fleet, or stay in it; returns at once, with what will happen.
    pub fn drain(self, command: DrainCommand) -> Result<String, Failure> {
        self.have_done(command.question().as_bytes())
    }

    /// Whether it is ready; a failure says why not.
    pub fn ready(self) -> Result<(), Failure> {
        let fail = |why: String| Err(Failure::new(ExitCode::Failure, why));
        match self.stats()?.readiness {
            Some(readiness) if readiness.ready => Ok(()),
            Some(readiness) => fail(format!("not ready: {}: {}", readiness.reason, readiness.text)),
            None => fail("this udpd is older than its command and does not tell whether it is ready".to_owned()),
        }
    }

    fn have_done(self, question: &[u8]) -> Result<String, Failure> {
        let path = self.path.clone();
        let answer = self.ask(question, REOPEN_LIMIT)?;
        let value: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        if let Some(done) = value["ok"].as_str() {
            return Ok(done.to_owned());
        }
        let failure = not_as_asked(&path, &answer, "what was done", "no \"ok\" in it");
        let code = ExitCode::ALL.into_iter().find(|code| value["exit_code"].as_u64() == Some(*code as u64));
        Err(Failure { code: code.unwrap_or(failure.code), ..failure })
    }

    fn ask(mut self, question: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let mut outcome = exchange(self.stream, question, limit);
        for _ in 1..ATTEMPTS {
            if !outcome.as_ref().is_err_and(was_not_heard) {
                break;
            }
            self.stream = Self::open(&self.path)?.stream;
            outcome = exchange(self.stream, question, limit);
        }
        outcome.map_err(|error| {
            let cure = "if the daemon hangs, see its log and `systemctl status udpd`";
            let message = format!("no answer from the daemon behind {}: {error}; {cure}", self.path.display());
            Failure::new(ExitCode::Failure, message)
        })
    }
}

/// Whether the daemon hung up instead of answering.
pub(super) fn was_not_heard(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Writes the question and reads all of the answer, within `limit`: the time that is left shrinks with each call.
pub(super) fn exchange(mut stream: UnixStream, question: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = clock::now() + limit;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(question).map_err(timed_out)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if !is_readable(stream.as_fd(), deadline)? {
            return Err(ErrorKind::TimedOut.into());
        }
        match stream.read(&mut piece) {
            Ok(0) if answer.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(answer),
            Ok(count) if answer.len() + count > ANSWER_BYTES_MAX => {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("more than {ANSWER_BYTES_MAX} bytes")));
            }
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(timed_out(error)),
        }
    }
}

/// This is how a socket reports that its timeout is over.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The answer is a refusal, or something else than what was asked for.
fn not_as_asked(path: &Path, answer: &[u8], wanted: &str, why: &str) -> Failure {
    let refused = serde_json::from_slice::<serde_json::Value>(answer).ok();
    let path = path.display();
    let message = match refused.as_ref().and_then(|value| value["error"].as_str()) {
        Some(reason) => format!("the daemon behind {path} refused: {reason}"),
        None => format!(
            "the daemon behind {path} answered something that is not {wanted} ({why}); the daemon and this command \
             may be of different versions; restart the daemon after an update"
        ),
    };
    Failure::new(ExitCode::Failure, message)
}

fn not_connected(path: &Path, error: &io::Error) -> Failure {
    let path_shown = path.display();
    let (code, reason) = match error.kind() {
        ErrorKind::NotFound => (
            ExitCode::Unavailable,
            "there is no such file, so no udpd runs behind it; start the daemon, or name its control_socket with \
             --socket"
                .into(),
        ),
        ErrorKind::ConnectionRefused => (
            ExitCode::Unavailable,
            "the file exists but no process serves it: the daemon ended without removing it; start the daemon again"
                .into(),
        ),
        ErrorKind::PermissionDenied => (
            ExitCode::Permission,
            "permission denied; run this as the daemon's user, as root, or as a member of the file's group".into(),
        ),
        ErrorKind::WouldBlock => (
            ExitCode::Failure,
            "it accepts no more clients; it hangs or is overloaded, see its log and restart it if that lasts".into(),
        ),
        _ => (ExitCode::Failure, format!("{error}; see the daemon's log")),
    };
    Failure::new(code, format!("cannot ask the daemon behind {path_shown}: {reason}"))
}

/// Where a daemon listens that was not told otherwise: the system's, then those of the present user. A place that
/// another user may have made is none, unless it is the user's own.
pub fn default_paths() -> Vec<PathBuf> {
    let is_safe = |directory: &PathBuf| {
        let found = runtime::check_private(directory);
        !runtime::is_shared_place(directory)
            || found.map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true)
    };
    let of_user = runtime::directories().into_iter().filter(is_safe).map(|directory| directory.join("control.sock"));
    std::iter::once(PathBuf::from(OF_THE_SYSTEM)).chain(of_user).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_missing_right_is_told_apart_from_a_missing_daemon() {
        let failure = not_connected(Path::new("/run/udpd/control.sock"), &ErrorKind::PermissionDenied.into());
        assert_eq!(failure.code, ExitCode::Permission);
    }

    #[test]
    fn an_answer_that_is_no_ledger_is_an_error_with_the_daemons_own_words() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let answering = thread::spawn(move || {
            for answer in ["{\"error\": \"not today\"}\n", "{}", "{\"ok\": 7}\n"] {
                let (mut client, _) = listener.accept().unwrap();
                client.write_all(answer.as_bytes()).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = io::read_to_string(client);
            }
        });
        let reach = || Connection::open(&path).unwrap();
        assert!(reach().stats().unwrap_err().message.ends_with("refused: not today"));
        assert!(reach().stats().unwrap_err().message.contains("not a ledger"));
        assert!(reach().reopen().unwrap_err().message.contains("not what was done"));
        answering.join().unwrap();
    }

    #[test]
    fn a_question_that_was_not_heard_is_put_again_but_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // Hangs up with the question unread, then after reading it, then answers; and never answers any more.
        let serving = thread::spawn(move || {
            let mut questions = 0;
            loop {
                let (mut client, _) = listener.accept().unwrap();
                questions += 1;
                if questions % 2 == 0 || questions == 3 {
                    client.read_exact(&mut [0; 7]).unwrap();
                }
                match questions {
                    3 => client.write_all(b"{\"ok\": \"at last\"}\n").unwrap(),
                    8 => return,
                    _ => {}
                }
            }
        });
        assert_eq!(Connection::open(&path).unwrap().reopen().unwrap(), "at last");
        let failure = Connection::open(&path).unwrap().reopen().unwrap_err();
        assert_eq!(failure.code, ExitCode::Failure);
        assert!(failure.message.contains("no answer"), "{failure}");
        serving.join().unwrap();
    }

    #[test]
    fn an_answer_that_drips_is_given_up_at_the_deadline() {
        let (mut server, client) = UnixStream::pair().unwrap();
        // Drips for as long as the client reads, always faster than any timeout of a single read.
        let dripping = thread::spawn(move || {
            while server.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = exchange(client, b"stats\n", Duration::from_millis(100));
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
        dripping.join().unwrap();
    }
}
