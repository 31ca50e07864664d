//! Leaving the place to another process: what this one does while `udpd run --take-over` of the same user takes over
//! from it, see `endpoint/control/take_over`.
//!
//! It answers and goes on, until the other one is ready. Then it receives no more, delivers what it holds, closes its
//! files, and waits until the other one has opened them. Should that fail, or die, or take too long, this one makes its
//! pipeline again on the sockets, which it still has open: nobody is deaf because of an update that does not work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::departure::{DRAIN_LIMIT, own_manager};
use super::keeping::Housekeeping;
use super::record;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads;
use udpd_base::os::threads::DaemonEvent;
use udpd_endpoint::control::{NewProcess, NewProcessState, OfferedSockets, TakeOverOffer, TakeOverRequest};
use udpd_engine::config::Config;
use udpd_engine::pipeline::Lane;

/// How long the other process may take to open its files and bind its sockets, when nobody receives.
const OPENING_LIMIT: Duration = Duration::from_secs(60);

/// How often somebody who wants this process to end is listened to meanwhile.
const MOMENT: Duration = Duration::from_millis(20);

/// How long it takes to see that somebody has hung up already.
const A_LOOK: Duration = Duration::from_millis(1);

/// How long a process that has failed is waited for before this one tries to open its files again, and how long before
/// it does so once more: a process with much memory takes its time to end, and its locks go last.
const CLOSING_LIMITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

impl Housekeeping<'_> {
    /// Does what those ask for who are to take over.
    pub(super) fn hear_newcomers(mut self) -> Self {
        while let Ok(asked) = self.departure.asked.try_recv() {
            match asked {
                // Who asked may have gone.
                TakeOverRequest::Offer(answer) => drop(answer.send(self.offer())),
                TakeOverRequest::Leave(newcomer, names) => self = self.leave_to(newcomer, &names),
            }
        }
        self
    }

    fn offer(&mut self) -> Result<OfferedSockets, Failure> {
        if let Some(why) = self.pipeline.why_it_cannot_suspend() {
            let message = format!("nothing can wake a receiver without closing its socket: {why}");
            return Err(Failure::new(ExitCode::Failure, message));
        }
        let named = |lane: &Lane| Some((lane.socket_name(), lane.socket()?));
        let sockets: Vec<_> = self.pipeline.lanes().iter().filter_map(named).collect();
        self.departure.offered = self.pipeline.socket_inodes();
        let file = self.store.record().map(|file| (record::NAME.to_owned(), file));
        let offer = TakeOverOffer {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sockets: sockets.len(),
            memory_bytes: self.pipeline.plan().memory().total_bytes() as u64,
            manager: own_manager(),
            metrics_address: self.config.daemon.metrics_address.value,
            record: self.store.last_words(&self.pipeline, false),
            has_file: file.is_some(),
        };
        Ok(OfferedSockets { offer, sockets, file })
    }

    /// Receives no more, and leaves the place to the other process or goes back to it.
    fn leave_to(mut self, mut newcomer: NewProcess, names: &[String]) -> Self {
        if self.pipeline.socket_inodes() != self.departure.offered {
            let why = "the sockets have changed meanwhile, by a reload or by an interface that came back; try again";
            let who = newcomer.to_string();
            newcomer.refuse(why);
            drop(newcomer);
            log::warn!("{who} wanted to take over and does not: {why}");
            return self;
        }
        // It may have had to wait for a reload, and have lost its patience.
        if let NewProcessState::Failed(why) = newcomer.wait_until_open(A_LOOK) {
            log::warn!("{newcomer} wanted to take over and does not: {why}; nothing has changed here");
            return self;
        }
        log::info!("{newcomer} is ready to take over: this process receives no more");
        let kept_before: Vec<bool> = self.pipeline.lanes().iter().map(Lane::socket_survives).collect();
        let goes_on = |lane: &Lane| names.contains(&lane.socket_name());
        let with_sockets = || self.pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket());
        with_sockets().for_each(|lane| lane.set_socket_survives(goes_on(lane)));
        let all_go_on = with_sockets().all(goes_on);
        let inbox = &self.inbox;
        let has_left = self.pipeline.suspend(DRAIN_LIMIT, |wait| inbox.is_told_to_end(wait));
        self.store.write_down();
        // A file that a sink still writes is free when the process has ended, and so is the address of a socket that
        // was not wanted.
        let ends = !all_go_on || !has_left;
        let told = newcomer.say_stopped(ends, self.store.last_words(&self.pipeline, true));
        match told.and_then(|()| if ends { Ok(()) } else { self.wait_until_open(&mut newcomer) }) {
            Ok(()) => {
                self.inbox.put_off(DaemonEvent::TakenOver(newcomer.to_string()));
                self.departure.newcomer = Some(newcomer);
                self
            }
            Err(why) if ends => {
                self.keep_as_before(&kept_before);
                let what = format!("{newcomer} was to take over, and {why}; its configuration left no way back");
                self.inbox.put_off(DaemonEvent::Stranded(what));
                self
            }
            Err(why) => self.go_back(newcomer, &why, &kept_before),
        }
    }

    /// Nobody goes on with the sockets now but whoever did before: what waits in the others is to be counted.
    fn keep_as_before(&self, kept_before: &[bool]) {
        self.pipeline.lanes().iter().zip(kept_before).for_each(|(lane, is_kept)| lane.set_socket_survives(*is_kept));
    }

    /// Waits until the other process has opened everything, and lets it receive. Who wants this one to end meanwhile
    /// leaves its place to the other one as well, which sees the end.
    fn wait_until_open(&self, newcomer: &mut NewProcess) -> Result<(), String> {
        let deadline = Instant::now() + OPENING_LIMIT;
        loop {
            match threads::blocking(|| newcomer.wait_until_open(MOMENT)) {
                NewProcessState::Open => return threads::blocking(|| newcomer.say_gone()),
                NewProcessState::Failed(why) => return Err(why),
                NewProcessState::Preparing if self.inbox.is_told_to_end(Duration::ZERO) => return Ok(()),
                NewProcessState::Preparing if Instant::now() < deadline => {}
                NewProcessState::Preparing => {
                    let why = format!("it has not opened its files and sockets within {} s", OPENING_LIMIT.as_secs());
                    newcomer.refuse(&why);
                    return Err(why);
                }
            }
        }
    }

    /// Receives again. What has come meanwhile waits in the sockets.
    fn go_back(mut self, newcomer: NewProcess, why: &str, kept_before: &[bool]) -> Self {
        log::error!("{newcomer} was to take over and does not: {why}; this process receives again");
        let mut what = String::new();
        // What there was to say of it has been said.
        let config = Arc::new(Config { warnings: Vec::new(), ..Config::clone(&self.config) });
        for limit in CLOSING_LIMITS {
            self.wait_for_end_of(&newcomer, limit);
            let making = self.reloads.begin_again(self.pipeline.reload_context(), Arc::clone(&config));
            match self.wait_for(making) {
                Ok(reread) => {
                    let (next, done) = self.put_in_force(reread, true);
                    // Who reads this line may ask anew at once.
                    drop(newcomer);
                    log::info!("receives again, {done}");
                    return next;
                }
                Err(failure) => what = failure.message,
            }
        }
        self.keep_as_before(kept_before);
        let what = format!("{newcomer} was to take over, and {why}; this process cannot receive again: {what}");
        self.inbox.put_off(DaemonEvent::Stranded(what));
        self
    }

    /// Waits until it has ended, what it had open is closed, or somebody wants the end of this process.
    fn wait_for_end_of(&self, newcomer: &NewProcess, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !threads::blocking(|| newcomer.wait_for_end(MOMENT))
            && Instant::now() < deadline
            && !self.inbox.is_told_to_end(Duration::ZERO)
        {}
    }
}
