//! Handing off to a new process: what this one does while `udpd run --take-over` of the same user takes over from it,
//! see `control::take_over` of udpd-endpoint.
//!
//! It answers and receives on until the new process is ready. Then it receives no more, delivers what it holds, closes
//! its files, and waits until the new process has opened them. If the new process fails, dies or takes too long, this
//! one makes its pipeline again on the sockets, which it still has open: an update that does not work costs no
//! datagram.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::crash_record::RECORD_NAME;
use super::main_loop::MainLoop;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::{self, DaemonEvent, ThreadRegistry};
use udpd_base::seams::clock;
use udpd_endpoint::control::{NewProcess, NewProcessState, OfferedSockets, TakeOverOffer, TakeOverRequest};
use udpd_engine::config::Config;
use udpd_engine::pipeline::Lane;

/// How long a sink that takes nothing delays the end.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How long the new process may take to open its files, while neither process receives.
const OPENING_LIMIT: Duration = Duration::from_secs(60);

/// How often a request to end this process is looked for meanwhile.
const MOMENT: Duration = Duration::from_millis(20);

/// How long it takes to see that the new process has hung up already.
const A_LOOK: Duration = Duration::from_millis(1);

/// How long a new process that has failed is waited for before this one tries to open its files again, and how long
/// before it tries once more: a process with much memory takes its time to end, and its locks go last.
const CLOSING_LIMITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Takes the requests of new processes, and knows how far a handoff has come.
#[derive(Debug)]
pub(super) struct HandoffServer {
    requests: Receiver<TakeOverRequest>,
    to_requests: Sender<TakeOverRequest>,
    registry: ThreadRegistry,
    /// The inodes of the sockets that were offered last.
    offered: Vec<u64>,
    /// The process that has taken over. The connection closes with the end of this process.
    successor: Option<NewProcess>,
}

impl HandoffServer {
    pub(super) fn new(registry: &ThreadRegistry) -> Self {
        let (to_requests, requests) = unbounded();
        Self { requests, to_requests, registry: registry.clone(), offered: Vec::new(), successor: None }
    }

    /// Passes a request to the main thread.
    pub(super) fn requester(&self) -> impl Fn(TakeOverRequest) + Send + Sync + 'static {
        let (to_requests, registry) = (self.to_requests.clone(), self.registry.clone());
        move |request| {
            // When this process ends the request is lost, and the new process sees the end of the connection.
            let _ = to_requests.send(request);
            registry.report(DaemonEvent::TakeOver);
        }
    }
}

/// The service manager that has started this process, and which of its services it is.
pub(super) fn own_manager() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    Some(format!("{} {}", variable("NOTIFY_SOCKET")?, variable("INVOCATION_ID").unwrap_or_default()))
}

impl MainLoop<'_> {
    pub(super) fn serve_take_overs(mut self) -> Self {
        while let Ok(request) = self.handoff.requests.try_recv() {
            match request {
                // The new process may have gone.
                TakeOverRequest::Offer(answer) => drop(answer.send(self.offer())),
                TakeOverRequest::Leave(new_process, names) => self = self.hand_off_to(new_process, &names),
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
        self.handoff.offered = self.pipeline.socket_inodes();
        let file = self.store.record.duplicate_file().map(|file| (RECORD_NAME.to_owned(), file));
        let offer = TakeOverOffer {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sockets: sockets.len(),
            memory_bytes: self.pipeline.plan().memory().total_bytes() as u64,
            manager: own_manager(),
            metrics_address: self.config.daemon.metrics_address.value,
            record: self.store.record.as_json(&self.pipeline, false),
            has_file: file.is_some(),
        };
        Ok(OfferedSockets { offer, sockets, file })
    }

    /// Receives no more, and leaves the sockets of these names to the new process or goes back to receiving.
    fn hand_off_to(mut self, mut new_process: NewProcess, names: &[String]) -> Self {
        if self.pipeline.socket_inodes() != self.handoff.offered {
            let why = "the sockets have changed meanwhile, by a reload or by an interface that came back; try again";
            let name = new_process.to_string();
            new_process.refuse(why);
            drop(new_process);
            log::warn!("{name} wanted to take over and does not: {why}");
            return self;
        }
        // It may have had to wait for a reload, and have given up.
        if let NewProcessState::Failed(why) = new_process.wait_until_open(A_LOOK) {
            new_process.refuse(&why);
            log::warn!("{new_process} wanted to take over and does not: {why}; nothing has changed here");
            return self;
        }
        log::info!("{new_process} is ready to take over: this process receives no more");
        let survived_before: Vec<bool> = self.pipeline.lanes().iter().map(Lane::socket_survives).collect();
        let survives = |lane: &Lane| names.contains(&lane.socket_name());
        let with_sockets = || self.pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket());
        with_sockets().for_each(|lane| lane.set_socket_survives(survives(lane)));
        let all_survive = with_sockets().all(survives);
        let events = &self.events;
        let is_drained = self.pipeline.suspend(DRAIN_LIMIT, |wait| events.end_is_requested(wait));
        self.store.record.update();
        // A file that a sink still writes is free only when this process has ended, and so is the address of a socket
        // that the new process does not go on with.
        let ends = !all_survive || !is_drained;
        let stopped = new_process.say_stopped(ends, self.store.record.as_json(&self.pipeline, true));
        match stopped.and_then(|()| if ends { Ok(()) } else { self.wait_until_open(&mut new_process) }) {
            Ok(()) => {
                self.events.defer(DaemonEvent::TakenOver(new_process.to_string()));
                self.handoff.successor = Some(new_process);
                self
            }
            Err(why) if ends => {
                self.restore_survival(&survived_before);
                let what = format!("{new_process} was to take over, and {why}; its configuration left no way back");
                self.events.defer(DaemonEvent::Stranded(what));
                self
            }
            Err(why) => self.receive_again(new_process, &why, &survived_before),
        }
    }

    /// No new process goes on with the sockets, so what waits in those that no service manager keeps is to be counted.
    fn restore_survival(&self, survived_before: &[bool]) {
        let lanes = self.pipeline.lanes().iter().zip(survived_before);
        lanes.for_each(|(lane, survives)| lane.set_socket_survives(*survives));
    }

    /// Waits until the new process has opened everything, and lets it receive. When the end of this process is
    /// requested meanwhile, this process ends all the same, and the new one sees that end.
    fn wait_until_open(&self, new_process: &mut NewProcess) -> Result<(), String> {
        let deadline = clock::now() + OPENING_LIMIT;
        loop {
            match threads::blocking(|| new_process.wait_until_open(MOMENT)) {
                NewProcessState::Open => return threads::blocking(|| new_process.say_gone()),
                NewProcessState::Failed(why) => {
                    // One that lives would take the end of the connection for that of this process.
                    new_process.refuse(&why);
                    return Err(why);
                }
                NewProcessState::Preparing if self.events.end_is_requested(Duration::ZERO) => return Ok(()),
                NewProcessState::Preparing if clock::now() < deadline => {}
                NewProcessState::Preparing => {
                    let why = format!("it has not opened its files within {} s", OPENING_LIMIT.as_secs());
                    new_process.refuse(&why);
                    return Err(why);
                }
            }
        }
    }

    /// Makes the pipeline again. What has come meanwhile waits in the sockets.
    fn receive_again(mut self, new_process: NewProcess, why: &str, survived_before: &[bool]) -> Self {
        log::error!("{new_process} was to take over and does not: {why}; this process receives again");
        let mut failed = String::new();
        // The warnings of the file are logged already.
        let config = Arc::new(Config { warnings: Vec::new(), ..Config::clone(&self.config) });
        for limit in CLOSING_LIMITS {
            let deadline = clock::now() + limit;
            while !threads::blocking(|| new_process.wait_for_end(MOMENT))
                && clock::now() < deadline
                && !self.events.end_is_requested(Duration::ZERO)
            {}
            let pending = self.reloader.begin_again(self.pipeline.reload_context(), Arc::clone(&config));
            match self.wait_for(pending) {
                Ok(reloaded) => {
                    let (next, done) = self.put_in_force(reloaded, true);
                    // A reader of this line may ask anew at once.
                    drop(new_process);
                    log::info!("receives again, {done}");
                    return next;
                }
                Err(failure) => failed = failure.message,
            }
        }
        self.restore_survival(survived_before);
        let what = format!("{new_process} was to take over, and {why}; this process cannot receive again: {failed}");
        self.events.defer(DaemonEvent::Stranded(what));
        self
    }
}
