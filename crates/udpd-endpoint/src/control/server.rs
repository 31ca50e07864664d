//! The daemon's side of the control socket: what is asked, and who answers.

use super::answer::{KNOWN, LIMITS, line, refusal};
use super::reopen::Reopener;
use super::seats::Seats;
use super::socket::ControlSocket;
use super::take_over::{Asked, TakeOvers};
use crate::exchange::{Asker, Limits, Protocol, Question, Reply, Service};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::threads::ThreadRegistry;

impl ControlSocket {
    /// Answers with what `snapshot` and `seats` return, and does `reopen` and `reload` on request, until stopped.
    /// These return when it is done, with a line that says what was done or why not. `take_over` hears what a process
    /// asks for that is to take over.
    pub fn serve(
        self,
        registry: &ThreadRegistry,
        snapshot: impl Fn() -> Snapshot + Send + 'static,
        reopen: impl Fn() -> Result<String, String> + Send + Sync + 'static,
        reload: impl Fn() -> Result<String, Failure> + Send + Sync + 'static,
        seats: impl Fn() -> Seats + Send + 'static,
        take_over: impl Fn(Asked) + Send + Sync + 'static,
    ) -> Result<ControlServer, Failure> {
        let reopener = Reopener::new(registry, "udpd-reopen", move || {
            reopen().map_err(|why| Failure::new(ExitCode::Failure, why))
        });
        let reloader = Reopener::new(registry, "udpd-asked", reload);
        let take_overs = TakeOvers::new(registry, take_over);
        let requests = Requests { snapshot, seats, reopener, reloader, take_overs };
        Ok(ControlServer { service: Service::start("udpd-control", self, registry, requests)? })
    }
}

/// A control socket that is being served.
#[derive(Debug)]
#[must_use = "the socket is served until the server is stopped"]
pub struct ControlServer {
    service: Service<ControlSocket>,
}

impl ControlServer {
    /// Removes the socket's file and ends the service. Who is owed an answer has a second to take it.
    pub fn stop(self) {
        // In this order: a file whose daemon no longer answers would invite the next daemon to replace it meanwhile.
        self.service.listener().remove_file();
        self.service.stop();
    }
}

/// What is asked, and who answers.
struct Requests<S, P> {
    snapshot: S,
    seats: P,
    reopener: Reopener,
    reloader: Reopener,
    take_overs: TakeOvers,
}

impl<S, P> Protocol for Requests<S, P>
where
    S: Fn() -> Snapshot + Send + 'static,
    P: Fn() -> Seats + Send + 'static,
{
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    fn reply(&mut self, question: Question<'_>, asker: &Asker<'_>) -> Reply {
        Reply::Now(match question {
            Question::Whole(b"stats") => told(&(self.snapshot)()),
            Question::Whole(b"seats") => told(&(self.seats)()),
            Question::Whole(b"reopen") => return self.reopener.ask(asker),
            Question::Whole(b"reload") => return self.reloader.ask(asker),
            Question::Whole(b"take-over") => return self.take_overs.begin(),
            Question::Whole(other) => {
                let shown: String = String::from_utf8_lossy(other).chars().take(40).collect();
                refusal(&format!("unknown request {shown:?}; known are: {KNOWN}"))
            }
            Question::TooLong => refusal(&format!("the request is longer than {} bytes", LIMITS.question_bytes_max)),
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

fn told(what: &impl serde::Serialize) -> Vec<u8> {
    match serde_json::to_string(what) {
        Ok(json) => line(json),
        Err(error) => refusal(&error.to_string()),
    }
}
