//! `udpd run`: the daemon. Starts the pipeline and its windows (log, control socket, metrics), waits for the end, and
//! closes the books.

mod activation;
mod departure;
mod hangup;
mod inside;
mod keeping;
mod leaving;
mod record;
mod reload;
mod revival;
mod say;
mod standing;
mod store;
mod take_over;
mod trains;
mod will;
mod windows;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use self::activation::Passed;
use self::departure::{DRAIN_LIMIT, Departure};
use self::hangup::Hangup;
use self::inside::Inside;
pub(super) use self::inside::{path_rules, roles};
use self::keeping::{Housekeeping, Inbox, Unheard, Watches};
use self::reload::Reloads;
use self::say::{say_lane, say_ledger, say_pages};
pub(super) use self::standing::{Standing, look_ahead};
use self::store::Store;
use self::take_over::{TakenOver, Taking, ToTakeOver};
use self::windows::BoundWindows;
use crate::watch::listeners::ListenerWatch;
use crate::watch::losses::LossWatch;
use crate::watch::relay_loops::LoopWatch;
use crate::watch::sink_stalls::StallWatch;
use crate::watch::status_line::StatusLine;
use crate::watch::xdp_queues::QueueWatch;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging;
use udpd_base::os::notify::Notifier;
use udpd_base::os::signals;
use udpd_base::os::signals::Effect;
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::os::user;
use udpd_base::os::watchdog::Watchdog;
use udpd_endpoint::control::OldProcess;
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;
use udpd_engine::plan::limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors, neighbours, remarks};
use udpd_sandbox::SandboxMode;

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Runs until a signal comes or a sink is closed for good.
///
/// A reload reads `file` again. `takes_over` asks a daemon that runs for its sockets and its place.
pub fn execute(config: Config, file: Option<PathBuf>, takes_over: bool) -> Result<(), Failure> {
    // Before anything is opened here, whose number could be taken for one that was passed.
    let passed = activation::take_passed()?;
    // Before there is a second thread.
    let (standing, warden) = become_who_runs(&config, &passed)?;
    let (registry, events) = ThreadRegistry::new();
    let (inside, registry) = Inside::prepare(config.daemon.sandbox, registry)?;
    signals::watch(&registry)?;
    let logger = logging::start(config.daemon.log_level, config.daemon.log_format, io::stderr(), &registry)?;
    standing.say();
    if let Err(error) = warden {
        log::warn!(
            "cannot start the process that keeps the rights of udpd (udpd-warden): {error}; a reload, and an interface \
             that comes back, can have no port below 1024 and no receive buffer above net.core.rmem_max"
        );
    }
    let outcome = serve(config, file, passed, inside, (&registry, &events), takes_over);
    logger.finish(LOG_LIMIT);
    outcome
}

/// Starts the process that keeps the rights of root, and becomes the user that runs the daemon. What has come of both
/// is told when there is a log.
fn become_who_runs(config: &Config, passed: &Passed) -> Result<(Standing, io::Result<()>), Failure> {
    let wanted = Standing::of(config)?;
    let has_account = wanted.account().is_some();
    // While this process can still make one of another user.
    let mut warden = inside::start_warden(config, wanted.account());
    let standing = wanted.assume(config)?;
    if standing.account().is_some() {
        // Where that fails, the lane that cannot share the port says so.
        passed.kept.sockets().iter().for_each(|kept| user::take_socket(kept.socket()).unwrap_or_default());
        // No sandbox takes it later.
        if config.daemon.sandbox == SandboxMode::Off {
            let _ = user::give_up_what_only_a_start_takes();
        }
    } else if has_account {
        warden = inside::start_warden(config, None);
    }
    Ok((standing, warden))
}

fn serve(
    mut config: Config,
    file: Option<PathBuf>,
    mut passed: Passed,
    inside: Inside,
    (registry, events): (&ThreadRegistry, &Receiver<DaemonEvent>),
    takes_over: bool,
) -> Result<(), Failure> {
    let mut predecessor = look_before(&mut config, &mut passed, takes_over)?;
    let (own, inside, started) = (Arc::new(config), Arc::new(inside), Instant::now());
    let config: &Config = &own;
    let notifier = Arc::new(Notifier::from_environment());
    let plan = plan_beside(&mut predecessor, config, &inside, file.as_deref())?;
    registry.register_current("main");
    let watchdog = Watchdog::start(registry, &notifier)?;
    // It can fail, so it comes before there is anything to receive.
    let reloads = Reloads::start(file, config, registry, Arc::clone(&inside))?;
    let begun = begin_or_take_over(predecessor, passed, (config, &plan), started, &notifier, registry);
    let TakenOver { mut store, windows, pipeline } = begun.map_err(|failure| inside.explain(failure))?;
    // What the host lost before is not told.
    threads::blocking(|| pipeline.ledger().read_host_counters());
    // Its first look comes before anybody can ask what it has seen.
    let upkeep = ListenerWatch::new(config, &pipeline);
    let seats = Arc::new(Mutex::new(neighbours::own_seats(config, &plan)));
    let departure = Departure::new(registry);
    let windows = windows.serve(&pipeline, &seats, (&reloads, &departure), registry);
    let windows = match windows.and_then(|windows| inside.complete(registry).map(|()| windows)) {
        Ok(windows) => windows,
        Err(failure) => {
            end_at_once(pipeline, &mut store, events);
            return Err(failure);
        }
    };
    say_readiness(&pipeline, config, &plan, &mut store, &notifier);
    let housekeeping = Housekeeping {
        inbox: Inbox::new(events),
        hangup: Hangup::new(registry, pipeline.files()),
        watches: Watches::new(config, &plan, &pipeline),
        pipeline,
        upkeep,
        notifier: &notifier,
        status: StatusLine::default(),
        store: &mut store,
        losses: LossWatch::default(),
        queues: QueueWatch::default(),
        stalls: StallWatch::default(),
        loops: LoopWatch::default(),
        trains_refused_at: None,
        said: BTreeSet::new(),
        config: Arc::clone(&own),
        reloads,
        unheard: Unheard::default(),
        seats,
        departure,
    };
    watchdog.begin();
    let (reason, pipeline, mut upkeep, departure) = housekeeping.until_end();
    // The end has a limit of its own, and so has the manager for it.
    drop(watchdog);
    say_end(&reason, &notifier);
    let last = LastEvents::new(events);
    let snapshot = pipeline.stop(DRAIN_LIMIT, |wait| last.is_told_to_end(wait));
    let is_orderly = !is_panic(&reason) && last.nobody_has_died();
    upkeep.end();
    windows.close();
    say_ledger(&snapshot);
    let saved = config.daemon.stats_on_exit.as_deref().map_or(Ok(()), |path| snapshot.save(path));
    // Last: after a kill before this the next process says what this one had counted.
    store.end(is_orderly);
    // Whoever has taken over waits for the end of this connection where it cannot see that of the process.
    drop(departure);
    result_of(reason).and(saved)
}

/// Who is to be taken over from, and what is known from before.
fn look_before(config: &mut Config, passed: &mut Passed, takes_over: bool) -> Result<Option<ToTakeOver>, Failure> {
    // What a service manager has passed is as good: the process before has ended.
    let takes_over = takes_over && passed.kept.sockets().is_empty();
    let predecessor = if takes_over { take_over::find(config, passed)? } else { None };
    match &predecessor {
        Some(own) => trains::go_on_after(config, own.predecessor.path()),
        None => trains::go_on(config, &passed.kept),
    }
    Ok(predecessor)
}

/// The plan, if there is room for it on this machine and beside the process that is taken over from; and what threads
/// may open.
fn plan_beside(
    found: &mut Option<ToTakeOver>,
    config: &Config,
    inside: &Inside,
    file: Option<&Path>,
) -> Result<PipelinePlan, Failure> {
    let make = |predecessor: Option<&OldProcess>| {
        // Also those of another user, which root may ask.
        let neighbours = user::with_hands_of_root(|| plan::neighbours(predecessor.map(OldProcess::path)));
        let plan = plan::make(config, &neighbours)?;
        MemoryLimits::read(Path::new("/")).refuse_start(config, &plan)?;
        match predecessor {
            Some(predecessor) => take_over::provide(predecessor, config, &plan)?,
            None => descriptors::provide(config, &plan)?,
        }
        inside.begin(config, &plan, file)?;
        Ok(plan)
    };
    let made = make(found.as_ref().map(|own| &own.predecessor));
    made.inspect_err(|failure| found.iter_mut().for_each(|own| own.predecessor.give_up(failure)))
}

/// Takes over, or begins where there is nothing to take over, or nothing any more.
fn begin_or_take_over(
    found: Option<ToTakeOver>,
    mut passed: Passed,
    planned: (&Config, &PipelinePlan),
    started: Instant,
    notifier: &Arc<Notifier>,
    registry: &ThreadRegistry,
) -> Result<TakenOver, Failure> {
    if let Some(found) = found {
        match take_over::begin(found, planned, started, notifier, registry)? {
            Taking::Done(taken) => return Ok(*taken),
            Taking::Left(left) => passed = left,
        }
    }
    begin(passed, planned, started, notifier, registry)
}

/// Begins on what a service manager has passed, if anything.
fn begin(
    passed: Passed,
    (config, plan): (&Config, &PipelinePlan),
    started: Instant,
    notifier: &Arc<Notifier>,
    registry: &ThreadRegistry,
) -> Result<TakenOver, Failure> {
    let mut store = Store::new(notifier, &passed.kept, passed.record, passed.lost);
    // First what tells a second daemon on the same configuration from the first, so that it ends before it takes a
    // datagram.
    let windows = BoundWindows::bind(config)?;
    let claims = passed.kept.assign(config, plan)?;
    store.begin(config, plan, &claims);
    let pipeline = Pipeline::start_with(claims, config, plan, started, registry)?;
    Ok(TakenOver { store, windows, pipeline })
}

/// The start has failed, and it receives already: what came in this moment is delivered and told.
fn end_at_once(pipeline: Pipeline, store: &mut Store, events: &Receiver<DaemonEvent>) {
    let books = pipeline.ledger();
    say_ledger(&pipeline.stop(DRAIN_LIMIT, |wait| LastEvents::new(events).is_told_to_end(wait)));
    store.give_back(&books);
}

/// Everything is open and everybody receives.
fn say_readiness(pipeline: &Pipeline, config: &Config, plan: &PipelinePlan, store: &mut Store, notifier: &Notifier) {
    pipeline.lanes().iter().for_each(say_lane);
    say_pages(pipeline);
    will::say_owner_of_groups(pipeline);
    remarks::log(config, plan);
    let receiving = match pipeline.lanes().len() {
        1 => "1 lane receives".to_owned(),
        lanes => format!("{lanes} lanes receive"),
    };
    // Before it is ready: from then on no restart may lose anything.
    store.keep(pipeline);
    notifier.ready(&receiving);
    log::info!("ready: {receiving}");
}

/// A service goes on in the process that has taken over.
fn say_end(reason: &DaemonEvent, notifier: &Notifier) {
    if !matches!(reason, DaemonEvent::TakenOver(_)) {
        notifier.stopping();
    }
    log::info!("stopping: {}", text_of(reason));
}

/// What is heard while the pipeline ends.
struct LastEvents<'a> {
    events: &'a Receiver<DaemonEvent>,
    has_died: Cell<bool>,
}

impl<'a> LastEvents<'a> {
    fn new(events: &'a Receiver<DaemonEvent>) -> Self {
        Self { events, has_died: Cell::new(false) }
    }

    /// Whether the operator asks for the end within this time.
    fn is_told_to_end(&self, wait: Duration) -> bool {
        let event = self.events.recv_timeout(wait);
        event.as_ref().is_ok_and(|event| self.note(event))
    }

    /// Whether every thread that has ended by now has done so by itself.
    fn nobody_has_died(&self) -> bool {
        self.events.try_iter().for_each(|event| {
            self.note(&event);
        });
        !self.has_died.get()
    }

    /// Whether it asks for the end.
    fn note(&self, event: &DaemonEvent) -> bool {
        self.has_died.set(self.has_died.get() || is_panic(event));
        matches!(event, DaemonEvent::Signal(number) if signals::effect_of(*number) == Effect::End)
    }
}

fn is_panic(event: &DaemonEvent) -> bool {
    matches!(event, DaemonEvent::ThreadPanicked(_))
}

fn text_of(event: &DaemonEvent) -> String {
    match event {
        DaemonEvent::Signal(number) if signals::effect_of(*number) == Effect::EndForced => {
            format!(
                "{}: udpd has reached the limit on CPU time; raise it (ulimit -t, LimitCPU=)",
                signals::name_of(*number)
            )
        }
        DaemonEvent::Signal(number) => signals::name_of(*number),
        DaemonEvent::SinkClosed(why) => why.clone(),
        DaemonEvent::Reload => "a reload".to_owned(),
        DaemonEvent::TakeOver => "a wish to take over".to_owned(),
        DaemonEvent::TakenOver(by) => format!("{by} has taken over"),
        DaemonEvent::Stranded(why) => why.clone(),
        DaemonEvent::ThreadPanicked(name) => {
            format!("thread {name} has panicked, which is a bug of udpd: please report it")
        }
    }
}

fn result_of(event: DaemonEvent) -> Result<(), Failure> {
    match event {
        DaemonEvent::TakenOver(_) => Ok(()),
        DaemonEvent::Signal(number) if signals::effect_of(number) != Effect::EndForced => Ok(()),
        _ => Err(Failure::new(ExitCode::Failure, text_of(&event))),
    }
}
