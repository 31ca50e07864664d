//! The threads that send requests and wait for answers, so that a consumer never does.
//!
//! Each thread has a connection of its own, which stays open from one request to the next. It carries a batch until the
//! server has decided about every record: an answer that means "later" and a connection that breaks are followed by a
//! pause that grows, and the same records again.

mod carrier;
pub(super) mod connector;
mod credentials;
pub(super) mod exchange;
pub(super) mod log_lines;
#[cfg(test)]
mod secured_tests;
#[cfg(test)]
#[path = "servers_for_tests.rs"]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod tls_transport;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use ureq::Agent;

use super::HttpSettings;
use super::answer;
use super::request::{ConnectionReport, RequestBatch};
use crate::target::{DestinationTarget, Lookup};
use crate::tcp::peer_stream::TLS_MEMORY_BYTES;
use carrier::{Carrier, Judge, Reporter};
use connector::RequestWatch;
use credentials::Credentials;
use exchange::Exchange;
use log_lines::ServerLog;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::handover::Caller;
use udpd_base::ledger::{ConnectionLedger, PeerLedger};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::seams::waits;

/// The memory of one connection besides its batch.
pub(super) fn memory_bytes(settings: &HttpSettings) -> usize {
    let tls = if settings.speaks_tls() { TLS_MEMORY_BYTES + exchange::BUFFER_BYTES } else { 0 };
    let compression = settings.compress.map_or(0, |method| exchange::recipe(method).memory_bytes());
    // What is sent again of a batch, or in halves, is a second body.
    let again = settings.batch.bytes;
    exchange::BUFFER_BYTES + tls + compression + again + exchange::answer_bytes_max(settings.profile)
}

/// A batch on its way to a thread.
#[derive(Debug)]
struct Job {
    ticket: u64,
    batch: RequestBatch,
}

/// The connections of one consumer.
pub(super) struct HttpConnections {
    jobs: Sender<Job>,
    reports: Receiver<ConnectionReport>,
    /// The next that was waited for.
    next: Option<ConnectionReport>,
    log: Arc<ServerLog>,
    /// Without it nothing is tried again.
    tries_again: Option<Sender<Infallible>>,
    pub(super) peers: Arc<PeerLedger>,
    /// Each with what its thread is told.
    agents: Vec<(Agent, Arc<RequestWatch>)>,
}

impl fmt::Debug for HttpConnections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HttpConnections").field("connections", &self.agents.len()).finish_non_exhaustive()
    }
}

impl HttpConnections {
    /// Starts the threads. None of them has to reach the server for that.
    pub(super) fn start(
        settings: &HttpSettings,
        lookup: Lookup<'_>,
        consumer: usize,
        caller: Caller,
    ) -> Result<Self, Failure> {
        Self::start_judged(settings, lookup, consumer, caller, answer::judge)
    }

    fn start_judged(
        settings: &HttpSettings,
        lookup: Lookup<'_>,
        consumer: usize,
        caller: Caller,
        judge: Judge,
    ) -> Result<Self, Failure> {
        let sink = lookup.sink;
        let wrong = |error: String| Failure::new(ExitCode::Configuration, format!("[sink.{sink}] {error}"));
        let tls = settings.tls().client().map_err(|error| wrong(error.to_string()))?;
        let credentials = Arc::new(Credentials::read(settings).map_err(wrong)?);
        let peer = settings.peer().ok_or_else(|| wrong("url: it is missing".to_owned()))?;
        let target = DestinationTarget::at(peer, lookup).map_err(|error| {
            let what = format!("sink {sink}, the thread that looks up {peer}");
            threads::start_failure(&what, &error)
        })?;
        let (target, log) = (Arc::new(target), Arc::new(ServerLog::new(sink, settings)));
        let (jobs, taken) = bounded(settings.connections);
        let (told, reports) = unbounded();
        let (tries_again, end) = bounded(0);
        let (mut agents, mut seen) = (Vec::new(), Vec::new());
        for connection in 0..settings.connections {
            let watch = Arc::new(RequestWatch::default());
            let exchange = Exchange::new(settings, tls.clone(), Arc::clone(&target), Arc::clone(&watch))
                .map_err(|error| wrong(error.to_string()))?;
            agents.push((exchange.agent().clone(), watch));
            let (own_log, credentials) = (Arc::clone(&log), Arc::clone(&credentials));
            let ledger = Arc::new(ConnectionLedger::new(peer));
            seen.push(Arc::clone(&ledger));
            let reporter = Reporter { told: told.clone(), caller: caller.clone(), ledger };
            let carrier = Carrier::new(settings, exchange, credentials, own_log, (judge, end.clone()), reporter);
            let taken = taken.clone();
            let name = format!("http{consumer}.{connection}-{sink}");
            lookup
                .registry
                .spawn(name.as_str(), ThreadRole::HttpClient, move || carrier.run(&taken))
                .map_err(|error| threads::start_failure(&name, &error))?;
        }
        let (peers, tries_again) = (Arc::new(PeerLedger::new(seen)), Some(tries_again));
        Ok(Self { jobs, reports, next: None, log, tries_again, peers, agents })
    }

    /// Sends a batch; there are never more than connections on the way.
    pub(super) fn send(&mut self, ticket: u64, batch: RequestBatch) {
        // A thread that has panicked ends the daemon.
        let _ = self.jobs.send(Job { ticket, batch });
    }

    /// What a connection tells, if there is something.
    pub(super) fn take_report(&mut self) -> Option<ConnectionReport> {
        self.next.take().or_else(|| self.reports.try_recv().ok())
    }

    /// Whether the server takes nothing for now.
    pub(super) fn is_failing(&self) -> bool {
        self.log.is_failing()
    }

    /// Waits until a connection tells something, at most so long.
    pub(super) fn wait(&mut self, limit: Duration) {
        if self.next.is_none() {
            self.next = threads::blocking(|| waits::recv_timeout(&self.reports, limit)).ok();
        }
    }

    /// What is on the way now is not sent again: each batch ends with the answer to its request, or undecided.
    pub(super) fn stop(&mut self) {
        self.tries_again = None;
    }

    /// Besides that no answer is waited for any more: what is on the way comes back undecided at once.
    pub(super) fn interrupt(&mut self) {
        self.stop();
        for (agent, watch) in self.agents.drain(..) {
            watch.interrupt();
            agent.shutdown();
        }
    }
}

impl Drop for HttpConnections {
    /// The threads end by themselves, as soon as what they wait for has failed.
    fn drop(&mut self) {
        self.interrupt();
    }
}
