//! The control socket: how `udpd stats` asks a running daemon for its ledger.
//!
//! A Unix socket in a directory of the daemon's own, mode 0660, so that the file system decides who may ask. A client
//! sends one line and gets one line of JSON.

mod lock;
mod socket;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::crew::Crew;
use crate::exchange::{Exchange, NoQuestion};
use crate::exit::{ExitCode, Failure};
use crate::ledger::Snapshot;
use crate::service::Service;
pub use socket::ControlSocket;

/// How long one client may keep the others waiting.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);

/// How long a client waits; several others may be before it.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The longest request line.
const REQUEST_BYTES_MAX: usize = 4096;

/// The longest answer a client takes: a thousand listeners with a hundred lanes each.
const ANSWER_BYTES_MAX: usize = 64 << 20;

impl ControlSocket {
    /// Answers with what `snapshot` returns, on a thread of its own, until stopped.
    pub fn serve(
        self,
        crew: &Crew,
        snapshot: impl Fn() -> Snapshot + Send + 'static,
    ) -> Result<ControlServer, Failure> {
        let service = Service::start("udpd-control", self, crew, move |client| serve_client(client, &snapshot))?;
        Ok(ControlServer { service })
    }
}

/// A control socket that is being served.
#[derive(Debug)]
#[must_use = "the socket is served until the server is stopped"]
pub struct ControlServer {
    service: Service<ControlSocket>,
}

impl ControlServer {
    /// Ends the service, after the client being served if there is one, and removes the socket's file.
    pub fn stop(self) {
        // In this order: a file whose daemon no longer answers would invite the next daemon to replace it meanwhile.
        self.service.listener().remove_file();
        self.service.stop();
    }
}

fn serve_client(client: UnixStream, snapshot: &impl Fn() -> Snapshot) {
    let mut exchange = Exchange::new(client, CLIENT_LIMIT);
    let end_of_line = |bytes: &[u8]| bytes.iter().position(|&byte| byte == b'\n');
    let answer = match exchange.question(REQUEST_BYTES_MAX, end_of_line) {
        Ok(line) if line == b"stats" => {
            serde_json::to_string(&snapshot()).unwrap_or_else(|error| refusal(&error.to_string()))
        }
        Ok(line) => {
            let shown: String = String::from_utf8_lossy(&line).chars().take(40).collect();
            refusal(&format!("unknown request {shown:?}; known is: stats"))
        }
        Err(NoQuestion::TooLong) => refusal(&format!("the request is longer than {REQUEST_BYTES_MAX} bytes")),
        Err(NoQuestion::Gone) => return,
    };
    // A client that does not wait for its answer has nobody to report it to.
    let _ = exchange.answer(format!("{answer}\n").as_bytes());
}

fn refusal(reason: &str) -> String {
    serde_json::json!({ "error": reason }).to_string()
}

/// Asks the daemon behind `path` for its ledger.
pub fn request_stats(path: &Path) -> Result<Snapshot, Failure> {
    let client = socket::connect(path, ANSWER_LIMIT).map_err(|error| not_connected(path, &error))?;
    let mut exchange = Exchange::new(client, ANSWER_LIMIT);
    let answer = exchange.write_all(b"stats\n").and_then(|()| exchange.read_to_end(ANSWER_BYTES_MAX));
    let answer = answer.map_err(|error| {
        let cure = "if the daemon is stuck, see its log and `systemctl status udpd`";
        let message = format!("no answer from the daemon behind {}: {error}; {cure}", path.display());
        Failure::new(ExitCode::Failure, message)
    })?;
    understand(path, &answer)
}

fn understand(path: &Path, answer: &[u8]) -> Result<Snapshot, Failure> {
    serde_json::from_slice(answer).map_err(|error| {
        let refused = serde_json::from_slice::<serde_json::Value>(answer).ok();
        let reason = match refused.as_ref().and_then(|value| value["error"].as_str()) {
            Some(reason) => format!("refused: {reason}"),
            None => format!("answered something that is not a ledger ({error})"),
        };
        let cure = "the daemon and this command may be of different versions; restart the daemon after an update";
        Failure::new(ExitCode::Failure, format!("the daemon behind {} {reason}; {cure}", path.display()))
    })
}

fn not_connected(path: &Path, error: &io::Error) -> Failure {
    use io::ErrorKind;
    let path_shown = path.display();
    let (code, reason) = match error.kind() {
        ErrorKind::NotFound => (
            ExitCode::Unavailable,
            "there is no such file, so no udpd serves it; start the daemon, or name its control_socket with --socket"
                .into(),
        ),
        ErrorKind::ConnectionRefused => (
            ExitCode::Unavailable,
            "the file is there but nobody serves it: the daemon ended without removing it; start the daemon again"
                .into(),
        ),
        ErrorKind::PermissionDenied => (
            ExitCode::Permission,
            "permission denied; run this as the daemon's user, as root, or as a member of the file's group".into(),
        ),
        ErrorKind::WouldBlock => (
            ExitCode::Failure,
            "it takes no more clients; it is stuck or overrun, see its log and restart it if it stays so".into(),
        ),
        _ => (ExitCode::Failure, format!("{error}; see the daemon's log")),
    };
    Failure::new(code, format!("cannot ask the daemon behind {path_shown}: {reason}"))
}

/// Where a daemon listens that was not told otherwise: the system's, then that of the present user.
pub fn default_paths() -> Vec<PathBuf> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty());
    let of_user = of_user.map(|directory| Path::new(&directory).join("udpd/control.sock"));
    std::iter::once(PathBuf::from("/run/udpd/control.sock")).chain(of_user).collect()
}

#[cfg(test)]
mod tests;
