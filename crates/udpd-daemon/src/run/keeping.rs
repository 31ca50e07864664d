//! What the main thread does while the pipeline runs: it waits for what somebody asks of the daemon, looks after the
//! ledger once a second, and puts the heir of the pipeline into its place when the configuration was read again.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, at, select};

use super::departure::Departure;
use super::hangup::Hangup;
use super::reload::{self, Answer, Making, Outcome, Reloads, Reread};
use super::say::say_ledger;
use super::store::Store;
use crate::watch::listeners::ListenerWatch;
use crate::watch::losses::LossWatch;
use crate::watch::plan_drift::InterfaceWatch;
use crate::watch::relay_loops::{LoopWatch, Relayed};
use crate::watch::sink_stalls;
use crate::watch::sink_stalls::{StallChange, StallWatch};
use crate::watch::status_line::StatusLine;
use crate::watch::wrong_cpu::ArrivalWatch;
use crate::watch::wrong_cpu_causes::Why;
use crate::watch::xdp_queues::QueueWatch;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::notify::Notifier;
use udpd_base::os::signals;
use udpd_base::os::signals::Effect;
use udpd_base::os::threads;
use udpd_base::os::threads::DaemonEvent;
use udpd_endpoint::control::Seats;
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan::{PipelinePlan, neighbours, remarks};
use udpd_sandbox::privilege_helper;

/// How often the main thread looks at the ledger: often enough for the kernel's 32-bit counters and for the status
/// line.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How many of those pass between two reports of losses.
const REPORT_EVERY: u32 = 10;

/// How many pass between two looks at whether interrupts are still where the plan puts them.
const LOOK_AT_INTERFACES_EVERY: u32 = 5;

/// How long the reload waits for sinks that stay, so that as a rule nothing of before is left when it is answered.
const SETTLE_LIMIT: Duration = Duration::from_millis(100);

/// What the main thread looks at while the pipeline runs.
pub(super) struct Housekeeping<'a> {
    pub(super) inbox: Inbox<'a>,
    pub(super) pipeline: Pipeline,
    pub(super) upkeep: ListenerWatch,
    pub(super) watches: Watches,
    pub(super) notifier: &'a Notifier,
    pub(super) status: StatusLine,
    pub(super) store: &'a mut Store,
    pub(super) losses: LossWatch,
    pub(super) queues: QueueWatch,
    pub(super) stalls: StallWatch,
    pub(super) loops: LoopWatch,
    /// When lanes could not be made anew for trains.
    pub(super) trains_refused_at: Option<Instant>,
    pub(super) hangup: Hangup,
    /// Signals without a meaning that the log has named already.
    pub(super) said: BTreeSet<i32>,
    /// What is in force.
    pub(super) config: Arc<Config>,
    pub(super) reloads: Reloads,
    pub(super) unheard: Unheard,
    pub(super) seats: Arc<Mutex<Seats>>,
    pub(super) departure: Departure,
}

/// Reloads that change nothing, asked for over the control socket: the log hears of one a minute.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    unchanged: LogLimiter,
    refused: LogLimiter,
    /// Why the last one was refused. Another reason is news.
    why: String,
}

impl Unheard {
    /// How often there was nothing new to say before this one, which is to be said.
    fn refused(&mut self, why: &str) -> Option<u64> {
        if self.why != why {
            (self.why, self.refused) = (why.to_owned(), LogLimiter::default());
        }
        self.refused.pass(Instant::now())
    }
}

/// What somebody asks of the daemon.
pub(super) struct Inbox<'a> {
    events: &'a Receiver<DaemonEvent>,
    /// What came during a reload and has to wait for its end.
    put_off: RefCell<VecDeque<DaemonEvent>>,
}

impl<'a> Inbox<'a> {
    pub(super) fn new(events: &'a Receiver<DaemonEvent>) -> Self {
        Self { events, put_off: RefCell::default() }
    }

    /// The end goes before whatever has waited for a reload.
    fn next(&self, deadline: Instant) -> Result<DaemonEvent, RecvTimeoutError> {
        let mut put_off = self.put_off.borrow_mut();
        let first = put_off.iter().position(ends).unwrap_or(0);
        put_off.remove(first).map_or_else(|| threads::blocking(|| self.events.recv_deadline(deadline)), Ok)
    }

    /// Leaves something for the next look.
    pub(super) fn put_off(&self, event: DaemonEvent) {
        self.put_off.borrow_mut().push_back(event);
    }

    /// Whether somebody wants the daemon to end, within this time. What comes is put off.
    pub(super) fn is_told_to_end(&self, wait: Duration) -> bool {
        let mut put_off = self.put_off.borrow_mut();
        put_off.extend(threads::blocking(|| self.events.recv_timeout(wait)));
        put_off.iter().any(ends)
    }
}

/// Those that compare what happens with a plan.
pub(super) struct Watches {
    arrivals: ArrivalWatch,
    ban_irqbalance: bool,
    interfaces: InterfaceWatch,
    /// Somebody has planned where datagrams arrive.
    is_steered: bool,
}

impl Watches {
    pub(super) fn new(config: &Config, plan: &PipelinePlan, pipeline: &Pipeline) -> Self {
        Self {
            arrivals: ArrivalWatch::new(pipeline),
            ban_irqbalance: config.steer.ban_irqbalance,
            interfaces: InterfaceWatch::new(&config.steer, &plan.interfaces),
            is_steered: pipeline.lanes().iter().any(|lane| lane.setup.plan.intake.is_planned()),
        }
    }
}

impl Housekeeping<'_> {
    /// Waits for the event that ends the daemon; once a second, does the housekeeping.
    pub(super) fn until_end(mut self) -> (DaemonEvent, Pipeline, ListenerWatch, Departure) {
        let mut next = Instant::now() + HOUSEKEEPING;
        for round in 1_u32.. {
            loop {
                let until = self.next_look_at_trains().map_or(next, |look| look.min(next));
                match self.inbox.next(until) {
                    Ok(event) if ends(&event) => {
                        self.look_at_arrivals();
                        return (event, self.pipeline, self.upkeep, self.departure);
                    }
                    Ok(event) => self = self.take(&event),
                    Err(RecvTimeoutError::Timeout) if Instant::now() < next => self = self.decide_on_trains(),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the registry holds a sender"),
                }
            }
            next = Instant::now() + HOUSEKEEPING;
            self.look(round);
            self = self.revive_queues().decide_on_trains();
        }
        unreachable!("there is no end of rounds in the life of a machine")
    }

    /// Does what an event asks for.
    fn take(mut self, event: &DaemonEvent) -> Self {
        let DaemonEvent::Signal(number) = event else {
            if *event == DaemonEvent::TakeOver {
                return self.hear_newcomers();
            }
            let asked = self.reloads.asked();
            // One reload answers all who have asked by then, and each of them has left an event.
            return if asked.is_empty() { self } else { self.reload(asked, false) };
        };
        let name = signals::name_of(*number);
        match signals::effect_of(*number) {
            Effect::Reopen => {
                if self.reloads.has_file() {
                    let asked = self.reloads.asked();
                    self = self.reload(asked, true);
                }
                self.hangup.heard();
            }
            Effect::Report => say_ledger(&self.pipeline.ledger().snapshot()),
            Effect::Say | Effect::Block | Effect::Default | Effect::End | Effect::EndForced => {
                if self.said.insert(*number) {
                    log::warn!("ignored the signal {name}, which means nothing to udpd; logged once");
                }
            }
        }
        self
    }

    /// Reads the configuration again and has it in force, or says why not.
    ///
    /// Who may open the control socket can ask for it again and again. What changes nothing is said once a
    /// minute then, with a count; who asked is told each time.
    fn reload(mut self, asked: Vec<Answer>, by_signal: bool) -> Self {
        self.notifier.reloading();
        let making = self.reloads.begin(self.pipeline.reload_context(), Arc::clone(&self.config));
        let result = match self.wait_for(making) {
            Ok(reread) => {
                let is_news = matches!(reread.outcome, Outcome::Changed(_)) || by_signal;
                let silent = if is_news { Some(0) } else { self.unheard.unchanged.pass(Instant::now()) };
                let (next, done) = self.put_in_force(reread, silent.is_some());
                self = next;
                if let Some(silent) = silent {
                    log::info!("reload: {done}{}", repeats(silent));
                }
                Ok(done)
            }
            Err(failure) => {
                let silent = if by_signal { Some(0) } else { self.unheard.refused(&failure.message) };
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
        self.pipeline.ledger().set_last_reload(reload::outcome(&result));
        self.notifier.ready(&text);
        for answer in asked {
            let answered = match &result {
                Ok(done) => Ok(done.clone()),
                Err(failure) => Err(Failure::new(failure.code, failure.message.clone())),
            };
            // Who asked may have gone.
            let _ = answer.send(answered);
        }
        self
    }

    /// Waits for what a reload makes, with one eye on what happens meanwhile: whatever it opens may never answer.
    pub(super) fn wait_for(&mut self, making: Making) -> Result<Reread, Failure> {
        let Making { made, commit_flag } = making;
        let is_due = Instant::now() + reload::MAKING_LIMIT;
        let mut next = Instant::now() + HOUSEKEEPING;
        let refusal = loop {
            let event = threads::blocking(|| {
                select! {
                    recv(made) -> made => Err(made.unwrap_or_else(|_| Err(reload::panicked()))),
                    recv(self.inbox.events) -> event => Ok(event.ok()),
                    recv(at(next)) -> _ => Ok(None),
                }
            });
            match event {
                Err(made) => return made,
                Ok(Some(event)) => {
                    let ends = ends(&event);
                    self.inbox.put_off.get_mut().push_back(event);
                    if ends {
                        break Failure::new(ExitCode::Failure, "udpd ends");
                    }
                }
                Ok(None) if Instant::now() >= is_due => break reload::too_slow(),
                Ok(None) => {
                    next = Instant::now() + HOUSEKEEPING;
                    self.look_at_books();
                }
            }
        };
        if commit_flag.cancel() {
            return Err(refusal);
        }
        // It has addresses by now, and what arrives there is to be counted.
        threads::blocking(|| made.recv()).unwrap_or_else(|_| Err(reload::panicked()))
    }

    /// `is_said`: the log hears of it.
    pub(super) fn put_in_force(mut self, reread: Reread, is_said: bool) -> (Self, String) {
        let Reread { config, plan, outcome } = reread;
        log::set_max_level(config.daemon.log_level);
        config.warnings.iter().filter(|_| is_said).for_each(|warning| log::warn!("{warning}"));
        let left_alone = reload::left_alone(&config, &self.config);
        let mut done = match outcome {
            Outcome::Same => "nothing that listeners and sinks are made of is different".to_owned(),
            Outcome::Changed(heir) => {
                let inbox = &self.inbox;
                self.store.go_on(&config, &plan);
                self.pipeline = self.pipeline.hand_over_to(*heir, |wait| inbox.is_told_to_end(wait));
                // What has not gone over by then goes over in its own time.
                self.pipeline.wait_for_earlier_pipelines(SETTLE_LIMIT);
                self.upkeep.end();
                self.upkeep = self.upkeep.after(&self.config, &config, &self.pipeline);
                self.watches = Watches::new(&config, &plan, &self.pipeline);
                *self.seats.lock().unwrap_or_else(PoisonError::into_inner) = neighbours::own_seats(&config, &plan);
                self.store.keep(&self.pipeline);
                remarks::log(&config, &plan);
                let (listeners, lanes) = (config.listeners.len(), self.pipeline.lanes().len());
                let done = format!("in force: {listeners} listeners, {lanes} lanes, {} sinks", config.sinks.len());
                done + &say_of_before(&self.pipeline)
            }
        };
        if !left_alone.is_empty() {
            let keys = left_alone.join(", ");
            if is_said {
                log::warn!("reload: [daemon] {keys}: a change takes a restart");
            }
            done.push_str(&format!("; a change of {keys} takes a restart"));
        }
        // What was left alone is compared with what runs next time as well.
        let mut daemon = self.config.daemon.clone();
        (daemon.log_level, daemon.pool_bytes) = (config.daemon.log_level, config.daemon.pool_bytes);
        self.config = Arc::new(Config { daemon, ..Config::clone(&config) });
        (self, done)
    }

    fn look_at_books(&self) {
        let books = self.pipeline.ledger();
        books.read_kernel_drops();
        // As a driver that is busy with its card below.
        threads::blocking(|| books.read_host_counters());
    }

    fn look(&mut self, round: u32) {
        self.look_at_books();
        self.pipeline.close_drained();
        self.pipeline.release_freed_memory();
        self.upkeep.look(&self.pipeline);
        self.store.look(&self.pipeline);
        privilege_helper::check_alive();
        if round.is_multiple_of(LOOK_AT_INTERFACES_EVERY) {
            // A driver that is busy with its card keeps whoever asks about it waiting.
            threads::blocking(|| self.watches.interfaces.look()).iter().for_each(|line| log::warn!("{line}"));
        }
        self.look_at_arrivals();
        self.look_at_relays();
        let has_changed = self.look_at_stalls();
        if has_changed || round.is_multiple_of(REPORT_EVERY) {
            let (snapshot, stalled) = (self.pipeline.ledger().snapshot(), self.stalls.stalled(Instant::now()));
            self.status.after(&snapshot, &stalled).into_iter().for_each(|line| self.notifier.status(line));
        }
        if round.is_multiple_of(REPORT_EVERY) {
            let snapshot = self.pipeline.ledger().snapshot();
            self.losses.compare(snapshot).iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// Says which listeners seem to receive what they relay.
    fn look_at_relays(&mut self) {
        for (index, destinations, echoes) in self.pipeline.relayed() {
            let listener = self.config.listeners[index].name.as_str();
            let line =
                self.loops.look(&Relayed { listener, destinations, echoes }, || self.pipeline.busiest_sender(index));
            line.into_iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// Says which sinks take nothing, and which do again; whether there is anything to say.
    fn look_at_stalls(&mut self) -> bool {
        let changes = self.stalls.look(self.pipeline.ledger().progress(), Instant::now());
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
        if self.watches.is_steered {
            let ban = self.watches.ban_irqbalance;
            // A driver that is busy with its card keeps whoever asks about it waiting.
            let why = |interface: &str, queue, wanted: &[usize]| {
                threads::blocking(|| Why::find(interface, queue, wanted, ban))
            };
            let lines = self.watches.arrivals.compare(&self.pipeline.ledger().snapshot(), why);
            lines.iter().for_each(|line| log::warn!("{line}"));
        }
    }
}

/// What has yet to come to pass, and what is not waited for any more.
fn say_of_before(pipeline: &Pipeline) -> String {
    let said = |(text, sinks): (&str, Vec<&str>)| match sinks.as_slice() {
        [] => String::new(),
        sinks => format!("; {text}: sinks {}", sinks.join(", ")),
    };
    let waiting = "yet to begin, when what they write is closed with the settings of before";
    let busy = "have yet to hand on what came before, because their disk or their peer takes little or nothing";
    let given_up = "have handed on nothing since an earlier reload, so what waited for them counts as sink_error";
    let of_these = [
        (waiting, pipeline.waiting_sinks().into_iter().collect()),
        (busy, pipeline.draining_sinks().into_iter().collect()),
        (given_up, pipeline.abandoned_sinks().iter().map(String::as_str).collect()),
    ];
    of_these.map(said).concat()
}

/// Whether the daemon is to end.
fn ends(event: &DaemonEvent) -> bool {
    match event {
        DaemonEvent::Signal(number) => matches!(signals::effect_of(*number), Effect::End | Effect::EndForced),
        DaemonEvent::SinkClosed(_)
        | DaemonEvent::ThreadPanicked(_)
        | DaemonEvent::TakenOver(_)
        | DaemonEvent::Stranded(_) => true,
        DaemonEvent::Reload | DaemonEvent::TakeOver => false,
    }
}
