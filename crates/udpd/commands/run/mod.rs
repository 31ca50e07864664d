//! `udpd run`: the daemon. Starts the pipeline and its windows (log, control socket, metrics), waits for the end, and
//! closes the books.

mod activation;
mod hangup;
mod inside;
mod keeping;
mod record;
mod reload;
mod say;
mod store;
mod will;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use self::activation::Passed;
use self::hangup::Hangup;
use self::inside::Inside;
pub(super) use self::inside::{duties, reaches};
use self::keeping::{Housekeeping, Inbox, Watches};
use self::reload::Reloads;
use self::say::{say_lane, say_ledger, say_pages};
use self::store::Store;
use crate::config::Config;
use crate::endpoint::control::{ControlServer, ControlSocket, Seats};
use crate::endpoint::metrics::{MetricsHandle, MetricsServer, TokenFile};
use crate::exit::{ExitCode, Failure};
use crate::logging;
use crate::os::crew::{self, Crew, Event};
use crate::os::notify::Notifier;
use crate::os::signals::{self, Effect};
use crate::pipeline::Pipeline;
use crate::plan::limits::Limits;
use crate::plan::{self, Plan, descriptors, published, words};
use crate::settings::Chosen;
use crate::watch::losses::LossWatch;
use crate::watch::status::StatusLine;
use crate::watch::upkeep::Upkeep;
use crate::watch::watchdog::Watchdog;

/// How long a sink that takes nothing holds up the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Runs until a signal comes or a sink is closed for good.
///
/// A reload reads `file` again.
pub fn execute(config: Config, file: Option<PathBuf>) -> Result<(), Failure> {
    // Before anything is opened here, whose number could be taken for one that was passed.
    let passed = activation::take_passed()?;
    let (crew, events) = Crew::new();
    let (inside, crew) = Inside::prepare(config.daemon.sandbox, crew)?;
    signals::watch(&crew)?;
    let logger = logging::start(config.daemon.log_level, config.daemon.log_format, io::stderr(), &crew)?;
    let outcome = serve(config, file, passed, inside, &crew, &events);
    logger.finish(LOG_LIMIT);
    outcome
}

fn serve(
    config: Config,
    file: Option<PathBuf>,
    passed: Passed,
    inside: Inside,
    crew: &Crew,
    events: &Receiver<Event>,
) -> Result<(), Failure> {
    let (own, inside, started) = (Arc::new(config), Arc::new(inside), Instant::now());
    let config: &Config = &own;
    let notifier = Arc::new(Notifier::from_environment());
    let mut store = Store::new(&notifier, &passed.kept, passed.record);
    let plan = plan::make(config, &plan::neighbours(None))?;
    Limits::read(Path::new("/")).refuse_start(config, &plan)?;
    descriptors::provide(config, &plan)?;
    inside.begin(config, &plan, file.as_deref())?;
    crew.enlist("main");
    let watchdog = Watchdog::start(crew, &notifier)?;
    // First what tells a second daemon on the same configuration from the first, so that it ends before it takes a
    // datagram.
    let windows = BoundWindows::bind(config).map_err(|failure| inside.explain(failure))?;
    let claims = passed.kept.claim(config, &plan)?;
    store.forget(&claims.gone);
    store.begin(config, &plan, &claims);
    let pipeline =
        Pipeline::start_with(claims, config, &plan, started, crew).map_err(|failure| inside.explain(failure))?;
    // What the host lost before is not told.
    crew::at_rest(|| pipeline.books().look_at_host());
    // Its first look comes before anybody can ask what it has seen.
    let upkeep = Upkeep::new(config, &pipeline);
    let seats = Arc::new(Mutex::new(published::of(config, &plan)));
    let reloads = Reloads::start(file, crew, Arc::clone(&inside))?;
    let windows = windows.serve(&pipeline, &seats, &reloads, crew);
    let windows = match windows.and_then(|windows| inside.complete(crew).map(|()| windows)) {
        Ok(windows) => windows,
        Err(failure) => {
            // It receives already: what came in this moment is delivered and told.
            say_ledger(&pipeline.stop(DRAIN_LIMIT, |wait| is_told_to_end(events, wait)));
            return Err(failure);
        }
    };
    say_readiness(&pipeline, config, &plan, &mut store, &notifier);
    let housekeeping = Housekeeping {
        inbox: Inbox::new(events),
        hangup: Hangup::new(crew, pipeline.files()),
        watches: Watches::new(config, &plan, &pipeline),
        pipeline,
        upkeep,
        notifier: &notifier,
        status: StatusLine::default(),
        store: &mut store,
        losses: LossWatch::default(),
        said: BTreeSet::new(),
        config: Arc::clone(&own),
        reloads,
        seats,
    };
    watchdog.begin();
    let (reason, pipeline, mut upkeep) = housekeeping.until_end();
    // The end has a limit of its own, and so has the manager for it.
    drop(watchdog);
    notifier.stopping();
    log::info!("stopping: {}", reason.text());
    let snapshot = pipeline.stop(DRAIN_LIMIT, |wait| is_told_to_end(events, wait));
    store.end();
    upkeep.end();
    windows.close();
    say_ledger(&snapshot);
    reason.into_result().and(config.daemon.stats_on_exit.as_deref().map_or(Ok(()), |path| snapshot.save(path)))
}

/// Everything is open and everybody receives.
fn say_readiness(pipeline: &Pipeline, config: &Config, plan: &Plan, store: &mut Store, notifier: &Notifier) {
    pipeline.lanes().iter().for_each(say_lane);
    say_pages(pipeline);
    will::say_owner_of_groups(pipeline);
    words::say(config, plan);
    let receiving = match pipeline.lanes().len() {
        1 => "1 lane receives".to_owned(),
        lanes => format!("{lanes} lanes receive"),
    };
    // Before it is ready: from then on no restart may lose anything.
    store.keep(pipeline);
    notifier.ready(&receiving);
    log::info!("ready: {receiving}");
}

/// Whether the operator asks for the end within this time.
fn is_told_to_end(events: &Receiver<Event>, wait: Duration) -> bool {
    let event = events.recv_timeout(wait);
    matches!(event, Ok(Event::Signal(number)) if signals::effect_of(number) == Effect::End)
}

impl Event {
    fn text(&self) -> String {
        match self {
            Self::Signal(number) if signals::effect_of(*number) == Effect::EndForced => {
                format!(
                    "{}: udpd has reached the limit on CPU time; raise it (ulimit -t, LimitCPU=)",
                    signals::name_of(*number)
                )
            }
            Self::Signal(number) => signals::name_of(*number),
            Self::SinkClosed(why) => why.clone(),
            Self::Reload => "a reload".to_owned(),
            Self::ThreadPanicked(name) => {
                format!("thread {name} has panicked, which is a bug of udpd: please report it")
            }
        }
    }

    fn into_result(self) -> Result<(), Failure> {
        match self {
            Self::Signal(number) if signals::effect_of(number) != Effect::EndForced => Ok(()),
            Self::Signal(_) | Self::SinkClosed(_) | Self::ThreadPanicked(_) | Self::Reload => {
                Err(Failure::new(ExitCode::Failure, self.text()))
            }
        }
    }
}

/// The ways to look at the daemon from outside, before there is anything to see.
struct BoundWindows {
    control: Option<ControlSocket>,
    metrics: Option<MetricsServer>,
    token: Option<TokenFile>,
}

impl BoundWindows {
    fn bind(config: &Config) -> Result<Self, Failure> {
        let control = optional(&config.daemon.control_socket, "control socket", |path| ControlSocket::bind(path))?;
        let metrics =
            optional(&config.daemon.metrics_address, "metrics endpoint", |address| MetricsServer::bind(*address))?;
        // A token that cannot be had is an error: without it, everybody could see what it is there to protect.
        let token = config.daemon.metrics_token_file.as_deref().map(TokenFile::read).transpose()?;
        Ok(Self { control, metrics, token })
    }

    fn serve(
        self,
        pipeline: &Pipeline,
        seats: &Arc<Mutex<Seats>>,
        reloads: &Reloads,
        crew: &Crew,
    ) -> Result<Windows, Failure> {
        let (for_control, for_metrics) = (pipeline.books(), pipeline.books());
        let (files, for_seats) = (pipeline.files(), pipeline.books());
        let seats = Arc::clone(seats);
        let planned = move || seats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reload = reloads.asker();
        let seats = move || published::now(planned(), |listener, lane| for_seats.core_of(listener, lane));
        let token = self.token;
        Ok(Windows {
            control: self
                .control
                .map(|socket| socket.serve(crew, move || for_control.snapshot(), move || files.reopen(), reload, seats))
                .transpose()?,
            metrics: self
                .metrics
                .map(|server| server.serve(crew, token, move || for_metrics.snapshot()))
                .transpose()?,
        })
    }
}

/// The same, open.
struct Windows {
    control: Option<ControlServer>,
    metrics: Option<MetricsHandle>,
}

impl Windows {
    fn close(self) {
        if let Some(control) = self.control {
            control.stop();
        }
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
    }
}

/// What the operator wrote must be had; a default that cannot be had costs one warning.
fn optional<T, W>(
    chosen: &Chosen<Option<T>>,
    what: &str,
    open: impl FnOnce(&T) -> Result<W, Failure>,
) -> Result<Option<W>, Failure> {
    let Some(value) = &chosen.value else { return Ok(None) };
    match open(value) {
        Ok(window) => Ok(Some(window)),
        Err(failure) if chosen.written => Err(failure),
        Err(failure) => {
            log::warn!("running without a {what}: {failure}");
            Ok(None)
        }
    }
}
