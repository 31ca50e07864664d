//! Where the spill of one consumer is, whose datagrams it can have, and why it cannot be had.

use std::io;
use std::path::{Path, PathBuf};

use super::settings::{Spill, directory_of, left_behind};
use crate::{BYTES_MIN, Lane, Places};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::owned;
use udpd_base::sink::settings::Opening;
use udpd_base::text::units::print_size;

/// Where a spill is, and how much it may be.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) directory: PathBuf,
    pub(super) bytes_max: u64,
    pub(super) places: Places,
    /// The directories of consumers that there are no more.
    pub(super) others: Vec<PathBuf>,
}

impl Home {
    /// Of the consumer that is opened; `None` where nothing feeds it.
    pub(super) fn of(spill: &Spill, opening: &Opening<'_>) -> Result<Option<Self>, Failure> {
        let Some(root) = spill.path.as_deref() else { return Ok(None) };
        let fed = opening.scenes.iter().enumerate().filter(|(lane, _)| opening.feeds[*lane]);
        let lane = |(lane, scene): (usize, &udpd_base::format::encoder::Scene)| {
            let listener = opening.listeners.iter().position(|name| *name == scene.listener)?;
            Some(Lane { lane, listener, name: scene.listener.clone(), bound: scene.address.to_string() })
        };
        let Some(places) = Places::of(fed.filter_map(lane).collect()) else { return Ok(None) };
        let (consumer, consumers) = (opening.consumer, opening.consumers);
        let directory = directory_of(root, consumer);
        let bytes_max = spill.bytes / consumers.max(1) as u64;
        if bytes_max < BYTES_MIN {
            let (each, least) = (print_size(bytes_max), print_size(BYTES_MIN));
            let message = format!(
                "[sink.{}] spill.bytes leaves {each} for each consumer and destination; raise it until that is {least}",
                opening.sink
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
        owned::make_directory(root).map_err(|error| refusal(opening.sink, root, &error))?;
        let others = left_behind(root, consumer, consumers).map_err(|error| refusal(opening.sink, root, &error))?;
        Ok(Some(Self { directory, bytes_max, places, others }))
    }
}

/// Why there is no spill in this directory, and what helps.
pub(super) fn refusal(sink: &str, directory: &Path, error: &io::Error) -> Failure {
    let directory = directory.display();
    if owned::is_refusal(error) {
        return Failure::new(ExitCode::Permission, format!("[sink.{sink}] cannot use the spill {directory}: {error}"));
    }
    let (code, cure) = match error.kind() {
        io::ErrorKind::PermissionDenied => (ExitCode::Permission, "let the user of udpd write there"),
        io::ErrorKind::Unsupported => (ExitCode::Disk, "have that one send what is in it, or name another directory"),
        io::ErrorKind::Other => (ExitCode::Disk, "give each its own directory"),
        _ => (ExitCode::Disk, "see to that disk, or name another directory"),
    };
    Failure::new(code, format!("[sink.{sink}] cannot use the spill {directory}: {error}; {cure}"))
}
