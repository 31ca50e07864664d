//! Reload: the configuration is read again and, where it says something else now, an heir of the pipeline is made
//! beside the one that runs and takes its place. A file that is wrong, and whatever cannot be had, leaves the one that
//! runs as it is; who asked is told, and so are the log, the ledger and the service manager.
//!
//! The main thread is in its sandbox, and what it starts would have no more than it has. So a thread that has every
//! right that any other has reads the file and makes the heir. It sees no datagram and nobody's question, sleeps
//! between two reloads, and is in a sandbox of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::inside::{self, Inside};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::snapshot::ReloadSnapshot;
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::sink::Differs;
use udpd_engine::config::{Config, Gro, HostView, MayCome, SinkConfig};
use udpd_engine::pipeline::{CommitFlag, ReloadContext, ReplacementPipeline};
use udpd_engine::plan;
use udpd_engine::plan::limits::MemoryLimits;
use udpd_engine::plan::{PipelinePlan, descriptors};

/// How long a sink that stays may take to go over to the pipeline of the reload before. One that takes longer is not
/// gone on with.
const STAYING_LIMIT: Duration = Duration::from_millis(100);

/// How long a sink that was taken away or changed may take for what it holds, while it goes on.
const SLOW_LIMIT: Duration = Duration::from_secs(20);

/// How long what a reload opens may keep it waiting: less than the service manager waits for a reload.
pub(super) const MAKING_LIMIT: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// Who asks for a reload waits here for what became of it.
pub(super) type Answer = Sender<Result<String, Failure>>;

/// What the configuration is read from, and who makes what it asks for.
#[derive(Debug)]
pub(super) struct Reloads {
    /// None when everything was said on the command line.
    file: Option<PathBuf>,
    jobs: Sender<Job>,
    asked: Receiver<Answer>,
    asking: Sender<Answer>,
    registry: ThreadRegistry,
    inside: Arc<Inside>,
}

/// What came of a reload that was not refused.
pub(super) enum Outcome {
    /// Nothing that a pipeline is made of is different.
    Same,
    Changed(Box<ReplacementPipeline>),
}

/// A reload that is being made.
pub(super) struct Making {
    /// Disconnected when the thread has panicked.
    pub(super) made: Receiver<Result<Reread, Failure>>,
    pub(super) commit_flag: CommitFlag,
}

/// A configuration that was read again, and its plan.
pub(super) struct Reread {
    pub(super) config: Arc<Config>,
    pub(super) plan: Arc<PipelinePlan>,
    pub(super) outcome: Outcome,
}

impl Reloads {
    /// Starts the thread, which goes into its sandbox at once. It has what threads of this configuration need.
    pub(super) fn start(
        file: Option<PathBuf>,
        config: &Config,
        registry: &ThreadRegistry,
        inside: Arc<Inside>,
    ) -> Result<Self, Failure> {
        let (jobs, orders) = unbounded::<Job>();
        let work = move || {
            while let Ok(job) = threads::blocking(|| orders.recv()) {
                threads::blocking(job);
            }
        };
        let roles = inside::roles_of_reloader(config);
        registry.spawn("udpd-reload", roles, work).map_err(|error| threads::start_failure("udpd-reload", &error))?;
        let (asking, asked) = unbounded();
        Ok(Self { file, jobs, asked, asking, registry: registry.clone(), inside })
    }

    /// How others ask: returns when it is done.
    pub(super) fn asker(&self) -> impl Fn() -> Result<String, Failure> + Send + Sync + 'static {
        let (asking, registry) = (self.asking.clone(), self.registry.clone());
        move || {
            let (answer, answered) = bounded(1);
            let ended = || Failure::new(ExitCode::Failure, "udpd ends");
            asking.send(answer).map_err(|_| ended())?;
            registry.report(DaemonEvent::Reload);
            threads::blocking(|| answered.recv()).map_err(|_| ended())?
        }
    }

    /// Those who have asked by now.
    pub(super) fn asked(&self) -> Vec<Answer> {
        self.asked.try_iter().collect()
    }

    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Has the file read and what it asks for made, beside a pipeline that goes on.
    pub(super) fn begin(&self, context: ReloadContext, before: Arc<Config>) -> Making {
        let (file, registry, inside) = (self.file.clone(), self.registry.clone(), Arc::clone(&self.inside));
        self.have_made(context.commit_flag(), move || reread(file.as_deref(), &context, &before, &inside, &registry))
    }

    /// Has the pipeline made once more whose threads have all ended. `config` is what is in force.
    pub(super) fn begin_again(&self, context: ReloadContext, config: Arc<Config>) -> Making {
        let registry = self.registry.clone();
        self.have_made(context.commit_flag(), move || {
            let heir = context.rebuild(&registry)?;
            Ok(Reread { config, plan: context.plan(), outcome: Outcome::Changed(Box::new(heir)) })
        })
    }

    /// Has the lanes made anew beside a pipeline that goes on, for a machine that has changed. `config` is what is in
    /// force.
    pub(super) fn begin_anew(&self, context: ReloadContext, config: Arc<Config>) -> Making {
        let (registry, inside) = (self.registry.clone(), Arc::clone(&self.inside));
        self.have_made(context.commit_flag(), move || {
            let before = Arc::clone(&config);
            make_beside(&context, config, &before, &inside, &registry)
        })
    }

    fn have_made(
        &self,
        commit_flag: CommitFlag,
        make: impl FnOnce() -> Result<Reread, Failure> + Send + 'static,
    ) -> Making {
        let inside = Arc::clone(&self.inside);
        let (done, made) = bounded(1);
        let job = move || {
            // Nobody waits any more when the process ends.
            let _ = done.send(make().map_err(|failure| inside.explain_reload(failure)));
        };
        // A thread that has panicked takes none, and `made` is disconnected then.
        let _ = self.jobs.send(Box::new(job));
        Making { made, commit_flag }
    }
}

/// Nobody has an answer any more: the alarm of the thread ends the daemon.
pub(super) fn panicked() -> Failure {
    Failure::new(ExitCode::Failure, "the thread udpd-reload has panicked, which is a bug of udpd: please report it")
}

/// What is opened has kept the reload waiting for too long.
pub(super) fn too_slow() -> Failure {
    let message = format!(
        "what the file names could not be opened within {} s: look for a file system that does not answer (NFS); a \
         reload that comes meanwhile waits for it as well",
        MAKING_LIMIT.as_secs()
    );
    Failure::new(ExitCode::Unavailable, message)
}

fn reread(
    file: Option<&Path>,
    context: &ReloadContext,
    before: &Config,
    inside: &Inside,
    registry: &ThreadRegistry,
) -> Result<Reread, Failure> {
    context.commit_flag().check()?;
    let file = file.ok_or_else(|| {
        let message = "udpd was started without a configuration file; start it with -c FILE to reload";
        Failure::new(ExitCode::Usage, message)
    })?;
    let mut config =
        Config::load(file, &HostView { may_come: MayCome::Steered, becomes_user: false, ..HostView::default() })?;
    carry_over(&mut config, before);
    if is_same(&config, before) {
        return Ok(Reread { config: Arc::new(config), plan: context.plan(), outcome: Outcome::Same });
    }
    make_beside(context, Arc::new(config), before, inside, registry)
}

/// HelperOptions what a configuration asks for on this machine as it is now.
fn make_beside(
    context: &ReloadContext,
    config: Arc<Config>,
    before: &Config,
    inside: &Inside,
    registry: &ThreadRegistry,
) -> Result<Reread, Failure> {
    let plan_before = context.plan();
    let own_socket = before.daemon.control_socket.value.as_deref();
    // A plan asks the kernel for a ring, and would take the refusal of the sandbox for the kernel's.
    inside.refuse_rings(&config)?;
    let plan = plan::make(&config, &plan::neighbours(own_socket))?;
    inside.refuse_beyond(&config, &plan, before)?;
    MemoryLimits::read(Path::new("/")).refuse_beside(&plan, &plan_before)?;
    descriptors::provide_beside(&config, &plan, (before, &plan_before))?;
    context.wait_for_earlier_pipelines(STAYING_LIMIT, SLOW_LIMIT)?;
    let plan = Arc::new(plan);
    let heir = context.build_replacement(&config, &plan, registry)?;
    Ok(Reread { config, plan, outcome: Outcome::Changed(Box::new(heir)) })
}

/// A listener of the file that is to find out has what was found out before.
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

/// The keys that a reload does not change although they are different now.
pub(super) fn left_alone(config: &Config, before: &Config) -> Vec<&'static str> {
    let (now, then) = (&config.daemon, &before.daemon);
    let keys = [
        ("control_socket", now.control_socket != then.control_socket),
        ("metrics_address", now.metrics_address != then.metrics_address),
        ("metrics_token_file", now.metrics_token_file != then.metrics_token_file),
        ("log_format", now.log_format != then.log_format),
        ("stats_on_exit", now.stats_on_exit != then.stats_on_exit),
        ("sandbox", now.sandbox != then.sandbox),
        ("user", now.user != then.user),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// For the ledger.
pub(super) fn outcome(result: &Result<String, Failure>) -> ReloadSnapshot {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    match result {
        Ok(text) => ReloadSnapshot { at, done: true, text: text.clone() },
        Err(failure) => ReloadSnapshot { at, done: false, text: failure.message.clone() },
    }
}
