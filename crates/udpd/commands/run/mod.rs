//! `udpd run`: the daemon. Starts the pipeline and its windows (log, control socket, metrics), waits for the end, and
//! closes the books.

mod activation;
mod hangup;
mod inside;
mod record;
mod store;
mod will;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use self::activation::Passed;
use self::hangup::Hangup;
use self::inside::Inside;
pub(super) use self::inside::{duties, reaches};
use self::store::Store;
use crate::config::Config;
use crate::endpoint::control::{ControlServer, ControlSocket, Seats};
use crate::endpoint::metrics::{MetricsHandle, MetricsServer, TokenFile};
use crate::exit::{ExitCode, Failure};
use crate::ledger::{Snapshot, Table as _};
use crate::logging;
use crate::os::crew::{self, Crew, Event};
use crate::os::notify::Notifier;
use crate::os::signals::{self, Effect};
use crate::pipeline::{Lane, Pipeline};
use crate::plan::limits::Limits;
use crate::plan::{self, Plan, buffers, descriptors, published, words};
use crate::settings::Chosen;
use crate::watch::arrivals::ArrivalWatch;
use crate::watch::causes::Why;
use crate::watch::drift::InterfaceWatch;
use crate::watch::losses::LossWatch;
use crate::watch::status::StatusLine;
use crate::watch::upkeep::Upkeep;
use crate::watch::watchdog::Watchdog;

/// How often the main thread looks at the ledger: often enough for the kernel's 32-bit counters and for the status
/// line.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How many of those pass between two reports of losses.
const REPORT_EVERY: u32 = 10;

/// How many pass between two looks at whether interrupts are still where the plan puts them.
const LOOK_AT_INTERFACES_EVERY: u32 = 5;

/// How long a sink that takes nothing holds up the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Runs until a signal comes or a sink is closed for good.
pub fn execute(config: &Config) -> Result<(), Failure> {
    // Before anything is opened here, whose number could be taken for one that was passed.
    let passed = activation::take_passed()?;
    let (crew, events) = Crew::new();
    let (inside, crew) = Inside::prepare(config.daemon.sandbox, crew)?;
    signals::watch(&crew)?;
    let logger = logging::start(config.daemon.log_level, config.daemon.log_format, io::stderr(), &crew)?;
    let outcome = serve(config, passed, &inside, &crew, &events);
    logger.finish(LOG_LIMIT);
    outcome
}

fn serve(
    config: &Config,
    passed: Passed,
    inside: &Inside,
    crew: &Crew,
    events: &Receiver<Event>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let notifier = Arc::new(Notifier::from_environment());
    let mut store = Store::new(&notifier, &passed.kept, passed.record);
    let plan = plan::make(config, &plan::neighbours(None))?;
    Limits::read(Path::new("/")).refuse_start(config, &plan)?;
    descriptors::provide(config, &plan)?;
    inside.begin(config, &plan)?;
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
    let mut upkeep = Upkeep::new(config, &pipeline);
    let windows = windows.serve(&pipeline, published::of(config, &plan), crew);
    let windows = match windows.and_then(|windows| inside.complete(crew).map(|()| windows)) {
        Ok(windows) => windows,
        Err(failure) => {
            // It receives already: what came in this moment is delivered and told.
            say_ledger(&pipeline.stop(DRAIN_LIMIT, |wait| is_told_to_end(events, wait)));
            return Err(failure);
        }
    };
    let receiving = say_start(&pipeline, config, &plan);
    // Before it is ready: from then on no restart may lose anything.
    store.keep(&pipeline);
    notifier.ready(&receiving);
    log::info!("ready: {receiving}");
    let housekeeping = Housekeeping {
        pipeline: &pipeline,
        upkeep: &mut upkeep,
        notifier: &notifier,
        status: StatusLine::default(),
        store: &mut store,
        losses: LossWatch::default(),
        arrivals: ArrivalWatch::new(&pipeline),
        ban_irqbalance: config.steer.ban_irqbalance,
        interfaces: InterfaceWatch::new(&config.steer, &plan.interfaces),
        hangup: Hangup::new(crew, pipeline.files()),
        is_steered: pipeline.lanes().iter().any(|lane| lane.setup.plan.intake.is_planned()),
        said: BTreeSet::new(),
    };
    watchdog.begin();
    let reason = housekeeping.until_end(events);
    // The end has a limit of its own, and so has the manager for it.
    drop(watchdog);
    notifier.stopping();
    log::info!("stopping: {}", reason.text());
    let snapshot = pipeline.stop(DRAIN_LIMIT, |wait| is_told_to_end(events, wait));
    store.end();
    upkeep.end();
    windows.close();
    say_ledger(&snapshot);
    let saved = config.daemon.stats_on_exit.as_deref().map_or(Ok(()), |path| snapshot.save(path));
    reason.into_result().and(saved)
}

/// Whether the operator asks for the end within this time.
fn is_told_to_end(events: &Receiver<Event>, wait: Duration) -> bool {
    let event = events.recv_timeout(wait);
    matches!(event, Ok(Event::Signal(number)) if signals::effect_of(number) == Effect::End)
}

/// What the main thread looks at while the pipeline runs.
struct Housekeeping<'a> {
    pipeline: &'a Pipeline,
    upkeep: &'a mut Upkeep,
    notifier: &'a Notifier,
    status: StatusLine,
    store: &'a mut Store,
    losses: LossWatch,
    arrivals: ArrivalWatch,
    ban_irqbalance: bool,
    interfaces: InterfaceWatch<'a>,
    hangup: Hangup,
    /// Somebody has planned where datagrams arrive.
    is_steered: bool,
    /// Signals without a meaning that the log has named already.
    said: BTreeSet<i32>,
}

impl Housekeeping<'_> {
    /// Waits for the event that ends the daemon; once a second, does the housekeeping.
    fn until_end(mut self, events: &Receiver<Event>) -> Event {
        let mut next = Instant::now() + HOUSEKEEPING;
        for round in 1_u32.. {
            loop {
                match crew::at_rest(|| events.recv_deadline(next)) {
                    Ok(event) => {
                        if let Some(end) = self.take(event) {
                            self.look_at_arrivals();
                            return end;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the crew holds a sender"),
                }
            }
            next = Instant::now() + HOUSEKEEPING;
            self.look(round);
        }
        unreachable!("there is no end of rounds in the life of a machine")
    }

    /// Does what an event asks for, or gives it back when that is to end.
    fn take(&mut self, event: Event) -> Option<Event> {
        let Event::Signal(number) = event else { return Some(event) };
        let name = signals::name_of(number);
        match signals::effect_of(number) {
            Effect::End | Effect::EndForced => return Some(event),
            Effect::Reopen => self.hangup.heard(),
            Effect::Report => say_ledger(&self.pipeline.books().snapshot()),
            Effect::Say | Effect::Block | Effect::Default => {
                if self.said.insert(number) {
                    log::warn!("ignored the signal {name}, which means nothing to udpd; logged once");
                }
            }
        }
        None
    }

    fn look(&mut self, round: u32) {
        let books = self.pipeline.books();
        books.observe_kernel();
        // As a driver that is busy with its card below.
        crew::at_rest(|| books.look_at_host());
        self.upkeep.look(self.pipeline);
        self.store.look(self.pipeline);
        if round.is_multiple_of(LOOK_AT_INTERFACES_EVERY) {
            // A driver that is busy with its card keeps whoever asks about it waiting.
            crew::at_rest(|| self.interfaces.look()).iter().for_each(|line| log::warn!("{line}"));
        }
        self.look_at_arrivals();
        if round.is_multiple_of(REPORT_EVERY) {
            let snapshot = books.snapshot();
            self.status.after(&snapshot).into_iter().for_each(|line| self.notifier.status(line));
            self.losses.compare(snapshot).iter().for_each(|line| log::warn!("{line}"));
        }
    }

    fn look_at_arrivals(&mut self) {
        if self.is_steered {
            let ban = self.ban_irqbalance;
            // A driver that is busy with its card keeps whoever asks about it waiting.
            let why =
                |interface: &str, queue, wanted: &[usize]| crew::at_rest(|| Why::find(interface, queue, wanted, ban));
            let lines = self.arrivals.compare(&self.pipeline.books().snapshot(), why);
            lines.iter().for_each(|line| log::warn!("{line}"));
        }
    }
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
            Self::ThreadPanicked(name) => {
                format!("thread {name} has panicked, which is a bug of udpd: please report it")
            }
        }
    }

    fn into_result(self) -> Result<(), Failure> {
        match self {
            Self::Signal(number) if signals::effect_of(number) != Effect::EndForced => Ok(()),
            Self::Signal(_) | Self::SinkClosed(_) | Self::ThreadPanicked(_) => {
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

    fn serve(self, pipeline: &Pipeline, seats: Seats, crew: &Crew) -> Result<Windows, Failure> {
        let (for_control, for_metrics) = (pipeline.books(), pipeline.books());
        let (files, for_seats) = (pipeline.files(), pipeline.books());
        let seats = move || published::now(seats.clone(), |listener, lane| for_seats.core_of(listener, lane));
        let token = self.token;
        Ok(Windows {
            control: self
                .control
                .map(|socket| socket.serve(crew, move || for_control.snapshot(), move || files.reopen(), seats))
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

/// Says what was started, and returns the sum of it.
fn say_start(pipeline: &Pipeline, config: &Config, plan: &Plan) -> String {
    pipeline.lanes().iter().for_each(say_lane);
    say_pages(pipeline);
    will::say_owner_of_groups(pipeline);
    words::say(config, plan);
    match pipeline.lanes().len() {
        1 => "1 lane receives".to_owned(),
        lanes => format!("{lanes} lanes receive"),
    }
}

/// The start-up line of a lane.
fn say_lane(lane: &Lane) {
    let Lane { setup, address, core, buffer, .. } = lane;
    let (plan, name) = (&setup.plan, &setup.listener.name);
    let place = match (core, plan.node) {
        (Some(core), Some(node)) => format!("core {core}, node {node}"),
        (Some(core), None) => format!("core {core}"),
        (None, _) => "any core".to_owned(),
    };
    log::info!(
        "{setup}: {address}, {place}, receive buffer {} bytes requested, {} granted, covers \
         {:.1} ms at {}/s",
        2 * buffer.asked_bytes,
        buffer.granted_bytes,
        plan.covered(buffer.granted_bytes).as_secs_f64() * 1000.0,
        plan.rate
    );
    if plan.number == 0 {
        log::info!("listener {name}: engine {}: {}", plan.engine.kind, plan.engine.why);
    }
    if plan.number == 0 && buffer.is_clamped() {
        log::warn!(
            "listener {name}: the kernel granted {} of {} bytes of receive buffer; {}",
            buffer.granted_bytes,
            2 * buffer.asked_bytes,
            buffers::buffer_cure(buffer.asked_bytes)
        );
    }
}

/// One warning for all memory that lies in ordinary pages.
fn say_pages(pipeline: &Pipeline) {
    if let [why, ..] = pipeline.reasons_for_small_pages().as_slice() {
        log::warn!("memory for datagrams is not in huge pages: {why}");
    }
}

/// What became of everything, a line for each listener; also the last lines.
fn say_ledger(snapshot: &Snapshot) {
    for listener in &snapshot.listeners {
        let sinks = listener.sinks.iter().map(|sink| {
            let (delivered, dropped) = (sink.counts.delivered, sink.counts.dropped.total());
            format!("; sink {}: delivered {delivered}, dropped {dropped}", sink.name)
        });
        log::info!(
            "listener {}: arrived {}, dropped by the kernel {}, received {}{}; residual {}",
            listener.name,
            known(listener.arrived),
            known(listener.kernel_dropped),
            listener.counts.received,
            sinks.collect::<String>(),
            known(listener.residual)
        );
    }
}

fn known(count: Option<impl ToString>) -> String {
    count.map_or_else(|| "not known".to_owned(), |count| count.to_string())
}
