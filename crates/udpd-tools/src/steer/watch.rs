//! `udpd steer apply --watch`: applies the plan and stays, a small process of root that never sees a datagram, and sets
//! again what a card forgets when it comes up, is reset or gets other channels, and what another program moves.
//!
//! The kernel's notifications make it look at once; it looks every few seconds all the same, because a moved interrupt
//! sends none. A burst of notifications is one look, and what its own changes set off finds nothing to do. `keeper`
//! decides what is set again and what is left alone.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TrySendError, bounded, never, select};
use log::LevelFilter;
use steer::plan::Request;
use steer::{Change, Drift, Irqbalance, Journal, LinkEvent, LinkEvents, Presence, Rivals, Setting, Steering};

use super::apply::{Applied, apply};
use super::keeper::{Keeper, KeeperHost};
use super::report;
use super::seats::Seated;
use super::task::SteerTask;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging::{self, LogFormat};
use udpd_base::os::notify::Notifier;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::signals::{self, Effect};
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::os::watchdog::Watchdog;
use udpd_endpoint::control::Silent;
use udpd_engine::plan::interfaces::Kernel;

/// How long between two looks without any notification: what sends none is set again within ten seconds.
const LOOK: Duration = Duration::from_secs(5);
/// How long it must be quiet after a notification: a reset of a card makes many.
const SETTLE: Duration = Duration::from_millis(300);
/// But no longer than this after the first.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// The shortest time between two looks.
const GAP: Duration = Duration::from_secs(1);
/// How many notifications may wait; one more is no loss, because a look is due anyway.
const NOTICES: usize = 256;
/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Applies and stays until SIGTERM or SIGINT; the settings stay as they are then.
pub(super) fn execute(mut keeper: Keeper, host: &mut impl KeeperHost) -> Result<(), Failure> {
    let (registry, events) = ThreadRegistry::new();
    signals::watch(&registry)?;
    let logger = logging::start(LevelFilter::Info, LogFormat::Text, io::stderr(), &registry)?;
    let outcome = keep(&mut keeper, host, &registry, &events);
    logger.finish(LOG_LIMIT);
    outcome
}

fn keep(
    keeper: &mut Keeper,
    host: &mut impl KeeperHost,
    registry: &ThreadRegistry,
    events: &Receiver<DaemonEvent>,
) -> Result<(), Failure> {
    let notifier = Arc::new(Notifier::from_environment());
    registry.register_current("main");
    let watchdog = Watchdog::start(registry, &notifier)?;
    // Heard from before the first look on, so that nothing is missed between the two.
    let mut notices = listen(registry)?;
    look(keeper, host)?;
    notifier.ready(&keeper.status());
    watchdog.begin();
    let mut pace = LookSchedule::new(Instant::now());
    loop {
        let wait = pace.due().saturating_duration_since(Instant::now());
        let woken = threads::blocking(|| {
            select! {
                recv(events) -> event => Woken::Event(event.expect("the registry holds a sender")),
                recv(notices) -> notice => notice.map_or(Woken::Deaf, Woken::Notice),
                default(wait) => Woken::Time,
            }
        });
        match woken {
            Woken::Event(DaemonEvent::Signal(number)) => match signals::effect_of(number) {
                Effect::End | Effect::EndForced => {
                    notifier.stopping();
                    log::info!("stopping: {}; the settings stay as they are", signals::name_of(number));
                    return Ok(());
                }
                _ => log::warn!("ignored the signal {}, which means nothing here", signals::name_of(number)),
            },
            Woken::Event(DaemonEvent::ThreadPanicked(name) | DaemonEvent::SinkClosed(name)) => {
                let message = format!("thread {name} has panicked, which is a bug of udpd: please report it");
                return Err(Failure::new(ExitCode::Failure, message));
            }
            // A watch answers no requests.
            Woken::Event(_) => {}
            Woken::Notice(notice) => {
                let now = Instant::now();
                if keeper.hear(&notice, now) {
                    pace.hear(now);
                }
            }
            Woken::Deaf => notices = never(),
            Woken::Time => {
                // A driver that is busy with its card may keep this waiting.
                threads::blocking(|| look(keeper, host))?;
                pace = LookSchedule::new(Instant::now());
                notifier.status(&keeper.status());
            }
        }
    }
}

enum Woken {
    Event(DaemonEvent),
    Notice(LinkEvent),
    /// The thread that listens has ended.
    Deaf,
    Time,
}

fn look(keeper: &mut Keeper, host: &mut impl KeeperHost) -> Result<(), Failure> {
    for (level, line) in keeper.look(host)? {
        log::log!(level, "{line}");
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct LookSchedule {
    looked: Instant,
    /// The first and the last notification since.
    heard: Option<(Instant, Instant)>,
}

impl LookSchedule {
    fn new(looked: Instant) -> Self {
        Self { looked, heard: None }
    }

    fn hear(&mut self, now: Instant) {
        let (first, _) = self.heard.unwrap_or((now, now));
        self.heard = Some((first, now));
    }

    fn due(&self) -> Instant {
        let by_time = self.looked + LOOK;
        let settled = |(first, last): (Instant, Instant)| (last + SETTLE).min(first + SETTLE_MAX);
        self.heard.map_or(by_time, |heard| settled(heard).max(self.looked + GAP).min(by_time))
    }
}

/// Starts the thread that listens. Where the kernel refuses, that is logged, and regular looks have to do.
fn listen(registry: &ThreadRegistry) -> Result<Receiver<LinkEvent>, Failure> {
    let instead = format!("looks every {} s instead", LOOK.as_secs());
    let mut events = match LinkEvents::open() {
        Ok(events) => events,
        Err(error) => {
            log::warn!("cannot hear of changes of interfaces by netlink: {error}; {instead}");
            return Ok(never());
        }
    };
    if let Some(why) = events.settings_error() {
        log::warn!("cannot hear of changed channels, rings and hashes by netlink: {why}; {instead}");
    }
    let (sender, notices) = bounded(NOTICES);
    let body = move || {
        loop {
            match threads::blocking(|| events.wait(None)) {
                Ok(found) => {
                    for event in found {
                        if let Err(TrySendError::Disconnected(_)) = sender.try_send(event) {
                            return;
                        }
                    }
                }
                Err(error) => {
                    log::warn!("cannot hear of changes of interfaces any more: {error}; {instead}");
                    return;
                }
            }
        }
    };
    registry
        .spawn("udpd-links", ThreadRole::Unconfined, body)
        .map_err(|error| threads::start_failure("udpd-links", &error))?;
    Ok(notices)
}

/// The running kernel. It is opened anew at each look: cores come and go.
pub(super) struct Running<'a> {
    task: &'a SteerTask<'a>,
    out: &'a mut dyn Write,
    asked: Option<u32>,
    /// What the daemons told, for as long as one of them is silent.
    request: Option<Request>,
    /// What was said of those that are silent.
    silent: Vec<Silent>,
    rounded: Rounded,
}

/// What drivers made of values of the plan, so that this is not taken for another program's change and set again: some
/// drivers reset the card each time.
#[derive(Debug, Default)]
struct Rounded(Vec<Change>);

impl Rounded {
    /// Remembers what was not taken as it was wanted. Returns the others: another program moved an interrupt or a mask
    /// at the same moment, and no driver rounds those.
    fn learn(&mut self, done: &[Change]) -> Vec<Failure> {
        let is_of_driver = |change: &Change| {
            !matches!(change.setting, Setting::Interrupt { .. } | Setting::Rps(_) | Setting::Xps(_) | Setting::Threaded)
        };
        let (rounded, moved): (Vec<&Change>, Vec<&Change>) =
            done.iter().filter(|change| !change.is_as_wanted()).partition(|change| is_of_driver(change));
        for change in rounded {
            log::warn!("{}; until then it stays so and counts as planned", report::not_as_wanted(change));
            self.0.retain(|other| (&other.interface, &other.setting) != (&change.interface, &change.setting));
            self.0.push(change.clone());
        }
        moved.into_iter().map(report::not_as_wanted).collect()
    }
}

impl<'a> Running<'a> {
    pub(super) fn new(task: &'a SteerTask<'a>, out: &'a mut dyn Write) -> Self {
        Self { task, out, asked: None, request: None, silent: Vec::new(), rounded: Rounded::default() }
    }

    /// Asks the daemons, once a look.
    fn ask(&mut self, interfaces: &[String]) -> Result<Request, Failure> {
        let seated = Seated::ask(self.task.wish, self.task.config, interfaces)?;
        if self.silent != seated.silent() {
            self.silent = seated.silent().to_vec();
            self.silent.iter().for_each(|silent| log::warn!("{silent}"));
        }
        let request = seated.or_before(self.request.take())?;
        self.request = Some(request.clone());
        Ok(request)
    }
}

impl KeeperHost for Running<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn is_there(&self, interface: &str) -> bool {
        // Where this cannot be looked up, reading the interface names the error.
        Path::new("/sys/class/net").join(interface).try_exists().unwrap_or(true)
    }

    fn drifts(&mut self, interfaces: &[String]) -> Result<Vec<Drift>, Failure> {
        let kernel = Kernel::open()?;
        let request = self.ask(interfaces)?;
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = Steering { rounded: &self.rounded.0, ..kernel.steering(&request) };
        let (host, plan) = steering.plan(interfaces).map_err(|error| self.task.failure(&error))?;
        let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
        Ok(comparison.drifts.into_iter().filter(Drift::is_set_by_apply).collect())
    }

    fn unasked_irqbalance(&mut self) -> Option<u32> {
        match Irqbalance::find(Path::new("/")) {
            Presence::Runs(found) => {
                Some(found.pid()).filter(|pid| self.task.wish.ban_irqbalance && self.asked != Some(*pid))
            }
            Presence::Absent | Presence::Unknown(_) => None,
        }
    }

    fn apply(&mut self, interfaces: &[String]) -> Result<(), Failure> {
        let kernel = Kernel::open()?;
        // The look that found something to set has asked.
        let request = match self.request.clone() {
            Some(request) => request,
            None => self.ask(interfaces)?,
        };
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = Steering { rounded: &self.rounded.0, ..kernel.steering(&request) };
        let journal = Journal::in_folder(&self.task.state_folder);
        let Applied { done, failure } = apply(&steering, interfaces, &journal, self.task, self.out)?;
        report::all_of(failure.err().into_iter().chain(self.rounded.learn(&done)))?;
        if let Presence::Runs(found) = Irqbalance::find(Path::new("/")) {
            self.asked = Some(found.pid());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_notifications_is_one_look_and_a_storm_one_a_second() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut pace = LookSchedule::new(start);
        assert_eq!(pace.due(), at(5000), "nothing is heard");
        for moment in [1500, 1600, 1700] {
            pace.hear(at(moment));
        }
        assert_eq!(pace.due(), at(2000), "three of a burst");
        for moment in (1800..9000).step_by(100) {
            pace.hear(at(moment));
        }
        assert_eq!(pace.due(), at(3500), "without an end");
        let mut pace = LookSchedule::new(start);
        pace.hear(at(10));
        assert_eq!(pace.due(), at(1000), "right after a look");
        let mut pace = LookSchedule::new(start);
        pace.hear(at(4900));
        assert_eq!(pace.due(), at(5000), "a notification never makes it later");
    }

    fn change(setting: Setting, to: &str, now: &str) -> Change {
        let [interface, from, to, now] = ["eth0", "256", to, now].map(str::to_owned);
        let (why, command) = (String::new(), String::new());
        Change { interface, setting, from, to, now: Some(now), why, disruption: None, command }
    }

    #[test]
    fn what_a_driver_rounds_is_remembered_and_what_somebody_moves_is_a_failure() {
        let mut rounded = Rounded::default();
        let interrupt = Setting::Interrupt { number: 40, name: "rx".to_owned() };
        let left = rounded.learn(&[
            change(Setting::Rings, "4096 512", "2048 512"),
            change(Setting::Channels, "0 0 0 4", "0 0 0 4"),
            change(interrupt, "2", "3"),
        ]);
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].message.starts_with("set interrupt 40 rx of eth0 to 2, but the driver took 3"), "{left:?}");
        assert_eq!(rounded.0, [change(Setting::Rings, "4096 512", "2048 512")]);
        let other = change(Setting::Rings, "8192 512", "1024 512");
        assert!(rounded.learn(std::slice::from_ref(&other)).is_empty());
        assert_eq!(rounded.0, [other], "the newest of one setting");
    }
}
