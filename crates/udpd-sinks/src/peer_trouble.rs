//! What a log line says of a peer that connections are made to: its own words, what to do when it is not there, and
//! where datagrams wait.

use std::io;

use nix::libc;

use crate::tls;
use udpd_base::format::json::is_control;

/// What to do about a connection that could not be made, or has ended.
pub(crate) fn cure(error: &io::Error) -> &'static str {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref()).map(tls::cure);
    match error.raw_os_error() {
        _ if of_tls.is_some() => of_tls.unwrap_or_default(),
        Some(libc::ECONNREFUSED) => "; start what listens there",
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => "; see `ip route get` for that address",
        Some(libc::ETIMEDOUT) => "; see whether a firewall on the way drops it",
        None if error.kind() == io::ErrorKind::TimedOut => "; see whether a firewall on the way drops it",
        _ => "",
    }
}

/// Where datagrams are meanwhile.
pub(crate) fn waiting_place(spills: bool) -> &'static str {
    match spills {
        true => "in the spill",
        false => "in memory, as far as there is room, and then count as sink_error",
    }
}

/// The longest reason that is told in a peer's words.
pub(crate) const REASON_BYTES_MAX: usize = 200;

/// What a peer says, printable and at most so long.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> String {
    let mut short = String::new();
    for character in text.chars() {
        let character = if is_control(character) || character.is_whitespace() { ' ' } else { character };
        if character == ' ' && (short.is_empty() || short.ends_with(' ')) {
            continue;
        }
        if short.len() + character.len_utf8() > bytes_max - "...".len() {
            short.truncate(short.trim_end().len());
            short.push_str("...");
            return short;
        }
        short.push(character);
    }
    short.truncate(short.trim_end().len());
    short
}
