//! What a log line says when a peer that connections are made to is not there: what to do, and where datagrams wait.

use std::io;

use nix::libc;

use crate::tls;

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
