//! Sockets that the service manager passed to this process: open descriptors from number 3 on, with LISTEN_FDS,
//! LISTEN_FDNAMES and LISTEN_PID. They come from a `.socket` unit, or are those that udpd itself has put into the
//! descriptor store before it was restarted.

use std::os::fd::OwnedFd;

use super::crash_record::RECORD_NAME;
use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::pipeline::InheritedSockets;

#[derive(Debug)]
pub(super) struct PassedDescriptors {
    pub sockets: InheritedSockets,
    /// The record of the process before.
    pub record: Option<OwnedFd>,
    /// The process that was to be taken over from, where it has died with its sockets.
    pub lost_process: Option<u32>,
}

pub(super) fn take_passed() -> Result<PassedDescriptors, Failure> {
    let variable = |name| std::env::var(name).ok();
    let count = passed(variable("LISTEN_FDS").as_deref(), variable("LISTEN_PID").as_deref(), std::process::id());
    let descriptors = mmsg::take_passed(count).map_err(|error| {
        let message = format!(
            "the service manager says that it passed {count} sockets (LISTEN_FDS), and they are not there: {error}; \
             unset LISTEN_FDS where no service manager starts udpd"
        );
        Failure::new(ExitCode::Configuration, message)
    })?;
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let (mut records, sockets): (Vec<_>, Vec<_>) =
        named(&names).zip(descriptors).partition(|(name, _)| name == RECORD_NAME);
    let record = records.pop().map(|(_, record)| record);
    Ok(PassedDescriptors { sockets: InheritedSockets::new(sockets)?, record, lost_process: None })
}

/// How many sockets were passed to this process. Variables that another process was meant to read, and that this one
/// has inherited from it, count for nothing.
fn passed(count: Option<&str>, process: Option<&str>, own_process: u32) -> u16 {
    match process.map(str::parse::<u32>) {
        Some(Ok(process)) if process == own_process => count.and_then(|count| count.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

/// The name of each; a manager that gives none calls them all the same.
fn named(names: &str) -> impl Iterator<Item = String> {
    names.split(':').filter(|_| !names.is_empty()).map(str::to_owned).chain(std::iter::repeat("unknown".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_passed_to_this_process_counts() {
        assert_eq!(passed(Some("2"), Some("7"), 7), 2);
        for (count, process) in
            [(None, None), (Some("2"), None), (Some("2"), Some("8")), (Some("0"), Some("7")), (None, Some("7"))]
        {
            assert_eq!(passed(count, process, 7), 0, "{count:?} {process:?}");
        }
        assert_eq!(passed(Some("nonsense"), Some("7"), 7), 0);
        assert_eq!(passed(Some("2"), Some("nonsense"), 7), 0);
    }

    #[test]
    fn each_socket_has_a_name_also_where_the_manager_gives_none() {
        assert_eq!(named("a.0:a.1").take(3).collect::<Vec<_>>(), ["a.0", "a.1", "unknown"]);
        assert_eq!(named("").take(1).collect::<Vec<_>>(), ["unknown"]);
    }
}
