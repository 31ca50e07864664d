//! `kernel_filter`: the access lists of a listener in the kernel, in front of its sockets. Each list is a table, which
//! all lanes of the listener share, and each socket has a filter, which counts for that socket.
//!
//! The receivers check every source all the same, so a filter may be missing for a moment or for good. It is attached
//! when no other process receives from the socket any more, exchanged by a reload in one step, and taken away before
//! another process adopts the socket. What it refuses is in the ledger of the lane that has the socket, see
//! `ledger/kernel_side`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use mmsg::{CoreCounter, Family, Socket, SourceFilter, SourceTable};
use nix::errno::Errno;

use super::lane_setup::LaneSetup;
use udpd_base::exit::{ExitCode, Failure};
use udpd_inspect::policy::KernelFilter;
use udpd_sandbox::privilege_helper::HelperLoader;

/// The tables of the listeners that have one, by their index.
#[derive(Debug, Default)]
pub(super) struct SourceTables(BTreeMap<usize, SourceTable>);

/// What each socket is to have: a filter, or none any more.
#[derive(Debug, Default)]
pub(super) struct SocketFilters(Vec<(String, Arc<Socket>, Option<SourceFilter>)>);

/// A lane with a socket, and what counts its arrivals.
type Counted<'a> = (&'a (&'a LaneSetup, Arc<Socket>), Option<&'a CoreCounter>);

impl SourceTables {
    /// Writes down the lists of all listeners of these lanes.
    pub(super) fn make<'a>(setups: impl Iterator<Item = &'a LaneSetup>) -> Result<Self, Failure> {
        let mut tables = BTreeMap::new();
        for setup in setups.filter(|setup| setup.is_first()) {
            let wanted = setup.listener.access.kernel_filter != KernelFilter::Off;
            let ranges = setup.access.as_ref().map(|list| list.ranges());
            let Some(ranges) = ranges.filter(|ranges| wanted && !ranges.keep_everything()) else { continue };
            let made = SourceTable::new(&ranges, &HelperLoader);
            if let Some(table) =
                made.map_or_else(|error| without(setup, &error).map(|()| None), |table| Ok(Some(table)))?
            {
                tables.insert(setup.plan.listener, table);
            }
        }
        Ok(Self(tables))
    }

    /// Makes the filters of sockets, which are not attached yet. They count arrivals as well, where the lane does.
    pub(super) fn filters<'a>(&self, lanes: impl Iterator<Item = Counted<'a>>) -> Result<SocketFilters, Failure> {
        let mut filters = Vec::new();
        let mut refused = None;
        for ((setup, socket), arrivals) in lanes {
            let table = self.0.get(&setup.plan.listener).filter(|_| refused != Some(setup.plan.listener));
            let filter = match table.map(|table| make(table, socket, arrivals)) {
                None => None,
                Some(Ok(filter)) => Some(filter),
                Some(Err(error)) => {
                    refused = Some(setup.plan.listener);
                    without(setup, &error)?;
                    None
                }
            };
            // A counter of arrivals has taken the place of the earlier filter.
            if filter.is_some() || arrivals.is_none() {
                filters.push((setup.to_string(), Arc::clone(socket), filter));
            }
        }
        Ok(SocketFilters(filters))
    }
}

/// Makes a filter, and finds out whether a socket can have it.
fn make(table: &SourceTable, socket: &Socket, arrivals: Option<&CoreCounter>) -> io::Result<SourceFilter> {
    let filter = table.filter(socket, arrivals, &HelperLoader)?;
    filter.attach(&Socket::new(Family::V4)?).map(|()| filter)
}

impl SocketFilters {
    /// Attaches them, and takes the earlier filters from sockets that are to have none.
    pub(super) fn attach(&self) {
        for (lane, socket, filter) in &self.0 {
            let outcome = match filter {
                Some(filter) => filter.attach(socket),
                None if socket.refused().is_some() => socket.accept_arrivals(),
                None => Ok(()),
            };
            if let Err(error) = outcome {
                log::error!("{lane}: cannot change the filter of its socket: {error}; restart udpd");
            }
        }
    }
}

/// Takes the filters of sockets away that another process adopts, which has lists of its own, and waits until the
/// last of their refusals is counted in both places.
pub(super) fn take_away<'a>(lanes: impl Iterator<Item = (&'a LaneSetup, Arc<Socket>)>) {
    let mut are_any = false;
    for (setup, socket) in lanes.filter(|(_, socket)| socket.refused().is_some()) {
        are_any = true;
        if let Err(error) = socket.accept_arrivals() {
            log::error!(
                "{setup}: cannot take its filter from its socket: {error}; the next process counts what it refuses \
                 as dropped by the kernel"
            );
        }
    }
    if are_any && let Err(error) = mmsg::wait_for_arrivals_under_way() {
        log::debug!("cannot wait for what the kernel still refuses: {error}");
    }
}

/// Goes on without a filter where the kernel does not take the lists of a listener: one warning, or no start.
fn without(setup: &LaneSetup, error: &io::Error) -> Result<(), Failure> {
    let name = &setup.listener.name;
    let (code, cure) = cure(error);
    if setup.listener.access.kernel_filter == KernelFilter::Require {
        let what = format!("listener {name}: the kernel cannot refuse sources: {error}");
        return Err(Failure::new(code, format!("{what}; {cure}, or write kernel_filter = \"auto\"")));
    }
    log::warn!(
        "listener {name}: the kernel cannot refuse sources: {error}; udpd refuses them after they were received; \
         {cure}, or write kernel_filter = \"off\""
    );
    Ok(())
}

fn cure(error: &io::Error) -> (ExitCode, &'static str) {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => (
            ExitCode::Permission,
            "grant CAP_BPF (in the unit file AmbientCapabilities=CAP_BPF, CapabilityBoundingSet=CAP_BPF and \
             SystemCallFilter=bpf) and restart",
        ),
        Some(Errno::E2BIG) => (ExitCode::Unavailable, "join networks: a family turns over 4,194,304 times at most"),
        Some(Errno::ENOMEM) => (ExitCode::Unavailable, "raise MemoryMax or net.core.optmem_max, or free memory"),
        _ => (ExitCode::Unavailable, "use Linux 5.12 or later"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_the_kernel_has_its_own_cure() {
        let cure = |errno: Errno| cure(&io::Error::from_raw_os_error(errno as i32));
        assert_eq!(cure(Errno::EPERM).0, ExitCode::Permission);
        assert!(cure(Errno::EPERM).1.contains("AmbientCapabilities=CAP_BPF"));
        assert!(cure(Errno::E2BIG).1.contains("networks") && cure(Errno::ENOMEM).1.contains("optmem_max"));
        assert!(cure(Errno::EINVAL).1.contains("Linux 5.12"));
    }
}
