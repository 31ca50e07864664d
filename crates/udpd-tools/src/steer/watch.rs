//! `udpd steer apply --watch`: applies the plan and stays, a small process of root that never sees a datagram, and sets
//! again what a card forgets when it comes up, is reset or gets other channels, and what somebody moves.
//!
//! The kernel's notifications make it look at once; it looks every few seconds all the same, because a moved interrupt
//! sends none. A burst of notifications is one look, and what its own changes set off finds nothing to do. What is set
//! again and what is left alone, `keeper` decides.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TrySendError, bounded, never, select};
use log::LevelFilter;
use steer::{LinkEvent, LinkEvents};

use super::keeper::{Host, Keeper};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging;
use udpd_base::logging::LogFormat;
use udpd_base::os::notify::Notifier;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::signals;
use udpd_base::os::signals::Effect;
use udpd_base::os::threads;
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::os::watchdog::Watchdog;

/// How long between two looks without any notification: what sends none is set again within ten seconds.
const LOOK: Duration = Duration::from_secs(5);
/// How long it must be quiet after a notification: a reset of a card makes many.
const SETTLE: Duration = Duration::from_millis(300);
/// But no longer than this after the first.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// How long between two looks whatever is heard.
const GAP: Duration = Duration::from_secs(1);
/// How many notifications may wait; one more is no loss, because a look is due anyway.
const NOTICES: usize = 256;
/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Applies and stays until SIGTERM or SIGINT; the settings stay as they are then.
pub(super) fn execute(mut keeper: Keeper, host: &mut impl Host) -> Result<(), Failure> {
    let (registry, events) = ThreadRegistry::new();
    signals::watch(&registry)?;
    let logger = logging::start(LevelFilter::Info, LogFormat::Text, io::stderr(), &registry)?;
    let outcome = keep(&mut keeper, host, &registry, &events);
    logger.finish(LOG_LIMIT);
    outcome
}

fn keep(
    keeper: &mut Keeper,
    host: &mut impl Host,
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
    let mut pace = Pace::new(Instant::now());
    loop {
        let wait = pace.due().saturating_duration_since(Instant::now());
        let woken = threads::blocking(|| {
            select! {
                recv(events) -> event => Woken::DaemonEvent(event.expect("the registry holds a sender")),
                recv(notices) -> notice => notice.map_or(Woken::Deaf, Woken::Notice),
                default(wait) => Woken::Time,
            }
        });
        match woken {
            Woken::DaemonEvent(DaemonEvent::Signal(number)) => match signals::effect_of(number) {
                Effect::End | Effect::EndForced => {
                    notifier.stopping();
                    log::info!("stopping: {}; the settings stay as they are", signals::name_of(number));
                    return Ok(());
                }
                _ => log::warn!("ignored the signal {}, which means nothing here", signals::name_of(number)),
            },
            Woken::DaemonEvent(DaemonEvent::ThreadPanicked(name) | DaemonEvent::SinkClosed(name)) => {
                let message = format!("thread {name} has panicked, which is a bug of udpd: please report it");
                return Err(Failure::new(ExitCode::Failure, message));
            }
            // It answers nobody.
            Woken::DaemonEvent(
                DaemonEvent::Reload | DaemonEvent::TakeOver | DaemonEvent::TakenOver(_) | DaemonEvent::Stranded(_),
            ) => {}
            Woken::Notice(notice) => {
                let now = Instant::now();
                if keeper.hear(&notice, now) {
                    pace.hear(now);
                }
            }
            Woken::Deaf => notices = never(),
            Woken::Time => {
                // A driver that is busy with its card keeps whoever asks about it waiting.
                threads::blocking(|| look(keeper, host))?;
                pace = Pace::new(Instant::now());
                notifier.status(&keeper.status());
            }
        }
    }
}

/// What has woken the main thread.
enum Woken {
    DaemonEvent(DaemonEvent),
    Notice(LinkEvent),
    /// Nobody listens any more.
    Deaf,
    Time,
}

fn look(keeper: &mut Keeper, host: &mut impl Host) -> Result<(), Failure> {
    for (level, line) in keeper.look(host)? {
        log::log!(level, "{line}");
    }
    Ok(())
}

/// When to look.
#[derive(Debug, Clone, Copy)]
struct Pace {
    looked: Instant,
    /// The first and the last notification since.
    heard: Option<(Instant, Instant)>,
}

impl Pace {
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

/// Starts the thread that listens. Where the kernel lets nobody listen it is said, and looking has to do.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_notifications_is_one_look_and_a_storm_one_a_second() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut pace = Pace::new(start);
        assert_eq!(pace.due(), at(5000), "nothing is heard");
        for moment in [1500, 1600, 1700] {
            pace.hear(at(moment));
        }
        assert_eq!(pace.due(), at(2000), "three of a burst");
        for moment in (1800..9000).step_by(100) {
            pace.hear(at(moment));
        }
        assert_eq!(pace.due(), at(3500), "without an end");
        let mut pace = Pace::new(start);
        pace.hear(at(10));
        assert_eq!(pace.due(), at(1000), "right after a look");
        let mut pace = Pace::new(start);
        pace.hear(at(4900));
        assert_eq!(pace.due(), at(5000), "a notification never makes it later");
    }
}
