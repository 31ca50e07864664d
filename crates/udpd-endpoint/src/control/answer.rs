//! How the daemon words an answer, and what a client may take of its room and time.

use crate::exchange::Limits;
use udpd_base::exit::Failure;

/// Scripts and people, and the longest request line.
pub(super) const LIMITS: Limits = Limits::new(32, 4096);

/// What a daemon is known to do.
pub(super) const KNOWN: &str = "stats, seats, reopen, reload, take-over";

/// The answer to what is not done.
pub(super) fn refusal(reason: &str) -> Vec<u8> {
    line(serde_json::json!({ "error": reason }).to_string())
}

/// The same, with the exit code that whoever asked should end with.
pub(super) fn failed(failure: &Failure) -> Vec<u8> {
    line(serde_json::json!({ "error": failure.message, "exit_code": failure.code as u8 }).to_string())
}

/// The answer to what is done.
pub(super) fn agreement(what: &str) -> Vec<u8> {
    line(serde_json::json!({ "ok": what }).to_string())
}

pub(super) fn line(mut json: String) -> Vec<u8> {
    json.push('\n');
    json.into_bytes()
}
