//! What the main thread does while the pipeline runs: it waits for events, looks after the ledger and the watches once
//! a second, and replaces the pipeline. It does so when the configuration was read again, when `gro = "auto"` is
//! decided, when the interface of AF_XDP queues is back, and when a handoff to another process has failed.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, at, select};

use super::descriptor_store::DescriptorStore;
use super::gro_decision;
use super::handoff::HandoffServer;
use super::log_lines::log_ledger;
use super::member::{END_LIMIT, Member};
use super::reload::{self, PendingReload, ReloadAnswer, ReloadOutcome, ReloadResult, Reloader};
use super::reopen::ReopenOnHangup;
use crate::watch::listeners::ListenerWatch;
use crate::watch::losses::LossWatch;
use crate::watch::plan_drift::InterfaceWatch;
use crate::watch::readiness::OtherFacts;
use crate::watch::relay_loops::{LoopWatch, Relayed};
use crate::watch::sink_stalls::{self, StallChange, StallWatch};
use crate::watch::sink_states::SinkStateWatch;
use crate::watch::status_line::StatusLine;
use crate::watch::streams;
use crate::watch::wrong_cpu::ArrivalWatch;
use crate::watch::wrong_cpu_causes::Why;
use crate::watch::xdp_queues::{self, QueueWatch};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::logging::{self, LogLimiter, repeats};
use udpd_base::os::notify::Notifier;
use udpd_base::os::signals::{self, Effect};
use udpd_base::os::threads::lock;
use udpd_base::os::threads::{self, DaemonEvent, ThreadRegistry};
use udpd_base::seams::{clock, waits};
use udpd_endpoint::control::Seats;
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan::{PipelinePlan, neighbours, remarks};
use udpd_sandbox::privilege_helper;

/// How often the main thread looks at the ledger: often enough for the kernel's 32-bit counters and for the status
/// line.
const ROUND: Duration = Duration::from_secs(1);

/// How many rounds pass between two reports of losses.
const REPORT_EVERY: u32 = 10;

/// How many pass between two looks at whether interrupts are still where the plan puts them.
const LOOK_AT_INTERFACES_EVERY: u32 = 5;

/// How long a reload waits for the pipeline before, so that as a rule nothing of it is left when the reload is
/// answered.
const SETTLE_LIMIT: Duration = Duration::from_millis(100);

/// How often `gro = "auto"` is looked at until it is decided: until then each datagram has a time of arrival taken,
/// which a receiver at its limit cannot spare.
const LOOK_AT_GRO_EVERY: Duration = Duration::from_millis(100);

/// How long `gro` is not decided again after the lanes could not be made anew.
const GRO_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct MainLoopParts<'a> {
    pub(super) config: Arc<Config>,
    pub(super) plan: &'a PipelinePlan,
    pub(super) events: &'a Receiver<DaemonEvent>,
    pub(super) pipeline: Pipeline,
    pub(super) listeners: ListenerWatch,
    pub(super) notifier: &'a Notifier,
    pub(super) store: &'a mut DescriptorStore,
    pub(super) registry: &'a ThreadRegistry,
    pub(super) reloader: Reloader,
    pub(super) seats: Arc<Mutex<Seats>>,
    pub(super) handoff: HandoffServer,
    pub(super) member: Member,
}

/// The state of the main thread while the pipeline runs.
pub(super) struct MainLoop<'a> {
    pub(super) events: EventQueue<'a>,
    pub(super) pipeline: Pipeline,
    pub(super) config: Arc<Config>,
    pub(super) store: &'a mut DescriptorStore,
    pub(super) reloader: Reloader,
    pub(super) handoff: HandoffServer,
    member: Member,
    notifier: &'a Notifier,
    seats: Arc<Mutex<Seats>>,
    reopen: ReopenOnHangup,
    listeners: ListenerWatch,
    plan_watches: PlanWatches,
    losses: LossWatch,
    queues: QueueWatch,
    stalls: StallWatch,
    sink_states: SinkStateWatch,
    loops: LoopWatch,
    status: StatusLine,
    /// When the lanes could not be made anew with the `gro` that was decided.
    gro_refused_at: Option<Instant>,
    /// Signals without a meaning that the log has named already.
    named_signals: BTreeSet<i32>,
    reload_log: ReloadLog,
}

/// Why the main loop has ended, and what the end needs of it.
pub(super) struct MainLoopEnd {
    pub(super) reason: DaemonEvent,
    pub(super) pipeline: Pipeline,
    pub(super) listeners: ListenerWatch,
    pub(super) handoff: HandoffServer,
}

/// Limits the log lines of reloads that change nothing, asked for over the control socket, to one a minute.
#[derive(Debug, Default)]
struct ReloadLog {
    unchanged: LogLimiter,
    refused: LogLimiter,
    /// Why the last one was refused. Another reason is logged.
    why: String,
}

impl ReloadLog {
    /// How many lines were left out before this one, which is to be logged.
    fn refused(&mut self, why: &str) -> Option<u64> {
        if self.why != why {
            (self.why, self.refused) = (why.to_owned(), LogLimiter::default());
        }
        self.refused.pass(clock::now())
    }
}

/// The events that the daemon has to handle.
pub(super) struct EventQueue<'a> {
    events: &'a Receiver<DaemonEvent>,
    /// Those that came while the main thread waited for something else.
    deferred: RefCell<VecDeque<DaemonEvent>>,
}

impl EventQueue<'_> {
    /// The next event. One that ends the daemon comes before others that were deferred.
    fn next(&self, deadline: Instant) -> Result<DaemonEvent, RecvTimeoutError> {
        let mut deferred = self.deferred.borrow_mut();
        let first = deferred.iter().position(ends_daemon).unwrap_or(0);
        deferred.remove(first).map_or_else(|| threads::blocking(|| waits::recv_deadline(self.events, deadline)), Ok)
    }

    /// Leaves an event for the next look.
    pub(super) fn defer(&self, event: DaemonEvent) {
        self.deferred.borrow_mut().push_back(event);
    }

    /// Whether the daemon is to end, by an event that has come or comes within this time. Events are deferred.
    pub(super) fn end_is_requested(&self, wait: Duration) -> bool {
        let mut deferred = self.deferred.borrow_mut();
        deferred.extend(threads::blocking(|| waits::recv_timeout(self.events, wait)));
        deferred.iter().any(ends_daemon)
    }
}

/// The watches that compare with the plan.
struct PlanWatches {
    arrivals: ArrivalWatch,
    ban_irqbalance: bool,
    interfaces: InterfaceWatch,
    /// The plan says where datagrams arrive.
    is_steered: bool,
}

impl PlanWatches {
    fn new(config: &Config, plan: &PipelinePlan, pipeline: &Pipeline) -> Self {
        Self {
            arrivals: ArrivalWatch::new(pipeline),
            ban_irqbalance: config.steer.ban_irqbalance,
            interfaces: InterfaceWatch::new(&config.steer, &plan.interfaces),
            is_steered: pipeline.lanes().iter().any(|lane| lane.setup.plan.intake.is_planned()),
        }
    }
}

impl<'a> MainLoop<'a> {
    pub(super) fn new(parts: MainLoopParts<'a>) -> Self {
        let MainLoopParts { config, plan, events, pipeline, listeners, notifier, store, .. } = parts;
        Self {
            events: EventQueue { events, deferred: RefCell::default() },
            reopen: ReopenOnHangup::new(parts.registry, pipeline.files()),
            plan_watches: PlanWatches::new(&config, plan, &pipeline),
            pipeline,
            config,
            store,
            reloader: parts.reloader,
            handoff: parts.handoff,
            member: parts.member,
            notifier,
            seats: parts.seats,
            listeners,
            losses: LossWatch::default(),
            queues: QueueWatch::default(),
            stalls: StallWatch::default(),
            sink_states: SinkStateWatch::default(),
            loops: LoopWatch::default(),
            status: StatusLine::default(),
            gro_refused_at: None,
            named_signals: BTreeSet::new(),
            reload_log: ReloadLog::default(),
        }
    }

    /// Handles events until one ends the daemon; makes a round once a second.
    pub(super) fn run(mut self) -> MainLoopEnd {
        let mut next = clock::now() + ROUND;
        self.look_at_readiness(&self.pipeline.ledger().snapshot());
        for round in 1_u32.. {
            loop {
                let looks = [self.next_look_at_gro(), self.member.next_look()];
                let until = looks.into_iter().flatten().fold(next, Instant::min);
                match self.events.next(until) {
                    Ok(reason) if ends_daemon(&reason) && !self.drains_first(&reason) => return self.end(reason),
                    Ok(event) => self = self.handle(&event),
                    Err(RecvTimeoutError::Timeout) if clock::now() < next => self = self.decide_gro(),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the registry holds a sender"),
                }
                let ledger = self.pipeline.ledger();
                if let Some(why) = self.member.look_at_drain(&ledger, self.config.daemon.drain_quiet) {
                    return self.end(DaemonEvent::Drained(why));
                }
            }
            next = clock::now() + ROUND;
            self.look(round);
            self = self.revive_queues().decide_gro();
        }
        unreachable!("there is no end of rounds in the life of a machine")
    }

    /// The last look before the end.
    fn end(mut self, reason: DaemonEvent) -> MainLoopEnd {
        self.look_at_arrivals();
        // After a take-over the other process is asked whether it is ready.
        match reason {
            DaemonEvent::TakenOver(_) => self.member.leave(),
            _ => self.member.end(&self.pipeline.ledger()),
        }
        let Self { pipeline, listeners, handoff, .. } = self;
        MainLoopEnd { reason, pipeline, listeners, handoff }
    }

    /// Whether this end has to wait until nothing comes any more: that of the first SIGTERM, where there is a `drain`.
    fn drains_first(&mut self, reason: &DaemonEvent) -> bool {
        let limit = self.config.daemon.drain;
        let is_asked = *reason == DaemonEvent::Signal(signals::SIGTERM) && !limit.is_zero();
        let drains = is_asked && self.member.begin_to_leave(&self.pipeline.ledger(), limit);
        if drains {
            self.notifier.draining(limit + END_LIMIT);
        }
        drains
    }

    fn handle(mut self, event: &DaemonEvent) -> Self {
        let DaemonEvent::Signal(number) = event else {
            if *event == DaemonEvent::Drain {
                self.member.serve_requests(&self.pipeline.ledger());
                return self;
            }
            if *event == DaemonEvent::TakeOver {
                return self.serve_take_overs();
            }
            let asked = self.reloader.take_requests();
            // One reload answers all requests that have come by then, and each of them has left an event.
            return if asked.is_empty() { self } else { self.reload(asked, false) };
        };
        let name = signals::name_of(*number);
        match signals::effect_of(*number) {
            Effect::Reopen => {
                if self.reloader.has_file() {
                    let asked = self.reloader.take_requests();
                    self = self.reload(asked, true);
                }
                self.reopen.start_round();
            }
            Effect::Report => log_ledger(&self.pipeline.ledger().snapshot()),
            // It has begun a drain.
            Effect::End => {}
            Effect::Say | Effect::Block | Effect::Default | Effect::EndForced => {
                if self.named_signals.insert(*number) {
                    log::warn!("ignored the signal {name}, which means nothing to udpd; logged once");
                }
            }
        }
        self
    }

    /// Reads the configuration again and puts it in force, or says why not.
    ///
    /// Every process that may open the control socket can ask for it again and again. So a reload that changes nothing
    /// is logged once a minute then, with a count. The client is answered each time.
    fn reload(mut self, asked: Vec<ReloadAnswer>, by_signal: bool) -> Self {
        self.notifier.reloading();
        let pending = self.reloader.begin(self.pipeline.reload_context(), Arc::clone(&self.config));
        let result = match self.wait_for(pending) {
            Ok(reloaded) => {
                let is_news = matches!(reloaded.outcome, ReloadOutcome::Changed(_)) || by_signal;
                let silent = if is_news { Some(0) } else { self.reload_log.unchanged.pass(clock::now()) };
                let (next, done) = self.put_in_force(reloaded, silent.is_some());
                self = next;
                if let Some(silent) = silent {
                    log::info!("reload: {done}{}", repeats(silent));
                }
                Ok(done)
            }
            Err(failure) => {
                let silent = if by_signal { Some(0) } else { self.reload_log.refused(&failure.message) };
                if let Some(silent) = silent {
                    let times = repeats(silent);
                    log::error!("reload refused, the configuration of before stays in force: {failure}{times}");
                }
                Err(failure)
            }
        };
        let text = match &result {
            Ok(done) => done.clone(),
            Err(failure) => format!("reload refused: {failure}"),
        };
        self.pipeline.ledger().set_last_reload(reload::snapshot_of(&result));
        self.notifier.ready(&text);
        for answer in asked {
            let answered = match &result {
                Ok(done) => Ok(done.clone()),
                Err(failure) => Err(Failure::new(failure.code, failure.message.clone())),
            };
            // The client may have gone.
            let _ = answer.send(answered);
        }
        self
    }

    /// Makes the lanes anew with another configuration, or the same on a machine that has changed. Where that fails the
    /// pipeline that runs goes on.
    fn remake_lanes(mut self, config: Config) -> (Self, Result<(), Failure>) {
        // The warnings of the file are logged already.
        let config = Arc::new(Config { warnings: Vec::new(), ..config });
        let pending = self.reloader.begin_anew(self.pipeline.reload_context(), config);
        match self.wait_for(pending) {
            Ok(reloaded) => {
                let (next, done) = self.put_in_force(reloaded, true);
                log::info!("lanes made anew, {done}");
                (next, Ok(()))
            }
            Err(failure) => (self, Err(failure)),
        }
    }

    /// Waits for a reload to be made, and for events meanwhile: a file that it opens may never answer.
    pub(super) fn wait_for(&mut self, pending: PendingReload) -> Result<ReloadResult, Failure> {
        let PendingReload { made, commit_flag } = pending;
        let is_due = clock::now() + reload::BUILD_LIMIT;
        let mut next = clock::now() + ROUND;
        let refusal = loop {
            let events = self.events.events;
            let ready = || match (made.try_recv(), events.try_recv()) {
                (Ok(made), Err(_)) => Some(Err(made)),
                (Err(TryRecvError::Disconnected), Err(_)) => Some(Err(Err(reload::panicked()))),
                (Err(_), Err(_)) => None,
                (_, Ok(event)) => Some(Ok(Some(event))),
            };
            let wait = || {
                Some(select! {
                    recv(made) -> made => Err(made.unwrap_or_else(|_| Err(reload::panicked()))),
                    recv(events) -> event => Ok(event.ok()),
                    recv(at(next)) -> _ => Ok(None),
                })
            };
            match threads::blocking(|| waits::until(Some(next), ready, wait)).unwrap_or(Ok(None)) {
                Err(made) => return made,
                Ok(Some(event)) => {
                    let ends = ends_daemon(&event);
                    self.events.defer(event);
                    if ends {
                        break Failure::new(ExitCode::Failure, "udpd ends");
                    }
                }
                Ok(None) if clock::now() >= is_due => break reload::too_slow(),
                Ok(None) => {
                    next = clock::now() + ROUND;
                    self.read_counters();
                    self.member.renew();
                }
            }
        };
        if commit_flag.cancel() {
            return Err(refusal);
        }
        // It has addresses by now, and what arrives there is to be counted.
        threads::blocking(|| waits::recv(&made)).unwrap_or_else(|_| Err(reload::panicked()))
    }

    /// Replaces the pipeline, and says what was done. `is_logged`: warnings go to the log.
    pub(super) fn put_in_force(mut self, reloaded: ReloadResult, is_logged: bool) -> (Self, String) {
        let ReloadResult { config, plan, outcome } = reloaded;
        log::set_max_level(config.daemon.log_level);
        config.warnings.iter().filter(|_| is_logged).for_each(|warning| log::warn!("{warning}"));
        let unchanged_keys = reload::keys_that_need_a_restart(&config, &self.config);
        let mut done = match outcome {
            ReloadOutcome::Same => "nothing that listeners and sinks are made of is different".to_owned(),
            ReloadOutcome::Changed(replacement) => {
                let events = &self.events;
                self.store.record.add_configuration(&config, &plan);
                self.pipeline = self.pipeline.hand_over_to(*replacement, |wait| events.end_is_requested(wait));
                // What has not been handed over by then follows in its own time.
                self.pipeline.wait_for_earlier_pipelines(SETTLE_LIMIT);
                self.listeners.end();
                self.listeners = self.listeners.after(&self.config, &config, &self.pipeline);
                self.plan_watches = PlanWatches::new(&config, &plan, &self.pipeline);
                *lock(&self.seats) = neighbours::own_seats(&config, &plan);
                self.store.keep(&self.pipeline);
                remarks::log(&config, &plan);
                let (listeners, lanes) = (config.listeners.len(), self.pipeline.lanes().len());
                let done = format!("in force: {listeners} listeners, {lanes} lanes, {} sinks", config.sinks.len());
                done + &unfinished_sinks(&self.pipeline)
            }
        };
        if !unchanged_keys.is_empty() {
            let keys = unchanged_keys.join(", ");
            if is_logged {
                log::warn!("reload: [daemon] {keys}: a change takes a restart");
            }
            done.push_str(&format!("; a change of {keys} takes a restart"));
        }
        // The next reload compares these keys with what runs as well.
        let mut daemon = self.config.daemon.clone();
        (daemon.log_level, daemon.pool_bytes) = (config.daemon.log_level, config.daemon.pool_bytes);
        (daemon.drain, daemon.drain_quiet) = (config.daemon.drain, config.daemon.drain_quiet);
        self.config = Arc::new(Config { daemon, ..Config::clone(&config) });
        (self, done)
    }

    /// When to look at `gro = "auto"` again; `None` where all listeners are decided.
    fn next_look_at_gro(&self) -> Option<Instant> {
        let is_refused = self.gro_refused_at.is_some_and(|at| clock::since(at) < GRO_PAUSE);
        let is_open = !is_refused && self.config.listeners.iter().any(gro_decision::is_open);
        is_open.then(|| clock::now() + LOOK_AT_GRO_EVERY)
    }

    /// Makes lanes anew for the listeners whose `gro` can be decided now.
    fn decide_gro(self) -> Self {
        let decided = self.next_look_at_gro().and_then(|_| gro_decision::decide(&self.config, &self.pipeline));
        let Some(config) = decided else { return self };
        let (mut own, outcome) = self.remake_lanes(config);
        // Where the end came first, there are no lanes to be made.
        if let Err(failure) = outcome
            && !own.events.end_is_requested(Duration::ZERO)
        {
            log::warn!(
                "gro stays as it is, because lanes cannot be made anew: {failure}; udpd tries again in {} s",
                GRO_PAUSE.as_secs()
            );
            own.gro_refused_at = Some(clock::now());
        }
        own
    }

    /// Makes the lanes anew where receive queues past the kernel's stack can get engines again: their interface was
    /// removed and is back, or has more queues than before. Until that has worked the sockets of the listener receive.
    fn revive_queues(mut self) -> Self {
        let due = self.due_queues();
        if due.is_empty() {
            return self;
        }
        log::info!("listener {}: its interface has changed, and udpd makes all lanes anew", due.join(", "));
        let config = Config::clone(&self.config);
        let (mut own, outcome) = self.remake_lanes(config);
        let (failed, failure) = match outcome {
            Ok(()) => {
                // A queue that still has no engine is one more failure; why is logged already.
                let is_without = |name: &String| {
                    own.pipeline.xdp_queues().iter().any(|own| own.listener == *name && own.running < own.lanes)
                };
                let failed: Vec<String> = due.into_iter().filter(is_without).collect();
                (failed, Failure::new(ExitCode::Unavailable, "an engine could not be made, as was said before"))
            }
            Err(failure) => (due, failure),
        };
        failed.iter().for_each(|listener| own.queues.note_failure(listener, &failure, clock::now()));
        own
    }

    /// The listeners whose queues can get engines now: their program is at the interface.
    fn due_queues(&mut self) -> Vec<String> {
        let Self { queues, pipeline, .. } = self;
        let now = clock::now();
        let note = |listener: &str, state| pipeline.set_queue_state(listener, state);
        let mut due = queues.look(&pipeline.xdp_queues(), now, xdp_queues::card, note);
        due.retain(|listener| {
            let attached = pipeline.reattach_xdp_program(listener);
            attached.map_err(|failure| queues.note_failure(listener, &failure, now)).is_ok()
        });
        due
    }

    fn read_counters(&self) {
        let ledger = self.pipeline.ledger();
        ledger.read_kernel_drops();
        // A driver that is busy with its card takes its time over a question.
        threads::blocking(|| ledger.read_host_counters());
    }

    fn look(&mut self, round: u32) {
        self.read_counters();
        self.pipeline.close_drained();
        self.pipeline.release_freed_memory();
        self.listeners.look(&self.pipeline);
        self.store.look(&self.pipeline);
        privilege_helper::check_alive();
        if round.is_multiple_of(LOOK_AT_INTERFACES_EVERY) {
            // As in `read_counters`.
            let lines = threads::blocking(|| self.plan_watches.interfaces.look());
            lines.iter().for_each(|line| log::warn!("{line}"));
        }
        self.look_at_arrivals();
        self.look_at_relays();
        let has_changed = self.look_at_stalls();
        let (snapshot, stalled) = (self.pipeline.ledger().snapshot(), self.stalls.stalled(clock::now()));
        let last_line = logging::last_trouble_of_sink;
        let states = self.sink_states.look(&snapshot, &stalled, clock::seconds_since_1970(), last_line);
        self.pipeline.ledger().set_sink_states(states);
        let has_changed = self.look_at_readiness(&snapshot) || has_changed;
        let snapshot = Snapshot { readiness: Some(self.member.told().clone()), ..snapshot };
        let stalled = self.stalls.stalled(clock::now());
        if has_changed || round.is_multiple_of(REPORT_EVERY) {
            self.status.after(&snapshot, &stalled).into_iter().for_each(|line| self.notifier.status(line));
        }
        if round.is_multiple_of(REPORT_EVERY) {
            self.losses.compare(snapshot).iter().for_each(|line| log::warn!("{line}"));
            self.pipeline.ledger().each_stream_change(|listener, changes, more| {
                streams::lines(listener, changes, more).iter().for_each(|line| log::warn!("{line}"));
            });
        }
    }

    /// Tells balancers whether to send here; whether something else than before.
    fn look_at_readiness(&mut self, snapshot: &Snapshot) -> bool {
        let ledger = self.pipeline.ledger();
        let facts = OtherFacts {
            stalled: self.stalls.stalled(clock::now()),
            waiting: self.pipeline.waiting_sinks().into_iter().collect(),
            deaf: self.listeners.deaf(),
        };
        self.member.look(&ledger, snapshot, &facts)
    }

    /// Logs which listeners seem to receive what they relay.
    fn look_at_relays(&mut self) {
        for (index, destinations, echoes) in self.pipeline.relayed() {
            let listener = self.config.listeners[index].name.as_str();
            let line =
                self.loops.look(&Relayed { listener, destinations, echoes }, || self.pipeline.busiest_sender(index));
            line.into_iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// Logs which sinks take nothing, and which do again; whether there is anything to log.
    fn look_at_stalls(&mut self) -> bool {
        let changes = self.stalls.look(self.pipeline.ledger().progress(), clock::now());
        for change in &changes {
            match change {
                StallChange::Begun { sink, lasts, .. } => {
                    let (snapshot, threads) = (self.pipeline.ledger().snapshot(), self.pipeline.threads_of_sink(sink));
                    sink_stalls::say_begun(sink, *lasts, &snapshot, &threads);
                }
                StallChange::Over { sink, lasted, .. } => sink_stalls::say_over(sink, *lasted),
            }
        }
        !changes.is_empty()
    }

    fn look_at_arrivals(&mut self) {
        if self.plan_watches.is_steered {
            let ban = self.plan_watches.ban_irqbalance;
            // As in `read_counters`.
            let why = |interface: &str, query, wanted: &[usize]| {
                threads::blocking(|| Why::find(interface, query, wanted, ban))
            };
            let lines = self.plan_watches.arrivals.compare(&self.pipeline.ledger().snapshot(), why);
            lines.iter().for_each(|line| log::warn!("{line}"));
        }
    }
}

/// The sinks that have yet to begin or to finish after a reload, and those that are not waited for any more.
fn unfinished_sinks(pipeline: &Pipeline) -> String {
    let clause = |(text, sinks): (&str, Vec<&str>)| match sinks.as_slice() {
        [] => String::new(),
        sinks => format!("; {text}: sinks {}", sinks.join(", ")),
    };
    let waiting = "yet to begin, when what they write is closed with the settings of before";
    let draining = "have yet to hand on what came before, because their disk or their peer takes little or nothing";
    let abandoned = "have handed on nothing since an earlier reload, so what waited for them counts as sink_error";
    let clauses = [
        (waiting, pipeline.waiting_sinks().into_iter().collect()),
        (draining, pipeline.draining_sinks().into_iter().collect()),
        (abandoned, pipeline.abandoned_sinks().iter().map(String::as_str).collect()),
    ];
    clauses.map(clause).concat()
}

fn ends_daemon(event: &DaemonEvent) -> bool {
    match event {
        DaemonEvent::Signal(number) => matches!(signals::effect_of(*number), Effect::End | Effect::EndForced),
        DaemonEvent::SinkClosed(_)
        | DaemonEvent::ThreadPanicked(_)
        | DaemonEvent::Drained(_)
        | DaemonEvent::TakenOver(_)
        | DaemonEvent::Stranded(_) => true,
        DaemonEvent::Reload | DaemonEvent::TakeOver | DaemonEvent::Drain => false,
    }
}
