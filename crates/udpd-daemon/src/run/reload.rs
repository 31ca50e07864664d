//! Reload: the configuration is read again and, where it has changed, a replacement of the pipeline is built beside the
//! one that runs, and takes its place. A file that is wrong, or something that cannot be had, changes nothing: the
//! client that asked gets the reason, and so do the log, the ledger and the service manager.
//!
//! The main thread is in its sandbox, and a thread that it starts would have no more rights than it has. So a thread
//! that may do what any thread of the pipeline may reads the file and builds the replacement. It sees no datagram and
//! no question of a client, sleeps between two reloads, and is in a sandbox of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::sandbox_setup::{self, SandboxSetup};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::snapshot::ReloadSnapshot;
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::seams::{clock, waits};
use udpd_base::sink::Differs;
use udpd_engine::config::{Config, Gro, HostView, MayCome, SinkConfig};
use udpd_engine::pipeline::{CommitFlag, ReloadContext, ReplacementPipeline};
use udpd_engine::plan;
use udpd_engine::plan::memory_limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors};

/// How long a sink that stays may take to be handed over to the pipeline of the reload before. One that takes longer is
/// opened anew.
const STAYING_LIMIT: Duration = Duration::from_millis(100);

/// How long a sink that was taken away or changed may take for what it holds, while it goes on.
const SLOW_LIMIT: Duration = Duration::from_secs(20);

/// How long a reload may wait for what it opens: less than the service manager waits for a reload.
pub(super) const BUILD_LIMIT: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// Where the client that asked for a reload gets the result.
pub(super) type ReloadAnswer = Sender<Result<String, Failure>>;

/// Hands reloads to the thread that makes them.
#[derive(Debug)]
pub(super) struct Reloader {
    /// None when the configuration was given on the command line.
    file: Option<PathBuf>,
    jobs: Sender<Job>,
    requests: Receiver<ReloadAnswer>,
    to_requests: Sender<ReloadAnswer>,
    registry: ThreadRegistry,
    sandbox: Arc<SandboxSetup>,
}

/// The outcome of a reload that was not refused.
pub(super) enum ReloadOutcome {
    /// Nothing that a pipeline is made of is different.
    Same,
    Changed(Box<ReplacementPipeline>),
}

pub(super) struct PendingReload {
    /// Disconnected when the thread has panicked.
    pub(super) made: Receiver<Result<ReloadResult, Failure>>,
    pub(super) commit_flag: CommitFlag,
}

/// A configuration that was read again, and its plan.
pub(super) struct ReloadResult {
    pub(super) config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) outcome: ReloadOutcome,
}

impl Reloader {
    /// Starts the thread, which enters its sandbox at once. It keeps what threads of this configuration need.
    pub(super) fn start(
        file: Option<PathBuf>,
        config: &Config,
        registry: &ThreadRegistry,
        sandbox: Arc<SandboxSetup>,
    ) -> Result<Self, Failure> {
        let (jobs, orders) = unbounded::<Job>();
        let work = move || {
            while let Ok(job) = threads::blocking(|| waits::recv(&orders)) {
                threads::blocking(job);
            }
        };
        let roles = sandbox_setup::roles_of_reloader(config);
        registry.spawn("udpd-reload", roles, work).map_err(|error| threads::start_failure("udpd-reload", &error))?;
        let (to_requests, requests) = unbounded();
        Ok(Self { file, jobs, requests, to_requests, registry: registry.clone(), sandbox })
    }

    /// Asks for a reload, and returns when it is done.
    pub(super) fn requester(&self) -> impl Fn() -> Result<String, Failure> + Send + Sync + 'static {
        let (to_requests, registry) = (self.to_requests.clone(), self.registry.clone());
        move || {
            let (answer, answered) = bounded(1);
            let ended = || Failure::new(ExitCode::Failure, "udpd ends");
            to_requests.send(answer).map_err(|_| ended())?;
            registry.report(DaemonEvent::Reload);
            threads::blocking(|| waits::recv(&answered)).map_err(|_| ended())?
        }
    }

    pub(super) fn take_requests(&self) -> Vec<ReloadAnswer> {
        self.requests.try_iter().collect()
    }

    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file and builds what it asks for, beside a pipeline that goes on.
    pub(super) fn begin(&self, context: ReloadContext, before: Arc<Config>) -> PendingReload {
        let (file, registry, sandbox) = (self.file.clone(), self.registry.clone(), Arc::clone(&self.sandbox));
        self.build(context.commit_flag(), move || reload_file(file.as_deref(), &context, &before, &sandbox, &registry))
    }

    /// Builds the pipeline again whose threads have all ended. `config` is in force.
    pub(super) fn begin_again(&self, context: ReloadContext, config: Arc<Config>) -> PendingReload {
        let registry = self.registry.clone();
        self.build(context.commit_flag(), move || {
            let replacement = context.rebuild(&registry)?;
            Ok(ReloadResult { config, plan: context.plan(), outcome: ReloadOutcome::Changed(Box::new(replacement)) })
        })
    }

    /// Builds the lanes anew beside a pipeline that goes on, for a machine that has changed. `config` is in force.
    pub(super) fn begin_anew(&self, context: ReloadContext, config: Arc<Config>) -> PendingReload {
        let (registry, sandbox) = (self.registry.clone(), Arc::clone(&self.sandbox));
        self.build(context.commit_flag(), move || {
            let before = Arc::clone(&config);
            make_beside(&context, config, &before, &sandbox, &registry)
        })
    }

    fn build(
        &self,
        commit_flag: CommitFlag,
        make: impl FnOnce() -> Result<ReloadResult, Failure> + Send + 'static,
    ) -> PendingReload {
        let sandbox = Arc::clone(&self.sandbox);
        let (done, made) = bounded(1);
        let job = move || {
            // When the process ends, the main thread does not wait any more.
            let _ = done.send(make().map_err(|failure| sandbox.explain_reload(failure)));
        };
        // A thread that has panicked takes none, and `made` is disconnected then.
        let _ = self.jobs.send(Box::new(job));
        PendingReload { made, commit_flag }
    }
}

/// The answer will never come; the panic itself ends the daemon.
pub(super) fn panicked() -> Failure {
    Failure::new(ExitCode::Failure, "the thread udpd-reload has panicked, which is a bug of udpd: please report it")
}

/// The reload has waited too long for what it opens.
pub(super) fn too_slow() -> Failure {
    let message = format!(
        "what the file names could not be opened within {} s: look for a file system that does not answer (NFS); a \
         reload that comes meanwhile waits for it as well",
        BUILD_LIMIT.as_secs()
    );
    Failure::new(ExitCode::Unavailable, message)
}

fn reload_file(
    file: Option<&Path>,
    context: &ReloadContext,
    before: &Config,
    sandbox: &SandboxSetup,
    registry: &ThreadRegistry,
) -> Result<ReloadResult, Failure> {
    context.commit_flag().check()?;
    let file = file.ok_or_else(|| {
        let message = "udpd was started without a configuration file; start it with -c FILE to reload";
        Failure::new(ExitCode::Usage, message)
    })?;
    let mut config =
        Config::load(file, &HostView { may_come: MayCome::Steered, becomes_user: false, ..HostView::default() })?;
    carry_over(&mut config, before);
    if is_same(&config, before) {
        return Ok(ReloadResult { config: Arc::new(config), plan: context.plan(), outcome: ReloadOutcome::Same });
    }
    make_beside(context, Arc::new(config), before, sandbox, registry)
}

/// Makes what a configuration asks for on this machine as it is now.
fn make_beside(
    context: &ReloadContext,
    config: Arc<Config>,
    before: &Config,
    sandbox: &SandboxSetup,
    registry: &ThreadRegistry,
) -> Result<ReloadResult, Failure> {
    let plan_before = context.plan();
    let own_socket = before.daemon.control_socket.value.as_deref();
    // A plan asks the kernel for a ring, and would take the refusal of the sandbox for the kernel's.
    sandbox.refuse_rings(&config)?;
    let plan = plan::make(&config, &plan::neighbours(own_socket))?;
    sandbox.refuse_beyond(&config, &plan, before)?;
    MemoryLimits::read(Path::new("/")).refuse_beside(&plan, &plan_before)?;
    descriptors::provide_beside(&config, &plan, (before, &plan_before))?;
    context.wait_for_earlier_pipelines(STAYING_LIMIT, SLOW_LIMIT)?;
    let plan = Arc::new(plan);
    let replacement = context.build_replacement(&config, &plan, registry)?;
    Ok(ReloadResult { config, plan, outcome: ReloadOutcome::Changed(Box::new(replacement)) })
}

/// A listener with `gro = "auto"` keeps what was decided before.
fn carry_over(config: &mut Config, before: &Config) {
    for listener in config.listeners.iter_mut().filter(|listener| listener.gro == Gro::Auto) {
        let known = before.listeners.iter().find(|known| known.name == listener.name);
        if let Some(Gro::Decided(is_on)) = known.map(|known| known.gro) {
            listener.gro = Gro::Decided(is_on);
        }
    }
}

/// Whether both ask for the same pipeline.
fn is_same(config: &Config, before: &Config) -> bool {
    let is_same_sink = |(one, other): (&SinkConfig, &SinkConfig)| {
        one.name == other.name
            && one.consumers == other.consumers
            && one.inline == other.inline
            && one.queue_bytes == other.queue_bytes
            && one.when_full == other.when_full
            && one.settings.goes_on(&*other.settings, Differs { lanes: false, listeners: false })
    };
    config.listeners == before.listeners
        && config.sinks.len() == before.sinks.len()
        && config.sinks.iter().zip(&before.sinks).all(is_same_sink)
        && config.steer == before.steer
        && config.daemon.pool_bytes == before.daemon.pool_bytes
}

/// The keys that differ now, and that a reload does not change.
pub(super) fn keys_that_need_a_restart(config: &Config, before: &Config) -> Vec<&'static str> {
    let (now, then) = (&config.daemon, &before.daemon);
    let keys = [
        ("control_socket", now.control_socket != then.control_socket),
        ("metrics_address", now.metrics_address != then.metrics_address),
        ("metrics_token_file", now.metrics_token_file != then.metrics_token_file),
        ("announce", now.announce != then.announce),
        ("announce_interface", now.announce_interface != then.announce_interface),
        ("health_address", now.health_address != then.health_address),
        ("health_connect_address", now.health_connect_address != then.health_connect_address),
        ("history", now.history != then.history),
        ("log_format", now.log_format != then.log_format),
        ("stats_on_exit", now.stats_on_exit != then.stats_on_exit),
        ("sandbox", now.sandbox != then.sandbox),
        ("user", now.user != then.user),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// For the ledger.
pub(super) fn snapshot_of(result: &Result<String, Failure>) -> ReloadSnapshot {
    let at = clock::seconds_since_1970();
    match result {
        Ok(text) => ReloadSnapshot { at, done: true, text: text.clone() },
        Err(failure) => ReloadSnapshot { at, done: false, text: failure.message.clone() },
    }
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
