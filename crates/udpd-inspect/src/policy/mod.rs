//! Which datagrams a listener drops although they arrived: those of refused sources, those beyond the rate limit of
//! their source, and those with wrong headers of proxies.
//!
//! A policy checks a batch once, between receiving and handing over, on the receiver's thread and in its own memory:
//! nothing is locked, allocated or logged there. What it drops is counted by reason. Sources that exceed the limit are
//! noted in [`Offences`], which the main thread reads once a second and logs.
//!
//! Sources are checked here even where a filter in the kernel has checked them before (`kernel_filter`): the kernel may
//! refuse the filter to udpd, and the filter is exchanged while datagrams wait in the socket.

mod access;
mod limiter;
pub mod lists;
mod offences;
mod ranges;
mod settings;

use std::sync::Arc;
use std::time::Instant;

use mmsg::RecvBatch;
use mmsg::proxy::Flaw;

use udpd_base::capture::headers;
use udpd_base::ledger::counter_list::ListenerDropped;
use udpd_base::seams::clock;

pub use access::{AccessList, Conflict, NetworkOrigin, Networks};
pub use limiter::{RateLimiter, TABLE_BYTES};
pub use offences::{NAMED_MAX, Offence, Offences, Others};
pub use settings::{Access, KernelFilter, Proxies, RATE_LIMIT_MAX, RateLimit, SourceLimit, parse_network};

/// The policy of one lane.
#[derive(Debug)]
pub struct Policy {
    access: Option<Arc<AccessList>>,
    limiter: Option<RateLimiter>,
    started: Instant,
}

impl Policy {
    /// The policy of a lane, or `None` when there is nothing to check. The memory of the limiter is allocated and
    /// touched here: call it on the thread of the lane.
    pub fn new(access: Option<Arc<AccessList>>, limit: Option<(SourceLimit, Arc<Offences>)>) -> Option<Self> {
        if access.is_none() && limit.is_none() {
            return None;
        }
        let limiter = limit.map(|(limit, offences)| RateLimiter::new(limit, offences));
        Some(Self { access, limiter, started: clock::now() })
    }

    /// Discards and counts what is refused. A denied source uses no tokens.
    pub fn apply(&mut self, batch: &mut RecvBatch, dropped: &mut ListenerDropped) {
        let access = self.access.as_deref();
        match &mut self.limiter {
            None => {
                let accepts = |source| access.is_none_or(|access| access.accepts(source));
                dropped.denied += batch.retain(|datagram| accepts(headers::source(datagram).ip())) as u64;
            }
            Some(limiter) => {
                // Once for the batch: all of it was received in one call.
                limiter.set_time(clock::since(self.started));
                batch.retain(|datagram| {
                    let source = headers::source(datagram).ip();
                    if access.is_some_and(|access| !access.accepts(source)) {
                        dropped.denied += 1;
                        return false;
                    }
                    let admitted = limiter.admits(source);
                    dropped.rate_limited += u64::from(!admitted);
                    admitted
                });
                limiter.publish();
            }
        }
    }
}

/// Removes the headers of the PROXY protocol at one lane, where the listener is behind proxies.
///
/// This comes before anything else looks at a datagram, so that every policy, key, path and record is of the true
/// sender. A datagram of a proxy without a readable header is dropped: the proxy is not its sender. A datagram from
/// elsewhere is taken as it came, but dropped if it begins like a header: nothing else begins so.
#[derive(Debug, Clone)]
pub struct Unwrapper {
    trusted: Arc<AccessList>,
}

impl Unwrapper {
    /// `None` where the listener reads no headers. Its lanes share it.
    pub fn new(proxies: &Proxies) -> Option<Self> {
        proxies.protocol.then(|| Self { trusted: Arc::new(AccessList::new(&proxies.from, &[])) })
    }

    /// Removes the headers. Drops and counts datagrams that lack one, and those that must not have one.
    pub fn apply(&self, batch: &mut RecvBatch, dropped: &mut ListenerDropped) {
        batch.unwrap_proxied(|datagram, header| {
            let is_trusted = self.trusted.accepts(headers::source(datagram).ip());
            let counter = match (is_trusted, header) {
                (true, Ok(())) | (false, Err(Flaw::Missing)) => return true,
                (true, Err(Flaw::Missing)) => &mut dropped.proxy_missing,
                (true, Err(Flaw::Malformed)) => &mut dropped.proxy_malformed,
                (false, _) => &mut dropped.proxy_untrusted,
            };
            *counter += 1;
            false
        });
    }
}
