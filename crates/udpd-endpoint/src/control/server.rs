//! The daemon's side of the control socket: what is asked, and how it is answered.
//!
//! Going over to new files and a reload can take as long as a disk takes. So they never run on the thread that answers
//! the others, but one at a time on a thread that lives while there is something to do. A client that asks while one is
//! under way may have moved a file only a moment ago, so it needs a round of its own; all that ask meanwhile share the
//! next one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::seats::Seats;
use super::socket::BoundControlSocket;
use super::take_over::{TakeOverRequest, TakeOverServer};
use crate::service::{AskingClient, ClientQuestion, OwedAnswer, Reply, Service, ServiceLimits, ServiceProtocol};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::ListenerStreams;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};

/// Scripts and people, and the longest request line.
pub(super) const LIMITS: ServiceLimits = ServiceLimits::new(32, 4096);

/// The requests that a daemon knows.
const KNOWN: &str = "stats, streams, seats, reopen, reload, drain, undrain, take-over";

/// How many may wait for the next round: fewer than are served at once, so that the ledger can still be asked for.
const WAITING_MAX: usize = 16;

impl BoundControlSocket {
    /// Answers with what `snapshot`, `streams` and `seats` return, and does `reopen` and `reload` on request, until
    /// stopped. These return when it is done, with a line that says what was done or why not. `take_over` gets what a
    /// process asks for that is to take over, and `drain` what a client asks that has udpd leave a fleet or stay in it.
    pub fn serve(
        self,
        registry: &ThreadRegistry,
        (snapshot, streams): (
            impl Fn() -> Snapshot + Send + 'static,
            impl Fn() -> Vec<ListenerStreams> + Send + 'static,
        ),
        reopen: impl Fn() -> Result<String, String> + Send + Sync + 'static,
        reload: impl Fn() -> Result<String, Failure> + Send + Sync + 'static,
        seats: impl Fn() -> Seats + Send + 'static,
        (take_over, drain): (impl Fn(TakeOverRequest) + Send + Sync + 'static, impl Fn(DrainRequest) + Send + 'static),
    ) -> Result<ControlServer, Failure> {
        let reopen = move || reopen().map_err(|why| Failure::new(ExitCode::Failure, why));
        let requests = Requests {
            snapshot,
            seats,
            streams,
            reopen: SharedRounds::new(registry, "udpd-reopen", reopen),
            reload: SharedRounds::new(registry, "udpd-asked", reload),
            take_over: TakeOverServer::new(registry, take_over),
            drain,
        };
        Ok(ControlServer { service: Service::start("udpd-control", self, registry, requests)? })
    }
}

#[derive(Debug)]
#[must_use = "the socket is served until the server is stopped"]
pub struct ControlServer {
    service: Service<BoundControlSocket>,
}

impl ControlServer {
    /// Removes the socket's file and ends the service. Clients with an owed answer have a second to take it.
    pub fn stop(self) {
        // In this order: a file whose daemon no longer answers would invite the next daemon to replace it meanwhile.
        self.service.listener().remove_file();
        self.service.stop();
    }
}

/// What a client asks of a member of a fleet. It gets an answer, or sees the end of its connection.
#[derive(Debug)]
pub struct DrainRequest {
    pub command: DrainCommand,
    owed: OwedAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainCommand {
    /// Not ready, and receiving on: for this long at most and then the end, or until told otherwise.
    Begin(Option<Duration>),
    /// Ready again.
    End,
}

impl DrainCommand {
    /// As a request has it: `drain`, `drain` with milliseconds, or `undrain`.
    fn read(question: &[u8]) -> Option<Self> {
        match std::str::from_utf8(question).ok()?.split(' ').collect::<Vec<_>>()[..] {
            ["drain"] => Some(Self::Begin(None)),
            ["drain", millis] => Some(Self::Begin(Some(Duration::from_millis(millis.parse().ok()?)))),
            ["undrain"] => Some(Self::End),
            _ => None,
        }
    }

    pub(super) fn question(self) -> String {
        match self {
            Self::Begin(None) => "drain\n".to_owned(),
            Self::Begin(Some(limit)) => format!("drain {}\n", limit.as_millis()),
            Self::End => "undrain\n".to_owned(),
        }
    }
}

impl DrainRequest {
    pub fn answer(self, outcome: Result<String, Failure>) {
        self.owed.send(outcome_line(outcome));
    }
}

struct Requests<S, P, T, D> {
    snapshot: S,
    seats: P,
    streams: T,
    reopen: SharedRounds,
    reload: SharedRounds,
    take_over: TakeOverServer,
    drain: D,
}

impl<S, P, T, D> ServiceProtocol for Requests<S, P, T, D>
where
    S: Fn() -> Snapshot + Send + 'static,
    P: Fn() -> Seats + Send + 'static,
    T: Fn() -> Vec<ListenerStreams> + Send + 'static,
    D: Fn(DrainRequest) + Send + 'static,
{
    fn limits(&self) -> ServiceLimits {
        LIMITS
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    fn reply(&mut self, question: ClientQuestion<'_>, asker: &AskingClient<'_>) -> Reply {
        Reply::Now(match question {
            ClientQuestion::Whole(b"stats") => json(&(self.snapshot)()),
            ClientQuestion::Whole(b"streams") => json(&(self.streams)()),
            ClientQuestion::Whole(b"seats") => json(&(self.seats)()),
            ClientQuestion::Whole(b"reopen") => return self.reopen.request(asker),
            ClientQuestion::Whole(b"reload") => return self.reload.request(asker),
            ClientQuestion::Whole(b"take-over") => return self.take_over.begin(),
            ClientQuestion::Whole(other) => {
                if let Some(command) = DrainCommand::read(other) {
                    (self.drain)(DrainRequest { command, owed: asker.owed_answer() });
                    return Reply::Later;
                }
                let shown: String = String::from_utf8_lossy(other).chars().take(40).collect();
                refusal(&format!("unknown request {shown:?}; known are: {KNOWN}"))
            }
            ClientQuestion::TooLong => {
                refusal(&format!("the request is longer than {} bytes", LIMITS.question_bytes_max))
            }
        })
    }

    fn overdue(&self) -> Vec<u8> {
        let limit_s = LIMITS.waiting.as_secs();
        refusal(&format!(
            "not done after {limit_s} s; the daemon goes on, and its log says what it waits for, usually a disk that \
             does not answer"
        ))
    }
}

fn json(what: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_string(what).map_or_else(|error| refusal(&error.to_string()), line)
}

/// The answer to a request that is not done.
pub(super) fn refusal(reason: &str) -> Vec<u8> {
    line(serde_json::json!({ "error": reason }).to_string())
}

fn line(mut json: String) -> Vec<u8> {
    json.push('\n');
    json.into_bytes()
}

/// Work that is done on request, once for all that have asked before it begins.
struct SharedRounds {
    registry: ThreadRegistry,
    thread: &'static str,
    work: Arc<Work>,
    rounds: Arc<Mutex<Rounds>>,
}

/// Does it; says what was done, or why not.
type Work = dyn Fn() -> Result<String, Failure> + Send + Sync;

#[derive(Debug, Default)]
struct Rounds {
    is_running: bool,
    waiting: Vec<OwedAnswer>,
}

impl SharedRounds {
    /// Does the work on a thread of this name.
    fn new(
        registry: &ThreadRegistry,
        thread: &'static str,
        work: impl Fn() -> Result<String, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { registry: registry.clone(), thread, work: Arc::new(work), rounds: Arc::default() }
    }

    /// Answers when a round is done that has begun after this moment.
    fn request(&self, asker: &AskingClient<'_>) -> Reply {
        let mut rounds = lock(&self.rounds);
        if rounds.waiting.len() >= WAITING_MAX {
            let what = format!("{WAITING_MAX} requests already wait for the one that runs; try again later");
            return Reply::Now(refusal(&what));
        }
        if !rounds.is_running {
            let (own, work, thread) = (Arc::clone(&self.rounds), Arc::clone(&self.work), self.thread);
            // The thread waits for the lock that is held here.
            if let Err(error) = self.registry.spawn(thread, ThreadRole::ShortLived, move || run(&own, &*work)) {
                let cure = "raise the limit on threads (ulimit -u, TasksMax=)";
                return Reply::Now(refusal(&format!("cannot start the thread {thread}: {error}; {cure}")));
            }
            rounds.is_running = true;
        }
        rounds.waiting.push(asker.owed_answer());
        Reply::Later
    }
}

fn run(rounds: &Mutex<Rounds>, work: &Work) {
    loop {
        let waiting = {
            let mut rounds = lock(rounds);
            rounds.is_running = !rounds.waiting.is_empty();
            std::mem::take(&mut rounds.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        let answer = outcome_line(threads::blocking(work));
        waiting.into_iter().for_each(|owed| owed.send(answer.clone()));
    }
}

fn outcome_line(outcome: Result<String, Failure>) -> Vec<u8> {
    line(match outcome {
        Ok(done) => serde_json::json!({ "ok": done }).to_string(),
        Err(failure) => serde_json::json!({ "error": failure.message, "exit_code": failure.code as u8 }).to_string(),
    })
}

fn lock(rounds: &Mutex<Rounds>) -> MutexGuard<'_, Rounds> {
    threads::lock(rounds)
}
