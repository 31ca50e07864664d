//! Opening what the configuration names: sinks with their files, and addresses, with the errors an operator can act on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::Supply;
use crate::budget::Budget;
use crate::channel::FullPolicy;
use crate::config::template::{self, Names};
use crate::config::{Config, FileSink as FileSettings, Sink as SinkSettings, SinkKind, SyncPolicy, WhenFull};
use crate::exit::{ExitCode, Failure};
use crate::holder;
use crate::sink::file::FileSink;
use crate::sink::stdout::StreamSink;
use crate::sink::{NullSink, Sink};

/// The policy of a channel.
pub(super) fn full_policy(when_full: WhenFull) -> FullPolicy {
    match when_full {
        WhenFull::DropNewest => FullPolicy::DropNewest,
        WhenFull::DropOldest => FullPolicy::DropOldest,
        WhenFull::Block => FullPolicy::Block,
    }
}

/// Opens the sink of one consumer. `lanes` says which lanes feed it; `supply` makes the sinks that only the caller can make.
pub(super) fn sink(
    config: &Config,
    budget: &Budget,
    settings: &SinkSettings,
    consumer: usize,
    lanes: &[bool],
    supply: Supply<'_>,
) -> Result<Box<dyn Sink>, Failure> {
    match &settings.kind {
        SinkKind::Null => Ok(Box::new(NullSink)),
        SinkKind::Supplied => Ok(supply(&settings.name, consumer)),
        SinkKind::Stdout => {
            // A handle of its own: the standard one would buffer lines and write each by itself.
            let stream = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
                Failure::new(ExitCode::Failure, format!("sink {}: cannot use standard output: {error}", settings.name))
            })?;
            Ok(Box::new(StreamSink::new(std::fs::File::from(stream))))
        }
        SinkKind::File(file) => {
            let path = |(lane, feeds): (usize, &bool)| {
                let plan = &budget.lanes[lane];
                let listener = &config.listeners[plan.listener].name;
                let names = Names { listener, lane: plan.number, consumer, sink: &settings.name };
                feeds.then(|| PathBuf::from(template::expand(&file.path, &names)))
            };
            let paths: Vec<Option<PathBuf>> = lanes.iter().enumerate().map(path).collect();
            open_files(settings, file, &paths)
        }
    }
}

fn open_files(
    settings: &SinkSettings,
    file: &FileSettings,
    paths: &[Option<PathBuf>],
) -> Result<Box<dyn Sink>, Failure> {
    let interval = match file.sync {
        SyncPolicy::Never => None,
        SyncPolicy::Every(interval) => Some(interval),
    };
    let sink = FileSink::open(paths, interval).map_err(|error| {
        let shown: Vec<String> = paths.iter().flatten().map(|path| path.display().to_string()).collect();
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => ExitCode::Permission,
            _ => ExitCode::Disk,
        };
        let cure = match error.kind() {
            io::ErrorKind::PermissionDenied => "; let the user of udpd write there, or choose another path",
            _ => "",
        };
        let message =
            format!("sink {}: cannot open {} for appending: {error}{cure}", settings.name, shown.join(" or "));
        Failure::new(code, message)
    })?;
    Ok(Box::new(sink))
}

/// Why an address could not be bound, and what to do.
pub(super) fn bind_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let (code, cure) = match errno {
        Errno::EADDRINUSE => {
            let holders = holder::of_udp_address(address, Path::new("/proc"));
            let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
            let who = if names.is_empty() { "a process that /proc does not show".to_owned() } else { names.join(", ") };
            (ExitCode::Unavailable, format!("it is held by {who}; stop that or choose another address"))
        }
        Errno::EADDRNOTAVAIL => {
            let cure = "no interface of this host has it; see `ip address`, or use the wildcard address";
            (ExitCode::Unavailable, cure.to_owned())
        }
        Errno::EACCES => {
            let cure = format!(
                "ports below {} need CAP_NET_BIND_SERVICE; in the unit file: AmbientCapabilities=CAP_NET_BIND_SERVICE",
                first_unprivileged_port()
            );
            (ExitCode::Permission, cure)
        }
        _ => (ExitCode::Unavailable, "choose another address".to_owned()),
    };
    Failure::new(code, format!("cannot bind {address}: {error}; {cure}"))
}

/// The first port that needs no capability.
fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_capability_and_the_line_that_grants_it() {
        let address = "127.0.0.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EACCES as i32));
        assert_eq!(failure.code, ExitCode::Permission);
        assert!(failure.message.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE"), "{failure}");
    }

    #[test]
    fn an_address_of_no_interface_is_unavailable() {
        let address = "192.0.2.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32));
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("192.0.2.1:514"), "{failure}");
    }
}
