//! `udpd run --take-over`: the start of a process that goes on with the sockets of one that runs.
//!
//! Everything that can fail is done before the old process is asked to stop: configuration, memory, cores, lanes with
//! their engines, addresses that are new. Then the files are opened. Only when the old process has confirmed that it
//! will not come back is a socket bound or taken out of its group, and only then does the first lane receive: a process
//! that hangs before that, and goes on when the old one has given it up, changes nothing. A failure up to there costs
//! nothing: the old process goes on.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::crash_record::{ProcessRecord, RECORD_NAME, RecordFile};
use super::descriptor_store::DescriptorStore;
use super::endpoints::BoundEndpoints;
use super::handoff::own_manager;
use super::socket_activation::PassedDescriptors;
use super::{Start, Started};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::notify::Notifier;
use udpd_base::seams::clock;
use udpd_endpoint::control::{OldProcess, OldProcessEnd, OldProcessSearch, TakeOverOffer};
use udpd_engine::config::Config;
use udpd_engine::pipeline::{InheritedSockets, PreparedPipeline};
use udpd_engine::plan::memory_limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors};

/// The daemon that is taken over from, with all that it has passed.
pub(super) struct FoundDaemon {
    pub(super) process: OldProcess,
    sockets: Vec<(String, OwnedFd)>,
    /// The file of the record that it keeps until its end.
    record: Option<OwnedFd>,
}

/// How a take-over has ended.
pub(super) enum TakeOverOutcome {
    Done(Box<Started>),
    /// The old process has ended by itself meanwhile, or was killed while it did. This one begins on the sockets that
    /// it has left, as after any end.
    OldProcessEnded(PassedDescriptors),
}

/// Finds the daemon that runs with the same control socket, and gets its sockets before anything else is made: from
/// then on it may die. Where there is none the start is one as ever, so that one command serves for both.
pub(super) fn find(config: &Config, passed: &mut PassedDescriptors) -> Result<Option<FoundDaemon>, Failure> {
    let Some(path) = config.daemon.control_socket.value.as_deref() else {
        let message = "--take-over finds the running daemon by its control socket, and control_socket is \"\"; write \
                       the path that the running daemon has";
        return Err(Failure::new(ExitCode::Configuration, message));
    };
    let mut old = match OldProcess::find(path)? {
        OldProcessSearch::Daemon(old) => *old,
        OldProcessSearch::NoDaemon => {
            log::info!("nothing to take over: no daemon serves {}; udpd starts as without --take-over", path.display());
            return Ok(None);
        }
        OldProcessSearch::Died(process) => return Ok(has_died_with_its_sockets(process, passed)),
    };
    if old.offer.manager.is_some() && old.offer.manager != own_manager() {
        let message = format!(
            "cannot take over from {old}: a service manager has started it, and would take its end for the end \
             of the service; restart the service instead (systemctl restart udpd), over which its sockets are kept"
        );
        let failure = Failure::new(ExitCode::Failure, message);
        old.give_up(&failure);
        return Err(failure);
    }
    let TakeOverOffer { version, sockets, .. } = &old.offer;
    let line = format!("{old} is udpd {version} and has {sockets} sockets; this process makes all else first");
    let all = descriptors::provide_for_sockets(*sockets).and_then(|()| old.sockets());
    let all = match all {
        Err(_) if old.has_ended() => {
            return Ok(has_died_with_its_sockets(old.process().unwrap_or(0), passed));
        }
        Err(failure) => {
            old.give_up(&failure);
            return Err(failure);
        }
        Ok(all) => all,
    };
    log::info!("{line}");
    let (mut records, sockets): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name == RECORD_NAME);
    Ok(Some(FoundDaemon { process: old, sockets, record: records.pop().map(|(_, record)| record) }))
}

/// What was in its sockets is not known, and the ledger says so.
fn has_died_with_its_sockets(process: u32, passed: &mut PassedDescriptors) -> Option<FoundDaemon> {
    log::error!(
        "process {process} has ended before it had passed its sockets: unless it closed its ledger in the same moment, \
         what waited in them, what it held and what the kernel had dropped there is gone with it, and how much that is \
         is not known; udpd starts as without --take-over"
    );
    passed.lost_process = Some(process);
    None
}

/// Refuses what does not fit beside it, and raises the limit on open files for all sockets.
pub(super) fn provide(old: &OldProcess, config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
    if has_same_group(old) {
        MemoryLimits::read(Path::new("/")).refuse_beside_process(plan, old.offer.memory_bytes)?;
    }
    descriptors::provide_with_sockets(config, plan, old.offer.sockets)
}

/// Whether both processes are under the limits of one control group.
fn has_same_group(old: &OldProcess) -> bool {
    let group = |process: &str| fs::read(format!("/proc/{process}/cgroup")).ok();
    old.process().is_some_and(|process| {
        let its = group(&process.to_string());
        its.is_some() && its == group("self")
    })
}

/// Takes over, unless the old process has ended by itself meanwhile. When this fails nothing has changed for the old
/// process, or it has gone back to receiving, unless it had to end first.
pub(super) fn take_over(found: FoundDaemon, start: Start<'_>) -> Result<TakeOverOutcome, Failure> {
    let FoundDaemon { process: mut old, sockets, record } = found;
    let record = record.map(OldRecord);
    let outcome = receive_in_its_place(&mut old, sockets, record.as_ref(), start);
    let mut started = match outcome.inspect_err(|failure| old.give_up(failure))? {
        TakeOverOutcome::Done(started) => started,
        TakeOverOutcome::OldProcessEnded(left) => {
            let record = record.map(|record| record.0);
            return Ok(TakeOverOutcome::OldProcessEnded(PassedDescriptors { record, ..left }));
        }
    };
    become_main(&old, start.notifier);
    if !old.let_end() {
        log::warn!("{old} does not end although this process has taken over; see its log");
    } else if let Some(last) = record.and_then(|record| record.of_killed_process()) {
        started.store.record.set_killed(last);
    }
    started.endpoints.bind_rest(start.config);
    Ok(TakeOverOutcome::Done(started))
}

/// The file of the record that the old process keeps until its end.
struct OldRecord(OwnedFd);

impl OldRecord {
    fn read(&self) -> Option<ProcessRecord> {
        let (_, record) = RecordFile::open(self.0.try_clone().ok()?)?;
        Some(record)
    }

    /// The last record, unless the process has closed its ledger.
    fn of_killed_process(&self) -> Option<ProcessRecord> {
        self.read().filter(|record| !record.ended)
    }
}

/// Up to the first datagram.
fn receive_in_its_place(
    old: &mut OldProcess,
    sockets: Vec<(String, OwnedFd)>,
    old_record: Option<&OldRecord>,
    start: Start<'_>,
) -> Result<TakeOverOutcome, Failure> {
    let Start { config, plan, at, notifier, registry } = start;
    let endpoints = BoundEndpoints::bind_beside(config, old.offer.metrics_address)?;
    let inherited = InheritedSockets::new(sockets)?;
    let all = inherited.duplicate();
    let earlier = all.sockets().iter().map(|kept| (kept.name.clone(), kept.inode)).collect();
    let mut from = inherited.assign_for_take_over(config, plan)?;
    let (names, left) = (from.names.clone(), std::mem::take(&mut from.left));
    let mut prepared = PreparedPipeline::beside(from, config, plan, registry)?;
    let (asked_at, sockets) = (clock::now(), names.len());
    let begin_on = |sockets| PassedDescriptors { sockets, record: None, lost_process: None };
    let end = old.let_stop(names)?;
    let has_no_way_back = matches!(end, OldProcessEnd::Ending(_));
    let record = match end {
        OldProcessEnd::Stopped(record) => record,
        OldProcessEnd::Ending(record) => {
            // Its end would be that of the service.
            become_main(old, notifier);
            old.wait_for_end()?;
            match old_record.and_then(OldRecord::of_killed_process) {
                // What it has closed it has counted, and the addresses are free when no process has the sockets.
                None => {
                    drop((left, all));
                    record
                }
                Some(last) => {
                    log::error!("{old} has died before it had written its last ledger");
                    prepared.discard(left)?;
                    serde_json::to_value(last).unwrap_or_default()
                }
            }
        }
        OldProcessEnd::Died(record) => {
            let last = old_record.and_then(OldRecord::read);
            if last.as_ref().is_some_and(|last| last.ended) {
                // All that came to its sockets is in its last ledger.
                log::warn!(
                    "{old} has ended by itself and has given up its sockets; udpd starts as without --take-over"
                );
                return Ok(TakeOverOutcome::OldProcessEnded(begin_on(InheritedSockets::default())));
            }
            if prepared.is_abandoned() {
                log::error!("{old} has died while it ended; what it has left in its sockets is here");
                drop((prepared, left));
                return Ok(TakeOverOutcome::OldProcessEnded(begin_on(all)));
            }
            log::error!("{old} has died before it could be taken over from; its sockets are here and go on");
            prepared.discard(left)?;
            last.map_or(record, |last| serde_json::to_value(last).unwrap_or_default())
        }
    };
    let mut store = DescriptorStore::after(notifier, record, earlier);
    store.record.begin(config, plan, prepared.assignment());
    let taken = prepared.take_sockets();
    let begun = taken.and_then(|()| prepared.start(config, plan, at, registry, || old.take_its_place()));
    let pipeline = begun.inspect_err(|_| {
        if has_no_way_back {
            log::error!(
                "{old} has ended for this process, which cannot begin: no daemon receives now. What has come to its \
                 sockets since is lost unless a service manager keeps them, and no ledger counts it"
            );
        }
    })?;
    log::info!(
        "took over {sockets} sockets from {old}; {:.1} ms from asking it to stop until this process received, \
         in which datagrams waited in the sockets",
        clock::since(asked_at).as_secs_f64() * 1000.0
    );
    Ok(TakeOverOutcome::Done(Box::new(Started { store, endpoints, pipeline })))
}

/// Tells the service manager of both processes which one the service is from now on.
fn become_main(old: &OldProcess, notifier: &Notifier) {
    if old.offer.manager.is_some() && !notifier.take_the_place() {
        log::warn!(
            "the service manager does not confirm that process {} is the main one of the service now; it hears that \
             only with NotifyAccess=all in the unit file",
            std::process::id()
        );
    }
}
