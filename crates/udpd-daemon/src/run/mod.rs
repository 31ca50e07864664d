//! `udpd run`: the daemon. Starts the pipeline and its endpoints (log, control socket, metrics), waits for the end, and
//! closes the ledger.

mod announcement;
mod crash_record;
mod daemon_user;
mod descriptor_store;
mod endpoints;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod gro_decision;
mod handoff;
mod log_lines;
mod main_loop;
#[cfg(test)]
#[path = "manager_tests.rs"]
mod manager;
mod member;
mod reload;
mod reopen;
mod sandbox_setup;
#[cfg(test)]
mod simulation_tests;
mod socket_activation;
mod take_over;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

pub(super) use self::daemon_user::{DaemonUser, look_ahead};
use self::descriptor_store::DescriptorStore;
use self::endpoints::BoundEndpoints;
use self::handoff::{DRAIN_LIMIT, HandoffServer};
use self::log_lines::{log_foreign_group_owner, log_lane, log_ledger, log_small_pages};
use self::main_loop::{MainLoop, MainLoopEnd, MainLoopParts};
use self::member::Member;
use self::reload::Reloader;
use self::sandbox_setup::SandboxSetup;
pub(super) use self::sandbox_setup::{path_rules, roles};
use self::socket_activation::PassedDescriptors;
use self::take_over::{FoundDaemon, TakeOverOutcome};
use crate::watch::listeners::ListenerWatch;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging;
use udpd_base::os::local_time;
use udpd_base::os::notify::Notifier;
use udpd_base::os::signals::{self, Effect};
use udpd_base::os::threads::{self, DaemonEvent, ThreadRegistry};
use udpd_base::os::user;
use udpd_base::os::watchdog::Watchdog;
use udpd_base::seams::{clock, waits};
use udpd_endpoint::control::OldProcess;
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;
use udpd_engine::plan::memory_limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors, neighbours, remarks};
use udpd_sandbox::SandboxMode;

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// What a start is made of, until it receives.
#[derive(Clone, Copy)]
struct Start<'a> {
    config: &'a Config,
    plan: &'a PipelinePlan,
    at: Instant,
    notifier: &'a Arc<Notifier>,
    registry: &'a ThreadRegistry,
}

/// How this process was started.
struct Invocation {
    file: Option<PathBuf>,
    takes_over: bool,
    notifier: Arc<Notifier>,
}

/// What a process has when it receives.
struct Started {
    store: DescriptorStore,
    endpoints: BoundEndpoints,
    pipeline: Pipeline,
}

/// Runs until a signal comes or a sink is closed for good.
///
/// A reload reads `file` again. `takes_over` asks a daemon that runs for its sockets and its place.
pub fn execute(config: Config, file: Option<PathBuf>, takes_over: bool) -> Result<(), Failure> {
    // Before this process opens anything, which could get the number of a descriptor that was passed.
    let passed = socket_activation::take_passed()?;
    // The sandbox would deny it to a reload. What is wrong with it is said where it is used.
    let _ = local_time::local();
    // Before there is a second thread.
    let (daemon_user, helper) = become_daemon_user(&config, &passed)?;
    let (registry, events) = ThreadRegistry::new();
    let (sandbox, registry) = SandboxSetup::prepare(config.daemon.sandbox, registry)?;
    signals::watch(&registry)?;
    let logger = logging::start(config.daemon.log_level, config.daemon.log_format, io::stderr(), &registry)?;
    daemon_user.log();
    if let Err(error) = helper {
        log::warn!(
            "cannot start the process that keeps the rights of udpd (udpd-warden): {error}; a reload, and an interface \
             that comes back, can have no port below 1024 and no receive buffer above net.core.rmem_max"
        );
    }
    let invocation = Invocation { file, takes_over, notifier: Arc::new(Notifier::from_environment()) };
    let outcome = serve(config, invocation, passed, sandbox, &registry, &events);
    logger.finish(LOG_LIMIT);
    outcome
}

/// Starts the privilege helper, and becomes the user that runs the daemon. The log says the outcome of both, once there
/// is a log.
fn become_daemon_user(config: &Config, passed: &PassedDescriptors) -> Result<(DaemonUser, io::Result<()>), Failure> {
    let wanted = DaemonUser::of(config)?;
    let has_account = wanted.account().is_some();
    // While this process can still start one as another user.
    let mut helper = sandbox_setup::start_privilege_helper(config, wanted.account());
    let daemon_user = wanted.assume(config)?;
    if daemon_user.account().is_some() {
        // Where that fails, the lane that cannot share the port says so.
        passed.sockets.sockets().iter().for_each(|own| user::take_socket(own.socket()).unwrap_or_default());
        // Without a sandbox nothing else gives it up.
        if config.daemon.sandbox == SandboxMode::Off {
            let _ = user::give_up_what_only_a_start_takes();
        }
    } else if has_account {
        helper = sandbox_setup::start_privilege_helper(config, None);
    }
    Ok((daemon_user, helper))
}

fn serve(
    mut config: Config,
    Invocation { file, takes_over, notifier }: Invocation,
    mut passed: PassedDescriptors,
    sandbox: SandboxSetup,
    registry: &ThreadRegistry,
    events: &Receiver<DaemonEvent>,
) -> Result<(), Failure> {
    let mut found = find_old_process(&mut config, &mut passed, takes_over)?;
    let (config, sandbox, started_at) = (Arc::new(config), Arc::new(sandbox), clock::now());
    let plan = plan_beside(&mut found, &config, &sandbox, file.as_deref())?;
    registry.register_current("main");
    let watchdog = Watchdog::start(registry, &notifier)?;
    // It can fail, so it comes before there is anything to receive.
    let reloader = Reloader::start(file, &config, registry, Arc::clone(&sandbox))?;
    let start = Start { config: &config, plan: &plan, at: started_at, notifier: &notifier, registry };
    let started = take_over_or_begin(found, passed, start).map_err(|failure| sandbox.explain(failure))?;
    let Started { mut store, endpoints, pipeline } = started;
    // What the host lost before is not told.
    threads::blocking(|| pipeline.ledger().read_host_counters());
    // Its first look comes before a client can ask what it has seen.
    let listeners = ListenerWatch::new(&config, &pipeline);
    let seats = Arc::new(Mutex::new(neighbours::own_seats(&config, &plan)));
    let handoff = HandoffServer::new(registry);
    let mut member = Member::new(&config, registry);
    let endpoints = endpoints.serve(&config, &pipeline, &seats, (&reloader, &handoff, &mut member), registry);
    let endpoints = match endpoints.and_then(|endpoints| sandbox.complete(registry).map(|()| endpoints)) {
        Ok(endpoints) => endpoints,
        Err(failure) => {
            end_failed_start(pipeline, &mut store, events);
            return Err(failure);
        }
    };
    report_ready(&pipeline, &config, &plan, &mut store, &notifier);
    let main_loop = MainLoop::new(MainLoopParts {
        config: Arc::clone(&config),
        plan: &plan,
        events,
        pipeline,
        listeners,
        notifier: &notifier,
        store: &mut store,
        registry,
        reloader,
        seats,
        handoff,
        member,
    });
    watchdog.begin();
    let MainLoopEnd { reason, pipeline, mut listeners, handoff } = main_loop.run();
    // The end has a limit of its own, and so has the manager for it.
    drop(watchdog);
    // After a take-over the service goes on in the new process.
    if !matches!(reason, DaemonEvent::TakenOver(_)) {
        notifier.stopping();
    }
    log::info!("stopping: {}", text_of(&reason));
    pipeline.ledger().set_draining(clock::seconds_since_1970());
    let last = LastEvents::new(events);
    let snapshot = pipeline.stop(DRAIN_LIMIT, |wait| last.end_is_requested(wait));
    let is_orderly = !is_panic(&reason) && last.all_threads_lived();
    listeners.end();
    endpoints.close();
    log_ledger(&snapshot);
    let saved = config.daemon.stats_on_exit.as_deref().map_or(Ok(()), |path| snapshot.save(path));
    // Last: after a kill before this the next process says what this one had counted.
    store.record.close(is_orderly);
    // A new process that cannot see the end of this one waits for the end of this connection.
    drop(handoff);
    result_of(reason).and(saved)
}

/// Finds a running daemon to take over from, and takes over what is known of `gro` from the process before.
fn find_old_process(
    config: &mut Config,
    passed: &mut PassedDescriptors,
    takes_over: bool,
) -> Result<Option<FoundDaemon>, Failure> {
    // Sockets that a service manager has passed do as well: the process before has ended.
    let takes_over = takes_over && passed.sockets.sockets().is_empty();
    let found = if takes_over { take_over::find(config, passed)? } else { None };
    match &found {
        Some(found) => gro_decision::adopt_from_daemon(config, found.process.path()),
        None => gro_decision::adopt_from_sockets(config, &passed.sockets),
    }
    Ok(found)
}

/// The plan, if there is room for it on this machine and beside the process that is taken over from. Also sets what
/// threads may open.
fn plan_beside(
    found: &mut Option<FoundDaemon>,
    config: &Config,
    sandbox: &SandboxSetup,
    file: Option<&Path>,
) -> Result<PipelinePlan, Failure> {
    let make = |old: Option<&OldProcess>| {
        // Also the daemons of other users, which root may ask.
        let neighbours = user::with_hands_of_root(|| plan::neighbours(old.map(OldProcess::path)));
        let plan = plan::make(config, &neighbours)?;
        MemoryLimits::read(Path::new("/")).refuse_start(config, &plan)?;
        match old {
            Some(old) => take_over::provide(old, config, &plan)?,
            None => descriptors::provide(config, &plan)?,
        }
        sandbox.begin(config, &plan, file)?;
        Ok(plan)
    };
    let made = make(found.as_ref().map(|found| &found.process));
    made.inspect_err(|failure| found.iter_mut().for_each(|found| found.process.give_up(failure)))
}

/// Takes over, or begins where there is nothing to take over any more.
fn take_over_or_begin(
    found: Option<FoundDaemon>,
    mut passed: PassedDescriptors,
    start: Start<'_>,
) -> Result<Started, Failure> {
    if let Some(found) = found {
        match take_over::take_over(found, start)? {
            TakeOverOutcome::Done(started) => return Ok(*started),
            TakeOverOutcome::OldProcessEnded(left) => passed = left,
        }
    }
    begin(passed, start)
}

/// Begins on the sockets that a service manager has passed, if any.
fn begin(passed: PassedDescriptors, start: Start<'_>) -> Result<Started, Failure> {
    let Start { config, plan, at, notifier, registry } = start;
    let mut store = DescriptorStore::new(notifier, &passed.sockets, passed.record, passed.lost_process);
    // First what tells a second daemon on the same configuration from the first, so that it ends before it takes a
    // datagram.
    let endpoints = BoundEndpoints::bind(config)?;
    let assignment = passed.sockets.assign(config, plan)?;
    store.record.begin(config, plan, &assignment);
    let pipeline = Pipeline::start_with(assignment, config, plan, at, registry)?;
    Ok(Started { store, endpoints, pipeline })
}

/// Ends a pipeline whose start has failed: what came in this moment is delivered and logged.
fn end_failed_start(pipeline: Pipeline, store: &mut DescriptorStore, events: &Receiver<DaemonEvent>) {
    let ledger = pipeline.ledger();
    log_ledger(&pipeline.stop(DRAIN_LIMIT, |wait| LastEvents::new(events).end_is_requested(wait)));
    store.record.restore_previous(&ledger);
}

/// Everything is open and every lane receives.
fn report_ready(
    pipeline: &Pipeline,
    config: &Config,
    plan: &PipelinePlan,
    store: &mut DescriptorStore,
    notifier: &Notifier,
) {
    pipeline.lanes().iter().for_each(log_lane);
    log_small_pages(pipeline);
    log_foreign_group_owner(pipeline);
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

/// The events that come while the pipeline ends.
struct LastEvents<'a> {
    events: &'a Receiver<DaemonEvent>,
    has_died: Cell<bool>,
}

impl<'a> LastEvents<'a> {
    fn new(events: &'a Receiver<DaemonEvent>) -> Self {
        Self { events, has_died: Cell::new(false) }
    }

    /// Whether the operator asks for the end within this time.
    fn end_is_requested(&self, wait: Duration) -> bool {
        let event = waits::recv_timeout(self.events, wait);
        event.as_ref().is_ok_and(|event| self.note(event))
    }

    /// Whether no thread has panicked.
    fn all_threads_lived(&self) -> bool {
        self.events.try_iter().for_each(|event| {
            self.note(&event);
        });
        !self.has_died.get()
    }

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
        DaemonEvent::SinkClosed(why) | DaemonEvent::Stranded(why) => why.clone(),
        DaemonEvent::Reload => "a reload".to_owned(),
        DaemonEvent::Drain => "a request to drain".to_owned(),
        DaemonEvent::Drained(why) => format!("drained: {why}"),
        DaemonEvent::TakeOver => "a request to take over".to_owned(),
        DaemonEvent::TakenOver(by) => format!("{by} has taken over"),
        DaemonEvent::ThreadPanicked(name) => {
            format!("thread {name} has panicked, which is a bug of udpd: please report it")
        }
    }
}

fn result_of(event: DaemonEvent) -> Result<(), Failure> {
    match event {
        DaemonEvent::TakenOver(_) | DaemonEvent::Drained(_) => Ok(()),
        DaemonEvent::Signal(number) if signals::effect_of(number) != Effect::EndForced => Ok(()),
        _ => Err(Failure::new(ExitCode::Failure, text_of(&event))),
    }
}
