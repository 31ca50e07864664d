//! `udpd run --take-over`: the start of a process that goes on with the sockets of one that runs.
//!
//! Whatever can fail is done before the other one is asked to stop: configuration, memory, cores, lanes with their
//! engines, addresses that are new. Then the files are opened and the sockets dealt out, and only when the other one
//! has confirmed that it will not come back does the first lane receive. A failure up to there costs nothing: the other
//! one goes on.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::activation::Passed;
use super::departure::own_manager;
use super::record::{self, Record, RecordFile};
use super::store::Store;
use super::windows::BoundWindows;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::notify::Notifier;
use udpd_base::os::threads::ThreadRegistry;
use udpd_endpoint::control::{OldProcess, OldProcessEnd, OldProcessSearch, TakeOverOffer};
use udpd_engine::config::Config;
use udpd_engine::pipeline::{InheritedSockets, Pipeline, PreparedPipeline};
use udpd_engine::plan::limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors};

/// What a process that takes over has when it receives.
pub(super) struct TakenOver {
    pub(super) store: Store,
    pub(super) windows: BoundWindows,
    pub(super) pipeline: Pipeline,
}

/// Who is taken over from, with all that it has passed.
pub(super) struct ToTakeOver {
    pub(super) predecessor: OldProcess,
    sockets: Vec<(String, OwnedFd)>,
    /// What it writes down until its end.
    record: Option<OwnedFd>,
}

/// What has become of it.
pub(super) enum Taking {
    Done(Box<TakenOver>),
    /// The other process has ended by itself meanwhile, or was killed while it did: what it has left, on which this one
    /// begins as after any end.
    Left(Passed),
}

/// Finds the daemon that runs with the same control socket, and gets its sockets before anything else is made: from
/// then on it may die. Where there is none the start is one as ever, so that one command serves for both.
pub(super) fn find(config: &Config, passed: &mut Passed) -> Result<Option<ToTakeOver>, Failure> {
    let Some(path) = config.daemon.control_socket.value.as_deref() else {
        let message = "--take-over finds the running daemon by its control socket, and control_socket is \"\"; write \
                       the path that the running daemon has";
        return Err(Failure::new(ExitCode::Configuration, message));
    };
    let mut predecessor = match OldProcess::find(path)? {
        OldProcessSearch::Daemon(predecessor) => *predecessor,
        OldProcessSearch::NoDaemon => {
            log::info!("nothing to take over: no daemon serves {}; udpd starts as without --take-over", path.display());
            return Ok(None);
        }
        OldProcessSearch::Died(process) => return Ok(has_died_with_its_sockets(process, passed)),
    };
    if predecessor.offer.manager.is_some() && predecessor.offer.manager != own_manager() {
        let message = format!(
            "cannot take over from {predecessor}: a service manager has started it, and would take its end for the end \
             of the service; restart the service instead (systemctl restart udpd), over which its sockets are kept"
        );
        let failure = Failure::new(ExitCode::Failure, message);
        predecessor.give_up(&failure);
        return Err(failure);
    }
    let TakeOverOffer { version, sockets, .. } = &predecessor.offer;
    let line = format!("{predecessor} is udpd {version} and has {sockets} sockets; this process makes all else first");
    let all = descriptors::provide_for_sockets(*sockets).and_then(|()| predecessor.sockets());
    let all = match all {
        Err(_) if predecessor.has_ended() => {
            return Ok(has_died_with_its_sockets(predecessor.process().unwrap_or(0), passed));
        }
        Err(failure) => {
            predecessor.give_up(&failure);
            return Err(failure);
        }
        Ok(all) => all,
    };
    log::info!("{line}");
    let (mut records, sockets): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name == record::NAME);
    Ok(Some(ToTakeOver { predecessor, sockets, record: records.pop().map(|(_, record)| record) }))
}

/// What was in its sockets nobody can know any more, and the ledger says so.
fn has_died_with_its_sockets(process: u32, passed: &mut Passed) -> Option<ToTakeOver> {
    log::error!(
        "process {process} has ended before it had passed its sockets: unless it closed its books in the same moment, \
         what waited in them, what it held and what the kernel had dropped there is gone with it, and how much that is \
         is not known; udpd starts as without --take-over"
    );
    passed.lost = Some(process);
    None
}

/// Refuses what does not fit beside it, and sees to it that all sockets can be had.
pub(super) fn provide(predecessor: &OldProcess, config: &Config, plan: &PipelinePlan) -> Result<(), Failure> {
    if has_same_group(predecessor) {
        MemoryLimits::read(Path::new("/")).refuse_beside_process(plan, predecessor.offer.memory_bytes)?;
    }
    descriptors::provide_with_sockets(config, plan, predecessor.offer.sockets)
}

/// Whether both processes are held to the limits of one control group.
fn has_same_group(predecessor: &OldProcess) -> bool {
    let group = |process: &str| fs::read(format!("/proc/{process}/cgroup")).ok();
    predecessor.process().is_some_and(|process| {
        let its = group(&process.to_string());
        its.is_some() && its == group("self")
    })
}

/// Takes over, unless the other process has ended by itself meanwhile. When this fails nothing has changed for the
/// other process, or it has gone back to receiving; but where it had to end first.
pub(super) fn begin(
    found: ToTakeOver,
    planned: (&Config, &PipelinePlan),
    started: Instant,
    notifier: &Arc<Notifier>,
    registry: &ThreadRegistry,
) -> Result<Taking, Failure> {
    let ToTakeOver { mut predecessor, sockets, record } = found;
    let record = record.map(LastWords::new);
    let outcome = attempt(&mut predecessor, sockets, record.as_ref(), planned, (started, notifier, registry));
    let mut taken = match outcome.inspect_err(|failure| predecessor.give_up(failure))? {
        Taking::Done(taken) => taken,
        Taking::Left(left) => {
            return Ok(Taking::Left(Passed { record: record.map(LastWords::into_descriptor), ..left }));
        }
    };
    become_main(&predecessor, notifier);
    if !predecessor.let_end() {
        log::warn!("{predecessor} does not end although this process has taken over; see its log");
    } else if let Some(last) = record.and_then(|record| record.of_one_that_was_killed()) {
        taken.store.note_killed(last);
    }
    taken.windows.bind_rest(planned.0);
    Ok(Taking::Done(taken))
}

/// What the other process writes down until its end.
struct LastWords(OwnedFd);

impl LastWords {
    fn new(record: OwnedFd) -> Self {
        Self(record)
    }

    fn read(&self) -> Option<Record> {
        let (_, record) = RecordFile::open(self.0.try_clone().ok()?)?;
        Some(record)
    }

    /// The last, unless it has closed its books.
    fn of_one_that_was_killed(&self) -> Option<Record> {
        self.read().filter(|record| !record.ended)
    }

    fn into_descriptor(self) -> OwnedFd {
        self.0
    }
}

/// Up to the first datagram.
fn attempt(
    predecessor: &mut OldProcess,
    sockets: Vec<(String, OwnedFd)>,
    last_words: Option<&LastWords>,
    (config, plan): (&Config, &PipelinePlan),
    (started, notifier, registry): (Instant, &Arc<Notifier>, &ThreadRegistry),
) -> Result<Taking, Failure> {
    let windows = BoundWindows::bind_beside(config, predecessor.offer.metrics_address)?;
    let kept = InheritedSockets::new(sockets)?;
    let all = kept.duplicate();
    let mut from = kept.assign_for_take_over(config, plan)?;
    let (names, left) = (from.names.clone(), std::mem::take(&mut from.left));
    let mut prepared = PreparedPipeline::beside(from, config, plan, registry)?;
    let (asked_at, sockets) = (Instant::now(), names.len());
    let record = match predecessor.let_stop(names)? {
        OldProcessEnd::Stopped(record) => record,
        OldProcessEnd::Ending(record) => {
            // Its end would be that of the service.
            become_main(predecessor, notifier);
            predecessor.wait_for_end()?;
            match last_words.and_then(LastWords::of_one_that_was_killed) {
                // What it has closed it has counted, and the addresses are free when nobody has the sockets any more.
                None => {
                    drop((left, all));
                    record
                }
                Some(last) => {
                    log::error!("{predecessor} has died before it had written its last ledger");
                    prepared.discard(left)?;
                    serde_json::to_value(last).unwrap_or_default()
                }
            }
        }
        OldProcessEnd::Died(record) => {
            let last = last_words.and_then(LastWords::read);
            if last.as_ref().is_some_and(|last| last.ended) {
                // All that came to its sockets is in its last ledger.
                log::warn!(
                    "{predecessor} has ended by itself and has given up its sockets; udpd starts as without --take-over"
                );
                return Ok(Taking::Left(Passed { kept: InheritedSockets::default(), record: None, lost: None }));
            }
            if prepared.is_abandoned() {
                log::error!("{predecessor} has died while it ended; what it has left in its sockets is here");
                drop((prepared, left));
                return Ok(Taking::Left(Passed { kept: all, record: None, lost: None }));
            }
            log::error!("{predecessor} has died before it could be taken over from; its sockets are here and go on");
            prepared.discard(left)?;
            last.map_or(record, |last| serde_json::to_value(last).unwrap_or_default())
        }
    };
    let mut store = Store::after(notifier, record);
    store.begin(config, plan, prepared.assignment());
    prepared.take_sockets()?;
    let pipeline = prepared.start(config, plan, started, registry, || predecessor.take_its_place())?;
    log::info!(
        "took over {sockets} sockets from {predecessor}; {:.1} ms from asking it to stop until this process received, \
         in which datagrams waited in the sockets",
        asked_at.elapsed().as_secs_f64() * 1000.0
    );
    Ok(Taking::Done(Box::new(TakenOver { store, windows, pipeline })))
}

/// Tells the service manager of both processes which one the service is from now on.
fn become_main(predecessor: &OldProcess, notifier: &Notifier) {
    if predecessor.offer.manager.is_some() && !notifier.take_the_place() {
        log::warn!(
            "the service manager does not confirm that process {} is the main one of the service now; it hears that \
             only with NotifyAccess=all in the unit file",
            std::process::id()
        );
    }
}
