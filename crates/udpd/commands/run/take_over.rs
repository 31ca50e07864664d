//! `udpd run --take-over`: the start of a process that goes on with the sockets of one that runs.
//!
//! Whatever can fail is done before the other one is asked to stop: configuration, memory, cores, lanes with their
//! engines, addresses that are new. Then the files are opened and the sockets dealt out, and only when the other one
//! has confirmed that it will not come back does the first lane receive. A failure up to there costs nothing: the other
//! one goes on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::departure::own_manager;
use super::store::Store;
use super::windows::BoundWindows;
use crate::config::Config;
use crate::endpoint::control::{Left, Offer, Predecessor};
use crate::exit::{ExitCode, Failure};
use crate::os::crew::Crew;
use crate::os::notify::Notifier;
use crate::pipeline::{Kept, Pipeline, Prepared};
use crate::plan::limits::Limits;
use crate::plan::{Plan, descriptors};

/// What a process that takes over has when it receives.
pub(super) struct TakenOver {
    pub(super) store: Store,
    pub(super) windows: BoundWindows,
    pub(super) pipeline: Pipeline,
}

/// Finds the daemon that runs with the same control socket. Where there is none the start is one as ever, so that one
/// command serves for both.
pub(super) fn find(config: &Config) -> Result<Option<Predecessor>, Failure> {
    let Some(path) = config.daemon.control_socket.value.as_deref() else {
        let message = "--take-over finds the running daemon by its control socket, and control_socket is \"\"; write \
                       the path that the running daemon has";
        return Err(Failure::new(ExitCode::Configuration, message));
    };
    let Some(mut predecessor) = Predecessor::reach(path)? else {
        log::info!("nothing to take over: no daemon serves {}; udpd starts as without --take-over", path.display());
        return Ok(None);
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
    let Offer { version, sockets, .. } = &predecessor.offer;
    log::info!("{predecessor} is udpd {version} and has {sockets} sockets; this process makes all else first");
    Ok(Some(predecessor))
}

/// Refuses what does not fit beside it, and sees to it that all sockets can be had.
pub(super) fn provide(predecessor: &Predecessor, config: &Config, plan: &Plan) -> Result<(), Failure> {
    if has_same_group(predecessor) {
        Limits::read(Path::new("/")).refuse_beside_process(plan, predecessor.offer.memory_bytes)?;
    }
    descriptors::provide_with_sockets(config, plan, predecessor.offer.sockets)
}

/// Whether both processes are held to the limits of one control group.
fn has_same_group(predecessor: &Predecessor) -> bool {
    let group = |process: &str| fs::read(format!("/proc/{process}/cgroup")).ok();
    predecessor.process().is_some_and(|process| {
        let its = group(&process.to_string());
        its.is_some() && its == group("self")
    })
}

/// Takes over; `None` when the other process has ended by itself meanwhile, and its sockets with it. When this fails
/// nothing has changed for the other process, or it has gone back to receiving; but where it had to end first.
pub(super) fn begin(
    mut predecessor: Predecessor,
    planned: (&Config, &Plan),
    started: Instant,
    notifier: &Arc<Notifier>,
    crew: &Crew,
) -> Result<Option<TakenOver>, Failure> {
    let outcome = attempt(&mut predecessor, planned, started, notifier, crew);
    let Some(mut taken) = outcome.inspect_err(|failure| predecessor.give_up(failure))? else {
        log::warn!(
            "{predecessor} has ended by itself and has given up its sockets; udpd starts as without --take-over"
        );
        return Ok(None);
    };
    become_main(&predecessor, notifier);
    if !predecessor.let_end() {
        log::warn!("{predecessor} does not end although this process has taken over; see its log");
    }
    taken.windows.bind_rest(planned.0);
    Ok(Some(taken))
}

/// Up to the first datagram.
fn attempt(
    predecessor: &mut Predecessor,
    (config, plan): (&Config, &Plan),
    started: Instant,
    notifier: &Arc<Notifier>,
    crew: &Crew,
) -> Result<Option<TakenOver>, Failure> {
    let windows = BoundWindows::bind_beside(config, predecessor.offer.metrics_address)?;
    let sockets = match predecessor.sockets() {
        Err(_) if predecessor.has_gone() => return Ok(None),
        sockets => sockets?,
    };
    let from = Kept::new(sockets)?.claim_from_running(config, plan)?;
    let names = from.names.clone();
    let mut prepared = Prepared::beside(from, config, plan, crew)?;
    let (asked_at, sockets) = (Instant::now(), names.len());
    let record = match predecessor.let_stop(names)? {
        Left::Stopped(record) => record,
        Left::Ending(record) => {
            // Its end would be that of the service.
            become_main(predecessor, notifier);
            predecessor.wait_for_end()?;
            record
        }
        Left::Died(_) if prepared.is_given_up() => return Ok(None),
        Left::Died(record) => {
            log::error!("{predecessor} has died before it could be taken over from; its sockets are here and go on");
            record
        }
    };
    let mut store = Store::after(notifier, record);
    store.begin(config, plan, prepared.claims());
    prepared.own_sockets()?;
    let pipeline = prepared.start(config, plan, started, crew, || predecessor.take_its_place())?;
    log::info!(
        "took over {sockets} sockets from {predecessor}; {:.1} ms from asking it to stop until this process received, \
         in which datagrams waited in the sockets",
        asked_at.elapsed().as_secs_f64() * 1000.0
    );
    Ok(Some(TakenOver { store, windows, pipeline }))
}

/// Tells the service manager of both processes which one the service is from now on.
fn become_main(predecessor: &Predecessor, notifier: &Notifier) {
    if predecessor.offer.manager.is_some() && !notifier.take_the_place() {
        log::warn!(
            "the service manager does not confirm that process {} is the main one of the service now; it hears that \
             only with NotifyAccess=all in the unit file",
            std::process::id()
        );
    }
}
