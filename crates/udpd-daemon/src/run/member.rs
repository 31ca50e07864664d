//! This daemon as a member of a fleet: it tells balancers whether to send here, and leaves without a loss. A drain is
//! "not ready" first; udpd receives on, because balancers and routers send on for a while; the end comes when nothing
//! has come for `drain_quiet`, or when its time is over.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::announcement::Announcement;
use super::handoff::DRAIN_LIMIT;
use crate::watch::readiness::{FaultFinder, OtherFacts, Readiness};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::{DrainSnapshot, ReadinessSnapshot};
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::seams::clock;
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_duration;
use udpd_endpoint::control::{DrainCommand, DrainRequest};
use udpd_endpoint::health::HealthBoard;
use udpd_engine::config::Config;
use udpd_engine::pipeline::CumulativeLedger;

/// How long the end after a drain may take: sinks hand on what they hold, and a disk closes files.
pub(super) const END_LIMIT: Duration = DRAIN_LIMIT.saturating_mul(2);

/// How often a drain that is to end looks whether anything came, at least and at most.
const LOOK_AT_DRAIN_EVERY: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

pub(super) struct Member {
    readiness: Readiness,
    faults: FaultFinder,
    board: HealthBoard,
    followers: Vec<Box<dyn Fn(bool) + Send>>,
    announcement: Announcement,
    drain: Option<Drain>,
    requests: Receiver<DrainRequest>,
    to_requests: Sender<DrainRequest>,
    registry: ThreadRegistry,
}

/// A drain under way.
#[derive(Debug)]
struct Drain {
    why: String,
    begun: Instant,
    /// When udpd ends at the latest; `None` where it does not end by itself.
    until: Option<Instant>,
    /// What asked for it has to end: `undrain` comes too late.
    by_signal: bool,
    told: DrainSnapshot,
    /// How many datagrams had arrived before it began, and at the last look.
    before: u64,
    arrived: u64,
    /// When the last of them was seen, or when it began.
    heard: Instant,
    next_look: Instant,
}

impl Member {
    pub(super) fn new(config: &Config, registry: &ThreadRegistry) -> Self {
        let readiness = Readiness::new(clock::seconds_since_1970());
        let (to_requests, requests) = unbounded();
        Self {
            board: HealthBoard::new(readiness.told()),
            readiness,
            faults: FaultFinder::default(),
            followers: Vec::new(),
            announcement: Announcement::new(&config.daemon),
            drain: None,
            requests,
            to_requests,
            registry: registry.clone(),
        }
    }

    pub(super) fn board(&self) -> &HealthBoard {
        &self.board
    }

    pub(super) fn told(&self) -> &ReadinessSnapshot {
        self.readiness.told()
    }

    /// Adds what is to follow whether udpd is ready.
    pub(super) fn follow(&mut self, followers: impl Iterator<Item = impl Fn(bool) + Send + 'static>) {
        self.followers.extend(followers.map(|own| Box::new(own) as Box<dyn Fn(bool) + Send>));
    }

    /// Passes a request to the main thread.
    pub(super) fn requester(&self) -> impl Fn(DrainRequest) + Send + 'static {
        let (to_requests, registry) = (self.to_requests.clone(), self.registry.clone());
        move |request| {
            // When this process ends the client sees the end of its connection.
            let _ = to_requests.send(request);
            registry.report(DaemonEvent::Drain);
        }
    }

    /// Looks for faults, once a second; whether something else is told than before.
    pub(super) fn look(&mut self, ledger: &CumulativeLedger, snapshot: &Snapshot, other: &OtherFacts<'_>) -> bool {
        let fault = self.faults.look(snapshot, other);
        let before = self.readiness.told().clone();
        let why = self.drain.as_ref().map(|drain| drain.why.as_str());
        let has_changed = self.readiness.look(fault, why, clock::now(), clock::seconds_since_1970());
        if has_changed {
            self.publish(ledger, before.ready, &before.reason);
        }
        self.renew();
        has_changed
    }

    /// Renews what is announced, at least every few seconds, also while a reload is made.
    pub(super) fn renew(&mut self) {
        self.announcement.follow(self.readiness.told().ready);
    }

    /// Tells readers of the ledger and balancers, and the log where more than the words has changed.
    fn publish(&mut self, ledger: &CumulativeLedger, was_ready: bool, reason_before: &str) {
        let now = self.readiness.told();
        ledger.set_readiness(now.clone());
        self.board.publish(now);
        if now.ready != was_ready {
            self.followers.iter().for_each(|follow| follow(now.ready));
            self.announcement.follow(now.ready);
        }
        match (now.reason.as_str(), reason_before) {
            (now, before) if now == before => {}
            ("ready", "starting") => {}
            ("ready", _) => log::info!("ready again"),
            ("draining", _) => log::info!("not ready: {}", now.text),
            (reason, _) => log::warn!("not ready: {reason}: {}", now.text),
        }
    }

    fn tell(&mut self, ledger: &CumulativeLedger) {
        let before = self.readiness.told().clone();
        let why = self.drain.as_ref().map(|drain| drain.why.as_str());
        if self.readiness.tell(why, clock::seconds_since_1970()) {
            self.publish(ledger, before.ready, &before.reason);
        }
    }

    /// Does what clients have asked for.
    pub(super) fn serve_requests(&mut self, ledger: &CumulativeLedger) {
        while let Ok(request) = self.requests.try_recv() {
            let outcome = match request.command {
                DrainCommand::Begin(limit) => Ok(self.begin(ledger, limit)),
                DrainCommand::End => self.stay(ledger),
            };
            request.answer(outcome);
        }
    }

    /// The first SIGTERM: leaves within this time. False at the second one, which ends at once.
    pub(super) fn begin_to_leave(&mut self, ledger: &CumulativeLedger, limit: Duration) -> bool {
        if self.drain.as_ref().is_some_and(|drain| drain.by_signal) {
            return false;
        }
        let done = self.begin(ledger, Some(limit));
        if let Some(drain) = &mut self.drain {
            drain.by_signal = true;
        }
        log::info!("SIGTERM: {done}; a second SIGTERM ends at once");
        true
    }

    /// Begins to drain, or sets another time where udpd drains already.
    fn begin(&mut self, ledger: &CumulativeLedger, limit: Option<Duration>) -> String {
        let (now, wall) = (clock::now(), clock::seconds_since_1970());
        let arrived = ledger.snapshot().arrived();
        let drain = self.drain.get_or_insert_with(|| Drain {
            why: String::new(),
            begun: now,
            until: None,
            by_signal: false,
            told: DrainSnapshot { since: wall, until: None, arrived: 0, last_arrived: None },
            before: arrived,
            arrived,
            heard: now,
            next_look: now,
        });
        // A client sets no later end than a service manager that waits for it.
        if !(drain.by_signal && limit.is_none()) {
            let until = limit.map(|limit| now + limit);
            drain.until = if drain.by_signal { drain.until.min(until) } else { until };
            drain.told.until = drain.until.map(|until| wall + (until - now).as_secs_f64());
        }
        drain.why = match drain.until {
            Some(_) => "udpd was told to leave; it receives on until nothing comes any more, and ends",
            None => "udpd was told to leave; it receives on until `udpd undrain` or a stop",
        }
        .to_owned();
        let what = match drain.until {
            Some(until) => format!(
                "draining: not ready, and receiving on for {} at most, or until nothing has come for drain_quiet; then \
                 udpd ends",
                print_duration(until - now)
            ),
            None => "draining: not ready, and receiving on until `udpd undrain` or a stop".to_owned(),
        };
        ledger.set_drain(Some((drain.told.clone(), drain.before)));
        self.tell(ledger);
        what
    }

    /// Stays after all.
    fn stay(&mut self, ledger: &CumulativeLedger) -> Result<String, Failure> {
        match &self.drain {
            None => return Ok("udpd does not drain, so nothing has changed".to_owned()),
            Some(drain) if drain.by_signal => {
                let message =
                    "udpd got SIGTERM and has to end: whatever stops it would kill it otherwise; start it again";
                return Err(Failure::new(ExitCode::Failure, message));
            }
            Some(_) => {}
        }
        self.drain = None;
        ledger.set_drain(None);
        self.tell(ledger);
        let told = self.readiness.told();
        Ok(if told.ready { "ready again".to_owned() } else { format!("drains no more; not ready: {}", told.text) })
    }

    /// When to look again whether anything comes.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.drain.as_ref().map(|drain| drain.next_look)
    }

    /// Notes what has come while udpd drains. Why it is to end now, where it is.
    pub(super) fn look_at_drain(&mut self, ledger: &CumulativeLedger, quiet: Duration) -> Option<String> {
        let now = clock::now();
        let drain = self.drain.as_mut().filter(|drain| drain.next_look <= now)?;
        let [least, most] = LOOK_AT_DRAIN_EVERY;
        drain.next_look = now + (quiet / 10).clamp(least, most);
        ledger.read_kernel_drops();
        let arrived = ledger.snapshot().arrived();
        if arrived > drain.arrived {
            (drain.arrived, drain.heard) = (arrived, now);
            drain.told.last_arrived = Some(clock::seconds_since_1970());
            ledger.set_drain(Some((drain.told.clone(), drain.before)));
        }
        let until = drain.until?;
        let came = grouped(drain.arrived.saturating_sub(drain.before));
        let [lasted, last] = [drain.begun, drain.heard].map(|since| format!("{:.1} s", (now - since).as_secs_f64()));
        if now - drain.heard >= quiet {
            return Some(format!("{came} datagrams came in {lasted}, and none in the last {last}"));
        }
        (now >= until).then(|| {
            format!(
                "its time is over; {came} datagrams came in {lasted}, the last one {last} ago: senders still send here"
            )
        })
    }

    /// Another process has taken over, and tells from now on whether it is ready.
    pub(super) fn leave(&self) {
        self.announcement.leave();
    }

    /// udpd ends now, and hands on what it holds.
    pub(super) fn end(&mut self, ledger: &CumulativeLedger) {
        let before = self.readiness.told().clone();
        if self.readiness.tell(Some("udpd ends, and hands on what it holds"), clock::seconds_since_1970()) {
            self.publish(ledger, before.ready, &before.reason);
        }
    }
}
